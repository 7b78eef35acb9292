"""Small shapes that need every kernel and every kind of tile, forward and backward."""

from typing import Any

import torch
from torch import Tensor

from capsroute.routing.triton.moments_host import MomentKernels
from capsroute.routing.triton.products_host import ProductKernels
from capsroute.routing.triton.selection import MomentLimits
from capsroute.routing.triton.sizes import ALWAYS, NEVER, Call, Float64Rule, LoopSettings, Sizes, products_fit
from capsroute.routing.triton.stored_host import StoredKernels
from capsroute.testing import SHAPES, Shape

MOMENT_FORMS = {
    "moments": Shape(2, 333, 17, 4, 4, 4),
    "moments of 2x5": Shape(3, 70, 6, 2, 5, 3),
    "moments in float64": Shape(2, 100, 33, 4, 4, 4),
    "moments repeated in float64": Shape(2, 130, 5, 2, 4, 3),
}
FORMS = {
    "every input a kind": Shape(3, 12, 5, 4, 4, 4, fixed_inp=True),
    "many kinds of scalars": Shape(1, 4000, 2, 1, 1, 1, fixed_inp=True),
    "one kind": Shape(2, 700, 7, 1, 5, 6),
    "few outputs": Shape(2, 40, 3, 1, 3, 2),
    "many kinds": Shape(2, 300, 9, 2, 3, 2, fixed_inp=True),
    "long votes": Shape(2, 21, 65, 4, 3, 9),
    "long votes of few inputs": Shape(2, 3, 5, 2, 3, 17),
    "many outputs": Shape(1, 19, 2100, 1, 3, 2),
    "long votes of many kinds": Shape(2, 90, 150, 11, 5, 17, fixed_inp=True),
    "outputs share": Shape(2, 70, 3, 2, 33, 6, fixed_out=False),
    "products": Shape(2, 70, 5, 1, 33, 4),
    "products of shared weights": Shape(2, 67, 3, 1, 33, 6, fixed_out=False),
    "products with many outputs": Shape(2, 67, 150, 1, 20, 4),
    "products by eight warps": SHAPES["sst_1"],
    **MOMENT_FORMS,
}
COMPILED = [name for name in FORMS if name not in ("moments", "moments repeated in float64")]
"""Forms to compile: those left out are made of the kernels of moments in float64, which branch."""
LIMITS = MomentLimits(0, 2, 1, gaussian_only=False, rule=NEVER)
"""Limits that route any number of inputs by moments."""
RULES = {"moments in float64": ALWAYS, "moments repeated in float64": NEVER._replace(separation=0.0)}


def limits_for(name: str) -> MomentLimits:
    """Return limits by which a form of the moment kernels is chosen."""
    return LIMITS._replace(rule=RULES.get(name, NEVER))


def empty_arguments(name: str) -> list[Tensor]:
    """Return arguments of the kernels without values, offsets among them."""
    s = FORMS[name]
    i, j = s.n_inp if s.fixed_inp else 1, s.n_out if s.fixed_out else 1
    inputs = (s.batch, s.n_inp), (s.batch, s.n_inp, s.d_cov, s.d_inp), (s.batch + 1,)
    params = (i, j, s.d_inp, s.d_out), (i, s.n_out, s.d_cov, s.d_out), (i, j), (i, j)
    return [torch.empty(size) for size in (*inputs, *params)]


def plan_kernels(name: str, gaussian: bool) -> Any:
    """Plan a form for an H200; moments for one multiprocessor, so that programs take models in both numbers."""
    s, loop = FORMS[name], LoopSettings(3, gaussian, 1e-5)
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, packed=False)
    shapes = tuple([tuple(t.shape) for t in empty_arguments(name)[3:]])
    call = Call(loop, sizes, s.batch * s.n_inp, shapes, cores=1 if name in MOMENT_FORMS else 132)
    if name in MOMENT_FORMS:
        return MomentKernels(call, Float64Rule())
    return ProductKernels(call) if products_fit(sizes, shapes) else StoredKernels(call)
