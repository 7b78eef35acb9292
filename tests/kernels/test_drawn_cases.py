"""The random cases of `tests/gpu`: they follow from their seeds, cover what is special, and are judged by the rule."""

import itertools
import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from capsroute.routing.triton.products_host import ProductKernels
from capsroute.routing.triton.selection import choose_moments
from capsroute.routing.triton.sizes import Call, LoopSettings, Sizes
from capsroute.routing.triton.stored_host import StoredKernels
from forms import FORMS, MOMENT_FORMS, empty_arguments, limits_for, plan_kernels
from random_cases import (
    MANY_INPUTS,
    MAX_VOTES,
    MIN_CASES,
    N_GROUPS,
    Case,
    Error,
    draw_case,
    draw_group,
    draw_inputs,
    draw_mask,
    find_failures,
    lay_out,
    measure_errors,
    pow2_below,
    split_seeds,
)

GROUPS = [draw_group(k) for k in range(N_GROUPS)]


def uses_kinds(case: Case) -> bool:
    """Tell whether some parameter belongs to kinds of inputs."""
    return any(axes[0] == "n_kinds" for axes in case.family.param_axes.values())


def test_cases_follow_from_their_seeds() -> None:
    assert draw_group(17) == GROUPS[17]
    one, same, other = (draw_inputs(GROUPS[17], seed) for seed in (4321, 4321, 4322))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["W"], other["W"])


@pytest.mark.parametrize(("n_cases", "n_groups"), [(10_000, N_GROUPS), (624, 12), (10, 1)])
def test_groups_share_all_cases(n_cases: int, n_groups: int) -> None:
    seeds = split_seeds(n_cases)
    assert len(seeds) == n_groups
    assert len({seed for own in seeds.values() for seed in own}) == n_cases
    assert all(seed % N_GROUPS == group for group, own in seeds.items() for seed in own)
    assert max(map(len, seeds.values())) - min(map(len, seeds.values())) <= 1


def test_groups_cover_what_is_special() -> None:
    few = [group for group in GROUPS if not group.family.many_inputs]
    many = [group for group in GROUPS if group.family.many_inputs]
    assert max(group.votes for group in few) <= MAX_VOTES
    assert min(group.n_inp / group.n_out for group in many) >= MANY_INPUTS
    assert {0, 1, 16, 128} <= {group.n_inp for group in few}
    assert {group.n_iters for group in GROUPS} == {1, 2, 3, 4}
    assert {group.family.agreement for group in GROUPS} == {"gaussian", "kmeans"}
    assert {t for group in GROUPS for t in group.family.dtypes} == {torch.float32, torch.float16, torch.bfloat16}
    assert any(inputs != params for inputs, params in (group.family.dtypes for group in GROUPS))
    assert {group.family.param_axes["W"] for group in GROUPS} > set(itertools.product(["1", "n_inp"], ["1", "n_out"]))
    kinds = [group for group in few if uses_kinds(group)]
    assert {group.n_kinds == 1 for group in kinds} == {group.n_kinds == group.n_inp for group in kinds} == {True, False}
    assert any(group.family.packed and 1 < group.n_kinds < group.n_inp for group in kinds)
    assert any(len({axes[0] for axes in group.family.param_axes.values()}) == 2 for group in GROUPS)
    assert {group.family.packed for group in few} == {group.family.packed for group in many} == {True, False}
    assert max(group.n_out for group in GROUPS) > 128
    scores = torch.cat([draw_inputs(few[k % len(few)], k)["a_inp"].flatten().float() for k in range(200)])
    assert {-torch.inf, torch.inf, 60.0, -60.0} <= set(scores.unique().tolist())


def test_cases_have_sizes_of_their_own() -> None:
    """Within those of their group, and for the same tiles."""
    sizes = set()
    for seed in range(2000):
        group = GROUPS[seed % N_GROUPS]
        case = draw_case(group, seed)
        assert case == replace(group, batch=case.batch, n_inp=case.n_inp, n_out=case.n_out)
        for name in ("batch", "n_inp", "n_out"):
            n, most = getattr(case, name), getattr(group, name)
            assert n == most or most >= n > (most / 2 if group.family.many_inputs else pow2_below(most))
        assert not group.family.many_inputs or case.n_inp >= MANY_INPUTS * case.n_out
        sizes.add(str(case))
    assert len(sizes) > 1200


def test_packed_samples_have_lengths_of_their_own() -> None:
    for group in (group for group in GROUPS if group.family.packed and group.n_inp > 1):
        mask = draw_mask(group, 3)
        assert draw_inputs(group, 3)["a_inp"].masked_select(~mask).eq(-torch.inf).all()
        kinds = mask.unflatten(1, (group.n_kinds if uses_kinds(group) else 1, -1))
        assert not kinds.int().diff().gt(0).any()  # places first, padding after them
        assert (kinds == kinds[:, :1]).all()
        assert not group.family.many_inputs or mask.sum(1).min() >= MANY_INPUTS * group.n_out


def test_tensors_lie_in_memory_in_any_way() -> None:
    t = torch.arange(24.0).view(2, 3, 4)
    ways = [lay_out(t, random.Random(seed)) for seed in range(40)]
    assert all(torch.equal(way, t) for way in ways)
    assert len({(way.stride(), way.storage_offset()) for way in ways}) == 4
    assert lay_out(torch.ones(2, 0), random.Random(1)).shape == (2, 0)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(("packed", "kinds"), [(False, True), (True, False)])
def test_interpreted_cases_are_within_budget(packed: bool, kinds: bool) -> None:
    """Two cases of one group, by all results."""
    groups = [draw_group(k, 200) for k in range(N_GROUPS)]
    few = [group for group in groups if group.n_inp > 2 and group.family.packed == packed]
    few = [group for group in few if uses_kinds(group) == kinds and (not kinds or 1 < group.n_kinds < group.n_inp)]
    group = min(few, key=lambda group: group.votes * group.family.d_inp)  # interpreted kernels are slow
    cases = {f"seed {seed}": measure_errors(draw_case(group, seed), seed, "cpu") for seed in (1, 2)}
    results = {"a", "mu", "sig2", *(f"d{name}" for name in group.shapes())}
    assert all(set(errors) == results for errors in cases.values())
    assert list(find_failures(cases)) == []
    assert 0 < max(error.distance for errors in cases.values() for error in errors.values()) < 0.01


def test_failures_follow_the_rule() -> None:
    good, far, over, infinite = Error(1.0, 1.0), Error(5.0, 1.0), Error(1.1, 1.0), Error(torch.inf, 1.0)

    def failures(*errors: Error) -> list[str]:
        return list(find_failures({f"case {k}": {"a": error} for k, error in enumerate(errors)}))

    assert failures(*[good] * MIN_CASES) == []
    assert failures(*[over] * (MIN_CASES - 1)) == []  # too few to judge their mean
    assert failures(*[over] * MIN_CASES) == ["a is off by 1.10e+00 in the mean, may be 1.00e+00"]
    assert failures(good, far) == ["a is off by 5.00e+00, may be 1.00e+00, in case 1"]
    assert failures(far, Error(0.1, 10.0)) == []  # the mean budget allows it
    assert failures(infinite, good) == ["a is not finite in case 0"]


def test_forms_need_every_kind_of_tile() -> None:
    plans = [plan_kernels(name, gaussian=True) for name in FORMS]
    tiles = [plan.tile for plan in plans if isinstance(plan, ProductKernels)]
    assert {tile.SPLIT_J for tile in tiles} == {True, False}
    assert {plan.n_warps for plan in plans if isinstance(plan, ProductKernels)} == {4, 8}
    stored = [plan for plan in plans if isinstance(plan, StoredKernels)]
    assert {(plan.n_kinds > 1, plan.tile.ONE_J) for plan in stored} == {*itertools.product([True, False], repeat=2)}


@pytest.mark.parametrize("name", MOMENT_FORMS)
@pytest.mark.parametrize("gaussian", [True, False])
def test_moment_forms_are_routed_by_moments(name: str, gaussian: bool) -> None:
    s = MOMENT_FORMS[name]
    sizes = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, packed=False)
    shapes = tuple([tuple(t.shape) for t in empty_arguments(name)[3:]])
    loop, limits = LoopSettings(3, gaussian, 1e-5), limits_for(name)
    call = Call(loop, sizes, s.batch * s.n_inp, shapes, cores=132)
    assert choose_moments(call, s.n_inp, limits, False) == limits.rule
