"""Small routings in every form of the fused kernels, forward and backward, for tools that watch them run.

`compute-sanitizer --tool memcheck python benchmarks/every_form.py`, likewise with racecheck, synccheck and initcheck.
"""

from itertools import product
from typing import Annotated, Literal

import torch
import typer

from capsroute.routing import triton as kernels
from capsroute.routing.api import route, route_packed
from capsroute.routing.triton.sizes import Hard
from capsroute.testing import SHAPES, Shape, make_inputs

BY_VOTES = {
    "a program a sample": Shape(3, 12, 5, 4, 4, 4, fixed_inp=True),
    "a program a sample of single numbers": Shape(1, 4000, 2, 1, 1, 1, fixed_inp=True),
    "shared weights": Shape(2, 700, 7, 1, 5, 6),
    "own weights": Shape(2, 300, 9, 2, 3, 2, fixed_inp=True),
    "several chunks": Shape(2, 21, 65, 4, 3, 9),
    "few inputs in several chunks": Shape(2, 3, 5, 2, 3, 17),
    "one input a tile": Shape(2, 11, 33, 6, 3, 6),
    "products": Shape(2, 70, 5, 1, 33, 4),
    "many outputs": Shape(1, 19, 2100, 1, 3, 2),
    "products with many outputs": Shape(2, 67, 150, 1, 20, 4),
}
BY_MOMENTS = {
    "moments": Shape(2, 333, 17, 4, 4, 4),
    "moments of 2x5": Shape(3, 70, 6, 2, 5, 3),
    "moments in float64": Shape(2, 100, 33, 4, 4, 4),
    "moments run again": Shape(2, 130, 5, 2, 4, 3),
}
LARGE = {"products by eight warps": SHAPES["sst_1"]}
"""By votes, run only where asked for."""
PACKED = Shape(1, 211, 5, 4, 4, 4)
ENDS = [0, 3, 3, 100, 211]


def enough(form: str) -> kernels.Enough:
    """What has few inputs routed by moments too, and every sample turn out to be hard where iterations run again."""
    return kernels.Enough(0, 2, 1, gaussian=False, hard=Hard(apart=0.0) if form == "moments run again" else Hard())


def both(shape: Shape, agreement: str, device: str) -> None:
    inputs = list(make_inputs(shape, device=device).values())
    out = route(*inputs, agreement=agreement, impl="triton")
    torch.autograd.grad(out, inputs, [torch.ones_like(t) for t in out])


def packed(device: str) -> None:
    a_inp, mu_inp, *params = make_inputs(PACKED, device=device).values()
    a_inp, mu_inp = (t[0].detach().requires_grad_() for t in (a_inp, mu_inp))
    out = route_packed(a_inp, mu_inp, torch.tensor(ENDS, device=device), *params, impl="triton")
    torch.autograd.grad(out, [a_inp, mu_inp, *params], [torch.ones_like(t) for t in out])


def main(
    device: Literal["cpu", "cuda"] = "cuda",
    only: Annotated[
        str | None, typer.Option(help="Forms, with commas, large ones too; packed samples then stay out.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Calls of each; from the third on they go without Python.")] = 1,
) -> None:
    """Run them all, and say which ran."""
    by_votes = BY_VOTES | (LARGE if only else {})
    every = by_votes | BY_MOMENTS
    if device == "cuda" and times > 2 and (lacking := kernels.ready()):
        raise typer.BadParameter(f"calls will not go without Python: {lacking}")
    if only and (unknown := set(only.split(",")) - set(every)):
        raise typer.BadParameter(f"expected some of {', '.join(every)}, got {', '.join(sorted(unknown))}")
    for shapes in (by_votes, BY_MOMENTS):
        wanted = [name for name in shapes if not only or name in only.split(",")]
        for name, agreement in product(wanted, ("gaussian", "kmeans")):
            if shapes is BY_MOMENTS:
                kernels.ENOUGH = enough(name)
            for _ in range(times):
                both(shapes[name], agreement, device)
            print(name, agreement, flush=True)
        for _ in range(0 if only else times):
            packed(device)
        if not only:
            print("packed", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
