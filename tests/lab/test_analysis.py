"""Accuracy of a classifier: intervals against their definition and by hand, tables against counts."""

import subprocess
import sys

import numpy as np
import pytest

from capsroute.lab.analysis.accuracy import (
    accuracy_by_factor,
    bootstrap_interval,
    wilson_interval,
)
from conftest import ROOT


def clustered(seed: int = 0, n_each: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hits on 25 toys, each with its own accuracy."""
    rng = np.random.default_rng(seed)
    category, instance = (part.ravel().repeat(n_each) for part in np.mgrid[:5, :5])
    chance = rng.uniform(0.5, 1.0, 25).repeat(n_each)
    return rng.random(len(chance)) < chance, category, instance


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("right", "total"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (24_011, 24_300)])
def test_wilson_interval_inverts_the_score_test(right: int, total: int, level: float) -> None:
    """Its bounds are the two shares p that lie z standard errors, those of p itself, from the one observed."""
    z = {0.8: 1.2815515655446004, 0.95: 1.959963984540054, 0.99: 2.5758293035489004}[level]  # from tables
    observed = right / total
    roots = np.roots([total + z * z, -(2 * total * observed + z * z), total * observed**2])
    assert wilson_interval(right, total, level) == pytest.approx(sorted(roots.real), abs=1e-9)


def test_wilson_interval_is_exact_at_the_ends() -> None:
    """All of n right: the lower bound is n / (n + z^2), the upper one exactly 1."""
    low, high = wilson_interval(10, 10)
    assert low == pytest.approx(10 / (10 + 1.959964**2), rel=1e-6)
    assert high == 1.0
    assert wilson_interval(0, 10)[0] == 0.0


def test_bootstrap_is_wider_for_correlated_hits() -> None:
    hit, category, instance = clustered()
    low, high = bootstrap_interval(hit, category, instance)
    narrow = wilson_interval(int(hit.sum()), len(hit))
    assert low < narrow[0] < hit.mean() < narrow[1] < high
    assert high - low > 3 * (narrow[1] - narrow[0])


def test_bootstrap_is_as_wide_for_independent_hits() -> None:
    _, category, instance = clustered()
    hit = np.random.default_rng(1).random(len(category)) < 0.9
    low, high = bootstrap_interval(hit, category, instance)
    narrow = wilson_interval(int(hit.sum()), len(hit))
    assert 0.5 < (high - low) / (narrow[1] - narrow[0]) < 1.5


def test_bootstrap_has_the_standard_error_of_a_mean_over_toys() -> None:
    """With equally many images each, its standard error is known: that of the toys' accuracies, over their root."""
    hit, category, instance = clustered()
    toys = hit.reshape(25, -1).mean(1)
    low, high = bootstrap_interval(hit, category, instance, 0.6827)  # one standard error to either side
    assert (high - low) / 2 == pytest.approx(toys.std() / 5, rel=0.05)


def test_bootstrap_is_seeded_and_ignores_order() -> None:
    hit, category, instance = clustered()
    same = bootstrap_interval(hit, category, instance)
    order = np.random.default_rng(2).permutation(len(hit))
    assert bootstrap_interval(hit[order], category[order], instance[order]) == same
    assert bootstrap_interval(hit, category, instance, seed=1) != same


def test_bootstrap_separates_instances_of_two_categories() -> None:
    """Instance 0 of one class all right and of the other all wrong: draws of 0, 1 or 2 of the good one."""
    hit, category = np.repeat([True, False], 50), np.repeat([0, 1], 50)
    assert bootstrap_interval(hit, category, np.zeros(100, dtype=int)) == (0.0, 1.0)


def test_accuracy_by_factor_counts_each_known_value() -> None:
    hit = np.array([True, False, True, True, False, True])
    rows = accuracy_by_factor(hit, np.array([4, 4, 0, 4, -1, 0]))
    assert [(row.value, row.right, row.total) for row in rows] == [(0, 2, 2), (4, 2, 3)]
    assert [(row.low, row.high) for row in rows] == [wilson_interval(2, 2), wilson_interval(2, 3)]
    assert rows[1].accuracy == 2 / 3
    assert accuracy_by_factor(hit, np.full(6, -1)) == []


def test_analysis_needs_no_matplotlib_and_names_the_extra_of_scikit_learn() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = sys.modules['sklearn'] = sys.modules['sklearn.manifold'] = None\n"
        "import numpy as np; from capsroute.lab.analysis import accuracy, deletion, poses\n"
        "from capsroute.lab.errors import UserError\n"
        "try: poses.embed_in_plane(np.eye(4))\n"
        "except UserError as error: assert 'capsroute[train]' in str(error)\n"
        "else: sys.exit(1)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
