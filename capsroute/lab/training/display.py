"""What a person sees of a run: one live line, and a line for every validation."""

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console


class Display:
    """A bar with loss, accuracy, rate and the time left; silent on all processes but the first."""

    def __init__(self, console: "Console", steps: int, done: int, per_epoch: int):
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.console, self.per_epoch, self.epochs = console, per_epoch, steps // per_epoch
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task(self._epoch(done), total=steps, completed=done, numbers="starting")

    def update(self, step: int, *, loss: float, accuracy: float, lr: float) -> None:
        numbers = f"loss {loss:.3f}  accuracy {accuracy:6.1%}  rate {lr:.1e}"
        self.progress.update(self.task, completed=step, description=self._epoch(step), numbers=numbers)

    def validated(self, step: int, *, loss: float, accuracy: float, seconds: float) -> None:
        at = f"epoch {step / self.per_epoch:g}"
        self.console.print(f"{at}: held-out loss {loss:.3f}, accuracy {accuracy:.1%}, after {seconds:.0f} s")

    def _epoch(self, step: int) -> str:
        return f"epoch {min(step // self.per_epoch + 1, self.epochs)}/{self.epochs}"

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
