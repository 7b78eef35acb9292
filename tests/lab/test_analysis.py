"""Numbers about a classifier: intervals against their definition and by hand, tables against counts."""

import subprocess
import sys

import numpy as np
import pytest

from capsroute.lab.analysis.accuracy import by_factor, by_instance_interval, confusion, probabilities, wilson
from conftest import ROOT


def clustered(seed: int = 0, n_each: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hits on 25 toys, each of which is easy or hard as a whole."""
    rng = np.random.default_rng(seed)
    category, instance = (part.ravel().repeat(n_each) for part in np.mgrid[:5, :5])
    chance = rng.uniform(0.5, 1.0, 25).repeat(n_each)
    return rng.random(len(chance)) < chance, category, instance


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("right", "total"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (24_011, 24_300)])
def test_wilson_holds_the_shares_the_score_test_accepts(right: int, total: int, level: float) -> None:
    """Its bounds are the two shares p that lie z standard errors, those of p itself, from the one observed."""
    z = {0.8: 1.2815515655446004, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}[level]  # from tables
    observed = right / total
    roots = np.roots([total + z * z, -(2 * total * observed + z * z), total * observed**2])
    assert wilson(right, total, level) == pytest.approx(sorted(roots.real), abs=1e-9)


def test_wilson_by_hand() -> None:
    """All of n right: the lower bound is n / (n + z^2), the upper one exactly 1."""
    low, high = wilson(10, 10)
    assert low == pytest.approx(10 / (10 + 1.959964**2), rel=1e-6)
    assert high == 1.0
    assert wilson(0, 10)[0] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "total: expected at least 1, got 0"),
        ((5, 4), "right: expected 0 to 4, got 5"),
        ((1, 4, 1.0), "level: expected a number between 0 and 1, got 1.0"),
    ],
)
def test_wilson_refuses(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wilson(*arguments)


def test_clustered_hits_need_the_wider_interval() -> None:
    hit, category, instance = clustered()
    low, high = by_instance_interval(hit, category, instance)
    narrow = wilson(int(hit.sum()), len(hit))
    assert low < narrow[0] < hit.mean() < narrow[1] < high
    assert high - low > 3 * (narrow[1] - narrow[0])


def test_independent_hits_need_hardly_a_wider_one() -> None:
    _, category, instance = clustered()
    hit = np.random.default_rng(1).random(len(category)) < 0.9
    low, high = by_instance_interval(hit, category, instance)
    narrow = wilson(int(hit.sum()), len(hit))
    assert 0.5 < (high - low) / (narrow[1] - narrow[0]) < 1.5


def test_the_bootstrap_has_the_spread_of_a_mean_over_toys() -> None:
    """With equally many images each, its standard error is known: that of the toys' accuracies, over their root."""
    hit, category, instance = clustered()
    toys = hit.reshape(25, -1).mean(1)
    low, high = by_instance_interval(hit, category, instance, 0.6827)  # one standard error to either side
    assert (high - low) / 2 == pytest.approx(toys.std() / 5, rel=0.05)


def test_the_bootstrap_is_seeded_and_ignores_order() -> None:
    hit, category, instance = clustered()
    same = by_instance_interval(hit, category, instance)
    order = np.random.default_rng(2).permutation(len(hit))
    assert by_instance_interval(hit[order], category[order], instance[order]) == same
    assert by_instance_interval(hit, category, instance, seed=1) != same


def test_instances_of_two_categories_are_two_toys() -> None:
    """Instance 0 of one class all right and of the other all wrong: draws of 0, 1 or 2 of the good one."""
    hit, category = np.repeat([True, False], 50), np.repeat([0, 1], 50)
    assert by_instance_interval(hit, category, np.zeros(100, dtype=int)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (np.array([0, -1, 1]), "instance: expected known instances, got 1 unknown"),
        (np.array([3, 3, 3]), "instance: expected at least 2 objects to draw from, got 1"),
        (np.array([0, 1]), r"instance: expected \[3\], got shape \[2\]"),
    ],
)
def test_the_bootstrap_refuses(instance: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_instance_interval(np.array([True, False, True]), np.zeros(3, dtype=int), instance)


def test_confusion_counts_true_by_predicted() -> None:
    category, predicted = np.array([0, 0, 0, 1, 3]), np.array([0, 1, 1, 1, 0])
    expected = [[1, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert confusion(category, predicted, 4).tolist() == expected


def test_confusion_refuses_a_class_out_of_range() -> None:
    with pytest.raises(ValueError, match="predicted: expected 0 to 1, got 0 to 2"):
        confusion(np.array([0, 1]), np.array([2, 0]), 2)


def test_by_factor_counts_each_known_value() -> None:
    hit = np.array([True, False, True, True, False, True])
    rows = by_factor(hit, np.array([4, 4, 0, 4, -1, 0]))
    assert [(row.value, row.right, row.total) for row in rows] == [(0, 2, 2), (4, 2, 3)]
    assert [(row.low, row.high) for row in rows] == [wilson(2, 2), wilson(2, 3)]
    assert rows[1].accuracy == 2 / 3
    assert by_factor(hit, np.full(6, -1)) == []


def test_probabilities_of_large_scores() -> None:
    found = probabilities(np.array([[1000.0, 1000.0, 0.0], [0.0, np.log(3), -np.inf]], dtype=np.float64))
    np.testing.assert_allclose(found, [[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]], atol=1e-15)


def test_numbers_need_no_matplotlib() -> None:
    script = "import sys; sys.modules['matplotlib'] = None; import capsroute.lab.analysis"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
