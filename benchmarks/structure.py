"""Exactness of the fused kernels where inputs have a structure: `python benchmarks/structure.py --help`.

Small capsules route by moments, which are squares that leave little where outputs lie far from the mean of all inputs.
`Q` says how far: the square of that distance over twice the output's variance, summed over its numbers, in the mean
over inputs as they use outputs after the second iteration.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.progress import track
from rich.table import Table
from torch import Generator, Tensor

from capsroute.routing import triton as kernels
from capsroute.routing.agreement import Gaussian
from capsroute.routing.reference import trace
from capsroute.routing.triton.sizes import NEVER
from capsroute.testing import Shape, distance, judged, make_inputs, run
from jobs import console
from origin import origin
from records import RESULTS
from rivals import SEED

SHAPES = [Shape(1, 1024, 16, 4, 4, 4), Shape(1, 5184, 64, 4, 4, 4)]
N_CLUSTERS = 8
Inputs = dict[str, Tensor]


def gated(inputs: Inputs, rng: Generator) -> None:
    inputs["a_inp"] *= 6


def parted(inputs: Inputs, rng: Generator) -> None:
    half = inputs["mu_inp"].shape[1] // 2
    inputs["mu_inp"][:, :half] *= 0.3
    inputs["mu_inp"][:, half:] += 3


def clustered(inputs: Inputs, rng: Generator, size: float, apart: float, in_order: bool = False) -> None:
    mu = inputs["mu_inp"]
    centres = apart * torch.randn(N_CLUSTERS, *mu.shape[2:], generator=rng)
    which = torch.randint(N_CLUSTERS, mu.shape[1:2], generator=rng)
    mu.mul_(size).add_(centres[which.sort()[0] if in_order else which].to(mu))


STRUCTURES: dict[str, Callable[[Inputs, Generator], None]] = {
    "as drawn": lambda inputs, rng: None,
    "scores six times as far apart": gated,
    "half of them 0.3 in size and half 3 away": parted,
    "eight clusters 0.3 in size, around three normal draws": partial(clustered, size=0.3, apart=3.0),
    "the same, one cluster after the other": partial(clustered, size=0.3, apart=3.0, in_order=True),
    "clusters 0.1 in size, around one normal draw": partial(clustered, size=0.1, apart=1.0),
    "clusters 0.3 in size, around one normal draw": partial(clustered, size=0.3, apart=1.0),
}


def draw(shape: Shape, structure: str, seed: int, device: str) -> Inputs:
    inputs = {name: t.detach() for name, t in make_inputs(shape, seed, device=device).items()}
    STRUCTURES[structure](inputs, Generator().manual_seed(seed))
    return inputs


def outputs_apart(inputs: Inputs, eps: float = 1e-5) -> float:
    """`Q` of a single sample."""
    a_inp, mu_inp, W, B, beta_use, beta_ign = (t.double() for t in inputs.values())
    *_, second = trace(a_inp, mu_inp, W, B, beta_use, beta_ign, 2, Gaussian(), eps)
    gate = a_inp.sigmoid()[..., None, None]
    mean = (gate * mu_inp).sum(-3) / gate.sum(-3)
    off = second.mu - B[0] - torch.einsum("...cd,jdh->...jch", mean, W[0])
    used = second.D_use.sum(-2)
    return ((off.square() / (2 * second.sig2)).sum((-2, -1)) * used).sum().item() / used.sum().item()


def row_of(shape: Shape, structure: str, seeds: int, device: str) -> dict[str, Any]:
    """Distances in units of what each sample may be off by."""
    drawn = [draw(shape, structure, seed, device) for seed in range(seeds)]
    times: list[dict[str, float]] = []
    for sample in judged(drawn, torch.float32):
        found = run(sample.inputs, "triton", dtype=torch.float32)
        times.append({name: distance(found[name], t) / sample.may[name] for name, t in sample.exact.items()})
    means = {name: sum(one[name] for one in times) / seeds for name in times[0]}
    return {
        "inputs": structure,
        "n_inp": shape.n_inp,
        "n_out": shape.n_out,
        "Q": [round(outputs_apart(inputs), 3) for inputs in drawn],
        "worst of each sample": [round(max(one.values()), 3) for one in times],
        "means": {name: round(mean, 3) for name, mean in means.items()},
    }


def main(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="A CPU interprets the kernels: for tests.")] = "cuda",
    seeds: Annotated[int, typer.Option(min=1, help="Samples of each structure.")] = 12,
    halves: Annotated[bool, typer.Option("--halves", help="Take no sample for hard.")] = False,
    shapes: Annotated[int, typer.Option(min=1, max=len(SHAPES), help="Of so many sizes.")] = len(SHAPES),
    out: Annotated[
        Path, typer.Option(help="File to write.", show_default="benchmarks/results/structure.json")
    ] = RESULTS / "structure.json",
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Route every structure, and say by how many times its budget the worst result is off."""
    before = kernels.ENOUGH
    kernels.ENOUGH = before._replace(hard=NEVER) if halves else before
    try:
        asked = [(shape, structure) for shape in SHAPES[:shapes] for structure in STRUCTURES]
        rows = [row_of(*one, seeds, device) for one in track(asked, "structures", console=console)]
    finally:
        kernels.ENOUGH = before
    table = Table("inputs", "sizes", "Q", "worst", "largest mean", box=None)
    for row in rows:
        Q, worst, means = row["Q"], row["worst of each sample"], row["means"]
        sizes = f"{row['n_inp']:,} → {row['n_out']}"
        table.add_row(row["inputs"], sizes, f"{min(Q)} to {max(Q)}", str(max(worst)), str(max(means.values())))
    console.print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(origin(device, SEED, commit) | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
