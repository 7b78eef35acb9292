"""The chaos test in its short form; `make chaos` is the long one."""

import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.slow
def test_every_kind_of_chaos_once() -> None:
    """In a process of its own, which forks: here autograd may have threads."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "tests/lab/chaos.py", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = {name.split(":")[0] for name in json.loads(done.stdout)}
    assert {"kills", "two at once", "full disk", "damage"} <= ended
