"""The kernels of stored votes against the float64 reference, under the interpreter where there is no GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accuracy import assert_within_budget
from capsroute import Routing, route
from capsroute.routing import reference
from capsroute.routing.agreement import Gaussian
from capsroute.routing.triton.grid import INTERPRETED, count_cores
from capsroute.routing.triton.op import run_backward, run_forward
from capsroute.routing.triton.sizes import Call, LoopSettings, Sizes, products_fit
from capsroute.routing.triton.stored_host import TILE_VOTES, StoredKernels, choose_blocks
from capsroute.testing import Shape, make_inputs, run

DEVICE = "cpu" if INTERPRETED else "cuda"
SMALL = Shape(2, 6, 5, 2, 3, 2)
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="triton was imported to compile"),
]


def draw(shape: Shape, seed: int = 0, one_kind: str = "") -> dict[str, Tensor]:
    """Draw arguments of `route`; all kinds share the parameters named in `one_kind`."""
    inputs = {name: t.detach().clone() for name, t in make_inputs(shape, seed, device=DEVICE).items()}
    return inputs | {name: inputs[name][:1].contiguous() for name in one_kind.split()}


def assert_close(draw: Callable[[int], dict[str, Tensor]], **settings: Any) -> None:
    """Hold the kernels to the error budget on inputs drawn by seed."""
    assert_within_budget(
        lambda seed: run(draw(seed), "triton", **settings),
        lambda seed, dtype: run(draw(seed), "reference", dtype=dtype, **settings),
    )


@pytest.mark.parametrize(
    ("s", "one_kind"),
    [
        (SMALL, ""),
        (replace(SMALL, fixed_inp=True), ""),
        (replace(SMALL, n_kinds=2), ""),
        (replace(SMALL, n_kinds=3), "W beta_use"),
        (replace(SMALL, n_kinds=2), "B beta_use beta_ign"),
        (replace(SMALL, n_kinds=2, fixed_out=False), "B"),
        (Shape(3, 5, 9, 1, 4, 33), ""),
        (Shape(1, 3, 2, 1, 2, 300, fixed_inp=True), ""),
    ],
    ids=["one kind", "every input a kind", "two kinds", "shared W", "own W", "outputs share", "long", "longer"],
)
def test_parameters_shared_in_every_way(s: Shape, one_kind: str) -> None:
    assert_close(lambda seed: draw(s, seed, one_kind))


@pytest.mark.parametrize("n_iters", [1, 2, 4])
def test_iterations(n_iters: int) -> None:
    assert_close(lambda seed: draw(replace(SMALL, n_kinds=3), seed), n_iters=n_iters)


def test_kmeans() -> None:
    s = Shape(2, 20, 7, 2, 3, 2)
    assert_close(lambda seed: draw(s, seed), agreement="kmeans")


def test_many_inputs_and_outputs() -> None:
    """More than a tile has of either."""
    s = Shape(1, 70, 20, 1, 3, 24)
    assert_close(lambda seed: draw(s, seed), n_iters=2)


@pytest.mark.parametrize("n_kinds", [1, 2])
def test_packed_samples(n_kinds: int) -> None:
    """Samples of 4, 0 and 2 places for each kind, as each alone."""
    layer = Routing(2, 3, 4, n_out=5, n_kinds=n_kinds, impl="triton")
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    lengths = [4 * n_kinds, 0, 2 * n_kinds]
    a_inp, mu_inp = torch.randn(sum(lengths)), torch.randn(sum(lengths), 2, 3)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    found = layer.forward_packed(a_inp, mu_inp, offsets)
    samples = zip(a_inp.split(lengths), mu_inp.split(lengths), strict=True)
    for expected, t in zip(zip(*(layer(*sample) for sample in samples), strict=True), found, strict=True):
        torch.testing.assert_close(t, torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_kinds", [1, 3])
def test_pieces_of_a_batch(n_kinds: int) -> None:
    """Votes of some samples at a time, formed again in the backward pass, give the same results."""
    s = replace(SMALL, batch=5, n_kinds=n_kinds)
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, packed=False)
    inputs = draw(s)
    a_inp, x, *params = inputs.values()
    shapes, arguments = tuple([tuple(p.shape) for p in params]), (a_inp, x, None, *params)
    results = []
    for piece_votes in (2**20, 2 * s.votes // s.batch):
        call = Call(LoopSettings(3, True, 1e-5), sizes, a_inp.numel(), shapes, count_cores(x.device))
        kernels = StoredKernels(call, piece_votes)
        *outs, saved = run_forward(kernels, arguments)
        results.append([*outs, *run_backward(kernels, [torch.ones_like(t) for t in outs], saved, arguments)])
    assert [len(kernels.pieces), kernels.keeps_votes] == [3, False]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("n_inp", [1, 3])
def test_close_votes_far_from_zero(n_inp: int, agreement: str) -> None:
    """Variances are small differences of large squares, in the first iteration already."""
    s = Shape(2, n_inp, 5, 2, 3, 2)

    def close(seed: int) -> dict[str, Tensor]:
        inputs = draw(s, seed)
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + inputs["mu_inp"][:, :1]}

    for n_iters in (1, 3):
        assert_close(close, n_iters=n_iters, agreement=agreement)


def test_outlier_of_little_weight() -> None:
    s = Shape(1, 60, 4, 1, 3, 4)

    def with_outliers(seed: int) -> dict[str, Tensor]:
        inputs = draw(s, seed)
        inputs["a_inp"][:, ::20] = -60.0
        inputs["mu_inp"][:, ::20] = 1e4
        return inputs

    assert_close(with_outliers, n_iters=1)


def test_saturated_assignments_have_no_gradient() -> None:
    """Little weight, variances of eps, assignments of 0 or 1: one rounding of these would be most of a gradient."""
    s = Shape(2, 1, 8, 1, 16, 3)

    def saturated(seed: int) -> dict[str, Tensor]:
        inputs = draw(s, seed)
        return inputs | {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "mu_inp": 3 * inputs["mu_inp"]}

    assert_close(saturated)


def test_outputs_that_differ_by_score_alone() -> None:
    """Large distances, the same for all outputs, must leave the digits of the scores."""
    s = Shape(1, 30, 5, 2, 3, 4, fixed_out=False)

    def alike(seed: int) -> dict[str, Tensor]:
        inputs = draw(s, seed)
        own = {name: torch.randn(1, s.n_out).to(DEVICE) for name in ("beta_use", "beta_ign")}
        return inputs | own | {"mu_inp": 30 * inputs["mu_inp"], "B": torch.zeros_like(inputs["B"])}

    assert_close(alike, agreement="kmeans")


@pytest.mark.parametrize("fixed_inp", [False, True])
def test_no_inputs(fixed_inp: bool) -> None:
    assert_close(lambda seed: draw(replace(SMALL, n_inp=0, fixed_inp=fixed_inp), seed), n_iters=2)


def test_infinite_scores_and_huge_capsules_stay_finite() -> None:
    inputs = draw(SMALL)
    inputs["a_inp"][:, 0], inputs["a_inp"][:, 1] = -torch.inf, torch.inf
    inputs["mu_inp"][:, 1] = 3e38
    found = run(inputs, "triton")
    assert all(t.isfinite().all() for t in found.values())
    assert (found["dmu_inp"][:, 1] == 0).all(), "clamped"
    assert (found["da_inp"][:, :2] == 0).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_nan_stays_in_its_sample() -> None:
    inputs = draw(SMALL)
    inputs["mu_inp"][0, 2, 0, 0] = torch.nan
    found, expected = route(**inputs, impl="triton"), reference.route(*inputs.values(), 3, Gaussian(), 1e-5)
    assert found.mu[0].isnan().any()
    assert found.mu[1].isfinite().all()
    assert (found.mu.isnan() == expected.mu.isnan())[..., 0, :].all()


def test_longer_votes_are_refused() -> None:
    with pytest.raises(ValueError, match="output capsules have 4100 numbers, above 4096"):
        route(**draw(Shape(1, 2, 2, 1, 2, 4100)), impl="triton")


def test_tiles_do_not_depend_on_batch_or_inputs() -> None:
    """Or every new size would compile for seconds."""
    assert choose_blocks(17, 10, 16) == choose_blocks(5000, 10, 16)
    assert choose_blocks(3, 10, 16) == choose_blocks(16, 10, 16)
    for block_v in (1, 4, 64, 1024, 4096):
        blocks = choose_blocks(5000, 300, block_v)
        pairs = max(blocks.SUM_I * blocks.SUM_J, blocks.BLOCK_I * blocks.BLOCK_J)
        assert pairs * block_v <= max(TILE_VOTES, block_v)


def test_products_are_left_to_their_kernels() -> None:
    sizes = Sizes(20, 888, 64, 1, 64, 2, packed=False)
    assert products_fit(sizes, ((1, 64, 64, 2), (1, 64, 1, 2), (1, 64), (1, 64)))
    assert not products_fit(sizes, ((2, 64, 64, 2), (1, 64, 1, 2), (1, 64), (1, 64)))
    assert not products_fit(sizes._replace(d=65), ((1, 64, 65, 2), (1, 64, 1, 2), (1, 64), (1, 64)))
