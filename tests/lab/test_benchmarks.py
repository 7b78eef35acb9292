"""The benchmarks on tiny cases, and their reports on incomplete and bad measurements."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT

ORIGIN = {
    "machine": {"cpu": "a CPU", "cores": 2, "gpu": "a GPU"},
    "versions": {"torch": "2.11.0+cu130", "triton": "3.6"},
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks by name; kernels are not interpreted."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return importlib.import_module


def make_row(bench: Any, case: str = "smallnorb_1_b20", impl: str = "auto", **values: Any) -> Any:
    shape = bench("cases").CASES[case]
    return bench("records").Row(case, shape.batch, shape.n_inp, shape.n_out, impl, "", "forward+backward", **values)


def test_run_on_cpu_writes_every_row(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.csv"
    settings = {"cases": "tiny", "impls": "reference,triton,auto", "modes": "forward", "repeats": 2}
    bench("run").main(**settings, out=path, commit="c")
    rows = bench("records").read_rows(path)
    assert [(r.impl, r.picked, r.repeats) for r in rows] == [
        ("reference", "", 2),
        ("triton", "", None),
        ("auto", "reference", 2),
    ]
    assert "NVIDIA GPU" in rows[1].skipped
    assert all(0 < r.p20_ms <= r.p50_ms <= r.p80_ms and r.peak_mib >= 0 for r in rows if not r.skipped)
    assert json.loads(path.with_suffix(".json").read_text())["commit"] == "c"

    path.write_text(path.read_text().replace(f"{rows[0].p50_ms:.4f}", "0.0001"))
    before = path.read_text()
    bench("run").main(**settings, compare=path)
    assert path.read_text() == before
    assert "/ 0.0001" in capsys.readouterr().out


def test_jobs_in_a_process_are_measured_or_skipped(bench: Any) -> None:
    measure = bench("measure")
    jobs = [measure.Job("tiny", impl, "forward+backward", "cpu") for impl in ("reference", "blocked")]
    measured, skipped = bench("run").measure_on_gpu(jobs, {jobs[1]: "mu off by 2.00 times"})
    assert measured.p50_ms > 0
    assert skipped == jobs[1].skip("wrong: mu off by 2.00 times")


def test_wrong_results_are_not_timed_on_cpu(bench: Any) -> None:
    job = bench("measure").Job("tiny", "moments", "forward", "cpu")
    assert list(bench("run").measure_on_cpu([job], {job: "a off"}, 1)) == [job.skip("wrong: a off")]


def test_correct_results_pass_the_check(bench: Any) -> None:
    assert bench("measure").check_result(bench("measure").Job("tiny", "moments", "forward", "cpu")) == ""


def test_cases_that_cannot_run_name_the_reason(bench: Any) -> None:
    measure = bench("measure")
    assert "NVIDIA GPU" in measure.measure(measure.Job("sst_2", "triton", "forward", "cpu")).skipped
    assert "GiB free" in measure.reason_to_skip(measure.Job("batch_256", "reference", "forward", "cpu"))


def test_select_expands_families_and_refuses_unknown_names(bench: Any) -> None:
    run, cases = bench("run"), bench("cases")
    assert run.select("batch,tiny", tuple(cases.CASES), ()) == [*cases.FAMILIES["batch"], "tiny"]
    with pytest.raises(run.typer.BadParameter, match="got unknown"):
        run.select("unknown", tuple(cases.CASES), ())


@pytest.mark.parametrize("n_rows", [0, 1, 3])
def test_gpu_tables_allow_missing_rows(bench: Any, n_rows: int) -> None:
    rows = [
        make_row(bench, p50_ms=1.0, captured_ms=0.5, peak_mib=10.0),
        make_row(bench, impl="reference", p50_ms=20.0, captured_ms=None, peak_mib=2048.0),
        make_row(bench, impl="compiled", skipped="out of memory"),
    ][:n_rows]
    text = bench("report").write_gpu_tables(rows, ORIGIN, "cuda")
    assert ("| `smallnorb_1_b20` | 0.50 | 1.0 | 0.50 | – |" in text) == (n_rows > 0)
    assert ("2.0 GiB" in text) == (n_rows > 1)
    assert ("- `compiled` does not run `smallnorb_1_b20`: out of memory." in text) == (n_rows > 1)


def test_limits_are_exceeded_by_slow_or_large_measurements(bench: Any) -> None:
    report, records = bench("report"), bench("records")
    rows = {device: records.read_rows(records.RESULTS / f"{device}.csv") for device in ("cpu", "cuda")}
    assert list(report.exceeded_limits(rows)) == []
    slow = {
        "cpu": [replace(r, p50_ms=r.p50_ms and 1.0, peak_mib=r.peak_mib and 1.0) for r in rows["cpu"]],
        "cuda": [replace(r, captured_ms=r.captured_ms and 100.0) for r in rows["cuda"]],
    }
    messages = list(report.exceeded_limits(slow))
    assert len([m for m in messages if "times as fast" in m]) == 2  # the other two may be slower than the reference
    assert len([m for m in messages if "less memory" in m]) == 1
    assert len([m for m in messages if "CUDA graph" in m]) == len(report.GPU_LIMITS)


def test_tables_are_inserted_between_markers(bench: Any) -> None:
    insert = bench("report").insert
    text = "a <!-- x: begin --> old <!-- x: end --> b"
    assert insert(text, "x", "new") == "a <!-- x: begin -->\n\nnew\n\n<!-- x: end --> b"
    with pytest.raises(SystemExit, match="expected one"):
        insert("no markers", "x", "new")


def test_plots_are_drawn(bench: Any, tmp_path: Path) -> None:
    plot = bench("plot")
    rows = [make_row(bench, case, captured_ms=1.0, peak_mib=2.0) for case in ("batch_1", "batch_4", "inputs_1000")]
    rows += [make_row(bench, "outputs_16", impl="triton", captured_ms=1.0, peak_mib=3.0)]
    plot.draw_families(rows, tmp_path / "families.png")
    plot.draw_cases(rows, plot.captured_time, "ms", tmp_path / "cases.png")
    assert min(path.stat().st_size for path in tmp_path.iterdir()) > 10_000


@pytest.mark.parametrize("n_kinds", [None, 3])
def test_heads_have_as_many_parameters_and_ignore_padding(bench: Any, n_kinds: int | None) -> None:
    models = bench("heads_models")
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
    x = torch.randn(2, *([n_kinds] if n_kinds else []), 7, 12)
    target = models.count(models.make_head("routing", 12, 5, n_kinds))
    for name in models.HEADS:
        head = models.make_head(name, 12, 5, n_kinds)
        assert abs(models.count(head) / target - 1) <= 0.1
        torch.testing.assert_close(head(x, mask)[:1], head(x[:1, ..., :4, :], mask[:1, :4]), rtol=1e-3, atol=1e-4)


def test_heads_report_on_few_runs(bench: Any, tmp_path: Path) -> None:
    report = bench("heads_report")
    rows = [
        {"task": "sets", "head": head, "rate": 0.001, "seed": seed, "chosen": True, "test_all": right + seed / 10}
        for head, right in (("routing", 0.7), ("attention", 0.5))
        for seed in range(3)
    ]
    rows = [row | dict.fromkeys(("test_100", "test_300", "test_removed", "test_stray"), 0.5) for row in rows]
    report.write_csv(tmp_path / "runs.csv", rows)
    found = report.read_csv(tmp_path / "runs.csv")
    assert "| `RoutingHead` | 80.0 ± 5.8 |" in report.final_table(found)
    assert "| mean pooling | – |" in report.final_table(found)
    assert "+20.0 (+2.4)" in report.early_table(found)


def test_the_regulariser_of_heads_is_chosen_on_validation(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = bench("heads_noise")
    monkeypatch.setattr(noise, "FILE", tmp_path / "noise.csv")
    monkeypatch.setattr(noise, "read_rows_without_noise", list)
    assert noise.read_rows() == []
    rows = [
        {"task": "sst2", "head": "max", "rate": rate, "noise": n, "seed": seed, "validation_all": v, "test_all": 0.5}
        for rate, n, v in ((0.001, 0.3, 0.7), (0.003, 0.3, 0.8), (0.003, 0.6, 0.8))
        for seed in range(2)
    ]
    rows += [rows[0] | {"rate": 0.01, "validation_all": 1.0}]  # a setting without all of the first seeds
    noise.write_csv(noise.FILE, rows)
    assert noise.choose_setting(noise.read_rows(), "sst2", "max") == (0.3, 0.003)
    assert {(r["noise"], r["rate"]) for r in noise.find_final(noise.read_rows(), "sst2", "max")} == {(0.3, 0.003)}


def test_noise_leaves_validation_alone_and_changes_training(bench: Any) -> None:
    heads, tasks = bench("heads"), bench("heads_tasks")
    x, y = torch.randn(64, 3, 4), torch.arange(64) % 2
    splits = [tasks.Split(x, torch.ones(64, 3, dtype=torch.bool), y)] * 3
    model = heads.Model(tasks.TASKS["sets"], x[:1], "mean")
    assert torch.equal(model(x, splits[0].mask), model(x, splits[0].mask))
    assert not torch.equal(model(x, splits[0].mask, 0.3), model(x, splits[0].mask, 0.3))
    assert heads.accuracy(model, splits[1]) == heads.accuracy(model, splits[1])


def test_heads_runs_without_weights_or_test_accuracy_are_trained_again(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = bench("heads")
    monkeypatch.setattr(heads, "WORK", tmp_path)
    assert list(heads.wanted_runs([], "sets", "mean")) == [(r, s) for r in heads.RATES for s in heads.FIRST_SEEDS]
    rows = [
        {"task": "sets", "head": "mean", "rate": rate, "seed": seed, "validation_all": rate}
        for rate in heads.RATES
        for seed in heads.SEEDS
    ]
    best = max(heads.RATES)
    rows[-1]["test_all"] = 0.5
    weights = Path(f"{heads.locate_run('sets', 'mean', best, 0)}.pt")
    weights.parent.mkdir()
    weights.touch()
    assert list(heads.wanted_runs(rows, "sets", "mean")) == [(best, seed) for seed in (1, 2, 3)]


def test_hidden_states_have_a_mask_of_their_places(bench: Any) -> None:
    tasks = bench("heads_tasks")
    texts = [(["a good film", "bad"], [1, 0])]
    for depths, axes in (((2, 4), (2, 2)), ((4,), (2,))):
        (split,) = tasks.encode(tasks.TREEBANK_ENCODER, texts, depths)
        assert split.x.shape[:-2] == axes
        assert split.mask.shape == (2, split.x.shape[-2])
        assert split.mask[0].sum() > split.mask[1].sum() > 0
        assert split.x.mT[1][..., ~split.mask[1]].eq(0).all()
