"""Every form of the kernels through `route`, under the interpreter where there is no GPU: small shapes there."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accuracy import assert_within_budget
from capsroute import Routing, route
from capsroute.routing.triton import selection
from capsroute.routing.triton.moments_host import MomentKernels
from capsroute.routing.triton.op import find_kernels, run_forward
from capsroute.routing.triton.selection import MomentLimits, choose_moments
from capsroute.routing.triton.sizes import ALWAYS, NEVER, Call, Float64Rule, LoopSettings, Sizes
from capsroute.testing import Shape, budget, distance, make_inputs, over_budget, random_orders, run
from conftest import ROOT
from forms import COMPILED, limits_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHARED, FIXED = Shape(2, 21, 5, 2, 3, 2), Shape(2, 7, 3, 2, 3, 2, fixed_inp=True)
DEFAULT = Float64Rule()
FORMS = {name: limits_for(name) for name in ("moments", "moments in float64", "moments repeated in float64")}
FORMS["votes"] = MomentLimits(2**30)
MAIN_FORMS = [form for form in FORMS if form != "moments repeated in float64"]
"""Forms of most tests; the other is made of their kernels, so that two tests do."""
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # infinite scores in NumPy
]


def use_form(form: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setattr(selection, "LIMITS", FORMS[form]._replace(**changes))


@pytest.fixture(params=MAIN_FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_form(request.param, monkeypatch)
    return request.param


def make_detached(shape: Shape, seed: int = 0) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in make_inputs(shape, seed, device=DEVICE).items()}


def assert_accurate(draw: Callable[[int], dict[str, Tensor]], times: int = 1, **settings: Any) -> None:
    """Hold the kernels to the error budget, or a multiple of it; a GPU is fast enough to average over samples."""
    if DEVICE == "cuda" and times == 1:
        assert over_budget(map(draw, range(12)), "triton", **settings) == {}
    else:
        assert_within_budget(
            lambda seed: run(draw(seed), "triton", **settings),
            lambda seed, dtype: run(draw(seed), "reference", dtype=dtype, **settings),
            times,
        )


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize(
    ("shape", "n_iters"),
    [(SHARED, 3), (replace(SHARED, fixed_out=False), 2), (Shape(1, 30, 3, 1, 4, 1), 1), (FIXED, 2)],
    ids=str,
)
def test_votes_within_budget(shape: Shape, n_iters: int, agreement: str) -> None:
    assert_accurate(lambda seed: make_inputs(shape, seed, device=DEVICE), agreement=agreement, n_iters=n_iters)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
def test_moments_of_few_inputs_within_four_budgets(agreement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of float16 hold 22 bits; `tests/gpu` holds them to the budget itself on sizes that use them."""
    use_form("moments", monkeypatch)
    assert_accurate(lambda seed: make_inputs(SHARED, seed, device=DEVICE), times=4, agreement=agreement)


@pytest.mark.parametrize(("agreement", "n_iters"), [("gaussian", 4), ("kmeans", 3)])
def test_moments_in_float64_within_budget(agreement: str, n_iters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_form("moments in float64", monkeypatch, max_iters=4)
    assert_accurate(lambda seed: make_inputs(SHARED, seed, device=DEVICE), agreement=agreement, n_iters=n_iters)


def reduce_weight(inputs: dict[str, Tensor]) -> None:
    """Leave little weight for each output."""
    inputs["a_inp"][0, 4:] = -torch.inf


def add_outlier(inputs: dict[str, Tensor]) -> None:
    """Make one input far larger than all others."""
    inputs["mu_inp"][0, 7] *= 300


def concentrate(inputs: dict[str, Tensor]) -> None:
    """Move most inputs close together, away from the others."""
    inputs["mu_inp"][0, 10:] *= 0.01
    inputs["mu_inp"][0, :10] += 3


def separate(inputs: dict[str, Tensor]) -> None:
    """Split inputs into two clusters, so that outputs lie far from the mean of all."""
    inputs["mu_inp"][0, :128] *= 0.3
    inputs["mu_inp"][0, 128:] += 3


NEEDS_FLOAT64 = {
    reduce_weight: (200, 2, range(12)),
    add_outlier: (200, 2, range(12)),
    concentrate: (200, 2, range(12)),
    separate: (256, 7, [7, 38]),
}
"""Changes after which the first sample needs float64: number of inputs, seed, and seeds on a GPU, which is fast."""
each_change = pytest.mark.parametrize("change", NEEDS_FLOAT64, ids=lambda change: change.__name__)


@each_change
def test_samples_that_need_float64_are_within_budget(
    change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On average over samples; products of float16 pairs are off by four budgets or more."""
    n_inp, interpreted, seeds = NEEDS_FLOAT64[change]
    ratios: dict[Float64Rule, list[list[float]]] = {NEVER: [], DEFAULT: []}
    for seed in seeds if DEVICE == "cuda" else [interpreted]:
        inputs = make_detached(Shape(1, n_inp, 16, 4, 4, 4), seed)
        change(inputs)
        exact = run(inputs, "reference", dtype=torch.float64)
        plain = [run(inputs, "reference", order=order) for order in random_orders(inputs, 6)]
        allowed = budget(exact, plain, torch.float32)
        for rule, rows in ratios.items():
            use_form("moments", monkeypatch, rule=rule)
            found = run(inputs, "triton")
            rows.append([distance(found[name], t) / allowed[name] for name, t in exact.items()])
    worst = {rule: np.mean(rows, 0).max() for rule, rows in ratios.items()}
    assert worst[DEFAULT] <= 1 < 4 <= worst[NEVER]


def route_with_flags(inputs: dict[str, Tensor]) -> tuple[list[int], tuple[Tensor, ...]]:
    """Return which samples the moment kernels route in float64, and the output capsules."""
    a_inp, x, *params = inputs.values()
    arguments = a_inp, x, None, *params
    kernels = find_kernels(arguments, 3, True, 1e-5, 0, 0)
    *outs, saved = run_forward(kernels, arguments)
    return kernels.saved.split(saved)[0].in_float64[: len(a_inp)].tolist(), tuple(outs)


@each_change
def test_only_samples_that_need_it_are_routed_in_float64(
    change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of others have the same bits beside them."""
    use_form("moments", monkeypatch, rule=DEFAULT)
    n_inp, seed, _ = NEEDS_FLOAT64[change]
    inputs = make_detached(Shape(2, n_inp, 16, 4, 4, 4), seed)
    flags, before = route_with_flags(inputs)
    assert flags == [0, 0]
    change(inputs)
    flags, after = route_with_flags(inputs)
    assert flags == [1, 0]
    assert all(torch.equal(one[1], two[1]) for one, two in zip(before, after, strict=True))


def plan_moments(b: int, i: int, j: int, n_iters: int, rule: Float64Rule, cores: int) -> MomentKernels:
    shapes = ((1, j, 4, 4), (1, j, 4, 4), (1, j), (1, j))
    sizes = Sizes(b, i, j, 4, 4, 4, packed=False)
    return MomentKernels(Call(LoopSettings(n_iters, True, 1e-5), sizes, b * i, shapes, cores), rule)


@pytest.mark.parametrize(
    ("rule", "n_iters", "repeated"), [(DEFAULT, 3, 1), (DEFAULT, 1, 0), (NEVER, 3, 0), (ALWAYS, 3, 0)]
)
def test_second_iteration_is_repeated_where_samples_may_need_float64(
    rule: Float64Rule, n_iters: int, repeated: int
) -> None:
    kernels = plan_moments(2, 90, 16, n_iters, rule, cores=132)
    tensors, saved = [torch.empty(1)] * 7, kernels.saved.allocate(torch.empty(1))
    assert len(list(kernels.fwd(tensors, saved, tensors[:3]))) == 2 * (n_iters + repeated)
    assert len(list(kernels.bwd(tensors, saved, tensors[:3], tensors[:6]))) == 2 * n_iters


@pytest.mark.parametrize(("batch", "n_outputs"), [(20, 2), (128, 4)])
def test_model_programs_take_fewer_outputs_for_few_samples(batch: int, n_outputs: int) -> None:
    assert plan_moments(batch, 5184, 64, 3, DEFAULT, cores=132).model_blocks == 64 // n_outputs


@pytest.mark.parametrize(("far", "masked"), [(30.0, 30.0), (1e5, 1e30)])
def test_distant_inputs_of_little_weight(far: float, masked: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share tiles with inputs whose spread is the unit of the moment kernels."""
    use_form("moments", monkeypatch)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_detached(Shape(3, 40, 6, 4, 4, 4), seed)
        a_inp, mu_inp = inputs["a_inp"], inputs["mu_inp"]
        mu_inp[:, 1] = mu_inp[:, 0] + 1e-5 * mu_inp[:, 1]
        a_inp[:, 2:20], mu_inp[:, 2:20] = -60.0, far * mu_inp[:, 2:20]
        a_inp[:, 20:], mu_inp[:, 20:] = -torch.inf, masked * mu_inp[:, 20:].sign()
        return inputs

    assert_accurate(draw, n_iters=2)


@pytest.mark.parametrize(
    ("lengths", "changes", "expected", "with_fast_float64"),
    [
        ([1024], {}, DEFAULT, DEFAULT),
        ([1023], {}, None, None),
        ([4095], {"j": 17}, DEFAULT, DEFAULT),
        ([4096], {"n_iters": 4}, None, ALWAYS),
        ([4095], {"n_iters": 4}, None, None),
        ([64], {"b": 4096}, None, ALWAYS),
        ([4096], {"c": 1, "h": 16}, None, None),
        ([1024, 2000, 3000], {}, DEFAULT, DEFAULT),
        ([1023, 2000, 3000], {}, None, ALWAYS),
    ],
)
def test_moments_serve_long_sums_or_fast_float64(
    lengths: list[int], changes: dict[str, int], expected: Float64Rule | None, with_fast_float64: Float64Rule | None
) -> None:
    """Every sample's sums must be long."""
    case = {"b": len(lengths), "j": 16, "c": 4, "h": 4, "n_iters": 3} | changes
    b, j, c, h, n_iters = case.values()
    sizes, loop = Sizes(b, max(lengths), j, c, 4, h, packed=len(lengths) > 1), LoopSettings(n_iters, True, 1e-5)
    n, shapes = sum(lengths) if sizes.packed else b * sizes.i, ((1, j, 4, h), (1, j, c, h), (1, j), (1, j))
    call = Call(loop, sizes, n, shapes, cores=132)
    found = [choose_moments(call, min(lengths), MomentLimits(), fast) for fast in (False, True)]
    assert found == [expected, with_fast_float64]


def test_tight_clusters_far_apart() -> None:
    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_detached(Shape(1, 60, 5, 2, 4, 3), seed)
        centres = 100 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(seed)).repeat_interleave(20, 0)
        return inputs | {"mu_inp": centres.to(DEVICE) + 0.01 * inputs["mu_inp"]}

    assert_accurate(draw)


def test_equal_inputs(form: str) -> None:
    """They have no spread to be the unit of the moment kernels."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_detached(Shape(1, 90, 8, 4, 4, 4), seed)
        return inputs | {"mu_inp": inputs["mu_inp"][:, :1].expand(-1, 90, -1, -1)}

    assert_accurate(draw, n_iters=2)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_tiny_and_huge_capsules(form: str, scale: float) -> None:
    """Beyond the range of float16, of which products in the moment kernels are made."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_detached(SHARED, seed)
        return inputs | {name: inputs[name] * scale for name in ("mu_inp", "B")}

    assert_accurate(draw, 4 if form == "moments" else 1, n_iters=2, eps=min(1e-5, 1e-5 * scale**2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_arguments(form: str, dtype: torch.dtype) -> None:
    inputs = make_inputs(SHARED, device=DEVICE)
    found, expected = (run(inputs, impl, 2, dtype=dtype) for impl in ("triton", "reference"))
    for name, t in expected.items():
        assert found[name].dtype == dtype
        assert distance(found[name], t) <= 4 * torch.finfo(dtype).eps * distance(t, torch.zeros_like(t)), name


@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
def test_huge_capsules_and_scores_stay_finite(form: str, size: float) -> None:
    inputs = make_detached(SHARED)
    inputs |= {name: inputs[name].sign() * size for name in ("mu_inp", "a_inp")}
    assert all(t.isfinite().all() for t in run(inputs, "triton").values())


def test_properties_of_routing(form: str) -> None:
    """Same bits for same inputs wherever these lie, any order of inputs, and none of the inputs that are masked."""
    inputs = make_detached(SHARED)
    expected = run(inputs, "triton", 2)
    odd = inputs | {"mu_inp": inputs["mu_inp"].mT.contiguous().mT}  # not contiguous
    spare = torch.zeros(inputs["a_inp"].numel() + 1, device=DEVICE)
    odd["a_inp"] = spare[1:].view(inputs["a_inp"].shape).copy_(inputs["a_inp"])  # not aligned
    found = run(odd, "triton", 2)
    assert all(torch.equal(found[name], t) for name, t in expected.items())

    found = run(inputs, "triton", 2, order={"i": torch.randperm(SHARED.n_inp)})
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=1e-4, atol=1e-4, msg=name)

    masked = inputs | {"a_inp": inputs["a_inp"].clone()}
    masked["a_inp"][:, 5:9] = -torch.inf
    left = torch.tensor([i for i in range(SHARED.n_inp) if not 5 <= i < 9], device=DEVICE)
    found = run(masked, "triton", 2)
    expected = run(inputs | {name: inputs[name][:, left] for name in ("a_inp", "mu_inp")}, "triton", 2)
    for name in ("a", "mu", "sig2", "dW", "dB"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)
    assert not found["da_inp"][:, 5:9].any()


def test_repeated_iterations_give_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    use_form("moments repeated in float64", monkeypatch)
    inputs = make_inputs(SHARED, device=DEVICE)
    first, second = run(inputs, "triton", 2), run(inputs, "triton", 2)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_packed_samples_equal_each_alone(form: str) -> None:
    layer = Routing(2, 3, 2, n_out=4, n_iters=2, impl="triton").to(DEVICE)
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


def test_compiled_graphs_give_same_results(form: str) -> None:
    torch.compiler.reset()  # or it would be the graph of another form
    inputs = make_detached(SHARED)
    plain = partial(route, n_iters=1, impl="triton")
    results = []
    for call in (torch.compile(lambda **kwargs: plain(**kwargs), backend="aot_eager", fullgraph=True), plain):
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        out = call(**leaves)
        out.mu.sum().backward()
        results.append([*(t.detach() for t in out), *(t.grad for t in leaves.values())])
    assert all(torch.equal(found, expected) for found, expected in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["a_inp", "mu_inp"])
def test_nan_stays_in_its_sample(form: str, name: str) -> None:
    inputs = make_detached(SHARED)
    inputs[name][0, 3] = torch.nan
    found, expected = (route(**inputs, n_iters=2, impl=impl) for impl in ("triton", "reference"))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert one[0].isnan().all()
        assert one[1].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("names", [[name] for name in COMPILED] if DEVICE == "cuda" else [[]], ids=str)
@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
def test_kernels_compile_for_a_gpu(agreement: str, names: list[str]) -> None:
    """All to the end only where there is a GPU to do it for: that takes minutes."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, ROOT / "tests/kernels/kernel_ir.py", agreement, *names]
    settings: dict[str, Any] = {"env": env | {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run(command, **settings, check=False, timeout=300)  # some code keeps the compiler busy for ever
    assert not done.returncode, done.stderr[-2000:]
    launched = dict(line.split("; ", 1) for line in done.stdout.splitlines())
    assert list(launched) == (names or COMPILED)
    if not names:
        sources = [path.read_text() for path in (ROOT / "capsroute/routing/triton").glob("*.py")]
        defined = {name for source in sources for name in re.findall(r"^def (\w+_kernel)\(", source, re.MULTILINE)}
        assert {kernel for kernels in launched.values() for kernel in kernels.split("; ")} == defined
