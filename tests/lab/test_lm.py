"""Language models with routed output: causality, loss in chunks, and the benchmark on a toy text."""

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from capsroute.lab.lm import GPT, OUTPUTS, RoutedPast
from conftest import ROOT

N = 40  # subwords
SETTINGS = [*({"output": output} for output in OUTPUTS), {"past": 5}]
settings = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "-".join(map(str, setting.values())))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def make_gpt(**settings: Any) -> GPT:
    return GPT(N, 3, 32, 4, 16, **settings)


@settings
def test_the_future_changes_no_earlier_score(setting: dict[str, Any]) -> None:
    model, ids = make_gpt(**setting), torch.randint(N, (2, 16))
    changed = torch.cat([ids[:, :9], (ids[:, 9:] + 1) % N], 1)
    one, other = model(ids), model(changed)
    torch.testing.assert_close(one[:, :9], other[:, :9], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(one[:, 9:], other[:, 9:], atol=1e-5)


def test_routed_past_reads_its_window_alone() -> None:
    layer, x = RoutedPast(8, window=4), torch.randn(1, 12, 8)
    for k in range(12):
        moved = x.clone()
        moved[:, k] += torch.randn(8)
        changed = (layer(moved) - layer(x)).abs().amax((0, 2)) > 1e-6
        assert changed.nonzero().flatten().tolist() == list(range(k, min(k + 4, 12)))


@pytest.mark.parametrize("sizes", [(1024, 3, 96), (2048, 8, 256), (8192, 8, 384), (30_000, 8, 384)])
def test_models_have_as_many_parameters(sizes: tuple[int, int, int]) -> None:
    n_subwords, n_blocks, d = sizes
    with torch.device("meta"):
        models = [GPT(n_subwords, n_blocks, d, 4, 16, **setting) for setting in SETTINGS]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(counts) <= 1.1 * min(counts)


@settings
def test_loss_in_chunks_is_the_same(setting: dict[str, Any]) -> None:
    model, ids = make_gpt(**setting), torch.randint(N, (2, 17))
    found = []
    for chunk in (None, 7):
        model.zero_grad()
        loss = model.nats(ids[:, :-1], ids[:, 1:], chunk)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-4)
    expected = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(found[0][0], expected.detach())


@pytest.mark.parametrize("output", OUTPUTS)
def test_models_learn_which_subword_follows(output: str) -> None:
    model, order = make_gpt(output=output), torch.randperm(N)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        ids = [torch.randint(N, (8, 1))]
        for _ in range(8):
            ids.append(order[ids[-1]])
        window = torch.cat(ids, 1)
        loss = model.nats(window[:, :-1], window[:, 1:], chunk=32) / 64
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < math.log(N) / 2  # subwords alone are equally likely


def test_unknown_output_is_refused() -> None:
    with pytest.raises(ValueError, match="output: expected one of"):
        make_gpt(output="linear")


def test_ranges_are_the_bytes_of_the_text(bench: Any, tmp_path: Path) -> None:
    text = bench("lm_text")
    lines = [f"line {k} Ünïcode 日本 \x0b\u2028\n" for k in range(100)]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.txt").write_bytes("".join(lines[:50]).encode())
    (tmp_path / "a/2.txt").write_bytes("".join(lines[50:]).encode())
    content = text.read_text(tmp_path / "a", tmp_path)
    assert content == "".join(lines).encode()
    ranges = text.split_text(content)
    assert b"".join(ranges.values()) == content
    assert len(ranges["train"]) == pytest.approx(0.9 * len(content), rel=0.02)
    short = text.split_text(content, (500, 60, 20))
    assert all(ranges[name].startswith(part) and part.endswith(b"\n") for name, part in short.items())
    texts = text.load_text(tmp_path / "a", tmp_path, tmp_path, 300, None)
    assert [part.n_bytes for part in texts.values()] == [len(part) for part in ranges.values()]
    assert all(part.ids.max() < 299 for part in texts.values())
    with pytest.raises(ValueError, match="empty range"):
        text.split_text(b"one line")


def test_bits_of_a_uniform_model(bench: Any) -> None:
    train, text = bench("lm_train"), bench("lm_text")
    preset = train.Preset(1, 32, 4, 8, 2, 1, (N,), 4, None, (1e-3,))
    for name in train.MODELS:
        model = train.make_model(name, N, preset)
        with torch.no_grad():
            for p in model.output.parameters():
                p.zero_()
        bits = train.find_bits(model, text.Text(torch.randint(N, (37,)), 100), N, preset, train.Machine("cpu"))
        assert bits == pytest.approx(math.log2(N) * 37 / 100, rel=1e-5)


def test_runs_are_trained_tested_and_reported(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, train, report = (bench(name) for name in ("lm", "lm_train", "lm_report"))
    (tmp_path / "text").write_text("".join(f"{k} and {k + 1} are {2 * k + 1}\n" for k in range(2000)))
    page = "".join(f"<!-- {name} table: begin -->\n<!-- {name} table: end -->\n" for name in report.TABLES)
    (tmp_path / "page.md").write_text(page)
    preset = train.Preset(2, 32, 4, 16, 4, 12, (300,), 32, (20_000, 500, 500), (1e-3, 1e-2))
    monkeypatch.setitem(lm.PRESETS, "tiny", preset)
    for module, name, value in (
        (lm, "WORK", tmp_path / "work"),
        (lm, "FOLDER", tmp_path / "results"),
        (report, "FOLDER", tmp_path / "results"),
        (report, "PAGE", tmp_path / "page.md"),
    ):
        monkeypatch.setattr(module, name, value)

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["lm.py", "--text", str(tmp_path / "text"), *arguments])
        lm.main()

    call("--models", "softmax", "depths")
    rows = report.read_rows("runs")
    assert len(rows) == 8  # the first seed at both rates, two more at the chosen one, for both models
    for model in ("softmax", "depths"):
        runs = [row for row in rows if row["model"] == model]
        assert sorted(row["seed"] for row in runs) == [0, 0, 1, 2]
        assert {row["rate"] for row in runs if "test" in row} == {report.choose_rate(runs, preset.rates)}
    assert all(row["tokens"] == 12 * 4 * 16 and row["steps_per_second"] > 0 for row in rows)
    assert "| routed depths | 300 |" in report.PAGE.read_text()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.pt")}
    call("--models", "softmax", "slices")  # trains what is missing alone
    assert before.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.pt")}.items()
    assert len(report.read_rows("runs")) == 12
    call("--check")
    report.PAGE.write_text(report.PAGE.read_text().replace("| routed depths", "| depths"))
    with pytest.raises(SystemExit, match="out of date"):
        call("--check")


def test_costs_are_measured(bench: Any) -> None:
    train = bench("lm_train")
    preset = train.Preset(1, 32, 4, 16, 2, 1, (N,), 8, None, (1e-3,))
    costs = train.measure_costs("slices", N, preset, train.Machine("cpu"), n_steps=1)
    assert costs["milliseconds"] > 0
    assert costs["mib"] >= 0
