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

import numpy as np
import torch
import typer
from rich.progress import track
from rich.table import Table
from torch import Generator, Tensor

from capsroute.lab.data import smallnorb
from capsroute.nets import SmallNORB
from capsroute.pretrained import HOME
from capsroute.routing import triton as kernels
from capsroute.routing.agreement import Gaussian
from capsroute.routing.reference import trace
from capsroute.routing.triton.sizes import NEVER
from capsroute.testing import Shape, judged, make_inputs, off_by, run
from jobs import console
from origin import origin
from records import RESULTS
from rivals import SEED

SHAPES = [Shape(1, 1024, 16, 4, 4, 4), Shape(1, 5184, 64, 4, 4, 4)]
N_CLUSTERS = 8
FRESH = "fresh"
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


def draw_all(shape: Shape, structure: str, seeds: int, device: str) -> list[Inputs]:
    return [draw(shape, structure, seed, device) for seed in range(seeds)]


def outputs_apart(inputs: Inputs, eps: float = 1e-5) -> float:
    """`Q` of a single sample."""
    a_inp, mu_inp, W, B, beta_use, beta_ign = (t.double() for t in inputs.values())
    *_, second = trace(a_inp, mu_inp, W, B, beta_use, beta_ign, 2, Gaussian(), eps)
    gate = a_inp.sigmoid()[..., None, None]
    mean = (gate * mu_inp).sum(-3) / gate.sum(-3)
    off = second.mu - B[0] - torch.einsum("...cd,jdh->...jch", mean, W[0])
    used = second.D_use.sum(-2)
    return ((off.square() / (2 * second.sig2)).sum((-2, -1)) * used).sum().item() / used.sum().item()


def seen(network: str, images: Path, samples: int, device: str) -> list[Inputs]:
    """What the first routing of a network gets of pairs of images from all over the training set."""
    pairs = smallnorb.load(images, "train")
    places = np.linspace(0, len(pairs.category) - 1, samples).astype(int)
    batch = torch.from_numpy(pairs.images[places]).to(device) / 255
    torch.manual_seed(SEED)
    net = SmallNORB() if network == FRESH else SmallNORB.from_pretrained(HOME / network)
    net = net.train(network == FRESH).to(device)  # untrained, it knows no means to take off but the batch's own
    with torch.no_grad():
        a_inp, mu_inp = net.parts(batch)
    layer = net.get_submodule("routings.0")
    own = {name: layer.get_parameter(name).detach() for name in ("W", "B", "beta_use", "beta_ign")}
    return [{"a_inp": a_inp[[k]], "mu_inp": mu_inp[[k]], **own} for k in range(samples)]


def row_of(inputs: str, drawn: list[Inputs]) -> dict[str, Any]:
    """Distances in units of what each sample may be off by."""
    samples = judged(drawn, torch.float32)
    times = [off_by(one, run(one.inputs, "triton", dtype=torch.float32)) for one in samples]
    means = {name: sum(one[name] for one in times) / len(times) for name in times[0]}
    return {
        "inputs": inputs,
        "n_inp": drawn[0]["mu_inp"].shape[1],
        "n_out": drawn[0]["B"].shape[1],
        "Q": [round(outputs_apart(one), 3) for one in drawn],
        "worst of each sample": [round(max(one.values()), 3) for one in times],
        "means": {name: round(mean, 3) for name, mean in means.items()},
    }


def main(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="A CPU interprets the kernels: for tests.")] = "cuda",
    seeds: Annotated[int, typer.Option(min=1, help="Samples of each structure.")] = 12,
    halves: Annotated[bool, typer.Option("--halves", help="Take no sample for hard.")] = False,
    shapes: Annotated[int, typer.Option(min=0, max=len(SHAPES), help="Of so many sizes.")] = len(SHAPES),
    images: Annotated[Path | None, typer.Option(help="Folder of smallNORB, for inputs of networks.")] = None,
    networks: Annotated[
        str, typer.Option(help="With commas: fresh, smallnorb, or folders of networks for it.")
    ] = f"{FRESH},smallnorb",
    out: Annotated[
        Path, typer.Option(help="File to write.", show_default="benchmarks/results/structure.json")
    ] = RESULTS / "structure.json",
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Route every structure, and say by how many times its budget the worst result is off."""
    asked = [(name, partial(draw_all, shape, name, seeds, device)) for shape in SHAPES[:shapes] for name in STRUCTURES]
    if images:
        given = networks.split(",")
        asked += [(f"network {Path(one).name}", partial(seen, one, images, seeds, device)) for one in given]
    before = kernels.ENOUGH
    kernels.ENOUGH = before._replace(hard=NEVER) if halves else before
    try:
        rows = [row_of(name, drawn()) for name, drawn in track(asked, "structures", console=console)]
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
