"""Thousands of random cases on a GPU: `pytest tests/gpu -k random_cases -n 16 --cases 10000`.

Without pytest-xdist, processes side by side share the tests: `pytest ... --shard 1/16`, `--shard 2/16` and so on.
"""

import pytest
import torch

from random_cases import draw_case, draw_group, find_failures, measure_errors, split_seeds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    groups = split_seeds(metafunc.config.getoption("cases"))
    metafunc.parametrize(("group", "seeds"), groups.items(), ids=map(str, groups))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_random_cases(group: int, seeds: list[int]) -> None:
    """Sizes, layouts, dtypes, masks and packed samples: every result of every case, and the means over a group."""
    largest, errors = draw_group(group), {}
    for seed in seeds:
        case = draw_case(largest, seed)
        errors[f"seed {seed}: {case}"] = measure_errors(case, seed, "cuda")
    assert list(find_failures(errors)) == []
