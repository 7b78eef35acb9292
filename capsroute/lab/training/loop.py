"""One loop for every network: on a CPU, a GPU, or many, it learns the same, and it can stop and go on anywhere."""

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from ..errors import StoppedError, UserError
from . import checkpoint
from .auxiliary import Guided
from .distributed import share_batch_statistics
from .environment import Machine, describe
from .evaluate import deviation, scores_of, summarise
from .regime import Plan, plan_epoch
from .runs import RunFolder
from .snapshot import Snapshot
from .step import Gradients, PlainStep, WholeStep, why_not_captured
from .task import Source, Task

if TYPE_CHECKING:
    from rich.console import Console

    from .display import Display


BY_CHANNELS = ("cuda",)
"""Devices whose convolutions want the numbers of a pixel side by side, and else copy weights at every step."""


def by_channels(network: nn.Module) -> None:
    """Lay out weights of convolutions so."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


class NonFiniteLossError(UserError):
    """Training came to a loss that is not a number; the message says where, and where the state is saved."""


def train(
    task: Task,
    run: RunFolder,
    machine: Machine,
    fabric: Fabric,
    *,
    resume: bool = False,
    note: str = "",
    console: "Console | None" = None,
) -> dict[str, Any]:
    """Train to the end and save the final weights; returns the run's record."""
    loop = Loop(task, run, machine, fabric, console)
    loop.start(resume, note)
    loop.go()
    return loop.finish()


class Loop:
    """The state of one run in one process."""

    def __init__(self, task: Task, run: RunFolder, machine: Machine, fabric: Fabric, console: "Console | None"):
        self.task, self.config, self.run, self.machine, self.fabric = task, task.config, run, machine, fabric
        self.console = console if fabric.is_global_zero else None
        if self.config.batch_size % fabric.world_size:
            shares = f"a multiple of the {fabric.world_size} processes"
            raise ValueError(f"batch_size: expected {shares}, got {self.config.batch_size}")
        torch.backends.cudnn.deterministic = True  # a resumed run must continue bit for bit
        # of such convolutions the better heuristic; timing them could choose others in a resumed run
        os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")
        with fabric.rank_zero_first(local=True):  # the first makes and caches what the others then read
            self.source = self._source("train")
            self.held_out = task.source("validation", fabric.device)
        torch.manual_seed(self.config.seed)
        self.network = task.network()
        if fabric.world_size > 1:
            share_batch_statistics(self.network)
        guided = Guided(self.network, len(task.names)) if self.config.guide else None
        self.learner = (guided or self.network).to(fabric.device)
        if fabric.device.type in BY_CHANNELS:
            by_channels(self.learner)
        compiles = machine.compiles(fabric.device, self.source.one_size)
        module = self.learner
        if compiles and not guided:
            module = torch.compile(self.learner, dynamic=not self.source.one_size)
        self.wrapped = fabric.setup_module(module)  # pyright: ignore[reportArgumentType]
        self.optimizer = self.config.optimizer(self.learner)

        self.per_epoch = len(self.source) // self.config.batch_size
        if not self.per_epoch:
            raise ValueError(
                f"batch_size: expected at most the {len(self.source)} samples, got {self.config.batch_size}"
            )
        self.steps = self.config.epochs * self.per_epoch
        self.gradients = Gradients(
            fabric,
            self.wrapped,
            self.source,
            self.config.batch_size,
            guided=guided,
            guide=self.config.guide,
            compiled=compiles and self.source.one_size and self.source.resident,
        )
        self.obstacle = why_not_captured(fabric, self.source, self.learner)
        self.step_number, self.seconds, self.filled = 0, 0.0, 0
        self.record = torch.zeros(self.per_epoch, 2, device=fabric.device)  # loss and accuracy of the epoch's steps
        self.began, self.snapshot = 0.0, None
        self.closed: tuple[dict[str, Any], Tensor] | None = None  # a row of the log: when, and its steps
        self.board: Any = None

    def _source(self, split: str) -> Source:
        source = self.task.source(split, self.fabric.device)
        if source is None or not len(source):
            raise ValueError(f"no samples to {split} on")
        return source

    def start(self, resume: bool, note: str) -> None:
        """Open the run's folder, or continue what it holds."""
        if resume and self.run.checkpoint.exists():
            record, facts = checkpoint.load(self.run.checkpoint, self.learner, self.optimizer)
            self.step_number, self.seconds, self.filled = facts["step"], facts["seconds"], len(record)
            self._open_row().copy_(record)
        self.fabric.barrier()
        if not self.fabric.is_global_zero:
            return
        self.run.path.mkdir(parents=True, exist_ok=True)
        for log in (self.run.training, self.run.validation):
            log.cut(self.step_number)
        if not resume:
            self.run.write_config(self.config)
        facts = describe(self.machine, self.fabric.device, note) | self.task.describe()
        facts |= {"processes": self.fabric.world_size, "samples": len(self.source)}
        facts |= {"parameters": sum(p.numel() for p in self.network.parameters())}
        if resume:
            before = self.run.read_json("run.json")
            facts = before | {"resumed": [*before.get("resumed", []), {"step": self.step_number, **facts}]}
        self.run.write_json("run.json", facts)
        self.board = open_board(self.run, self.step_number, self.console)

    def go(self) -> None:
        """All steps that are left."""
        from .display import Display

        if self.step_number == self.steps:
            return
        step = self._step()
        if self.console:
            how = f"step by step ({self.obstacle})" if self.obstacle else "as one captured graph"
            self.console.print(
                f"{self.run.path}: {self.steps - self.step_number:,} steps {how} on {self.fabric.device}"
            )
        display = Display(self.console, self.steps, self.step_number, self.per_epoch) if self.console else None
        saved = time.monotonic()
        self.began = saved - self.seconds
        self._keep(step)
        with interruptible() as stop, display or nullcontext():
            while self.step_number < self.steps:
                self._advance(step)
                self._log(display)  # while the device computes
                if self.filled == self.config.log_every or self.step_number % self.per_epoch == 0:
                    self._close(step)
                if self._validation_due():
                    self._rows(step)
                    self._log(display)
                    self._validate(display)
                asked = self._asked(stop())
                if asked or self.step_number == self.steps or self._save_due(time.monotonic() - saved):
                    self._rows(step)
                    self._log(display)
                    self._save(step)
                    saved = time.monotonic()
                if asked and self.step_number < self.steps:
                    again = f"go on with: capsroute train --resume {self.run.path}"
                    raise StoppedError(f"stopped and saved after step {self.step_number:,} of {self.steps:,}; {again}")

    def finish(self) -> dict[str, Any]:
        """Final weights, as a network that `from_pretrained` reads."""
        if self.fabric.is_global_zero:
            self.network.save_pretrained(self.run.model)  # pyright: ignore[reportCallIssue]
            facts = self.run.read_json("run.json") | {"steps": self.steps, "seconds": round(self.seconds, 1)}
            if self.fabric.device.type == "cuda":
                facts["peak MiB"] = round(torch.cuda.max_memory_allocated(self.fabric.device) / 2**20)
            self.run.write_json("run.json", facts)
            if self.board:
                self.board.finalize("success")
        self.fabric.barrier()
        return self.run.read_json("run.json")

    def _step(self) -> PlainStep:
        """The whole of a step as a captured graph, or plain calls where there is an obstacle to that."""
        arguments = self.gradients, self.optimizer, self.config, self.steps, self.record
        if self.obstacle is None:
            step = WholeStep(*arguments)
            step.open(self._plan(self.step_number // self.per_epoch), self.step_number)
            try:
                step.capture()
                return step
            except RuntimeError as error:  # one that has nothing to do with capturing comes again
                self.obstacle = f"it cannot be captured: {str(error).splitlines()[0]}"
        return PlainStep(*arguments)

    def _advance(self, step: PlainStep) -> None:
        epoch, k = divmod(self.step_number, self.per_epoch)
        if k == 0 or step.number != self.step_number:
            step.open(self._plan(epoch), self.step_number)
        step()
        self.step_number += 1
        self.filled += 1

    def _plan(self, epoch: int) -> Plan:
        return plan_epoch(
            self.config, len(self.source), seed=self.config.seed, epoch=epoch, n_noise=self.source.n_noise
        )

    def _open_row(self) -> Tensor:
        """Loss and accuracy of the steps since the log's last row, [filled, 2]."""
        end = (self.step_number - 1) % self.per_epoch + 1
        return self.record[end - self.filled : end]

    def _rows(self, step: PlainStep) -> Tensor:
        """The same on the CPU, of all processes, and checked; it waits for the device, so the clock is read here."""
        rows = self._open_row().clone()
        if self.filled:
            rows = self.fabric.all_reduce(rows, reduce_op="mean")
            assert isinstance(rows, Tensor)
        rows = rows.cpu()
        self.seconds = time.monotonic() - self.began
        if not rows[:, 0].isfinite().all():
            self._fail(step, rows)
        return rows

    def _close(self, step: PlainStep) -> None:
        """End a row of the log, to be written while the device is busy again."""
        rows = self._rows(step)
        self.closed, self.filled = (self._now(), rows), 0
        self._keep(step)

    def _asked(self, stop: bool) -> bool:
        """Whether any process was asked to stop; several agree on it where a row ends, for it costs an exchange."""
        if self.fabric.world_size == 1 or self.filled:
            return stop and self.fabric.world_size == 1
        votes = self.fabric.all_reduce(torch.tensor(float(stop), device=self.fabric.device), reduce_op="sum")
        return bool(votes)

    def _save_due(self, since: float) -> bool:
        return self.filled == 0 and self.fabric.broadcast(since) >= self.config.save_every  # the first's clock counts

    def _validation_due(self) -> bool:
        every = self.config.validate_every * self.per_epoch
        passed = self.step_number // every > (self.step_number - 1) // every
        return self.held_out is not None and (passed or self.step_number == self.steps)

    def _log(self, display: "Display | None") -> None:
        """Write the row that was closed, if any: mean and deviation over its batches."""
        if self.closed is None:
            return
        now, rows = self.closed
        self.closed = None
        if not self.fabric.is_global_zero:
            return
        loss, accuracy = rows.unbind(1)
        lr, beta1 = self.config.cycle(now["step"] - 1, self.steps)
        row = {"loss": loss.mean().item(), "accuracy": accuracy.mean().item(), "lr": lr}
        spread = {"loss_sd": deviation(loss), "accuracy_sd": deviation(accuracy)}
        self.run.training.add(**now, **row, **spread, beta1=beta1)
        if self.board:
            self.board.log_metrics({f"train/{name}": v for name, v in row.items()}, step=now["step"])
        if display:
            display.update(now["step"], **row)

    def _validate(self, display: "Display | None") -> None:
        assert self.held_out is not None
        scores = scores_of(self.network, self.held_out, self.fabric)
        row = summarise(scores, self.held_out.target, self.config.batch_size)
        if not self.fabric.is_global_zero:
            return
        self.run.validation.add(**self._now(), **row)
        if self.board:
            self.board.log_metrics({f"validation/{name}": v for name, v in row.items()}, step=self.step_number)
        if display:
            display.validated(self.step_number, loss=row["loss"], accuracy=row["accuracy"], seconds=self.seconds)

    def _now(self) -> dict[str, Any]:
        epoch = self.step_number / self.per_epoch
        return {"step": self.step_number, "epoch": round(epoch, 6), "seconds": round(self.seconds, 3)}

    def _save(self, step: PlainStep) -> None:
        step.settle()
        if self.fabric.is_global_zero:
            facts = {"step": self.step_number, "seconds": self.seconds, "config": dataclasses.asdict(self.config)}
            checkpoint.save(self.run.checkpoint, self.learner, self.optimizer, self._open_row(), facts)
        self.fabric.barrier()

    def _keep(self, step: PlainStep) -> None:
        """Keep the state to run steps again from, should one of them fail."""
        self.kept = self.step_number, self.filled
        if self.snapshot is None:
            self.snapshot = Snapshot(step.state())
        self.snapshot.take()

    def _fail(self, step: PlainStep, rows: Tensor) -> NoReturn:
        """Stop at a loss that is not finite, with the state just before it and its batch on disk."""
        assert self.snapshot is not None
        self.snapshot.restore()
        self.step_number, self.filled = self.kept
        bad = self.step_number + int((~rows[self.filled :, 0].isfinite()).int().argmax())
        step.number = self.step_number
        step.settle()
        plain = PlainStep(self.gradients, self.optimizer, self.config, self.steps, self.record)
        while self.step_number < bad:
            self._advance(plain)
        epoch, k = divmod(bad, self.per_epoch)
        plan, at = self._plan(epoch).to(self.fabric.device), torch.tensor([k], device=self.fabric.device)
        batch = plan.batch(at)
        inputs = self.gradients.samples(plan, at)[0]
        facts = {"step": bad, "epoch": epoch, "batch": k, "rows": batch.rows[0].tolist()}
        facts["weights finite"] = all(bool(p.isfinite().all()) for p in self.network.parameters())
        extra = {f"inputs.{i}": x for i, x in enumerate(inputs)} | {f"plan.{n}": t for n, t in batch._asdict().items()}
        checkpoint.save(self.run.failure, self.learner, self.optimizer, self._open_row(), facts, **extra)
        raise NonFiniteLossError(
            f"the loss of step {bad:,} (epoch {epoch + 1}, batch {k + 1}) is not finite; the state before it and "
            f"the batch are in {self.run.failure}. A lower lr_max may help."
        )


def open_board(run: RunFolder, step: int, console: "Console | None") -> Any:
    """TensorBoard's log, cut back to the step; none where TensorBoard is missing."""
    try:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(run.path, name="tensorboard", version="", purge_step=step + 1 if step else None)
    except ModuleNotFoundError:
        if console:
            console.print("no TensorBoard log: pip install tensorboard to have one")
        return None


@contextmanager
def interruptible() -> Iterator[Any]:
    """Yields whether Ctrl-C or a termination was asked for; a second Ctrl-C does not wait."""
    asked = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        former = {number: signal.signal(number, remember) for number in numbers}
    except ValueError:  # not the main thread: no signals to handle there
        former = {}
    try:
        yield lambda: asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
