"""Fused kernels as a user meets them, under the interpreter where there is no GPU: small shapes there."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from capsroute import Routing, route
from capsroute.routing import pick
from capsroute.routing import triton as kernels
from capsroute.routing.agreement import Quadratic
from capsroute.routing.triton import moments_host
from capsroute.routing.triton.sizes import ALWAYS, NEVER, Hard, Plan, Sizes
from capsroute.testing import SHAPES, Shape, budget, distance, make_inputs, orders, over_budget, run
from conftest import ROOT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHARED, FIXED = Shape(2, 21, 5, 2, 3, 2), Shape(2, 7, 3, 2, 3, 2, fixed_inp=True)
FORMS = {
    "moments": kernels.Enough(0, 2, 1, gaussian=False, hard=NEVER),
    "moments in float64": kernels.Enough(0, 2, 1, gaussian=False, hard=ALWAYS),
    "moments run again": kernels.Enough(0, 2, 1, gaussian=False, hard=NEVER._replace(apart=0.0)),
    "votes": kernels.Enough(2**30),
}
"""From when on moments serve, to have the one form or the other."""
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # what infinite scores mean in NumPy
]


USUAL = [form for form in FORMS if form != "moments run again"]
"""Those of all tests; what runs again are kernels of other forms, so that two tests will do."""


@pytest.fixture(params=USUAL)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kernels, "ENOUGH", FORMS[request.param])
    return request.param


def wrong(draw: Callable[[int], dict[str, torch.Tensor]], times: int = 1, **settings: Any) -> dict[str, Any]:
    """Results out of budget, `times` over; interpreted, a single draw has to do, within the largest of twelve."""
    if DEVICE == "cuda" and times == 1:
        return dict(over_budget(map(draw, range(12)), "triton", **settings))
    may = defaultdict(float)
    for seed in range(12):
        exact = run(draw(seed), "reference", dtype=torch.float64, **settings)
        for name, allowed in budget(exact, [run(draw(seed), "reference", **settings)], torch.float32).items():
            may[name] = max(may[name], allowed / size(exact[name]))
    exact, found = run(draw(0), "reference", dtype=torch.float64, **settings), run(draw(0), "triton", **settings)
    off = {name: distance(found[name], t) / size(t) for name, t in exact.items()}
    return {name: (far, may[name]) for name, far in off.items() if not far <= times * may[name]}


def size(t: torch.Tensor) -> float:
    return max(distance(t, torch.zeros_like(t)), 1e-30)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize(
    ("shape", "n_iters"),
    [(SHARED, 3), (replace(SHARED, fixed_out=False), 2), (Shape(1, 30, 3, 1, 4, 1), 1), (FIXED, 2)],
    ids=str,
)
def test_votes_are_within_the_error_budget(shape: Shape, n_iters: int, agreement: str) -> None:
    assert wrong(lambda seed: make_inputs(shape, seed, device=DEVICE), agreement=agreement, n_iters=n_iters) == {}


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
def test_moments_of_few_inputs_keep_two_bits_less(agreement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of half precision hold 22 bits; where they serve, `test_cuda.py` holds them to the budget itself."""
    monkeypatch.setattr(kernels, "ENOUGH", FORMS["moments"])
    assert wrong(lambda seed: make_inputs(SHARED, seed, device=DEVICE), times=4, agreement=agreement) == {}


@pytest.mark.parametrize(("agreement", "n_iters"), [("gaussian", 4), ("kmeans", 3)])
def test_in_float64_moments_of_few_inputs_are_as_exact_as_any(
    agreement: str, n_iters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ENOUGH", FORMS["moments in float64"]._replace(iterations=4))
    inputs = [make_inputs(SHARED, seed, device=DEVICE) for seed in range(12)]
    assert wrong(inputs.__getitem__, agreement=agreement, n_iters=n_iters) == {}


def thin(inputs: dict[str, torch.Tensor]) -> None:
    """Little weight for each output."""
    inputs["a_inp"][0, 4:] = -torch.inf


def outlier(inputs: dict[str, torch.Tensor]) -> None:
    """One input far larger than all others."""
    inputs["mu_inp"][0, 7] *= 300


def dense(inputs: dict[str, torch.Tensor]) -> None:
    """Most inputs close together, some elsewhere."""
    inputs["mu_inp"][0, 10:] *= 0.01
    inputs["mu_inp"][0, :10] += 3


def parted(inputs: dict[str, torch.Tensor]) -> None:
    """Half of the inputs close together, the others elsewhere: outputs come to lie far from the mean of all."""
    inputs["mu_inp"][0, :128] *= 0.3
    inputs["mu_inp"][0, 128:] += 3


CHANGES = {
    thin: (200, 2, range(12)),
    outlier: (200, 2, range(12)),
    dense: (200, 2, range(12)),
    parted: (256, 7, [7, 38]),
}
"""Inputs of samples that are hard after them, a seed, and those on a GPU, where kernels are fast."""


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_hard_samples_are_as_exact_as_others(change: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean over samples, in units of each one's budget; products of halves are out of it four times or more."""
    n_inp, interpreted, seeds = CHANGES[change]
    off = {NEVER: [], Hard(): []}
    for seed in seeds if DEVICE == "cuda" else [interpreted]:
        shape = Shape(1, n_inp, 16, 4, 4, 4)
        inputs = {name: t.detach() for name, t in make_inputs(shape, seed, device=DEVICE).items()}
        change(inputs)
        exact = run(inputs, "reference", dtype=torch.float64)
        may = budget(exact, [run(inputs, "reference", order=order) for order in orders(inputs, 6)], torch.float32)
        for hard, times in off.items():
            monkeypatch.setattr(kernels, "ENOUGH", FORMS["moments"]._replace(hard=hard))
            found = run(inputs, "triton")
            times.append([distance(found[name], t) / may[name] for name, t in exact.items()])
    mean = {hard: np.mean(times, 0).max() for hard, times in off.items()}
    assert mean[Hard()] <= 1 < 4 <= mean[NEVER]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_only_hard_samples_are_taken_for_hard(change: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' results have the same bits beside them."""
    monkeypatch.setattr(kernels, "ENOUGH", FORMS["moments"]._replace(hard=Hard()))
    n_inp, seed, _ = CHANGES[change]
    drawn = make_inputs(Shape(2, n_inp, 16, 4, 4, 4), seed, device=DEVICE)
    inputs = {name: t.detach().clone() for name, t in drawn.items()}
    hard, before = hard_samples(inputs)
    assert hard == [0, 0]
    change(inputs)
    hard, after = hard_samples(inputs)
    assert hard == [1, 0]
    assert all(torch.equal(one[1], two[1]) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize(("hard", "n_iters", "again"), [(Hard(), 3, 1), (Hard(), 1, 0), (NEVER, 3, 0), (ALWAYS, 3, 0)])
def test_iterations_are_run_again_only_where_samples_may_turn_out_hard(hard: Hard, n_iters: int, again: int) -> None:
    sizes, shapes = Sizes(2, 90, 16, 4, 4, 4, packed=False), ((1, 16, 4, 4), (1, 16, 4, 4), (1, 16), (1, 16))
    single, device = (torch.float32, torch.float32), torch.device(DEVICE, 0)
    run = moments_host.Runner(Plan(n_iters, True, 1e-5), sizes, shapes, single, device, hard)
    assert len(run.run_fwd.launches) == 2 * (n_iters + again)


@pytest.mark.parametrize(("batch", "outputs"), [(20, 2), (128, 4)])
def test_a_program_has_models_of_fewer_outputs_where_samples_are_few(
    batch: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments_host, "programs_at_once", lambda _, per_core: 132 * per_core)
    sizes, shapes = Sizes(batch, 5184, 64, 4, 4, 4, packed=False), ((1, 64, 4, 4), (1, 64, 4, 4), (1, 64), (1, 64))
    single = (torch.float32, torch.float32)
    run = moments_host.Runner(Plan(3, True, 1e-5), sizes, shapes, single, torch.device("cpu"), Hard())
    assert run.blocks == 64 // outputs


def hard_samples(inputs: dict[str, torch.Tensor]) -> tuple[list[int], tuple[torch.Tensor, ...]]:
    """Which of them the moment form takes for hard, and their output capsules."""
    a_inp, x, *params = inputs.values()
    *batch, n, c, d = x.shape
    sizes = Sizes(*batch, n, params[1].shape[1], c, d, params[1].shape[3], packed=False)
    found: Any = kernels.runner(Plan(3, True, 1e-5), sizes, (a_inp, x, None, *params))
    outs, (saved,) = kernels.fwd(found, (a_inp, x, None, *params))
    return found.rooms[0].pieces(saved)[7][0].tolist(), outs


@pytest.mark.parametrize(("far", "masked"), [(30.0, 30.0), (1e5, 1e30)])
def test_inputs_of_little_weight_may_be_far_away(far: float, masked: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share tiles with others, whose spread is the unit that the moment form counts in."""
    monkeypatch.setattr(kernels, "ENOUGH", FORMS["moments"])

    def two_that_count(seed: int) -> dict[str, torch.Tensor]:
        inputs = {name: t.detach() for name, t in make_inputs(Shape(3, 40, 6, 4, 4, 4), seed, device=DEVICE).items()}
        a_inp, mu_inp = inputs["a_inp"].clone(), inputs["mu_inp"].clone()
        mu_inp[:, 1] = mu_inp[:, 0] + 1e-5 * mu_inp[:, 1]
        a_inp[:, 2:20], mu_inp[:, 2:20] = -60.0, far * mu_inp[:, 2:20]
        a_inp[:, 20:], mu_inp[:, 20:] = -torch.inf, masked * mu_inp[:, 20:].sign()
        return inputs | {"a_inp": a_inp, "mu_inp": mu_inp}

    assert wrong(two_that_count, n_iters=2) == {}


@pytest.mark.parametrize(
    ("lengths", "changes", "form", "exactly"),
    [
        ([1024], {}, "moments", "moments"),
        ([1023], {}, "votes", "votes"),
        ([4095], {"j": 17}, "moments", "moments"),
        ([4096], {"n_iters": 4}, "votes", "moments in float64"),
        ([4095], {"n_iters": 4}, "votes", "votes"),
        ([64], {"b": 4096}, "votes", "moments in float64"),
        ([4096], {"c": 1, "h": 16}, "votes", "votes"),
        ([1024, 2000, 3000], {}, "moments", "moments"),
        ([1023, 2000, 3000], {}, "votes", "moments in float64"),
    ],
)
def test_moments_serve_where_sums_are_long_or_float64_is_fast(
    lengths: list[int], changes: dict[str, int], form: str, exactly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of every sample, however many there are: else outputs lie too close together for squares to tell."""
    want = {"b": len(lengths), "j": 16, "c": 4, "h": 4, "n_iters": 3} | changes
    j, sizes = want["j"], Sizes(want["b"], max(lengths), want["j"], want["c"], 4, want["h"], packed=len(lengths) > 1)
    batch = (sum(lengths),) if sizes.packed else (sizes.b, sizes.i)
    shapes = (*batch,), (*batch, sizes.c, 4), (1, j, 4, sizes.h), (1, j, sizes.c, sizes.h), (1, j), (1, j)
    a_inp, x, *params = (torch.empty(shape, device=DEVICE) for shape in shapes)
    inputs, fewest = (a_inp, x, None, *params), min(lengths) if sizes.packed else None
    for fast, expected in ((False, form), (True, exactly)):
        monkeypatch.setattr(kernels, "exact", lambda device, fast=fast: fast)
        kernels.settled.cache_clear()
        found: Any = kernels.runner(Plan(want["n_iters"], True, 1e-5), sizes, inputs, fewest)
        kernels.settled.cache_clear()
        assert type(found).__module__.endswith(f"{expected.split()[0]}_host")
        assert expected == "votes" or found.hard == (ALWAYS if "float64" in expected else Hard())


def test_tight_clusters_far_apart() -> None:
    def clustered(seed: int) -> dict[str, torch.Tensor]:
        inputs = make_inputs(Shape(1, 60, 5, 2, 4, 3), seed, device=DEVICE)
        centres = 100 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(seed)).repeat_interleave(20, 0)
        return inputs | {"mu_inp": centres.to(DEVICE) + 0.01 * inputs["mu_inp"].detach()}

    assert wrong(clustered) == {}


def test_inputs_that_are_all_the_same(form: str) -> None:
    """They have no spread that could be the unit of the moment form."""

    def repeated(seed: int) -> dict[str, torch.Tensor]:
        inputs = make_inputs(Shape(1, 90, 8, 4, 4, 4), seed, device=DEVICE)
        return inputs | {"mu_inp": inputs["mu_inp"].detach()[:, :1].expand(-1, 90, -1, -1)}

    assert wrong(repeated) == {}


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_capsules_of_any_size(form: str, scale: float) -> None:
    """Half precision, which the moment form's products are made of, ends at 65,504 and loses digits below 0.0001."""

    def scaled(seed: int) -> dict[str, torch.Tensor]:
        inputs = make_inputs(SHARED, seed, device=DEVICE)
        return inputs | {name: inputs[name].detach() * scale for name in ("mu_inp", "B")}

    assert wrong(scaled, 4 if form == "moments" else 1, eps=min(1e-5, 1e-5 * scale**2)) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_in_and_out(form: str, dtype: torch.dtype) -> None:
    inputs = make_inputs(SHARED, device=DEVICE)
    found, expected = run(inputs, "triton", dtype=dtype), run(inputs, "reference", dtype=dtype)
    for name, t in expected.items():
        assert found[name].dtype == dtype
        assert distance(found[name], t) <= 4 * torch.finfo(dtype).eps * distance(t, torch.zeros_like(t)), name


@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
def test_huge_capsules_and_scores_stay_finite(form: str, size: float) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    inputs["mu_inp"] = inputs["mu_inp"].sign() * size
    inputs["a_inp"] = inputs["a_inp"].sign() * size
    assert all(t.isfinite().all() for t in run(inputs, "triton").values())


def test_an_input_with_score_minus_infinity_is_no_input(form: str) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    closed = inputs | {"a_inp": inputs["a_inp"].clone()}
    closed["a_inp"][:, 5:9] = -torch.inf
    kept = torch.tensor([i for i in range(SHARED.n_inp) if not 5 <= i < 9], device=DEVICE)
    fewer = inputs | {"a_inp": inputs["a_inp"][:, kept], "mu_inp": inputs["mu_inp"][:, kept]}
    found, expected = run(closed, "triton"), run(fewer, "triton")
    for name in ("a", "mu", "sig2", "dW", "dB"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)
    assert not found["da_inp"][:, 5:9].any()


def test_the_order_of_inputs_does_not_matter(form: str) -> None:
    inputs = make_inputs(SHARED, device=DEVICE)
    found = run(inputs, "triton", order={"i": torch.randperm(SHARED.n_inp)})
    for name, t in run(inputs, "triton").items():
        torch.testing.assert_close(found[name], t, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_same_inputs_same_bits(form: str) -> None:
    inputs = make_inputs(SHARED, device=DEVICE)
    first, second = run(inputs, "triton"), run(inputs, "triton")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_tensors_that_are_not_contiguous_or_aligned(form: str) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    odd = inputs | {"mu_inp": inputs["mu_inp"].mT.contiguous().mT}
    spare = torch.zeros(inputs["a_inp"].numel() + 1, device=DEVICE)
    odd["a_inp"] = spare[1:].view(inputs["a_inp"].shape).copy_(inputs["a_inp"])
    found, expected = run(odd, "triton"), run(inputs, "triton")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_packed_samples_equal_each_alone(form: str) -> None:
    layer = Routing(2, 3, 2, n_out=4, impl="triton").to(DEVICE)
    lengths = [9, 0, 17, 1]
    a_inp, mu_inp = torch.randn(sum(lengths), device=DEVICE), torch.randn(sum(lengths), 2, 3, device=DEVICE)
    for t in (a_inp, mu_inp):
        t.requires_grad_()
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    packed = layer.forward_packed(a_inp, mu_inp, offsets)
    alone = [layer(a[None], mu[None]) for a, mu in zip(a_inp.split(lengths), mu_inp.split(lengths), strict=True)]
    for found, expected in zip(packed, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)
    weights = [torch.randn_like(t) for t in packed]
    found = torch.autograd.grad(packed, (a_inp, mu_inp, layer.W), weights)
    joined = [torch.cat(ts) for ts in zip(*alone, strict=True)]
    for one, other in zip(found, torch.autograd.grad(joined, (a_inp, mu_inp, layer.W), weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_maps_over_samples_and_gradients() -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    params = [inputs[name] for name in ("W", "B", "beta_use", "beta_ign")]

    def score(a_inp: torch.Tensor, mu_inp: torch.Tensor) -> torch.Tensor:
        return route(a_inp, mu_inp, *params, impl="triton").mu.sum()

    found = torch.func.vmap(torch.func.grad(score, argnums=1))(inputs["a_inp"], inputs["mu_inp"])
    mu_inp = inputs["mu_inp"].requires_grad_()
    expected = torch.autograd.grad(score(inputs["a_inp"], mu_inp), mu_inp)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_second_derivatives_are_refused_with_advice() -> None:
    inputs = make_inputs(SHARED, device=DEVICE)
    first = torch.autograd.grad(route(**inputs, impl="triton").a.sum(), inputs["mu_inp"], create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="impl='moments' or 'reference'"):
        first.sum().backward()


def test_inside_a_captured_graph(form: str) -> None:
    torch.compiler.reset()  # or it would be the graph of another form
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    compiled = torch.compile(lambda **kwargs: route(**kwargs, impl="triton"), backend="aot_eager", fullgraph=True)
    leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
    plain = route(**inputs, impl="triton")
    out = compiled(**leaves)
    assert all(torch.equal(one, two) for one, two in zip(out, plain, strict=True))
    out.mu.sum().backward()
    expected = make_inputs(SHARED, device=DEVICE)
    route(**expected, impl="triton").mu.sum().backward()
    for name, t in leaves.items():
        torch.testing.assert_close(t.grad, expected[name].grad, msg=name)


def test_exported_graphs_do_without() -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SHARED, device=DEVICE).items()}
    layer = Routing(SHARED.d_cov, SHARED.d_inp, SHARED.d_out, n_out=SHARED.n_out, impl="triton").to(DEVICE)
    with pytest.raises(ValueError, match="exported graph"):
        torch.export.export(layer, (inputs["a_inp"], inputs["mu_inp"]))
    layer.impl = "auto"
    graph = torch.export.export(layer, (inputs["a_inp"], inputs["mu_inp"])).graph
    assert not any("capsroute" in str(node.target) for node in graph.nodes)


def test_auto_picks_it_on_a_gpu_alone() -> None:
    assert {pick(shape.case(device="cpu")) for shape in SHAPES.values()} <= {"reference", "moments", "blocked"}
    if DEVICE == "cuda":
        assert {pick(shape.case(device="cuda")) for shape in SHAPES.values()} == {"triton"}


def test_what_it_cannot_run_it_refuses_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flat(Quadratic):
        def weights(self, sig2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones_like(sig2), sig2.sum((-2, -1))

    inputs = make_inputs(SHARED, device=DEVICE)
    with pytest.raises(ValueError, match="'flat' has no kernel"):
        route(**inputs, agreement=Flat(), impl="triton")
    with pytest.raises(ValueError, match="float64"):
        route(**{name: t.double() for name, t in inputs.items()}, impl="triton")
    monkeypatch.setattr(kernels, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernels, "FOUND", {})
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        route(**make_inputs(SHARED), impl="triton")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(kernels, "FOUND", {})
    with pytest.raises(ValueError, match="pip install"):
        route(**make_inputs(SHARED), impl="triton")


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["a_inp", "mu_inp"])
def test_what_is_not_a_number_shows_in_its_sample_alone(form: str, name: str) -> None:
    inputs = {key: t.detach().clone() for key, t in make_inputs(SHARED, device=DEVICE).items()}
    inputs[name][0, 3] = torch.nan
    found, expected = route(**inputs, impl="triton"), route(**inputs, impl="reference")
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert one[0].isnan().all()
        assert one[1].isfinite().all()


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are compiled by all other tests")
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
def test_every_kernel_translates_as_for_a_gpu(agreement: str, part: int) -> None:
    """Which the interpreter does not tell."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, ROOT / "tests/kernel_ir.py", agreement, str(part), "3"]
    settings: dict[str, Any] = {"env": env | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run(command, **settings, check=False, timeout=300)  # some code has kept compilers busy for ever
    assert not done.returncode, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) >= 5, "forms are missing"
