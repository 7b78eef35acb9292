"""The same exactness on a GPU, where there is one."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from capsroute import route
from capsroute.routing import IMPLS, pick
from capsroute.testing import SHAPES, make_inputs, over_budget, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FAST = [
    (impl, name)
    for impl, name in product(IMPLS, SHAPES)
    if impl != "reference"
    and not IMPLS[impl].reasons_against(SHAPES[name].case(device="cuda"))
    and (impl != "moments" or pick(SHAPES[name].case()) == "moments")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize(("impl", "name"), FAST)
def test_named_shapes(impl: str, name: str, agreement: str, dtype: torch.dtype) -> None:
    if reasons := IMPLS[impl].reasons_against(replace(SHAPES[name].case(device="cuda"), dtype=dtype)):
        pytest.skip("; ".join(reasons))
    shape = SHAPES[name].at_most(2**22)
    samples = [make_inputs(shape, seed, device="cuda") for seed in range(12 if shape.votes < 2**18 else 2)]
    assert over_budget(samples, impl, dtype, agreement=agreement) == {}


@pytest.mark.parametrize(("impl", "name"), FAST)
def test_same_seed_same_bits(impl: str, name: str) -> None:
    inputs = make_inputs(SHAPES[name].at_most(2**22), device="cuda")
    first, second = run(inputs, impl), run(inputs, impl)
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("impl", "name"), FAST)
def test_under_autocast_the_loop_runs_in_float32(impl: str, name: str) -> None:
    inputs = make_inputs(SHAPES[name].at_most(2**20), device="cuda")
    with torch.autocast("cuda", torch.float16):
        cast = route(**inputs, impl=impl)
    assert all(torch.equal(one, two) for one, two in zip(cast, route(**inputs, impl=impl), strict=True))
