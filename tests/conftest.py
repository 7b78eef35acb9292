"""Fixtures and options of all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels then run on the CPU

ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=624, help="random cases of the kernels on a GPU")
    parser.addoption("--fuzz", type=int, default=0, help="cases of the fuzzer, each time others")
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N shares of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no process is left with them at the end, and only those of the shard."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    shard, n_shards = map(int, str(config.getoption("shard")).split("/"))
    items[:] = items[shard - 1 :: n_shards]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed PyTorch."""
    torch.manual_seed(0)


@pytest.fixture
def watched() -> Iterator[None]:
    """Fail a test whose interpreted kernels access anything but their tensors, or read what nothing has written."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from guarded import guarded

    with guarded():
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of real data; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("CAPSROUTE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set CAPSROUTE_DATA")
    return folder
