"""The product kernels against the float64 reference, under the interpreter where there is no GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accuracy import assert_within_budget, relative_errors
from capsroute import route
from capsroute.routing.triton.grid import INTERPRETED, count_cores
from capsroute.routing.triton.op import run_backward, run_forward
from capsroute.routing.triton.products_host import ProductKernels, ProductTuning
from capsroute.routing.triton.sizes import Call, LoopSettings, Sizes, products_fit
from capsroute.testing import SHAPES, Shape, make_inputs

DEVICE = "cpu" if INTERPRETED else "cuda"
PARAMS = ("W", "B", "beta_use", "beta_ign")
RESULTS = ("a", "mu", "sig2", "da_inp", "dmu_inp", *(f"d{name}" for name in PARAMS))
LOOP = LoopSettings(2, True, 1e-5)
KMEANS = LOOP._replace(gaussian=False)
DEFAULT = ProductTuning()
SPLIT = ProductTuning(columns=4, split_columns=16, tile_votes=256)
"""Outputs in several tiles."""
ROUNDING = 2**-23
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="triton was imported to compile"),
]
one_and_several_tiles = pytest.mark.parametrize("tuning", [DEFAULT, SPLIT], ids=["one tile", "several tiles"])
both_agreements = pytest.mark.parametrize("loop", [LOOP, KMEANS], ids=["gaussian", "kmeans"])


def draw_inputs(shape: Shape, seed: int = 0, one: str = "") -> dict[str, Tensor]:
    """Draw inputs; all outputs share the parameters named in `one`."""
    inputs = {name: t.detach().clone() for name, t in make_inputs(shape, seed, device=DEVICE).items()}
    return inputs | {name: inputs[name][:, :1].contiguous() for name in one.split()}


def make_weights(shape: Shape) -> list[Tensor]:
    """Draw gradients of the outputs."""
    generator = torch.Generator().manual_seed(1)
    scores, capsules = (shape.batch, shape.n_out), (shape.batch, shape.n_out, 1, shape.d_out)
    return [torch.randn(size, generator=generator).to(DEVICE) for size in (scores, capsules, capsules)]


def plan(s: Shape, cores: int = 132) -> ProductKernels:
    """Plan for a GPU of some multiprocessors."""
    sizes, j = Sizes(s.batch, s.n_inp, s.n_out, 1, s.d_inp, s.d_out, packed=False), s.n_out
    shapes = ((1, j, s.d_inp, s.d_out), (1, j, 1, s.d_out), (1, j), (1, j))
    return ProductKernels(Call(LOOP, sizes, s.batch * s.n_inp, shapes, cores))


def run_kernels(
    inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, offsets: Tensor | None, tuning: ProductTuning
) -> dict[str, Tensor]:
    """Return outputs and gradients by name."""
    a_inp, x, *params = inputs.values()
    sizes = Sizes(s.batch, s.n_inp, s.n_out, 1, s.d_inp, s.d_out, packed=offsets is not None)
    shapes, cores = tuple([tuple(p.shape) for p in params]), count_cores(x.device)
    kernels = ProductKernels(Call(loop, sizes, a_inp.numel(), shapes, cores), tuning)
    arguments = a_inp, x, offsets, *params
    *outs, saved = run_forward(kernels, arguments)
    return dict(zip(RESULTS, (*outs, *run_backward(kernels, make_weights(s), saved, arguments)), strict=True))


def run_reference(
    inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, offsets: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return outputs and gradients by name."""
    inputs = {name: t.to(dtype).requires_grad_() for name, t in inputs.items()}
    settings: dict[str, Any] = {"n_iters": loop.n_iters, "agreement": "gaussian" if loop.gaussian else "kmeans"}
    if offsets is None:
        outs = route(**inputs, **settings, impl="reference")
    else:
        spans = [slice(*ends) for ends in offsets.unfold(0, 2, 1).tolist()]
        samples = [inputs | {name: inputs[name][span] for name in ("a_inp", "mu_inp")} for span in spans]
        routed = [route(**sample, **settings, impl="reference") for sample in samples]
        outs = [torch.stack(parts) for parts in zip(*routed, strict=True)]
    grads = torch.autograd.grad(tuple(outs), list(inputs.values()), [w.to(dtype) for w in make_weights(s)])
    return dict(zip(RESULTS, (*(t.detach() for t in outs), *grads), strict=True))


def assert_close(
    draw: Callable[[int], dict[str, Tensor]],
    s: Shape,
    *,
    loop: LoopSettings = LOOP,
    offsets: Tensor | None = None,
    tuning: ProductTuning = DEFAULT,
) -> None:
    """Hold the kernels to the error budget on inputs drawn by seed."""
    assert_within_budget(
        lambda seed: run_kernels(draw(seed), s, loop, offsets, tuning),
        lambda seed, dtype: run_reference(draw(seed), s, loop, offsets, dtype),
    )


@pytest.mark.parametrize(
    ("s", "tuning", "one"),
    [
        (Shape(2, 70, 16, 1, 17, 2), DEFAULT, ""),
        (Shape(2, 20, 3, 1, 33, 8), DEFAULT, "W beta_use"),
        (Shape(2, 20, 20, 1, 17, 2), SPLIT, "beta_ign"),
        (Shape(1, 20, 20, 1, 16, 3), SPLIT._replace(split_columns=32), "W"),
        (Shape(5, 12, 5, 1, 16, 3), SPLIT, "beta_use beta_ign"),
    ],
    ids=["one tile", "one tile, one W", "several tiles", "several tiles, one W", "more samples than programs"],
)
def test_results_are_within_budget(s: Shape, tuning: ProductTuning, one: str) -> None:
    assert_close(lambda seed: draw_inputs(s, seed, one), s, tuning=tuning)


@one_and_several_tiles
def test_kmeans(tuning: ProductTuning) -> None:
    s = Shape(2, 20, 9, 1, 17, 3)
    assert_close(lambda seed: draw_inputs(s, seed), s, loop=KMEANS, tuning=tuning)


@one_and_several_tiles
def test_packed_samples(tuning: ProductTuning) -> None:
    """Samples of 5, 0 and 17 inputs."""
    s, offsets = Shape(3, 17, 9, 1, 17, 2), torch.tensor([0, 5, 5, 22], device=DEVICE)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(replace(s, batch=1, n_inp=22), seed)
        return inputs | {name: inputs[name][0] for name in ("a_inp", "mu_inp")}

    assert_close(draw, s, offsets=offsets, tuning=tuning)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_tiny_and_huge_capsules(scale: float) -> None:
    """Beyond the range of float16."""
    s = Shape(2, 5, 3, 1, 17, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(s, seed)
        sizes = torch.tensor([1.0, scale, 1.0, scale, scale], device=DEVICE)
        return inputs | {"mu_inp": inputs["mu_inp"] * sizes[:, None, None], "W": inputs["W"] / scale}

    assert_close(draw, s)


@pytest.mark.parametrize("n_masked", [0, 90])
@one_and_several_tiles
def test_close_votes_far_from_zero(tuning: ProductTuning, n_masked: int) -> None:
    """Variances are small differences of large squares: distances need a centre among inputs with weight."""
    s = Shape(1, 150, 4, 1, 17, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(s, seed)
        inputs["a_inp"][:, :n_masked] = -torch.inf
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + 10}

    assert_close(draw, s, loop=LOOP._replace(n_iters=1), tuning=tuning._replace(tile_votes=256))


@both_agreements
@one_and_several_tiles
def test_few_close_votes_far_from_zero(tuning: ProductTuning, loop: LoopSettings) -> None:
    s = Shape(2, 3, 5, 1, 17, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(s, seed)
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + inputs["mu_inp"][:, :1]}

    assert_close(draw, s, loop=loop._replace(n_iters=3), tuning=tuning)


def test_outlier_of_little_weight_is_no_centre() -> None:
    """Distances measured from it would leave no digit of the other inputs' variance."""
    s = Shape(1, 60, 4, 1, 17, 4)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(s, seed)
        inputs["a_inp"][:, ::20] = -60.0
        inputs["mu_inp"][:, ::20] = 1e4
        return inputs

    assert_close(draw, s, loop=LOOP._replace(n_iters=1), tuning=DEFAULT._replace(tile_votes=256))


@one_and_several_tiles
def test_no_inputs(tuning: ProductTuning) -> None:
    s = Shape(2, 0, 5, 1, 17, 2)
    assert_close(lambda seed: draw_inputs(s, seed), s, loop=LOOP._replace(n_iters=1), tuning=tuning)


@one_and_several_tiles
def test_infinite_scores_and_huge_capsules_stay_finite(tuning: ProductTuning) -> None:
    s = Shape(2, 5, 9, 1, 17, 2)
    inputs = draw_inputs(s)
    inputs["a_inp"][:, 0], inputs["a_inp"][:, 1] = -torch.inf, torch.inf
    inputs["mu_inp"][:, 1] = 3e38
    found = run_kernels(inputs, s, LOOP, None, tuning)
    assert all(t.isfinite().all() for t in found.values())
    assert (found["dmu_inp"][:, 1] == 0).all(), "clamped"
    assert (found["da_inp"][:, :2] == 0).all()


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")  # in NumPy
@one_and_several_tiles
def test_nan_reaches_its_sample_alone(tuning: ProductTuning) -> None:
    s = Shape(2, 5, 9, 1, 17, 2)
    inputs = draw_inputs(s)
    inputs["mu_inp"][0, 2, 0, 3] = torch.nan
    found = run_kernels(inputs, s, LOOP, None, tuning)
    assert all(found[name][0].isnan().all() for name in ("a", "mu", "sig2"))
    assert all(found[name][1].isfinite().all() for name in ("a", "mu", "sig2", "da_inp", "dmu_inp"))


@one_and_several_tiles
def test_saturated_assignments_have_no_gradient(tuning: ProductTuning) -> None:
    """Little weight, variances of eps, assignments of 0 or 1: one rounding of these would be most of a gradient."""
    s = Shape(2, 1, 8, 1, 16, 3)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = draw_inputs(s, seed)
        return inputs | {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "mu_inp": 3 * inputs["mu_inp"]}

    assert_close(draw, s, tuning=tuning)


def assert_exact(inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, tuning: ProductTuning, name: str) -> None:
    """Allow four roundings of a result's largest value."""
    exact, found = run_reference(inputs, s, loop, None, torch.float64), run_kernels(inputs, s, loop, None, tuning)
    assert relative_errors(found, exact)[name] < 4 * ROUNDING


@one_and_several_tiles
def test_outputs_that_differ_by_score_alone(tuning: ProductTuning) -> None:
    """Large distances, the same for all outputs, would leave no digit of the scores."""
    s = Shape(1, 30, 5, 1, 16, 4)
    inputs = draw_inputs(s, one="W beta_use beta_ign")
    # whole numbers, which halves hold exactly
    inputs |= {"mu_inp": (30 * inputs["mu_inp"]).round(), "W": (16 * inputs["W"]).round() / 16}
    inputs["beta_use"], inputs["B"] = torch.rand(1, 5, device=DEVICE), torch.zeros_like(inputs["B"])
    assert_exact(inputs, s, KMEANS, tuning, "mu")


def test_gradients_common_to_all_outputs_cancel() -> None:
    """One output has nearly all of every input, and all logits nearly the same gradient."""
    s = Shape(1, 700, 2, 1, 16, 1)
    inputs = draw_inputs(s, one="W")
    inputs |= {"a_inp": torch.full_like(inputs["a_inp"], 40.0), "B": torch.zeros_like(inputs["B"])}
    inputs["beta_use"] = torch.tensor([[0.5, -0.022]], device=DEVICE)
    inputs["beta_ign"] = torch.tensor([[0.5, 0.022]], device=DEVICE)
    assert_exact(inputs, s, LOOP, DEFAULT, "dbeta_use")


def test_two_runs_give_the_same_bits() -> None:
    s = Shape(2, 12, 5, 1, 17, 2)
    inputs = draw_inputs(s)
    first, second = (run_kernels(inputs, s, LOOP, None, SPLIT) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in RESULTS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"i": 64, "d": 16, "h": 8, "j": 30_000}, True),
        ({"i": 63}, False),
        ({"c": 2}, False),
        ({"d": 15}, False),
        ({"d": 65}, False),
        ({"h": 9}, False),
    ],
)
def test_products_serve_many_inputs_of_long_capsules_and_small_votes(changes: dict[str, int], expected: bool) -> None:
    sizes = Sizes(20, 888, 64, 1, 64, 2, packed=False)._replace(**changes)
    shapes = ((1, 64, 64, 2), (1, 64, 1, 2), (1, 1), (1, 64))
    assert products_fit(sizes, shapes) == expected
    for k, shape in enumerate(shapes):
        assert not products_fit(sizes, (*shapes[:k], (sizes.i, *shape[1:]), *shapes[k + 1 :]))


def test_tiles_do_not_depend_on_exact_sizes() -> None:
    """Or every new batch would compile for seconds."""
    assert plan(Shape(20, 888, 64, 1, 64, 2)).tile == plan(Shape(31, 900, 40, 1, 64, 2)).tile
    assert plan(Shape(8, 1024, 3000, 1, 64, 2)).tile == plan(Shape(1, 64, 299, 1, 64, 2)).tile


@pytest.mark.parametrize(("name", "split_j"), [("sst_1", False), ("wide_out", True)])
def test_named_shapes_fill_a_gpu_in_bounded_memory(name: str, split_j: bool) -> None:
    """Of 132 multiprocessors; no workspace grows with inputs times outputs."""
    kernels = plan(SHAPES[name])
    tile, n = kernels.tile, kernels.counts
    assert split_j == tile.SPLIT_J
    assert min(tile.BLOCK_I, tile.BLOCK_D, tile.BLOCK_J * tile.BLOCK_H) >= 16
    assert min(n.b * n.slots * n.j_tiles, n.groups * n.grad_slots * n.grad_slices) >= 100
    assert max(kernels.fwd_workspace.nbytes, kernels.bwd_workspace.nbytes) < 2**29
