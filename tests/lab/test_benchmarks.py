"""The benchmarks' runners on tiny cases, what becomes of rivals that fail, and the report of incomplete runs."""

import csv
import importlib
import json
import os
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsroute.lab.data.pairs import Pairs
from capsroute.testing import Shape
from conftest import ROOT

README = """<!-- headline: begin -->
<!-- headline: end -->
<!-- kernel table: begin -->
<!-- kernel table: end -->
<!-- benchmark table: begin -->
<!-- benchmark table: end -->
<!-- pictures: begin -->
<!-- pictures: end -->
"""
ABOUT = {
    "machine": {"cpu": "a processor", "cores": 16, "gpu": "a GPU", "cuda": "13.0"},
    "versions": {"torch": "2.11.0", "capsroute": "0.1.0", "triton": "3.6.0"},
    "commit": "a" * 40,
    "dirty": False,
    "command": "python benchmarks/run.py",
    "others_busy": {},
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def misbehave(how: str) -> str:
    """What a worker is asked to do."""
    if how == "die":
        os._exit(1)
    if how == "hang":
        time.sleep(60)
    return how


def row(bench: Any, case: str = "smallnorb_1_b20", rival: str = "triton", **values: Any) -> Any:
    shape = bench("cases").CASES[case]
    sizes = shape.batch, shape.n_inp, shape.n_out
    return bench("records").Row(case, *sizes, rival, "", "forward+backward", **values)


def test_a_run_in_processes_writes_every_row_and_resumes(bench: Any, tmp_path: Path) -> None:
    settings = {"cases": "tiny", "modes": "forward+backward", "processes": True, "out": tmp_path, "commit": "c"}
    bench("run").main(**settings, impls="reference,blocked")
    rows = {r.rival: r for r in bench("records").read_rows(tmp_path / "cpu.csv")}
    assert list(rows) == ["reference", "blocked"]
    assert rows["blocked"].speedup > 0
    assert rows["blocked"].returned_mib == rows["reference"].returned_mib > 0
    about = json.loads((tmp_path / "cpu.json").read_text())
    assert (about["commit"], about["dirty"]) == ("c", None)  # what is named, whatever git says

    # a row that is there stays, one out of time is measured again, and nothing is without time
    changed = [replace(rows["reference"], p50_ms=1234.5), replace(rows["blocked"], p50_ms=None, skipped="took ages")]
    bench("records").write_rows(changed, tmp_path / "cpu.csv")
    bench("run").main(**settings, impls="reference,moments,blocked", resume=True, budget_s=-1)
    rows = bench("records").read_rows(tmp_path / "cpu.csv")
    assert [(r.rival, r.p50_ms) for r in rows] == [("reference", 1234.5)]

    # nor does asking for other rivals cost the rows of those before
    bench("run").main(**settings, impls="blocked", resume=True)
    rows = bench("records").read_rows(tmp_path / "cpu.csv")
    assert [(r.rival, r.p50_ms == 1234.5) for r in rows] == [("reference", True), ("blocked", False)]
    assert rows[1].speedup == pytest.approx(1234.5 / rows[1].p50_ms, rel=1e-2)


def test_rounds_on_a_cpu_time_every_rival(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench("rounds"), "cpu_peak", lambda *_: 2.0)  # starts a process for each
    bench("run").main(cases="tiny", impls="reference,blocked,auto", modes="forward", repeats=2, out=tmp_path)
    rows = bench("records").read_rows(tmp_path / "cpu.csv")
    assert [(r.rival, r.picked, r.repeats) for r in rows] == [
        ("reference", "", 2),
        ("blocked", "", 2),
        ("auto", "reference", 2),
    ]
    assert all(r.p20_ms <= r.p50_ms <= r.p80_ms and r.peak_mib == 2 for r in rows)


def test_results_that_are_wrong_are_not_timed(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench("run")
    monkeypatch.setattr(run, "prepare", lambda asked: "wrong: mu off by 1, may be 0")
    with pytest.raises(run.typer.Exit):
        run.main(cases="tiny", impls="reference,moments", out=tmp_path)
    assert bench("records").read_rows(tmp_path / "cpu.csv") == []


def test_a_worker_that_dies_or_hangs_is_replaced(bench: Any) -> None:
    jobs = bench("jobs")
    worker = jobs.Worker(misbehave)
    with pytest.raises(jobs.GoneError, match="died"):
        worker.ask("die", 60)
    assert worker.ask("answer", 60) == "answer"
    with pytest.raises(jobs.GoneError, match="took more than 0 s"):
        worker.ask("hang", 0.1)
    worker.stop()


def test_a_job_that_time_runs_out_in_has_no_row(bench: Any) -> None:
    jobs, measure = bench("jobs"), bench("measure")
    job = measure.Job("tiny", bench("cases").CASES["tiny"], "reference", "forward", "cpu")

    class Slow:
        def ask(self, asked: object, limit_s: float) -> None:
            clock.end = end
            raise jobs.GoneError(f"took more than {limit_s:.0f} s")

    clock = jobs.Clock(1.0)
    end = clock.end + 60
    assert jobs.answered(Slow(), job, clock).skipped == "took more than 1 s"
    end = 0.0
    assert jobs.answered(Slow(), job, clock) is None


def test_a_rival_that_fails_costs_its_own_row(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = bench("measure")
    job = measure.Job("tiny", bench("cases").CASES["tiny"], "reference", "forward", "cpu")

    def fail(*_: object) -> None:
        raise measure.torch.OutOfMemoryError("of some GiB")

    monkeypatch.setattr(measure, "make_call", fail)
    assert measure.measure(job) == replace(job.row, skipped="out of memory")


def test_kernels_are_measured_before_rivals_in_every_family(bench: Any) -> None:
    jobs = bench("scaling").jobs_of(["inputs", "batch"], ["reference", "triton"], "cpu", 2)
    order = [("triton", "inputs"), ("triton", "batch"), ("reference", "inputs"), ("reference", "batch")]
    assert [(job.rival, job.name) for job in jobs[::2]] == order


def test_a_time_that_no_graph_could_hold_stands_alone(bench: Any) -> None:
    cell = bench("report").cell
    measured = row(bench, p50_ms=821.0, peak_mib=126 * 1024.0, speedup=0.51)
    assert cell(measured, True) == "821 / - ms, 126 GiB"
    assert cell(replace(measured, captured_ms=820.0), True) == "821 / 820 ms, 126 GiB"
    assert cell(measured, False) == "0.51x, 126 GiB"


def test_a_line_ends_where_its_rival_does(bench: Any) -> None:
    scaling = bench("scaling")
    jobs = scaling.jobs_of(["inputs"], ["reference", "compiled"], "cpu", None)
    plain = [job for job in jobs if job.rival == "reference"]
    assert [job.shape.n_inp for job in plain] == [1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000]
    assert [job.shape.n_inp for job in jobs if job.rival == "compiled"] == [4_000, 64_000, 1_000_000]
    lines = scaling.Lines()
    lines.see(replace(plain[0].row, p50_ms=2_000.0))
    assert lines.stops(plain[1]) == ""
    lines.see(replace(plain[1].row, p50_ms=2_500.0))
    assert lines.stops(plain[2]) == "not tried: 2.5 s a call at 4,000 inputs"
    assert lines.stops(jobs[-1]) == ""
    lines.see(replace(jobs[-1].row, skipped="out of memory"))
    assert lines.stops(jobs[-1]) == "not tried: out of memory at 1,000,000 inputs"


def test_scaling_writes_and_draws_what_it_measures(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(worker: object, job: Any, clock: object) -> Any:
        small = job.shape.n_out < 1_024
        return replace(job.row, p50_ms=3.0, peak_mib=7.0) if small else replace(job.row, skipped="out of memory")

    monkeypatch.setattr(bench("jobs"), "answered", answered)
    bench("scaling").main(families="outputs", impls="reference,moments", device="cpu", points=4, out=tmp_path)
    rows = bench("records").read_rows(tmp_path / "scaling_cpu.csv")
    end = "not tried: out of memory at 1,024 outputs"
    assert [(r.n_out, r.p50_ms, r.skipped) for r in rows if r.rival == "moments"] == [
        (16, 3.0, ""),
        (128, 3.0, ""),
        (1_024, None, "out of memory"),
        (8_192, None, end),
    ]
    plot = bench("plot_scaling")
    plot.draw_scaling(rows, "", tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    assert plot.timed(rows) == ("p50_ms", "Time of a call, ms")
    assert plot.timed([*rows, row(bench, captured_ms=0.5)]) == ("captured_ms", "Time in a CUDA graph, ms")


def test_a_picture_says_where_its_numbers_come_from(bench: Any, tmp_path: Path) -> None:
    report = bench("report")
    result = report.Result(tmp_path / "scaling_cuda.csv", [], ABOUT | {"note": "two rows are of an earlier run"})
    told = report.pictures([result], tmp_path).splitlines()
    assert told[0].endswith("(scaling_cuda.png)")
    assert told[-1].startswith("From `scaling_cuda.csv`, ")
    assert told[-1].endswith("; two rows are of an earlier run.")


def test_labels_of_lines_keep_apart(bench: Any) -> None:
    plot = bench("plot_scaling")
    placed = plot.apart([0.1, 0.11, 0.5, 0.95, 0.96, 0.99])
    assert min(high - low for low, high in pairwise(placed)) > plot.LEAST_GAP - 1e-9
    assert (placed[0], placed[2]) == pytest.approx((0.1, 0.5))
    assert placed[-1] <= plot.HIGHEST


def test_bars_are_met_or_missed_or_not_measured(bench: Any) -> None:
    fused = row(bench, p50_ms=1.2, captured_ms=0.44, peak_mib=40.0)
    lines = bench("bars").bar_table([fused], {"smallnorb_1_b20": 0.45}).splitlines()
    assert lines[2].endswith("| 0.45 ms, 40 MiB | 0.44 ms, met | 0.45 ms, met | 1.2 ms, missed | 40 MiB, met |")
    assert lines[3].endswith(" | not measured" * 4 + " |")
    assert len(lines) == 2 + len(bench("cases").BARS)
    lines = bench("bars").bar_table([fused], {}, [row(bench, p50_ms=0.4)]).splitlines()
    assert lines[2].endswith("| not measured | 1.2 ms, missed | 0.4 ms, met | 40 MiB, met |")


def test_a_run_on_another_host_is_shown_too(bench: Any, tmp_path: Path) -> None:
    report = bench("report")
    bench("records").save([row(bench, p50_ms=0.4)], ABOUT | {"commit": "b" * 40}, tmp_path / "cuda_another_host")
    told = report.kernel_table([report.Result(tmp_path / "cuda.csv", [row(bench, p50_ms=1.2)], ABOUT)], tmp_path)
    assert "| 1.2 ms, missed | 0.4 ms, met |" in told
    assert "On another host: `cuda_another_host.csv`, commit bbbbbbbbbbbb, " in told


def test_calls_in_one_thread_are_shown_beside_a_run_of_the_same_commit(bench: Any, tmp_path: Path) -> None:
    result = bench("report").Result(tmp_path / "cuda.csv", [row(bench, p50_ms=1.2)], ABOUT)
    told = [bench("report").kernel_table([result], tmp_path)]
    for commit in (ABOUT["commit"], "another"):
        (tmp_path / "calls.csv").write_text('case,"own thread, ms"\nsmallnorb_1_b20,0.3\n')
        (tmp_path / "calls.json").write_text(json.dumps({"commit": commit}))
        told.append(bench("report").kernel_table([result], tmp_path))
    assert ["| 0.3 ms, met | 1.2 ms, missed |" in text and "from `calls.csv`" in text for text in told] == [0, 1, 0]


@pytest.mark.parametrize("n_rows", [0, 1, 2, 3])
def test_the_report_works_with_missing_rows(bench: Any, tmp_path: Path, n_rows: int) -> None:
    rows = [
        row(bench, p50_ms=1.0, captured_ms=0.5, peak_mib=10.0),
        row(bench, rival="reference", p50_ms=20.0, captured_ms=20.0, peak_mib=1000.0),
        row(bench, rival="compiled", skipped="out of memory"),
    ][:n_rows]
    records, readme = bench("records"), tmp_path / "README.md"
    records.save(records.with_ratios(rows), ABOUT, tmp_path / "cuda")
    readme.write_text(README)
    bench("report").main(results=tmp_path, readme=readme, check=False)
    text = readme.read_text()
    assert ("**20x faster in 100x less memory** than `reference`" in text) == (n_rows >= 2)
    assert ("captured in a CUDA graph, 40x faster than `reference`;" in text) == (n_rows >= 2)
    assert ("- `compiled` not on `smallnorb_1_b20`: out of memory." in text) == (n_rows == 3)
    assert "| 0.45 ms, 40 MiB |" in text
    assert (tmp_path / "cuda.png").exists() == (n_rows > 0)
    bench("report").main(results=tmp_path, readme=readme, check=True)


def test_rows_of_another_commit_are_not_kept(bench: Any, tmp_path: Path) -> None:
    records = bench("records")
    records.save([row(bench, p50_ms=1.0), row(bench, "sst_1", skipped="took more than 9 s")], ABOUT, tmp_path / "cuda")
    assert [kept.shape for kept in records.earlier(tmp_path / "cuda", ABOUT)] == ["smallnorb_1_b20"]
    assert records.earlier(tmp_path / "cuda", ABOUT | {"commit": "b" * 40}) == []
    assert records.earlier(tmp_path / "cuda", ABOUT | {"commit": None}) == []


def test_calls_are_compared_with_one_that_does_nothing(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    calls, shape = bench("calls"), Shape(1, 3, 2, 1, 2, 1)
    monkeypatch.setattr(calls, "BARS", {"tiny": None})
    monkeypatch.setattr(calls, "CASES", {"tiny": shape})
    calls.main(device="cpu", repeats=1, out=tmp_path)
    with (tmp_path / "calls.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert found["case"] == "tiny"
    assert 0 < float(found["nothing ms"]) < float(found["ms"])
    assert json.loads((tmp_path / "calls.json").read_text())["seed"] == 0


def test_structures_are_judged_and_said_how_far_apart(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    structure, Shape = bench("structure"), bench("capsroute.testing").Shape
    monkeypatch.setattr(structure, "SHAPES", [Shape(1, 40, 3, 2, 2, 2)])
    structure.main(device="cpu", seeds=1, shapes=1, out=tmp_path / "found.json", commit="c")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["commit"] == "c"
    assert [row["inputs"] for row in found["rows"]] == list(structure.STRUCTURES)
    assert all(0 < worst < 4 for row in found["rows"] for worst in row["worst of each sample"])
    # a single output lies where all inputs do, but for eps; others the further apart, the more so inputs are
    one = structure.draw(Shape(1, 400, 1, 4, 4, 4), "as drawn", 0, "cpu")
    assert structure.outputs_apart(one) < 1e-6
    drawn, parted = (
        structure.outputs_apart(structure.draw(Shape(1, 400, 16, 4, 4, 4), name, 0, "cpu"))
        for name in ("as drawn", "half of them 0.3 in size and half 3 away")
    )
    assert drawn < 0.2 < 0.5 < parted


def test_inputs_of_networks_are_judged_too(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    structure, rng = bench("structure"), np.random.default_rng(0)
    pairs = Pairs(rng.integers(256, size=(9, 2, 29, 29), dtype=np.uint8), np.zeros(9, int), np.zeros((9, 4), int))
    monkeypatch.setattr(structure.smallnorb, "load", lambda folder, split: pairs)
    monkeypatch.setattr(structure, "SmallNORB", partial(structure.SmallNORB, n_parts=8, n_channels=8))
    asked = {"shapes": 0, "images": tmp_path, "networks": "fresh", "out": tmp_path / "found.json"}
    structure.main(device="cpu", seeds=2, **asked)
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [(row["inputs"], row["n_inp"], row["n_out"]) for row in rows] == [("network fresh", 8, 8)]
    assert all(len(row["worst of each sample"]) == 2 and max(row["worst of each sample"]) < 4 for row in rows)
