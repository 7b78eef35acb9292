"""Small shapes that run every form of the kernels, forward and backward, for tests and for tools that watch them run.

`compute-sanitizer --tool memcheck python tests/gpu/every_form.py`; also with racecheck, synccheck and initcheck.
"""

import argparse

import torch

from capsroute.routing.api import route, route_packed
from capsroute.routing.triton import selection
from capsroute.routing.triton.selection import MomentLimits
from capsroute.routing.triton.sizes import Float64Rule
from capsroute.testing import SHAPES, Shape, make_inputs

VOTE_FORMS = {
    "one program per sample": Shape(3, 12, 5, 4, 4, 4, fixed_inp=True),
    "one program per sample of scalars": Shape(1, 4000, 2, 1, 1, 1, fixed_inp=True),
    "shared weights": Shape(2, 700, 7, 1, 5, 6),
    "own weights": Shape(2, 300, 9, 2, 3, 2, fixed_inp=True),
    "chunks": Shape(2, 21, 65, 4, 3, 9),
    "few inputs in chunks": Shape(2, 3, 5, 2, 3, 17),
    "one input per tile": Shape(2, 11, 33, 6, 3, 6),
    "products": Shape(2, 70, 5, 1, 33, 4),
    "many outputs": Shape(1, 19, 2100, 1, 3, 2),
    "products with many outputs": Shape(2, 67, 150, 1, 20, 4),
}
LARGE_VOTE_FORMS = {"products by eight warps": SHAPES["sst_1"]}
"""Run only where named."""
MOMENT_FORMS = {
    "moments": Shape(2, 333, 17, 4, 4, 4),
    "moments of 2x5": Shape(3, 70, 6, 2, 5, 3),
    "moments in float64": Shape(2, 100, 33, 4, 4, 4),
    "moments repeated in float64": Shape(2, 130, 5, 2, 4, 3),
}
PACKED = Shape(1, 211, 5, 4, 4, 4)
OFFSETS = [0, 3, 3, 100, 211]


def limits_for(form: str) -> MomentLimits:
    """Return limits that route few inputs by moments too, and repeat every sample for the form that repeats."""
    rule = Float64Rule(separation=0.0) if form == "moments repeated in float64" else Float64Rule()
    return MomentLimits(0, 2, 1, gaussian_only=False, rule=rule)


def route_both_ways(shape: Shape, agreement: str, device: str) -> None:
    """Run both passes."""
    inputs = list(make_inputs(shape, device=device).values())
    out = route(*inputs, agreement=agreement, impl="triton")
    torch.autograd.grad(out, inputs, [torch.ones_like(t) for t in out])


def route_packed_both_ways(agreement: str, device: str) -> None:
    """Run both passes on packed samples."""
    a_inp, mu_inp, *params = make_inputs(PACKED, device=device).values()
    a_inp, mu_inp = (t[0].detach().requires_grad_() for t in (a_inp, mu_inp))
    offsets = torch.tensor(OFFSETS, device=device)
    out = route_packed(a_inp, mu_inp, offsets, *params, agreement=agreement, impl="triton")
    torch.autograd.grad(out, [a_inp, mu_inp, *params], [torch.ones_like(t) for t in out])


def run_forms(names: list[str], device: str) -> None:
    """Run the named forms, all but the large ones and packed samples if none is named, and print each."""
    known = VOTE_FORMS | LARGE_VOTE_FORMS | MOMENT_FORMS
    if unknown := set(names) - set(known):
        raise SystemExit(f"expected some of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    before = selection.LIMITS
    try:
        for name in names or [*VOTE_FORMS, *MOMENT_FORMS, "packed"]:
            selection.LIMITS = limits_for(name) if name in MOMENT_FORMS else before
            for agreement in ("gaussian", "kmeans"):
                if name == "packed":
                    route_packed_both_ways(agreement, device)
                else:
                    route_both_ways(known[name], agreement, device)
                print(name, agreement, flush=True)
        if not names:  # packed samples by moments
            selection.LIMITS = limits_for("moments")
            route_packed_both_ways("gaussian", device)
    finally:
        selection.LIMITS = before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="form", help="forms to run, by default all but the large ones")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="a CPU interprets the kernels")
    args = parser.parse_args()
    run_forms(args.forms, args.device)
    if args.device == "cuda":
        torch.cuda.synchronize()
