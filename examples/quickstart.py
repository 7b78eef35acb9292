"""Learns to tell three figures made of arrows, by routing, and shows where each arrow was routed.

In a star the arrows point away from its centre, in a ring they run around it, in a flock they all point the same way.
Figures are turned and moved at random, some of their arrows are missing, and stray arrows lie about. An arrow is a
capsule of shape 2x3: its heading, its normal and its position, each a column of x and y. A vote is a linear map of
it, for instance position less heading, on which all the arrows of a star agree: it is the star's centre.
"""

import math

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from capsroute import Capsules, Routing

FIGURES = ("star", "ring", "flock")
N_ARROWS, N_STRAY = 6, 3


class Figures(nn.Module):
    """Routes any number of arrows to eight detectors, and those to the figures."""

    def __init__(self, n_detectors: int = 8):
        super().__init__()
        self.detect = Routing(d_cov=2, d_inp=3, d_out=2, n_out=n_detectors)
        self.classify = Routing(d_cov=2, d_inp=2, d_out=2, n_inp=n_detectors, n_out=len(FIGURES))

    def forward(self, arrows: Tensor, seen: Tensor) -> Capsules:
        detected = self.detect(torch.zeros(seen.shape), arrows, mask=seen)
        return self.classify(detected.a, detected.mu)


def along(angle: Tensor) -> Tensor:
    """Unit vectors."""
    return torch.stack([angle.cos(), angle.sin()], -1)


def sample(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Arrows `[n, 9, 2, 3]`, stray ones last, which of them are seen `[n, 9]`, and the figures they make `[n]`."""

    def angles(*shape: int) -> Tensor:
        return 2 * math.pi * torch.rand(shape, generator=generator)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    figure = torch.randint(len(FIGURES), (n,), generator=generator)
    stray = torch.arange(N_ARROWS + N_STRAY) >= N_ARROWS
    around = angles(n, len(stray))  # where on the figure an arrow starts
    headings = torch.stack([around, around + math.pi / 2, angles(n, 1).expand_as(around)])
    heading = torch.where(stray, angles(n, len(stray)), headings[figure, torch.arange(n)])
    position = along(around) + 2 * noise(n, 1, 2) + stray[:, None] * noise(n, len(stray), 2)
    arrows = torch.stack([along(heading), along(heading + math.pi / 2), position], -1)
    seen = torch.rand(arrows.shape[:2], generator=generator) < 0.8
    return arrows + 0.1 * noise(*arrows.shape), seen, figure


def train(net: Figures, console: Console, n_steps: int = 500, batch: int = 64) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.04, total_steps=n_steps)
    for _ in track(range(n_steps), f"{n_steps} steps of {batch} figures", console=console):
        arrows, seen, figure = sample(batch, generator)
        loss = F.cross_entropy(net(arrows, seen).a, figure)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def explain(net: Figures, arrows: Tensor, seen: Tensor, figure: str) -> Table:
    """How much of each arrow goes to the detector that most of them choose, iteration by iteration."""
    steps = net.detect.trace(torch.zeros(seen.shape), arrows, mask=seen)
    winner = int(steps[-1].D_use.sum(0).argmax())
    table = Table(title=f"A {figure}: the share of each arrow routed to detector {winner}", title_justify="left")
    table.add_column("arrow")
    for k in range(len(steps)):
        table.add_column(f"iteration {k + 1}", min_width=17)
    for i in seen.nonzero().flatten().tolist():
        shares = [step.R[i, winner].item() for step in steps]
        style, name = ("dim", "stray") if i >= N_ARROWS else ("green", f"of the {figure}")
        table.add_row(name, *(f"{share:4.2f} {'█' * round(12 * share)}" for share in shares), style=style)
    return table


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    console = Console()
    net = Figures()
    train(net, console)

    arrows, seen, figure = sample(2000, torch.Generator().manual_seed(1))
    with torch.no_grad():
        right = (net(arrows, seen).a.argmax(-1) == figure).double().mean().item()
        table = explain(net, arrows[0], seen[0], FIGURES[int(figure[0])])
    console.print(f"{right:.1%} of {len(figure)} new figures told right; chance is {1 / len(FIGURES):.1%}\n")
    console.print(table)


if __name__ == "__main__":
    main()
