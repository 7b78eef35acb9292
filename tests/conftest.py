"""What tests share."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: kernels then run on the CPU

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("CAPSROUTE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set CAPSROUTE_DATA")
    return folder
