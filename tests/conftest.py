"""What tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels then run on the CPU

ROOT = Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones first, so that at the end no process waits for another."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def watched() -> Iterator[None]:
    """Interpreted kernels may touch nothing but their tensors, and read nothing that nobody wrote."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from guarded import guarded

    with guarded():
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("CAPSROUTE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set CAPSROUTE_DATA")
    return folder
