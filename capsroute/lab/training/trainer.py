"""The training loop: the same for every network, on CPU or GPU, in one process or several, resumable at any step."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers.tensorboard import TensorBoardLogger
from torch import Tensor, nn

from ..data.published import file_digest
from ..errors import StoppedError, TerminatedError, UserError
from ..progress import progress_bar
from .environment import Environment, describe_environment
from .evaluate import compute_scores, standard_deviation, summarise_scores
from .runs import Log, RunFolder, read_checkpoint, save_checkpoint
from .step import TrainingStep, WithAuxiliaryReadouts, copy_tensors, find_capture_obstacle
from .task import Task

if TYPE_CHECKING:
    from rich.console import Console


class NonFiniteLossError(UserError):
    """Report a loss that is not finite: which step, and the file with the state before it."""


class Trainer:
    """One run in one process.

    Args:
        task: Network and data.
        run: Folder to write to.
        environment: Devices and precision, for the record.
        fabric: The same, launched.
        console: Where to show progress.
    """

    def __init__(
        self, task: Task, run: RunFolder, environment: Environment, fabric: Fabric, console: "Console | None" = None
    ):
        self.task, self.config, self.run, self.environment, self.fabric = task, task.config, run, environment, fabric
        self.console = console if fabric.is_global_zero else None
        batch_size = self.config.batch_size
        if batch_size % fabric.world_size:
            processes = f"a multiple of the {fabric.world_size} processes"
            raise ValueError(f"batch_size: expected {processes}, got {batch_size}")
        torch.backends.cudnn.deterministic = True  # a resumed run must continue bit for bit
        # the better heuristic for deterministic convolutions; benchmarking could choose others in a resumed run
        os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")
        with fabric.rank_zero_first(local=True):  # the first process fills caches that the others read
            source = task.source("train", fabric.device)
            self.held_out = task.source("validation", fabric.device)
        if source is None or len(source) < batch_size:
            raise ValueError(f"batch_size: expected at most the {len(source or ())} samples, got {batch_size}")
        torch.manual_seed(self.config.seed)
        self.network = task.network()
        if fabric.world_size > 1:
            synchronise_batch_norm(self.network, fabric)
        auxiliary = WithAuxiliaryReadouts(self.network, len(task.names)) if self.config.auxiliary_weight else None
        self.model = (auxiliary or self.network).to(fabric.device)
        on_gpu = fabric.device.type == "cuda"
        for layer in self.model.modules() if on_gpu else ():
            if isinstance(layer, nn.Conv2d):  # in the order CUDA wants, or weights are copied at every step
                layer.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        # every new shape of a batch would be compiled again
        compiles = on_gpu and source.fixed_size if environment.compile is None else environment.compile
        module: Any = self.model
        if on_gpu:  # as if no run had been in this process before
            torch.cuda.reset_peak_memory_stats(fabric.device)
            torch.compiler.reset()  # which compiles a function a limited number of times, then no more
        if compiles and not auxiliary:
            module = torch.compile(self.model, dynamic=not source.fixed_size)
        wrapped = fabric.setup_module(module)
        compiles_step = compiles and source.fixed_size and source.on_device
        self.step = TrainingStep(fabric, wrapped, source, self.config, auxiliary=auxiliary, compiled=compiles_step)
        self.obstacle = find_capture_obstacle(fabric, source) if environment.capture else "capture=False"
        self.steps, self.per_epoch = self.step.steps, self.step.per_epoch
        self.row_start = 0  # first step of the log's open row
        self.seconds, self.start_time = 0.0, 0.0
        self.snapshot: tuple[int, list[Tensor]] | None = None  # step and state at the end of the last row
        self.tensorboard: Any = None

    def train(
        self, *, resume: bool = False, note: str = "", on_step: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        """Train to the end, save the final weights, and return the run's record.

        Args:
            resume: Continue from the folder's checkpoint.
            note: A remark for the record.
            on_step: Called after each step with the number of steps done.
        """
        with self._lock_folder(new=not resume):
            if resume and self.run.checkpoint.exists():
                self._load_checkpoint()
            self.fabric.barrier()
            if self.fabric.is_global_zero:
                self._open_folder(resume, note)
            if self.step.number < self.steps:
                self._run_steps(on_step)
            if self.config.average:
                self.step.load_average()
            if self.fabric.is_global_zero:
                self._save_network()
            self.fabric.barrier()
        return self.run.read_record()

    @contextmanager
    def _lock_folder(self, *, new: bool) -> Iterator[None]:
        """Lock the run's folder, in the first process; what keeps it from that, all processes raise."""
        with ExitStack() as stack:
            problem = ""
            if self.fabric.is_global_zero:
                try:
                    stack.enter_context(self.run.lock())
                    if new:
                        self.run.check_new()
                except (UserError, OSError) as error:
                    problem = str(error)
            if problem := self.fabric.broadcast(problem):
                raise UserError(problem)
            yield

    def _open_folder(self, resume: bool, note: str) -> None:
        """Write settings and record, and cut the logs back to the step that comes next."""
        for log in (self.run.training, self.run.validation):
            log.truncate(self.step.number)
        if not resume:
            self.run.write_json("config.json", dataclasses.asdict(self.config))
        facts = describe_environment(self.environment, self.fabric.device, note) | self.task.describe()
        facts |= {"processes": self.fabric.world_size, "samples": len(self.step.source)}
        facts |= {"parameters": sum(p.numel() for p in self.network.parameters())}
        if before := self.run.read_record():
            facts = before | {"resumed": [*before.get("resumed", []), {"step": self.step.number, **facts}]}
        self.run.write_json("run.json", facts)
        try:
            purge_step = self.step.number + 1 if self.step.number else None
            self.tensorboard = TensorBoardLogger(self.run.path, name="tensorboard", version="", purge_step=purge_step)
        except ModuleNotFoundError:
            if self.console:
                self.console.print("no TensorBoard log: pip install tensorboard to have one")

    def _run_steps(self, on_step: Callable[[int], None] | None) -> None:
        """Run all remaining steps, with logs, validation and checkpoints."""
        self.prepare()
        if self.console:
            how = f"step by step ({self.obstacle})" if self.obstacle else "as one CUDA graph each"
            count = f"{self.steps - self.step.number:,} steps"
            self.console.print(f"{self.run.path}: {count} {how} on {self.fabric.device}")
        saved = time.monotonic()
        self.start_time = saved - self.seconds
        show = self.console is not None
        bar = progress_bar("starting", self.steps, completed=self.step.number, show=show, console=self.console)
        with handle_interrupts() as signals, bar as advance:
            while self.step.number < self.steps:
                self.step()
                number = self.step.number
                if on_step:
                    on_step(number)
                row_ends = number - self.row_start == self.config.log_every or number % self.per_epoch == 0
                if row_ends:
                    self._end_row(advance)
                self._validate_if_due()
                stopping = self._agree_to_stop(bool(signals), row_ends)
                # by the clock of rank 0
                due = row_ends and self.fabric.broadcast(time.monotonic() - saved) >= self.config.save_every
                if stopping or due or number == self.steps:
                    self._save_checkpoint()
                    saved = time.monotonic()
                if stopping and number < self.steps:
                    at = f"step {number:,} of {self.steps:,}"
                    resume = f"go on with: capsroute train --resume {self.run.path}"
                    raise StoppedError(f"stopped and saved after {at}; {resume}", next(iter(signals), signal.SIGINT))

    def prepare(self) -> None:
        """Capture the step as a CUDA graph unless there is an obstacle, and keep the state before the first step."""
        self.step.seek(self.step.number)
        if self.obstacle is None:
            try:
                self.step.capture()
            except RuntimeError as error:  # any other failure comes again without the capture
                self.obstacle = f"it cannot be captured: {str(error).splitlines()[0]}"
        self.snapshot = self.step.number, [t.detach().clone() for t in self.step.state()]

    def _save_network(self) -> None:
        """Save the final weights for `from_pretrained`, and complete the record."""
        for abandoned in self.run.model.glob("*.tmp"):  # by a process that was killed
            abandoned.unlink()
        self.network.save_pretrained(self.run.model)  # pyright: ignore[reportCallIssue]
        facts = self.run.read_record() | {"steps": self.steps, "seconds": round(self.seconds, 1)}
        facts["weights"] = file_digest(self.run.weights, "sha256")
        if self.fabric.device.type == "cuda":
            facts["peak MiB"] = round(torch.cuda.max_memory_allocated(self.fabric.device) / 2**20)
        self.run.write_json("run.json", facts)
        if self.tensorboard:
            self.tensorboard.finalize("success")

    def _open_row(self) -> Tensor:
        """Return loss and accuracy of the steps since the log's last row, [steps, 2] on the device."""
        begin = self.row_start % self.per_epoch
        return self.step.record[begin : begin + self.step.number - self.row_start]

    def _read_open_row(self) -> Tensor:
        """Return the same on the CPU, averaged over processes; waits for the device, so the clock is read here."""
        rows = self.fabric.all_reduce(self._open_row().clone(), reduce_op="mean")
        assert isinstance(rows, Tensor)
        rows = rows.cpu()
        self.seconds = time.monotonic() - self.start_time
        if not rows[:, 0].isfinite().all():
            self._stop_at_non_finite_loss(rows)
        return rows

    def _end_row(self, advance: Callable[..., None]) -> None:
        """Write the log's row, means and deviations over its batches, and keep the state for repeating later steps."""
        assert self.snapshot is not None
        rows = self._read_open_row()
        self.row_start = self.step.number
        self.snapshot = self.step.number, self.snapshot[1]
        copy_tensors(self.step.state(), self.snapshot[1])
        if not self.fabric.is_global_zero:
            return
        loss, accuracy = rows.unbind(1)
        lr, beta1 = self.config.schedule(self.step.number - 1, self.steps)
        row = {"loss": loss.mean().item(), "accuracy": accuracy.mean().item(), "lr": lr, "beta1": beta1}
        spread = {"loss_sd": standard_deviation(loss), "accuracy_sd": standard_deviation(accuracy)}
        self._log("train", self.run.training, row | spread)
        epoch = f"epoch {-(-self.step.number // self.per_epoch)}/{self.config.epochs}"
        advance(len(rows), f"{epoch}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.1%}  lr {lr:.1e}")

    def _validate_if_due(self) -> None:
        every, step = self.config.validate_every * self.per_epoch, self.step.number
        if self.held_out is None or (step // every == (step - 1) // every and step < self.steps):
            return
        scores = compute_scores(self.network, self.held_out, self.fabric)
        row = summarise_scores(scores, self.held_out.target, self.config.batch_size)
        if self.fabric.is_global_zero:
            self._log("validation", self.run.validation, row)
        if self.console:
            epoch = f"epoch {self.step.number / self.per_epoch:g}"
            numbers = f"held-out loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}"
            self.console.print(f"{epoch}: {numbers}, after {self.seconds:.0f} s")

    def _log(self, split: str, log: Log, row: dict[str, float]) -> None:
        """Add a row to a log and to TensorBoard."""
        step, epoch = self.step.number, round(self.step.number / self.per_epoch, 6)
        log.add(step=step, epoch=epoch, seconds=round(self.seconds, 3), **row)
        if self.tensorboard:
            self.tensorboard.log_metrics({f"{split}/{name}": value for name, value in row.items()}, step)

    def _agree_to_stop(self, interrupted: bool, row_ends: bool) -> bool:
        """Return whether to stop; several processes exchange votes at the end of a row."""
        if self.fabric.world_size == 1 or not row_ends:
            return interrupted and self.fabric.world_size == 1
        vote = torch.tensor(float(interrupted), device=self.fabric.device)
        return bool(self.fabric.all_reduce(vote, reduce_op="sum"))

    def _state(self) -> dict[str, Tensor]:
        """Return all that learning changes, in the memory where it is used."""
        optimizer = {f"optimizer.{name}": t for name, t in self.step.optimizer.state().items()}
        return {f"network.{name}": t for name, t in self.model.state_dict().items()} | optimizer

    def _save_checkpoint(self) -> None:
        self._read_open_row()  # refuses a loss that is not finite
        if self.fabric.is_global_zero:
            facts = {"step": self.step.number, "seconds": self.seconds, "config": dataclasses.asdict(self.config)}
            save_checkpoint(self.run.checkpoint, self._state() | {"record": self._open_row()}, facts)
        self.fabric.barrier()

    def _load_checkpoint(self) -> None:
        tensors, facts = read_checkpoint(self.run.checkpoint)
        config, saved = json.loads(json.dumps(dataclasses.asdict(self.config))), facts["config"]
        edited = [
            f"{name} is {config.get(name)!r}, was {saved.get(name)!r}"
            for name in sorted({*config, *saved})
            if config.get(name) != saved.get(name)
        ]
        if edited:
            advice = "a run goes on with the settings it began with: put them back, or start another"
            raise UserError(f"{self.run.path / 'config.json'}: {'; '.join(edited)}; {advice}")
        state = self._state()
        copy_tensors([tensors[name] for name in state], state.values())
        self.step.number, self.seconds = facts["step"], facts["seconds"]
        self.row_start = self.step.number - len(tensors["record"])
        self._open_row().copy_(tensors["record"])

    def _stop_at_non_finite_loss(self, rows: Tensor) -> NoReturn:
        """Repeat the steps before the bad one, save their state and the bad batch, and raise the error."""
        assert self.snapshot is not None
        start, snapshot = self.snapshot
        copy_tensors(snapshot, self.step.state())
        bad = self.row_start + int((~rows[:, 0].isfinite()).int().argmax())
        self.step.seek(start)
        while self.step.number < bad:
            self.step()
        self.step.seek(bad)
        epoch, k = divmod(bad, self.per_epoch)
        batch = self.step.planned_batch()
        facts = {"step": bad, "epoch": epoch, "batch": k, "rows": batch.rows[0].tolist()}
        facts["weights finite"] = all(bool(p.isfinite().all()) for p in self.network.parameters())
        extra = {f"inputs.{i}": x for i, x in enumerate(self.step.fetch_batch()[0])} | {"record": self._open_row()}
        extra |= {f"plan.{name}": t for name, t in batch._asdict().items()}
        save_checkpoint(self.run.failure, self._state() | extra, facts)
        raise NonFiniteLossError(
            f"the loss of step {bad:,} (epoch {epoch + 1}, batch {k + 1}) is not finite; the state before it and "
            f"the batch are in {self.run.failure}. A lower lr_max may help."
        )


def synchronise_batch_norm(network: nn.Module, fabric: Fabric) -> None:
    """Make batch normalisation use the batches of all processes: their number changes nothing that is learned."""

    def gather(module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
        if not module.training:
            return None
        batches: Any = fabric.all_gather(inputs[0], sync_grads=True)  # [processes, b, ...]
        return batches.flatten(0, 1)

    def keep_share(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output.chunk(fabric.world_size)[fabric.global_rank] if module.training else output

    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            # collectives cannot be compiled
            module.register_forward_pre_hook(torch.compiler.disable(gather))  # pyright: ignore[reportArgumentType]
            module.register_forward_hook(keep_share)


@contextmanager
def handle_interrupts() -> Iterator[list[int]]:
    """Yield the list of signals, Ctrl-C or SIGTERM, that have come; a second one stops at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt
        received.append(number)

    in_main = threading.current_thread() is threading.main_thread()  # others receive no signals
    former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM) if in_main}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
