"""The vote kernels against the float64 reference, under the interpreter where there is no GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from accuracy import assert_within_budget, relative_errors
from capsroute import Capsules, route
from capsroute.routing.triton.grid import INTERPRETED, count_cores
from capsroute.routing.triton.op import run_backward, run_forward
from capsroute.routing.triton.sizes import LoopSettings, Sizes
from capsroute.routing.triton.votes_host import VoteKernels
from capsroute.routing.triton.votes_tiling import VoteTuning, votes_fit
from capsroute.testing import SHAPES, Shape, make_inputs

DEVICE = "cpu" if INTERPRETED else "cuda"
PARAMS = ("W", "B", "beta_use", "beta_ign")
RESULTS = ("a", "mu", "sig2", "da_inp", "dmu_inp", *(f"d{name}" for name in PARAMS))
LOOP = LoopSettings(2, True, 1e-5)
DEFAULT = VoteTuning()
SHARED = VoteTuning(sample_votes=0)
"""Programs share samples, however small."""
NARROW = VoteTuning(input_votes=4, split_votes=8)
"""Outputs in several tiles."""
ROUNDING = 2**-23
SMALL = Shape(2, 5, 3, 2, 3, 2)
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="triton was imported to compile"),
]


def make_vote_inputs(shape: Shape, own: str = "", seed: int = 0, kinds: int | None = None) -> dict[str, Tensor]:
    """Draw inputs; parameters named in `own` differ by kind, those with a tilde before them not by output."""
    inputs = make_inputs(replace(shape, fixed_inp=True), seed, device=DEVICE)
    for name in PARAMS:
        inputs[name] = inputs[name][:, :1] if f"~{name}" in own else inputs[name]
        inputs[name] = inputs[name][:kinds] if name in own.replace("~", "") else inputs[name][:1]
    return {name: t.detach().clone() for name, t in inputs.items()}


def make_weights(shape: Shape) -> list[Tensor]:
    """Draw gradients of the outputs."""
    generator = torch.Generator().manual_seed(1)
    scores, capsules = (shape.batch, shape.n_out), (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    return [torch.randn(size, generator=generator).to(DEVICE) for size in (scores, capsules, capsules)]


def plan(s: Shape, tuning: VoteTuning = DEFAULT, own: bool = False) -> VoteKernels:
    """Plan for parameters that inputs share, or each input has its own, and a GPU of 132 multiprocessors."""
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, packed=False)
    i, j = s.n_inp if own else 1, s.n_out
    shapes = ((i, j, s.d_inp, s.d_out), (i, j, s.d_cov, s.d_out), (i, j), (i, j))
    return VoteKernels(LOOP, sizes, s.batch * s.n_inp, shapes, 132, tuning)


def run_kernels(
    inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, offsets: Tensor | None, tuning: VoteTuning
) -> dict[str, Tensor]:
    """Return outputs and gradients by name."""
    a_inp, x, *params = inputs.values()
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, packed=offsets is not None)
    shapes, cores = tuple([tuple(p.shape) for p in params]), count_cores(x.device)
    kernels = VoteKernels(loop, sizes, a_inp.numel(), shapes, cores, tuning)
    arguments = a_inp, x, offsets, *params
    *outs, saved = run_forward(kernels, arguments)
    return dict(zip(RESULTS, (*outs, *run_backward(kernels, make_weights(s), saved, arguments)), strict=True))


def run_reference(
    inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, offsets: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return outputs and gradients by name; every place of a kind gets the kind's parameters."""
    leaves = [t.to(dtype).requires_grad_() for t in inputs.values()]
    settings: dict[str, Any] = {"n_iters": loop.n_iters, "agreement": "gaussian" if loop.gaussian else "kmeans"}

    def route_sample(a_inp: Tensor, mu_inp: Tensor) -> Capsules:
        n = a_inp.shape[-1]
        params = [p if len(p) in (1, n) else p.repeat_interleave(n // len(p), 0) for p in leaves[2:]]
        return route(a_inp, mu_inp, *params, **settings, impl="reference")

    if offsets is None:
        outs = route_sample(*leaves[:2])
    else:
        spans = [slice(*ends) for ends in offsets.unfold(0, 2, 1).tolist()]
        routed = [route_sample(leaves[0][span], leaves[1][span]) for span in spans]
        outs = [torch.stack(parts) for parts in zip(*routed, strict=True)]
    grads = torch.autograd.grad(tuple(outs), leaves, [w.to(dtype) for w in make_weights(s)])
    return dict(zip(RESULTS, (*(t.detach() for t in outs), *grads), strict=True))


def assert_close(
    draw: Callable[[int], dict[str, Tensor]],
    s: Shape,
    *,
    loop: LoopSettings = LOOP,
    offsets: Tensor | None = None,
    tuning: VoteTuning = DEFAULT,
) -> None:
    """Hold the kernels to the error budget on inputs drawn by seed."""
    assert_within_budget(
        lambda seed: run_kernels(draw(seed), s, loop, offsets, tuning),
        lambda seed, dtype: run_reference(draw(seed), s, loop, offsets, dtype),
    )


def draw_packed(s: Shape, own: str = "", kinds: int | None = None) -> Callable[[int], dict[str, Tensor]]:
    """Return a function that draws eight inputs of all samples."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_vote_inputs(replace(s, batch=1, n_inp=8), own, seed, kinds)
        return inputs | {name: inputs[name][0] for name in ("a_inp", "mu_inp")}

    return draw


TUNINGS = {"one program": DEFAULT, "shared": SHARED, "narrow": NARROW}


@pytest.fixture(params=TUNINGS)
def tuning(request: pytest.FixtureRequest) -> VoteTuning:
    return TUNINGS[request.param]


one_program_and_shared = pytest.mark.parametrize("tuning", ["one program", "shared"], indirect=True)


@pytest.mark.parametrize("own", ["", "~W ~beta_use ~beta_ign", "W B beta_use beta_ign", "~W B beta_ign"])
@one_program_and_shared
def test_parameters_shared_in_every_way(own: str, tuning: VoteTuning) -> None:
    assert_close(lambda seed: make_vote_inputs(SMALL, own, seed), SMALL, tuning=tuning)


@pytest.mark.parametrize("own", ["", "W B beta_use beta_ign"])
def test_more_samples_than_interpreted_programs(own: str) -> None:
    """Also k-means, and axes whose sizes are no powers of two."""
    s = Shape(5, 3, 2, 3, 2, 3)
    assert_close(lambda seed: make_vote_inputs(s, own, seed), s, loop=LoopSettings(3, False, 1e-5))


@pytest.mark.parametrize(
    ("own", "kinds"),
    [("W B beta_use beta_ign", 2), ("W beta_use", 5), ("~W B ~beta_ign", 3), ("beta_ign", 2)],
)
def test_places_share_parameters_of_their_kind(own: str, kinds: int, tuning: VoteTuning) -> None:
    """Also if all kinds share other parameters."""
    s = replace(SMALL, n_inp=3 * kinds)
    assert_close(lambda seed: make_vote_inputs(s, own, seed, kinds), s, tuning=tuning)


def test_packed_samples(tuning: VoteTuning) -> None:
    """Samples of 5, 0 and 3 inputs."""
    s = replace(SMALL, batch=3)
    assert_close(draw_packed(s), s, offsets=torch.tensor([0, 5, 5, 8], device=DEVICE), tuning=tuning)


@pytest.mark.parametrize("own", ["W B beta_use beta_ign", "~W beta_ign"])
def test_packed_samples_of_several_kinds(own: str, tuning: VoteTuning) -> None:
    """Samples of two kinds at 1, 0 and 3 places."""
    s, offsets = replace(SMALL, batch=3, n_inp=6), torch.tensor([0, 2, 2, 8], device=DEVICE)
    assert_close(draw_packed(s, own, 2), s, offsets=offsets, tuning=tuning)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("n_inp", [1, 3])
def test_close_votes_far_from_zero(tuning: VoteTuning, n_inp: int, agreement: str) -> None:
    """Variances are small differences of large squares, in the first iteration already."""
    s = Shape(2, n_inp, 5, 2, 3, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_vote_inputs(s, seed=seed)
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + inputs["mu_inp"][:, :1]}

    for n_iters in (1, 3):
        assert_close(draw, s, loop=LoopSettings(n_iters, agreement == "gaussian", 1e-5), tuning=tuning)


@pytest.mark.parametrize(
    ("s", "n_masked", "tuning"),
    [
        (Shape(1, 150, 4, 1, 3, 4), 0, NARROW._replace(tile_votes=16)),
        (Shape(1, 150, 4, 1, 3, 4), 90, SHARED._replace(tile_votes=32)),
    ],
    ids=["many tiles", "masked"],
)
def test_many_close_votes_far_from_zero(s: Shape, n_masked: int, tuning: VoteTuning) -> None:
    """Tiles must measure distances from a centre among inputs with weight, and sum what they used in float64."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_vote_inputs(s, seed=seed)
        inputs["a_inp"][:, :n_masked] = -torch.inf
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + 10}

    assert_close(draw, s, loop=LOOP._replace(n_iters=1), tuning=tuning)


def test_outlier_of_little_weight_is_no_centre() -> None:
    """Distances measured from it would leave no digit of the other inputs' variance."""
    s = Shape(1, 60, 4, 1, 3, 4)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_vote_inputs(s, seed=seed)
        inputs["a_inp"][:, ::20] = -60.0
        inputs["mu_inp"][:, ::20] = 1e4
        return inputs

    assert_close(draw, s, loop=LOOP._replace(n_iters=1), tuning=SHARED._replace(tile_votes=16))


@pytest.mark.parametrize("own", ["", "~W"])
def test_many_outputs(own: str) -> None:
    s = Shape(1, 3, 5, 2, 2, 2)
    assert_close(lambda seed: make_vote_inputs(s, own, seed), s, loop=LOOP._replace(gaussian=False), tuning=NARROW)


@pytest.mark.parametrize("fixed_inp", [False, True])
@one_program_and_shared
def test_no_inputs(fixed_inp: bool, tuning: VoteTuning) -> None:
    s = replace(SMALL, n_inp=0, fixed_inp=fixed_inp)
    assert_close(lambda seed: make_inputs(s, seed, device=DEVICE), s, loop=LOOP._replace(n_iters=1), tuning=tuning)


@one_program_and_shared
def test_infinite_scores_and_huge_capsules_stay_finite(tuning: VoteTuning) -> None:
    inputs = make_vote_inputs(SMALL)
    inputs["a_inp"][:, 0], inputs["a_inp"][:, 1] = -torch.inf, torch.inf
    inputs["mu_inp"][:, 1] = 3e38
    found = run_kernels(inputs, SMALL, LOOP, None, tuning)
    assert all(t.isfinite().all() for t in found.values())
    assert (found["dmu_inp"][:, 1] == 0).all(), "clamped"
    assert (found["da_inp"][:, :2] == 0).all()


def test_saturated_assignments_have_no_gradient(tuning: VoteTuning) -> None:
    """Little weight, variances of eps, assignments of 0 or 1: one rounding of these would be most of a gradient."""
    s = Shape(2, 1, 8, 1, 16, 3, fixed_out=True)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = make_vote_inputs(s, seed=seed)
        return inputs | {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "mu_inp": 3 * inputs["mu_inp"]}

    assert_close(draw, s, tuning=tuning)


def assert_exact(inputs: dict[str, Tensor], s: Shape, loop: LoopSettings, tuning: VoteTuning, *names: str) -> None:
    """Allow four roundings of a result's largest value."""
    exact, found = run_reference(inputs, s, loop, None, torch.float64), run_kernels(inputs, s, loop, None, tuning)
    errors = relative_errors(found, exact)
    assert all(errors[name] < 4 * ROUNDING for name in names), errors


def test_outputs_that_differ_by_score_alone(tuning: VoteTuning) -> None:
    """Large distances, the same for all outputs, would leave no digit of the scores."""
    s = Shape(1, 30, 5, 2, 3, 4)
    inputs = make_vote_inputs(s, "~W beta_use beta_ign")
    inputs |= {"mu_inp": 30 * inputs["mu_inp"], "B": torch.zeros_like(inputs["B"])}
    assert_exact(inputs, s, LOOP._replace(gaussian=False), tuning, "mu")


@one_program_and_shared
def test_gradients_common_to_all_outputs_cancel(tuning: VoteTuning) -> None:
    """One output has nearly all of every input, and all logits nearly the same gradient."""
    s = Shape(1, 700, 2, 1, 1, 1)
    inputs = make_vote_inputs(s, "~W")
    inputs |= {"a_inp": torch.full_like(inputs["a_inp"], 40.0), "B": torch.zeros_like(inputs["B"])}
    inputs["beta_use"] = torch.tensor([[0.5, -0.022]], device=DEVICE)
    inputs["beta_ign"] = torch.tensor([[0.5, 0.022]], device=DEVICE)
    assert_exact(inputs, s, LOOP, tuning, "dbeta_use")


@one_program_and_shared
def test_gradients_of_one_input_of_little_weight(tuning: VoteTuning) -> None:
    """All outputs get the same votes, so that their gradients cancel but for a small rest."""
    s = Shape(1, 1, 36, 4, 2, 6)
    inputs = make_vote_inputs(s, "~W")
    inputs |= {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "B": torch.zeros_like(inputs["B"])}
    assert_exact(inputs, s, LOOP, tuning, "dmu_inp", "dW")


@pytest.mark.parametrize(
    ("s", "split_j"),
    [
        (Shape(20, 5184, 64, 4, 4, 4), False),
        (Shape(20, 500, 200, 4, 4, 4), False),
        (Shape(20, 500, 300, 4, 4, 4), True),
        (Shape(20, 500, 100, 8, 8, 8), True),
    ],
    ids=["64 outputs", "200 outputs", "too many outputs", "too many components"],
)
def test_outputs_that_fit_take_one_tile(s: Shape, split_j: bool) -> None:
    assert split_j == plan(s).tile.SPLIT_J


@pytest.mark.parametrize(
    ("capsule", "expected"), [((8, 16, 8), True), ((1, 8, 64), True), ((5, 4, 9), False), ((1, 17, 2), False)]
)
def test_large_capsules_do_not_fit(capsule: tuple[int, int, int], expected: bool) -> None:
    assert votes_fit(Sizes(2, 9, 5, *capsule, packed=False)) == expected


def test_tiles_do_not_depend_on_exact_sizes() -> None:
    """Or every new batch would compile for seconds."""

    def tile(b: int, i: int, j: int, own: bool = False) -> Any:
        return plan(Shape(b, i, j, 1, 16, 4), own=own).tile

    assert tile(20, 888, 64) == tile(1, 65, 40)
    assert tile(8, 1024, 3000) == tile(64, 12, 2000)
    assert tile(8, 1025, 10, own=True) == tile(900, 9999, 12, own=True)


@pytest.mark.parametrize("name", [name for name, s in SHAPES.items() if s.d_inp <= 16])
def test_named_shapes_fill_a_gpu_in_bounded_memory(name: str) -> None:
    """No workspace grows with inputs times outputs."""
    s = SHAPES[name]
    kernels = plan(s, SHARED, own=s.fixed_inp)
    sums, grads = kernels.sums, kernels.grads
    assert s.batch * sums.slots * sums.j_tiles >= 100
    assert grads.groups * grads.slots * grads.slices >= 100
    layouts = kernels.fwd_workspace, kernels.bwd_workspace, kernels.partial_grads
    assert sum(layout.nbytes for layout in layouts) < 2**29


@pytest.mark.parametrize("name", ["smallnorb_2", "sst_2"])
def test_small_samples_take_one_program_while_gradients_fit(name: str) -> None:
    s = SHAPES[name]

    def tile(batch: int, tuning: VoteTuning = DEFAULT) -> Any:
        return plan(replace(s, batch=batch), tuning, own=True).tile

    found = tile(s.batch)
    assert found.ONE_PROGRAM
    assert s.n_inp <= found.BLOCK_I
    assert s.n_out <= found.BLOCK_M
    assert found == tile(s.batch + 1)
    assert not tile(s.batch, SHARED).ONE_PROGRAM
    most = 2**28 // (4 * s.n_inp * s.n_out * max(s.d_inp, s.d_cov) * s.d_out)
    assert tile(most).ONE_PROGRAM
    assert not tile(most + 1).ONE_PROGRAM
