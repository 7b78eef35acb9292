"""What the project says of itself: its generated parts, and the bars its benchmark must clear."""

import csv
import subprocess
import sys

import pytest

from conftest import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "cpu.csv"


def test_the_readmes_figures_are_the_benchmarks() -> None:
    subprocess.run([sys.executable, "benchmarks/report.py", "--check"], check=True, cwd=ROOT)


def test_the_readmes_accuracies_are_those_of_the_results() -> None:
    subprocess.run([sys.executable, "results/report.py", "--check"], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("shape", "column", "bar"),
    [
        ("smallnorb_1", "speedup", 40),
        ("smallnorb_1", "memory_ratio", 15),
        ("sst_1", "speedup", 4),
        ("smallnorb_2", "speedup", 1 / 1.1),
        ("sst_2", "speedup", 1 / 1.1),
    ],
)
def test_auto_clears_its_bar_on_two_cores(shape: str, column: str, bar: float) -> None:
    """Against the reference in the same run, forward and backward, as last measured."""
    with RESULTS.open() as file:
        rows = [r for r in csv.DictReader(file) if r["shape"] == shape and r["mode"] == "forward+backward"]
    (auto,) = (r for r in rows if r["rival"] == "auto")
    assert float(auto[column]) >= bar


@pytest.mark.parametrize("shape", ["smallnorb_1", "smallnorb_2", "sst_1", "sst_2"])
def test_auto_picks_the_winner(shape: str) -> None:
    with RESULTS.open() as file:
        rows = [r for r in csv.DictReader(file) if r["shape"] == shape and r["mode"] == "forward+backward"]
    (auto,) = (r for r in rows if r["rival"] == "auto")
    times = {r["rival"]: float(r["p50_ms"]) for r in rows if r["p50_ms"] and r["rival"] not in ("auto", "compiled")}
    assert auto["picked"] == min(times, key=lambda rival: times[rival])
