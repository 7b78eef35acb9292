"""One loop for every network: on a CPU, a GPU, or many, it learns the same, and it can stop and go on anywhere."""

import copy
import dataclasses
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from ..errors import StoppedError, UserError
from . import checkpoint
from .distributed import share_batch_statistics
from .evaluate import deviation, scores_of, summarise
from .guide import Guided
from .machine import Machine, describe
from .regime import Plan, plan_epoch
from .runs import RunFolder
from .step import CapturedStep, PlainStep, Step, why_not_captured
from .task import Source, Task

if TYPE_CHECKING:
    from rich.console import Console

    from .display import Display


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
        with fabric.rank_zero_first(local=True):  # the first makes and caches what the others then read
            self.source = self._source("train")
            self.held_out = task.source("validation", fabric.device)
        torch.manual_seed(self.config.seed)
        self.network = task.network()
        if fabric.world_size > 1:
            share_batch_statistics(self.network)
        guided = Guided(self.network, len(task.names)) if self.config.guide else None
        self.learner = (guided or self.network).to(fabric.device)
        self.obstacle = why_not_captured(fabric, self.source)
        compiled = machine.compiles(fabric.device, self.source.one_size) and not guided
        module = torch.compile(self.learner, dynamic=not self.source.one_size) if compiled else self.learner
        self.wrapped = fabric.setup_module(module)  # pyright: ignore[reportArgumentType]
        self.optimizer = self.config.optimizer(self.learner)

        self.per_epoch = len(self.source) // self.config.batch_size
        if not self.per_epoch:
            raise ValueError(
                f"batch_size: expected at most the {len(self.source)} samples, got {self.config.batch_size}"
            )
        self.steps = self.config.epochs * self.per_epoch
        self.plain = PlainStep(fabric, self.wrapped, self.source, self.config.batch_size, guided, self.config.guide)
        self.step_number, self.seconds, self.filled = 0, 0.0, 0
        self.record = torch.zeros(self.config.log_every, 2, device=fabric.device)  # loss and accuracy of the open row
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
            self.record[: len(record)] = record.to(self.record)
            self.step_number, self.seconds, self.filled = facts["step"], facts["seconds"], len(record)
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

        step: Step = self.plain
        plan, planned = self._plan(self.step_number // self.per_epoch), self.step_number // self.per_epoch
        if self.obstacle is None and self.step_number < self.steps:
            step = CapturedStep(self.plain, plan.batch(0))
        if self.console:
            how = f"step by step ({self.obstacle})" if self.obstacle else "as one captured graph"
            self.console.print(
                f"{self.run.path}: {self.steps - self.step_number:,} steps {how} on {self.fabric.device}"
            )
        display = Display(self.console, self.steps, self.step_number, self.per_epoch) if self.console else None
        saved = began = time.monotonic()
        before, snapshot = self.seconds, self._snapshot()
        with interruptible() as stop, display or nullcontext():
            while self.step_number < self.steps:
                epoch, k = divmod(self.step_number, self.per_epoch)
                if epoch != planned:
                    plan, planned = self._plan(epoch), epoch
                self._advance(step, plan.batch(k))
                self.seconds = before + time.monotonic() - began
                if self.filled == self.config.log_every or k + 1 == self.per_epoch:
                    self._check(snapshot)
                    self._log(display)
                    snapshot = self._snapshot()
                if self._validation_due():
                    self._validate(display)
                asked = self._asked(stop())
                if asked or self.step_number == self.steps or self._save_due(time.monotonic() - saved):
                    self._check(snapshot)
                    self._save()
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

    def _advance(self, step: Step, batch: Plan) -> None:
        self.config.turn_to(self.optimizer, self.step_number, self.steps)
        self.record[self.filled] = step(batch)
        self.optimizer.step()
        self.step_number += 1
        self.filled += 1

    def _plan(self, epoch: int) -> Plan:
        numbers = plan_epoch(
            self.config, len(self.source), seed=self.config.seed, epoch=epoch, n_noise=self.source.n_noise
        )
        return numbers.to(self.fabric.device)

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
        """Close a row of the log: mean and deviation over its batches."""
        rows = self.fabric.all_reduce(self.record[: self.filled].clone(), reduce_op="mean")
        assert isinstance(rows, Tensor)
        loss, accuracy = rows.cpu().unbind(1)
        lr, beta1 = self.config.cycle(self.step_number - 1, self.steps)
        self.filled = 0
        if not self.fabric.is_global_zero:
            return
        row = {"loss": loss.mean().item(), "accuracy": accuracy.mean().item(), "lr": lr}
        spread = {"loss_sd": deviation(loss), "accuracy_sd": deviation(accuracy)}
        self.run.training.add(**self._now(), **row, **spread, beta1=beta1)
        if self.board:
            self.board.log_metrics({f"train/{name}": v for name, v in row.items()}, step=self.step_number)
        if display:
            display.update(self.step_number, **row)

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

    def _now(self) -> dict[str, float]:
        epoch = self.step_number / self.per_epoch
        return {"step": self.step_number, "epoch": round(epoch, 6), "seconds": round(self.seconds, 3)}

    def _save(self) -> None:
        if self.fabric.is_global_zero:
            facts = {"step": self.step_number, "seconds": self.seconds, "config": dataclasses.asdict(self.config)}
            checkpoint.save(self.run.checkpoint, self.learner, self.optimizer, self.record[: self.filled], facts)
        self.fabric.barrier()

    def _snapshot(self) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
        """The state to run steps again from, should one of them fail."""
        weights = {name: t.clone() for name, t in self.learner.state_dict().items()}
        return self.step_number, self.filled, weights, copy.deepcopy(self.optimizer.state_dict())

    def _check(self, snapshot: tuple[int, int, dict[str, Any], dict[str, Any]]) -> None:
        """Stop at a loss that is not finite, with the state just before it and its batch on disk."""
        fine = self.record[: self.filled, 0].isfinite().cpu()
        if fine.all():
            return
        first, filled, weights, state = snapshot
        bad = first + int((~fine[filled:]).int().argmax())
        self.learner.load_state_dict(weights)
        self.optimizer.load_state_dict(state)
        self.step_number, self.filled = first, filled
        while self.step_number < bad:
            epoch, k = divmod(self.step_number, self.per_epoch)
            self._advance(self.plain, self._plan(epoch).batch(k))
        epoch, k = divmod(bad, self.per_epoch)
        batch = self._plan(epoch).batch(k)
        inputs = self.plain.samples(batch)[0]
        facts = {"step": bad, "epoch": epoch, "batch": k, "rows": batch.rows.tolist()}
        facts["weights finite"] = all(bool(p.isfinite().all()) for p in self.network.parameters())
        extra = {f"inputs.{i}": x for i, x in enumerate(inputs)} | {f"plan.{n}": t for n, t in batch._asdict().items()}
        checkpoint.save(self.run.failure, self.learner, self.optimizer, self.record[: self.filled], facts, **extra)
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
