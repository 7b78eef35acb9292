"""Random cases for the kernels: they follow from their seeds, cover what is special, and are judged by the rule."""

import importlib
import random
from typing import Any

import pytest
import torch
import typer

from capsroute.testing import draw_order, reordered
from conftest import ROOT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def plan(bench: Any, **changes: int) -> Any:
    return bench("draws").Plan(**{"cases": 10_000, "sets": 48, "groups": 4, "votes": 2**18, "inputs": 64} | changes)


def test_cases_follow_from_their_seeds(bench: Any) -> None:
    draws, whole = bench("draws"), plan(bench)
    group = draws.draw_group(whole, *whole.where(4321))
    assert group == draws.draw_group(plan(bench, cases=10), *whole.where(4321))
    one, same, other = (draws.draw_case(group, seed) for seed in (4321, 4321, 4322))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["W"], other["W"])


def test_draws_cover_what_is_special(bench: Any) -> None:
    draws, whole = bench("draws"), plan(bench)
    groups = [draws.draw_group(whole, n, k) for n in range(whole.sets) for k in range(whole.groups)]
    few = [group for group in groups if not group.kind.many]
    assert max(group.votes for group in few) <= whole.votes
    assert min(g.i / g.j for g in groups if g.kind.many) >= whole.inputs
    assert {0, 1} <= {group.i for group in few}
    assert {group.n_iters for group in groups} == {1, 2, 3, 4}
    assert {group.kind.agreement for group in groups} == {"gaussian", "kmeans"}
    assert {t for group in groups for t in group.kind.dtypes} == {torch.float32, torch.float16, torch.bfloat16}
    assert {group.kind.shared["W"] for group in groups} == {"", "i", "j", "ij"}
    assert max(group.j for group in groups) > 128
    scores = torch.cat([draws.draw_case(few[k % len(few)], k)["a_inp"].flatten().float() for k in range(200)])
    assert {-torch.inf, torch.inf, 60.0} <= set(scores.unique().tolist())


@pytest.mark.usefixtures("watched")
def test_cases_are_compared_under_the_interpreter(bench: Any) -> None:
    """By all results, two draws of one size, in two precisions."""
    shapes, small, seed = bench("random_shapes"), plan(bench, votes=200, inputs=0), 1
    asked = shapes.Asked(small, *small.where(seed), [seed, seed + small.sets * small.groups], "cpu")
    found = shapes.judge_group(asked)
    assert [set(case) for case in found] == [{"a", "mu", "sig2", *(f"d{name}" for name in bench("draws").AXES)}] * 2
    verdict = shapes.Verdict(small)
    verdict.add(asked, found)
    assert verdict.summary()["failures"] == []
    assert 0 < max(errors.off for case in found for errors in case.values()) < 0.01


def test_every_case_has_its_own_sizes(bench: Any) -> None:
    """Within its group's, and what tiles depend on as there."""
    draws, whole = bench("draws"), plan(bench)
    sizes = set()
    for seed in range(2000):
        group = draws.draw_group(whole, *whole.where(seed))
        case = draws.draw_sizes(group, seed)
        assert (case.kind, case.n_iters) == (group.kind, group.n_iters)
        for n, most in ((case.b, group.b), (case.i, group.i), (case.j, group.j)):
            assert n == most or most >= n > (most / 2 if group.kind.many else draws.half(most))
        assert not group.kind.many or case.i >= whole.inputs * case.j
        sizes.add(str(case))
    assert len(sizes) > 1200


def test_tensors_lie_in_memory_in_any_way(bench: Any) -> None:
    laid_out, t = bench("draws").laid_out, torch.arange(24.0).view(2, 3, 4)
    ways = [laid_out(t, random.Random(seed)) for seed in range(40)]
    assert all(torch.equal(way, t) for way in ways)
    assert len({(way.stride(), way.storage_offset()) for way in ways}) == 4
    assert laid_out(torch.ones(2, 0), random.Random(1)).shape == (2, 0)


def test_the_reference_takes_orders_together(bench: Any) -> None:
    """What it makes of a case in several orders at a time is what it makes of the case, in these orders."""
    shapes, draws, small = bench("random_shapes"), bench("draws"), plan(bench, votes=500)
    group = draws.draw_group(small, 1, 1)
    case, weights = [t.double() for t in draws.draw_case(group, 1).values()], draws.draw_weights(group, 1)
    orders = [draw_order(group.sizes, seed) for seed in range(3)]
    exact = shapes.run(group, case, weights, "reference")
    for found, order in zip(shapes.referred(group, case, weights, orders), orders, strict=True):
        for name, t in exact.items():
            expected = reordered(t, shapes.ALL_AXES[name], order)
            torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-10)


def test_the_verdict_follows_the_rule(bench: Any) -> None:
    shapes, whole = bench("random_shapes"), plan(bench)
    good, far, over = shapes.Errors(1.0, 1.0, True), shapes.Errors(5.0, 1.0, True), shapes.Errors(1.1, 1.0, True)

    def failures(answer: Any) -> list[str]:
        verdict = shapes.Verdict(whole)
        seeds = list(range(len(answer))) if isinstance(answer, list) else [7]
        verdict.add(shapes.Asked(whole, 0, 0, seeds, "cpu"), answer)
        return [failure["why"] for failure in verdict.summary()["failures"]]

    assert failures([{"a": good}] * 12) == []
    assert failures([{"a": over}] * 11) == []  # too few to judge their mean
    assert failures([{"a": over}] * 12) == ["a: in the mean off by 1.10e+00, may be 1.00e+00"]
    assert failures([{"a": good}, {"a": far}]) == ["a: off by 5.00e+00, may be 1.00e+00"]
    assert failures([{"a": shapes.Errors(float("inf"), 1.0, False)}]) == ["a: not finite"]
    assert failures("its process died") == ["its process died"]


def test_what_failed_or_was_out_of_time_can_be_run_again(bench: Any) -> None:
    shapes, small = bench("random_shapes"), plan(bench)
    verdict = shapes.Verdict(small)
    good = [{"a": shapes.Errors(0.5, 1.0, True)}]
    for seed, answer in ((3, shapes.OUT_OF_TIME), (7, "its process died"), (11, good)):
        verdict.add(shapes.Asked(small, *small.where(seed), [seed], "cpu"), answer)
    assert shapes.left_over(small, verdict.summary()) == {small.where(3), small.where(7)}


def test_the_small_run_has_every_form(bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Which it starts is all that is asked: other tests run the kernels."""
    from capsroute.routing import triton as kernels
    from capsroute.routing.triton import votes_host
    from capsroute.routing.triton.launch import Pass

    seen: set[tuple[bool, ...]] = set()
    several: set[tuple[bool, bool]] = set()
    started: list[int] = []
    chosen, by_moments = votes_host.choose, kernels.by_moments

    def choose(*args: Any) -> Any:
        tile = chosen(*args)
        seen.add((tile.ONE_PROGRAM, tile.DOT, tile.SPLIT_J, tile.W_I, tile.PACKED))
        several.add((tile.CHUNKS > 1, tile.FLOAT64_GRADS))
        return tile

    def moments(plan: Any, sizes: Any, *others: Any) -> Any:
        if chosen := by_moments(plan, sizes, *others):
            seen.add((sizes.packed,))
        return chosen

    votes_host.job.cache_clear()
    kernels.settled.cache_clear()
    monkeypatch.setattr(Pass, "start", lambda self, tensors: started.append(len(tensors)))
    monkeypatch.setattr(votes_host, "run_phases", lambda run, n_phases, tensors: started.append(n_phases))
    monkeypatch.setattr(votes_host, "choose", choose)
    monkeypatch.setattr(kernels, "by_moments", moments)
    monkeypatch.setattr(kernels, "ENOUGH", kernels.ENOUGH)
    bench("every_form").main("cpu")
    every = bench("every_form")
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(every.BY_VOTES | every.BY_MOMENTS) + 2
    assert len(started) >= 2 * len(every.BY_VOTES | every.BY_MOMENTS) * 2, "forward and backward"
    assert {(False,), (True,)} <= seen  # moments, packed too
    assert several == {(False, False), (True, False), (True, True)}
    assert {form[:3] for form in seen if len(form) > 1} == {
        (True, False, False), (False, False, False), (False, True, False), (False, False, True), (False, True, True)
    }  # fmt: skip
    assert {form[3:] for form in seen if len(form) > 1} == {(True, False), (False, False), (False, True)}
    every.main("cpu", only="products,moments")
    named = ["products gaussian", "products kmeans", "moments gaussian", "moments kmeans"]
    assert capsys.readouterr().out.splitlines() == named
    for name in every.BY_VOTES | every.BY_MOMENTS:
        every.main("cpu", only=name)
        assert capsys.readouterr().out.splitlines() == [f"{name} gaussian", f"{name} kmeans"]
    with pytest.raises(typer.BadParameter, match="got such a form"):
        every.main("cpu", only="such a form")
