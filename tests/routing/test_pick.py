"""What `impl="auto"` picks on a CPU, from the estimated costs of a case."""

from dataclasses import replace

import pytest

from capsroute.routing import IMPLS, pick
from capsroute.routing.costs import estimate_ms
from capsroute.testing import SHAPES, Shape

CASES = {
    "few votes": (SHAPES["sst_2"], "reference"),
    "many small capsules of one kind": (SHAPES["smallnorb_1"], "moments"),
    "many small capsules of several kinds": (replace(SHAPES["smallnorb_1"], n_kinds=64), "moments"),
    "long capsules": (Shape(4, 1024, 40, 1, 64, 32), "blocked"),
    "every input a kind": (Shape(16, 1152, 10, 1, 8, 16, fixed_inp=True), "blocked"),
    "kinds of long capsules": (Shape(8, 280, 5, 1, 384, 32, n_kinds=7), "blocked"),
    "products larger than all else": (Shape(1, 128, 16, 1, 768, 768), "reference"),
    "many outputs": (Shape(1, 512, 1000, 1, 16, 16), "moments"),
    "more weights than votes": (Shape(2, 64, 16, 1, 256, 256, fixed_inp=True), "reference"),
}


@pytest.mark.parametrize("name", CASES)
def test_auto_picks_what_was_measured_fastest(name: str) -> None:
    shape, expected = CASES[name]
    assert pick(shape.case()) == expected


@pytest.mark.parametrize("name", CASES)
def test_estimates_grow_with_batch_and_iterations(name: str) -> None:
    case = CASES[name][0].case()
    few, more, longer = (
        estimate_ms(c) for c in (case, replace(case, n_samples=2 * case.n_samples), replace(case, n_iters=6))
    )
    assert all(0 < few[impl] < min(more[impl], longer[impl]) for impl in few)
    assert set(few) == set(IMPLS) - {"triton"}


@pytest.mark.parametrize("name", CASES)
def test_graphs_do_not_depend_on_the_number_of_inputs(name: str) -> None:
    """Or they would be captured anew for every size."""
    case = replace(CASES[name][0].case(), compiling=True)
    sizes = [replace(case, n_samples=b, n_inp=p * case.n_kinds) for b in (1, 1000) for p in (1, 100)]
    assert len({pick(c) for c in sizes}) == 1
