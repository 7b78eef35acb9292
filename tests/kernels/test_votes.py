"""The vote form of the Triton kernels against the float64 reference, under the interpreter where there is no GPU."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from capsroute import route
from capsroute.routing.triton.grid import INTERPRETED
from capsroute.routing.triton.sizes import Plan, Sizes
from capsroute.routing.triton.votes_host import Job, Knobs, Runner, job
from capsroute.routing.triton.votes_types import Tile
from capsroute.testing import SHAPES, Shape, budget, distance, make_inputs

DEVICE = "cpu" if INTERPRETED else "cuda"
PARAMS = ("W", "B", "beta_use", "beta_ign")
DRAWS = 12
PLAN = Plan(2, True, 1e-5)
WHOLE = Knobs()
SHARED = Knobs(alone=0)
"""Programs share samples, however small."""
PRODUCTS = Knobs(fewest=1)
"""Matrix products of however few inputs."""
NARROW = Knobs(of_one=4, of_one_wide=4, of_one_few=4, columns=4, most_j=4)
"""Outputs in several tiles, components in several chunks."""
pytestmark = [
    pytest.mark.usefixtures("watched"),
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="triton was imported to compile"),
]


def drawn(shape: Shape, own: str = "", seed: int = 0) -> dict[str, Tensor]:
    """Inputs; parameters named in `own` differ by input, and by output unless their name has a tilde before it."""
    inputs = make_inputs(replace(shape, fixed_inp=True), seed, device=DEVICE)
    for name in PARAMS:
        inputs[name] = inputs[name][:, :1] if f"~{name}" in own else inputs[name]
        inputs[name] = inputs[name] if name in own.replace("~", "") else inputs[name][:1]
    return {name: t.detach().clone() for name, t in inputs.items()}


def weights(shape: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    one, all_ = (shape.batch, shape.n_out), (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    return [torch.randn(size, generator=generator).to(DEVICE) for size in (one, all_, all_)]


@contextmanager
def memory_of_nans() -> Iterator[None]:
    """Instead of what happens to lie there, which is zero more often than not."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def run_kernels(
    inputs: dict[str, Tensor], s: Shape, plan: Plan, offsets: Tensor | None, knobs: Knobs
) -> dict[str, Tensor]:
    a_inp, x = inputs["a_inp"], inputs["mu_inp"]
    if offsets is not None:
        a_inp, x = a_inp.flatten(), x.reshape(-1, s.d_cov, s.d_inp)
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, offsets is not None)
    params = [inputs[name] for name in PARAMS]
    shapes = tuple([p.shape for p in params])
    run = Runner(plan, sizes, a_inp.numel(), shapes, (a_inp.dtype, x.dtype), x.device, knobs)
    given = [a_inp, x, x if offsets is None else offsets, *params]
    with memory_of_nans():
        outs, saved = run.fwd(given)
        grads = run.bwd(weights(s), given, saved)
    named = dict(
        zip(("a", "mu", "sig2", "da_inp", "dmu_inp", *(f"d{name}" for name in PARAMS)), (*outs, *grads), strict=True)
    )
    return {
        name: t.reshape(inputs[name[1:]].shape) if name in ("da_inp", "dmu_inp") else t for name, t in named.items()
    }


def run_reference(
    inputs: dict[str, Tensor], s: Shape, plan: Plan, offsets: Tensor | None, dtype: torch.dtype
) -> dict[str, Tensor]:
    inputs = {name: t.to(dtype).requires_grad_() for name, t in inputs.items()}
    settings: dict[str, Any] = {"n_iters": plan.n_iters, "agreement": "gaussian" if plan.gaussian else "kmeans"}
    if offsets is None:
        outs = route(**inputs, **settings, impl="reference")
    else:
        pieces = [slice(*ends) for ends in offsets.unfold(0, 2, 1).tolist()]
        samples = [inputs | {name: inputs[name][piece] for name in ("a_inp", "mu_inp")} for piece in pieces]
        outs = map(
            torch.stack, zip(*(route(**sample, **settings, impl="reference") for sample in samples), strict=True)
        )
    outs = dict(zip(("a", "mu", "sig2"), outs, strict=True))
    grads = torch.autograd.grad(list(outs.values()), list(inputs.values()), [w.to(dtype) for w in weights(s)])
    return {name: t.detach() for name, t in outs.items()} | {
        f"d{name}": d for name, d in zip(inputs, grads, strict=True)
    }


def size(t: Tensor) -> float:
    return max(distance(t, torch.zeros_like(t)), 1e-30)


def assert_close(
    draw: Callable[[int], dict[str, Tensor]],
    s: Shape,
    *,
    plan: Plan = PLAN,
    offsets: Tensor | None = None,
    knobs: Knobs = WHOLE,
) -> None:
    """Within the largest budget of some draws, relative to the results' size, for that of one is mere luck."""
    may = defaultdict(float)
    for seed in range(DRAWS):
        exact, plain = (run_reference(draw(seed), s, plan, offsets, dtype) for dtype in (torch.float64, torch.float32))
        for name, allowed in budget(exact, [plain], torch.float32).items():
            may[name] = max(may[name], allowed / size(exact[name]))
    exact, found = (
        run_reference(draw(0), s, plan, offsets, torch.float64),
        run_kernels(draw(0), s, plan, offsets, knobs),
    )
    off = {name: distance(found[name], t) / size(t) for name, t in exact.items()}
    assert {name: (far, may[name]) for name, far in off.items() if not far <= may[name]} == {}


def packed(s: Shape) -> Callable[[int], dict[str, Tensor]]:
    """Draws eight inputs one after the other."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(replace(s, batch=1, n_inp=8), seed=seed)
        return inputs | {name: inputs[name][0] for name in ("a_inp", "mu_inp")}

    return draw


SMALL = Shape(2, 5, 3, 2, 3, 2)


@pytest.mark.parametrize("own", ["", "~W ~beta_use ~beta_ign", "W B beta_use beta_ign", "~W B beta_ign"])
@pytest.mark.parametrize("knobs", [WHOLE, SHARED], ids=["alone", "shared"])
def test_every_way_to_share_parameters(own: str, knobs: Knobs) -> None:
    assert_close(lambda seed: drawn(SMALL, own, seed), SMALL, knobs=knobs)


@pytest.mark.parametrize("own", ["", "W B beta_use beta_ign"])
def test_more_samples_than_programs(own: str) -> None:
    """Under the interpreter, that is; components of a number that is no power of two, and other distances."""
    s = Shape(5, 3, 2, 3, 2, 3)
    assert_close(lambda seed: drawn(s, own, seed), s, plan=Plan(3, False, 1e-5))


@pytest.mark.parametrize("knobs", [WHOLE, SHARED], ids=["alone", "shared"])
def test_packed(knobs: Knobs) -> None:
    """Samples of 5, 0 and 3 inputs."""
    s = replace(SMALL, batch=3)
    assert_close(packed(s), s, offsets=torch.tensor([0, 5, 5, 8], device=DEVICE), knobs=knobs)


def test_matrix_products_packed() -> None:
    """Samples of 5, 0 and 3 inputs."""
    s = Shape(3, 5, 3, 1, 17, 2)
    assert_close(packed(s), s, offsets=torch.tensor([0, 5, 5, 8], device=DEVICE), knobs=PRODUCTS)


@pytest.mark.parametrize(
    ("s", "knobs", "own"),
    [
        (Shape(2, 20, 20, 1, 17, 2), Knobs(most_j=4, wide_columns=16, votes=256), ""),
        (Shape(1, 20, 20, 1, 16, 2), Knobs(most_j=4, wide_columns=32, votes=512), "~W B"),
        (Shape(2, 70, 16, 1, 17, 2), Knobs(), "B beta_use"),
        (Shape(1, 9, 5, 2, 40, 3), Knobs(block_d=16, columns=16, fewest=1), ""),
    ],
    ids=["several tiles", "several tiles, one W", "whole votes, own biases", "several steps and chunks"],
)
def test_matrix_products(s: Shape, knobs: Knobs, own: str) -> None:
    assert_close(lambda seed: drawn(s, own, seed), s, knobs=knobs)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_matrix_products_of_capsules_of_any_size(scale: float) -> None:
    """Half precision, which they are made of, ends at 65,504 and loses digits below 0.0001."""
    s = Shape(2, 5, 3, 1, 17, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(s, seed=seed)
        sizes = torch.tensor([1.0, scale, 1.0, scale, scale], device=DEVICE)
        return inputs | {"mu_inp": inputs["mu_inp"] * sizes[:, None, None], "W": inputs["W"] / scale}

    assert_close(draw, s, knobs=PRODUCTS)


@pytest.mark.parametrize("agreement", ["gaussian", "kmeans"])
@pytest.mark.parametrize("n_inp", [1, 3])
@pytest.mark.parametrize("knobs", [WHOLE, SHARED, NARROW], ids=["alone", "shared", "narrow"])
def test_votes_far_from_zero_and_close_together(knobs: Knobs, n_inp: int, agreement: str) -> None:
    """Their variance is what is left of far larger squares, already in the first iteration."""
    s = Shape(2, n_inp, 5, 2, 3, 2)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(s, seed=seed)
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + inputs["mu_inp"][:, :1]}

    for n_iters in (1, 3):
        assert_close(draw, s, plan=Plan(n_iters, agreement == "gaussian", 1e-5), knobs=knobs)


def test_votes_far_from_zero_in_many_tiles_and_chunks() -> None:
    """What tiles used is added up as exactly as their sums: else the variance is lost again."""
    s = Shape(1, 150, 4, 1, 3, 4)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(s, seed=seed)
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + 10}

    assert_close(draw, s, plan=PLAN._replace(n_iters=1), knobs=Knobs(of_one=4, alone=0, votes=16))


@pytest.mark.parametrize(
    ("shape", "knobs"),
    [
        (Shape(1, 150, 4, 1, 3, 4), SHARED._replace(votes=32)),
        (Shape(1, 150, 4, 1, 17, 2), PRODUCTS._replace(votes=256)),
    ],
    ids=["sums", "products"],
)
def test_votes_far_from_zero_after_masked_inputs(shape: Shape, knobs: Knobs) -> None:
    """Programs count from the first inputs that have weight: from zero, variances would be lost."""

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(shape, seed=seed)
        inputs["a_inp"][:, :90] = -torch.inf
        return inputs | {"mu_inp": 0.01 * inputs["mu_inp"] + 10}

    assert_close(draw, shape, plan=PLAN._replace(n_iters=1), knobs=knobs)


def test_a_hardly_weighted_input_far_away_is_no_centre() -> None:
    """It would leave no digit of the variance of all others, were distances counted from it."""
    s = Shape(1, 60, 4, 1, 3, 4)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(s, seed=seed)
        inputs["a_inp"][:, ::20] = -60.0
        inputs["mu_inp"][:, ::20] = 1e4
        return inputs

    assert_close(draw, s, plan=PLAN._replace(n_iters=1), knobs=SHARED._replace(votes=16))


def test_few_inputs_are_not_multiplied_as_halves() -> None:
    def tile(n_inp: int) -> Tile:
        return job(
            PLAN,
            Sizes(2, n_inp, 5, 1, 64, 2, False),
            2 * n_inp,
            ((1, 5, 64, 2), (1, 5, 1, 2), (1, 5), (1, 5)),
            WHOLE,
            9,
        )[0]

    assert [tile(n).DOT for n in (1, 63, 64)] == [False, False, True]


@pytest.mark.parametrize(
    ("shape", "chunks", "wide"),
    [
        (Shape(20, 5184, 64, 4, 4, 4), 1, False),
        (Shape(20, 500, 200, 4, 4, 4), 1, False),
        (Shape(20, 500, 300, 4, 4, 4), 1, True),
        (Shape(20, 500, 100, 8, 8, 8), 2, False),
        (Shape(20, 4, 64, 4, 4, 4), 8, False),
    ],
    ids=["64 outputs", "200 outputs", "too many outputs", "too many components", "few inputs"],
)
def test_votes_that_fit_a_tile_are_in_one(shape: Shape, chunks: int, wide: bool) -> None:
    """Several chunks take several times as long; but of few inputs they are more exact."""
    b, i, j, c, d, h = shape.batch, shape.n_inp, shape.n_out, shape.d_cov, shape.d_inp, shape.d_out
    tile = job(PLAN, Sizes(b, i, j, c, d, h, False), b * i, ((1, j, d, h), (1, j, c, h), (1, j), (1, j)), WHOLE, 132)[0]
    assert (tile._asdict() | {"CHUNKS": chunks, "SPLIT_J": wide, "FLOAT64_GRADS": i == 4}) == tile._asdict()


def test_tiles_know_no_numbers_of_samples_inputs_or_outputs() -> None:
    """Else every new set of them would compile for seconds."""

    def tile(b: int, i: int, j: int) -> Tile:
        return job(
            PLAN, Sizes(b, i, j, 1, 64, 2, False), b * i, ((1, j, 64, 2), (1, j, 1, 2), (1, j), (1, j)), WHOLE, 132
        )[0]

    assert tile(20, 888, 64) == tile(31, 900, 40)
    assert tile(8, 1024, 3000) == tile(1, 64, 299)


@pytest.mark.parametrize("own", ["", "~W"])
def test_many_outputs_and_components(own: str) -> None:
    s = Shape(1, 3, 5, 2, 2, 2)
    assert_close(lambda seed: drawn(s, own, seed), s, plan=PLAN._replace(gaussian=False), knobs=NARROW)


@pytest.mark.parametrize("fixed_inp", [False, True])
@pytest.mark.parametrize("knobs", [WHOLE, SHARED], ids=["alone", "shared"])
def test_no_inputs(fixed_inp: bool, knobs: Knobs) -> None:
    s = replace(SMALL, n_inp=0, fixed_inp=fixed_inp)
    assert_close(lambda seed: make_inputs(s, seed, device=DEVICE), s, plan=PLAN._replace(n_iters=1), knobs=knobs)


@pytest.mark.parametrize("knobs", [WHOLE, SHARED], ids=["alone", "shared"])
def test_infinite_scores_and_huge_capsules_are_finite(knobs: Knobs) -> None:
    inputs = drawn(SMALL)
    inputs["a_inp"][:, 0], inputs["a_inp"][:, 1] = -torch.inf, torch.inf
    inputs["mu_inp"][:, 1] = 3e38
    found = run_kernels(inputs, SMALL, PLAN, None, knobs)
    assert all(t.isfinite().all() for t in found.values())
    assert (found["dmu_inp"][:, 1] == 0).all(), "clamped"
    assert (found["da_inp"][:, :2] == 0).all()


@pytest.mark.parametrize("knobs", [WHOLE, SHARED, NARROW], ids=["alone", "shared", "narrow"])
def test_inputs_of_a_single_output_give_its_logits_no_gradient(knobs: Knobs) -> None:
    """Hardly any weight: variances are eps, shares one or zero, and a rounding of these would be most of a gradient."""
    s = Shape(2, 1, 8, 1, 16, 3, fixed_out=True)

    def draw(seed: int) -> dict[str, Tensor]:
        inputs = drawn(s, seed=seed)
        return inputs | {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "mu_inp": 3 * inputs["mu_inp"]}

    assert_close(draw, s, knobs=knobs)


@pytest.mark.parametrize("knobs", [WHOLE, SHARED, NARROW], ids=["alone", "shared", "narrow"])
def test_outputs_that_only_scores_tell_apart(knobs: Knobs) -> None:
    """Far votes, the same for all outputs: distances, thousands of units, leave no digit of what scores say."""
    s = Shape(1, 30, 5, 2, 3, 4)
    inputs = drawn(s, "~W beta_use beta_ign")
    inputs |= {"mu_inp": 30 * inputs["mu_inp"], "B": torch.zeros_like(inputs["B"])}
    plan = PLAN._replace(gaussian=False)
    exact, found = run_reference(inputs, s, plan, None, torch.float64), run_kernels(inputs, s, plan, None, knobs)
    assert distance(found["mu"], exact["mu"]) < 4 * 2**-23 * size(exact["mu"])


@pytest.mark.parametrize("knobs", [SHARED, NARROW._replace(most_j=128)], ids=["shared", "chunks"])
def test_gradients_that_outputs_have_alike_leave_no_roundings(knobs: Knobs) -> None:
    """Nearly all of every input belongs to one output, so that little is left of gradients of logits, in all alike."""
    s = Shape(1, 700, 2, 1, 1, 1)
    inputs = drawn(s, "~W")
    inputs |= {"a_inp": torch.full_like(inputs["a_inp"], 40.0), "B": torch.zeros_like(inputs["B"])}
    inputs["beta_use"] = torch.tensor([[0.5, -0.022]], device=DEVICE)
    inputs["beta_ign"] = torch.tensor([[0.5, 0.022]], device=DEVICE)
    exact, found = run_reference(inputs, s, PLAN, None, torch.float64), run_kernels(inputs, s, PLAN, None, knobs)
    assert distance(found["dbeta_use"], exact["dbeta_use"]) < 4 * 2**-23 * size(exact["dbeta_use"])


def test_gradients_of_few_inputs_are_what_sums_over_outputs_leave() -> None:
    """An input that hardly counts, with the same votes for all outputs: what one gains by them, others lose."""
    s = Shape(1, 1, 36, 4, 2, 6)
    inputs = drawn(s, "~W")
    inputs |= {"a_inp": torch.full_like(inputs["a_inp"], -60.0), "B": torch.zeros_like(inputs["B"])}
    exact, found = run_reference(inputs, s, PLAN, None, torch.float64), run_kernels(inputs, s, PLAN, None, WHOLE)
    for name in ("dmu_inp", "dW"):
        assert distance(found[name], exact[name]) < 4 * 2**-23 * size(exact[name])


@pytest.mark.parametrize("name", [name for name, s in SHAPES.items() if s.fixed_inp or s.d_inp > 16])
def test_named_shapes_get_room_and_units_in_bounds(name: str) -> None:
    """On a GPU of 132 multiprocessors: enough to do for all, and no memory of the size of inputs times outputs."""
    s = SHAPES[name]
    i, n = s.n_inp if s.fixed_inp else 1, s.batch * s.n_inp
    shapes = ((i, s.n_out, s.d_inp, s.d_out), (i, s.n_out, s.d_cov, s.d_out), (i, s.n_out), (i, s.n_out))
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, False)
    tile, cut, share, _, _, rooms, *_ = job(PLAN, sizes, n, shapes, SHARED, 132)
    assert s.batch * cut.slots * cut.j_tiles >= 100
    assert share.groups * share.slots * share.slices >= 100
    assert max(rooms.fwd.nbytes, rooms.bwd.nbytes) < 2**29
    assert not tile.DOT or min(tile.BLOCK_I, tile.BLOCK_D, tile.BLOCK_J * tile.BLOCK_H) >= 16


@pytest.mark.parametrize("name", ["smallnorb_2", "sst_2"])
def test_small_samples_are_one_program_each_where_their_gradients_fit(name: str) -> None:
    s = SHAPES[name]
    i, j = s.n_inp, s.n_out
    shapes = ((i, j, s.d_inp, s.d_out), (i, j, s.d_cov, s.d_out), (i, j), (i, j))

    def how(batch: int, knobs: Knobs = WHOLE) -> Job:
        sizes = Sizes(batch, i, j, s.d_cov, s.d_inp, s.d_out, False)
        return job(PLAN, sizes, batch * i, shapes, knobs, 132)

    found = how(s.batch)
    assert found.tile.ONE_PROGRAM
    assert i <= found.tile.BLOCK_I
    assert j <= found.tile.BLOCK_M
    assert found.tile == how(s.batch + 1).tile
    assert not how(s.batch, SHARED).tile.ONE_PROGRAM
    most = 2**28 // (4 * i * j * max(s.d_inp, s.d_cov) * s.d_out)
    assert how(most).tile.ONE_PROGRAM
    assert not how(most + 1).tile.ONE_PROGRAM
