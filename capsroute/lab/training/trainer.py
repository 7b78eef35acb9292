"""The training loop: the same for every network, on CPU or GPU, in one process or several, resumable at any step."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from ..errors import StoppedError, UserError
from ..progress import Advance, progress_bar
from .distributed import synchronise_batch_norm
from .environment import Environment, describe_environment
from .evaluate import compute_scores, standard_deviation, summarise_scores
from .runs import RunFolder, read_checkpoint, save_checkpoint
from .step import Snapshot, TrainingStep, WithAuxiliaryReadouts, find_capture_obstacle
from .task import Task

if TYPE_CHECKING:
    from rich.console import Console


class NonFiniteLossError(UserError):
    """Report a loss that is not finite: which step, and the file with the state before it."""


def train(
    task: Task,
    run: RunFolder,
    environment: Environment,
    fabric: Fabric,
    *,
    resume: bool = False,
    note: str = "",
    console: "Console | None" = None,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train to the end, save the final weights, and return the run's record.

    Args:
        task: Network and data.
        run: Folder to write to.
        environment: Devices and precision, for the record.
        fabric: The same, launched.
        resume: Continue from the folder's checkpoint.
        note: A remark for the record.
        console: Where to show progress.
        on_step: Called after each step with the number of steps done.
    """
    trainer = Trainer(task, run, environment, fabric, console)
    trainer.start(resume, note)
    trainer.run_steps(on_step)
    return trainer.finish()


class Trainer:
    """The state of one run in one process."""

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
            synchronise_batch_norm(self.network)
        auxiliary = WithAuxiliaryReadouts(self.network, len(task.names)) if self.config.auxiliary_weight else None
        self.model = (auxiliary or self.network).to(fabric.device)
        if fabric.device.type == "cuda":
            use_channels_last(self.model)
        compiles = environment.uses_compile(fabric.device, source.fixed_size)
        module: Any = self.model
        if compiles and not auxiliary:
            module = torch.compile(self.model, dynamic=not source.fixed_size)
        wrapped = fabric.setup_module(module)
        compiles_step = compiles and source.fixed_size and source.on_device
        self.step = TrainingStep(fabric, wrapped, source, self.config, auxiliary=auxiliary, compiled=compiles_step)
        self.obstacle = find_capture_obstacle(fabric, source) if environment.capture else "capture=False"
        self.steps, self.per_epoch = self.step.steps, self.step.per_epoch
        self.row_start = 0  # first step of the log's open row
        self.seconds, self.start_time = 0.0, 0.0
        self.snapshot: tuple[int, Snapshot] | None = None  # step and state at the end of the last row
        self.tensorboard: Any = None

    def start(self, resume: bool, note: str) -> None:
        """Open the run's folder, or restore the state of its checkpoint."""
        if resume and self.run.checkpoint.exists():
            self._load_checkpoint()
        self.fabric.barrier()
        if not self.fabric.is_global_zero:
            return
        self.run.path.mkdir(parents=True, exist_ok=True)
        for log in (self.run.training, self.run.validation):
            log.truncate(self.step.number)
        if not resume:
            self.run.write_json("config.json", dataclasses.asdict(self.config))
        facts = describe_environment(self.environment, self.fabric.device, note) | self.task.describe()
        facts |= {"processes": self.fabric.world_size, "samples": len(self.step.source)}
        facts |= {"parameters": sum(p.numel() for p in self.network.parameters())}
        if resume:
            before = self.run.read_json("run.json")
            facts = before | {"resumed": [*before.get("resumed", []), {"step": self.step.number, **facts}]}
        self.run.write_json("run.json", facts)
        self.tensorboard = open_tensorboard(self.run, self.step.number, self.console)

    def run_steps(self, on_step: Callable[[int], None] | None = None) -> None:
        """Run all remaining steps, with logs, validation and checkpoints."""
        if self.step.number == self.steps:
            return
        self.prepare()
        if self.console:
            how = f"step by step ({self.obstacle})" if self.obstacle else "as one CUDA graph each"
            count = f"{self.steps - self.step.number:,} steps"
            self.console.print(f"{self.run.path}: {count} {how} on {self.fabric.device}")
        saved = time.monotonic()
        self.start_time = saved - self.seconds
        show = self.console is not None
        bar = progress_bar("starting", self.steps, completed=self.step.number, show=show, console=self.console)
        with handle_interrupts() as interrupted, bar as advance:
            while self.step.number < self.steps:
                self.step()
                if on_step:
                    on_step(self.step.number)
                row_length = self.step.number - self.row_start
                if row_length == self.config.log_every or self.step.number % self.per_epoch == 0:
                    self._end_row(advance)
                if self._validation_due():
                    self._validate()
                stopping = self._agree_to_stop(interrupted())
                if stopping or self.step.number == self.steps or self._checkpoint_due(time.monotonic() - saved):
                    self._save_checkpoint()
                    saved = time.monotonic()
                if stopping and self.step.number < self.steps:
                    at = f"step {self.step.number:,} of {self.steps:,}"
                    resume = f"go on with: capsroute train --resume {self.run.path}"
                    raise StoppedError(f"stopped and saved after {at}; {resume}")

    def prepare(self) -> None:
        """Capture the step as a CUDA graph unless there is an obstacle, and keep the state before the first step."""
        self.step.seek(self.step.number)
        if self.obstacle is None:
            try:
                self.step.capture()
            except RuntimeError as error:  # any other failure comes again without the capture
                self.obstacle = f"it cannot be captured: {str(error).splitlines()[0]}"
        self.snapshot = self.step.number, Snapshot(self.step.state())

    def finish(self) -> dict[str, Any]:
        """Save the final weights for `from_pretrained`, and return the run's record."""
        if self.fabric.is_global_zero:
            self.network.save_pretrained(self.run.model)  # pyright: ignore[reportCallIssue]
            facts = self.run.read_json("run.json") | {"steps": self.steps, "seconds": round(self.seconds, 1)}
            if self.fabric.device.type == "cuda":
                facts["peak MiB"] = round(torch.cuda.max_memory_allocated(self.fabric.device) / 2**20)
            self.run.write_json("run.json", facts)
            if self.tensorboard:
                self.tensorboard.finalize("success")
        self.fabric.barrier()
        return self.run.read_json("run.json")

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

    def _end_row(self, advance: Advance) -> None:
        """Write the log's row, means and deviations over its batches, and keep the state for repeating later steps."""
        assert self.snapshot is not None
        rows = self._read_open_row()
        self.row_start = self.step.number
        self.snapshot = self.step.number, self.snapshot[1]
        self.snapshot[1].update()
        if not self.fabric.is_global_zero:
            return
        loss, accuracy = rows.unbind(1)
        lr, beta1 = self.config.schedule(self.step.number - 1, self.steps)
        row = {"loss": loss.mean().item(), "accuracy": accuracy.mean().item(), "lr": lr}
        spread = {"loss_sd": standard_deviation(loss), "accuracy_sd": standard_deviation(accuracy)}
        self.run.training.add(**self._time(), **row, **spread, beta1=beta1)
        self._log_to_tensorboard("train", row)
        epoch = f"epoch {-(-self.step.number // self.per_epoch)}/{self.config.epochs}"
        advance(len(rows), f"{epoch}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.1%}  lr {lr:.1e}")

    def _validate(self) -> None:
        assert self.held_out is not None
        scores = compute_scores(self.network, self.held_out, self.fabric)
        row = summarise_scores(scores, self.held_out.target, self.config.batch_size)
        if not self.fabric.is_global_zero:
            return
        self.run.validation.add(**self._time(), **row)
        self._log_to_tensorboard("validation", row)
        if self.console:
            epoch = f"epoch {self.step.number / self.per_epoch:g}"
            numbers = f"held-out loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}"
            self.console.print(f"{epoch}: {numbers}, after {self.seconds:.0f} s")

    def _log_to_tensorboard(self, split: str, row: dict[str, float]) -> None:
        if self.tensorboard:
            values = {f"{split}/{name}": value for name, value in row.items()}
            self.tensorboard.log_metrics(values, step=self.step.number)

    def _time(self) -> dict[str, Any]:
        epoch = self.step.number / self.per_epoch
        return {"step": self.step.number, "epoch": round(epoch, 6), "seconds": round(self.seconds, 3)}

    def _validation_due(self) -> bool:
        every, step = self.config.validate_every * self.per_epoch, self.step.number
        return self.held_out is not None and (step // every > (step - 1) // every or step == self.steps)

    def _agree_to_stop(self, interrupted: bool) -> bool:
        """Return whether to stop; several processes exchange votes at the end of a row."""
        if self.fabric.world_size == 1:
            return interrupted
        if self.row_start != self.step.number:
            return False
        votes = self.fabric.all_reduce(torch.tensor(float(interrupted), device=self.fabric.device), reduce_op="sum")
        return bool(votes)

    def _checkpoint_due(self, since: float) -> bool:
        ended_row = self.row_start == self.step.number
        return ended_row and self.fabric.broadcast(since) >= self.config.save_every  # by the clock of rank 0

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
        for name, t in self._state().items():
            t.copy_(tensors[name])
        self.step.number, self.seconds = facts["step"], facts["seconds"]
        self.row_start = self.step.number - len(tensors["record"])
        self._open_row().copy_(tensors["record"])

    def _stop_at_non_finite_loss(self, rows: Tensor) -> NoReturn:
        """Repeat the steps before the bad one, save their state and the bad batch, and raise the error."""
        assert self.snapshot is not None
        start, snapshot = self.snapshot
        snapshot.restore()
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


def use_channels_last(network: nn.Module) -> None:
    """Store convolution weights as CUDA's convolutions want them, or they are copied at every step."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def open_tensorboard(run: RunFolder, step: int, console: "Console | None") -> Any:
    """Return TensorBoard's log, cut back to a step, or None if TensorBoard is not installed."""
    try:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(run.path, name="tensorboard", version="", purge_step=step + 1 if step else None)
    except ModuleNotFoundError:
        if console:
            console.print("no TensorBoard log: pip install tensorboard to have one")
        return None


@contextmanager
def handle_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM has come; a second one stops at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    try:
        former = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread receives signals
        former = {}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
