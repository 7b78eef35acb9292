"""The same exactness on a GPU, where there is one."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from capsroute import Routing, route
from capsroute.nets import SST
from capsroute.nets.sst import PACKING_THRESHOLDS, PackingThreshold
from capsroute.routing import IMPLS, pick
from capsroute.testing import SHAPES, draw_samples, make_inputs, over_budget, run

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
    assert over_budget(draw_samples(shape, "cuda"), impl, dtype, agreement=agreement) == {}


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


@pytest.mark.parametrize("impl", IMPLS)
def test_offsets_of_packed_samples_may_lie_on_the_host(impl: str) -> None:
    layer = Routing(2, 3, 2, n_out=4, impl=impl).cuda()
    a_inp, mu_inp = torch.randn(27, device="cuda"), torch.randn(27, 2, 3, device="cuda")
    offsets = torch.tensor([0, 9, 9, 26, 27], dtype=torch.int32)
    there, here = (layer.forward_packed(a_inp, mu_inp, o) for o in (offsets.cuda(), offsets))
    assert all(torch.equal(one, two) for one, two in zip(there, here, strict=True))


def test_packed_texts_are_padded_in_a_captured_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cannot wait for the mask, and serves any."""
    monkeypatch.setitem(PACKING_THRESHOLDS, "cuda", PackingThreshold(0.0, 0))
    network = SST(depth=3, d_emb=8, n_parts=6).cuda()
    mask = (torch.arange(17) < torch.tensor([4, 1, 9, 17])[:, None]).float().cuda()
    embs = torch.randn(*mask.shape, 3, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        packed = network(mask, embs).a
        for worth in (
            PackingThreshold(2.0, 2**62),
            PackingThreshold(0.0, 0),
        ):  # as padded ones first, whose kernels are compiled then
            monkeypatch.setitem(PACKING_THRESHOLDS, "cuda", worth)
            network(mask, embs)
        with torch.cuda.graph(graph):
            found = network(mask, embs).a
    graph.replay()
    torch.testing.assert_close(found, packed, rtol=1e-4, atol=1e-5)


def test_packed_texts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = SST(depth=3, d_emb=8, n_parts=6).cuda()
    mask = (torch.arange(17) < torch.tensor([4, 1, 9, 0, 17])[:, None]).float().cuda()
    embs = torch.randn(*mask.shape, 3, 8, device="cuda")
    found = []
    for worth in (PackingThreshold(2.0, 2**62), PackingThreshold(0.0, 0)):
        monkeypatch.setitem(PACKING_THRESHOLDS, "cuda", worth)
        out = network(mask, embs)
        found.append([*out, *torch.autograd.grad(out.a.sin().sum(), list(network.parameters()), allow_unused=True)])
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-4, atol=1e-5)
