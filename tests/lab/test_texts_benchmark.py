"""The benchmark of heads on texts: its tasks, states and runs on tiny data, and its report on few runs."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT

ENCODER = ROOT / "capsroute/weights/treebank/encoder"
SENTENCES = ["a good film", "a bad film , but short", "it is not good", "a film"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_groups_hold_each_text_once(bench: Any) -> None:
    groups = bench("texts_tasks").find_groups([*SENTENCES, "I ca n't say " + "so " * 20])
    assert groups["words_1-10"] == [0, 1, 2, 3]
    assert groups["words_21-30"] == [4]
    assert (groups["negation"], groups["contrast"]) == ([2, 4], [1])
    assert sorted(groups["no_contrast"] + groups["contrast"]) == [0, 1, 2, 3, 4]


def test_groups_of_texts_stay_in_one_split(bench: Any) -> None:
    tasks = bench("texts_tasks")
    texts = tasks.split((f"article {k // 5}", f"{k // 5} {k}", k % 3) for k in range(200))
    assert [len(rows) for rows in texts.rows.values()] == [140, 20, 40]
    articles = [{int(texts.text[k].split()[0]) for k in rows} for rows in texts.rows.values()]
    assert sorted(set.union(*articles)) == sorted(k for own in articles for k in own)  # none in two splits
    assert all(label == int(text.split()[1]) % 3 for text, label in zip(texts.text, texts.y.tolist(), strict=True))


def test_a_package_with_another_content_is_refused(bench: Any, tmp_path: Path) -> None:
    tasks = bench("texts_tasks")
    (tmp_path / tasks.VADER.file).write_bytes(b"another")
    with pytest.raises(ValueError, match="expected the checksum"):
        tasks.load_snippets(tmp_path, "amazonReviewSnippets")


def test_states_are_those_of_the_encoder_standardised(bench: Any, tmp_path: Path) -> None:
    states, encoders = bench("texts_states"), bench("capsroute.lab.encoders")
    found = states.load_states(ENCODER, SENTENCES, 4, tmp_path / "states")
    again = states.load_states(tmp_path / "none", SENTENCES, 4, tmp_path / "states")  # from the file alone
    encoder = encoders.Encoder(ENCODER)
    rows = [encoder.encode([ids])[1][0] for ids in encoder.tokenize(SENTENCES)]  # [n, k, d] each
    known = torch.cat(rows)
    expected = (known - known.mean(0)) / known.std(0).clamp(min=1e-3)
    torch.testing.assert_close(again.flat.float(), expected.movedim(1, 0), atol=0.1, rtol=0.05)
    x, mask = found.batch(torch.tensor([2, 1]), [0, 2])
    assert mask.sum(1).tolist() == [len(rows[2]), len(rows[1])]
    torch.testing.assert_close(x[0, 1, : len(rows[2])], found.flat[2, found.starts[2] : found.starts[3]])
    means = found.means(torch.tensor([3, 0]))
    torch.testing.assert_close(means[0, 1], found.flat[1, found.starts[3] :].float().mean(0))


def test_runs_are_trained_tested_and_reported(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, tasks, report = (bench(name) for name in ("texts", "texts_tasks", "texts_report"))
    words = [("good", 1), ("bad", 0), ("great fun", 1), ("dull", 0)]

    def load(_: Path) -> Any:
        return tasks.join(
            [[(f"{word} film {k}", label) for k in range(n) for word, label in words] for n in (20, 4, 6)]
        )

    monkeypatch.setitem(tasks.TASKS, "sst2", tasks.TASKS["sst2"]._replace(load=load))
    for module, name, value in (
        (texts, "WORK", tmp_path / "work"),
        (texts, "FOLDER", tmp_path / "results"),
        (report, "FOLDER", tmp_path / "results"),
        (report, "PAGE", tmp_path / "texts.md"),
        (report, "PICTURE", tmp_path / "depths.png"),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(bench("texts_heads"), "MIN_STEPS", 60)
    monkeypatch.setitem(texts.ENCODERS, "minilm", range(1, 3))
    shutil.copytree(ENCODER, tmp_path / "minilm")
    shutil.copy(ROOT / "docs/texts.md", tmp_path)
    options = ["--tasks", "sst2", "--encoders", "minilm", "--heads", "routing", "--data", str(tmp_path)]
    options += ["--rates", "0.0005", "0.002"]

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["texts.py", *options, *arguments])
        texts.main()

    call("--where", "all", "--sizes", "0")
    rows = report.read_rows("runs")
    routed = [r for r in rows if r["head"] == "routing"]
    assert len(routed) == 7  # two seeds at each rate, and three more at the chosen one
    tested = [r for r in routed if "test" in r]
    assert {r["rate"] for r in tested} == {report.choose_rate(routed)}
    assert sorted(r["seed"] for r in tested) == [0, 1, 2, 3, 4]
    assert min(r["test"] for r in tested) == 1.0  # a word tells the class
    assert all(r["test_words_1-10"] == 1.0 and "test_negation" not in r for r in tested)
    assert {r["depth"] for r in report.read_rows("credit")} == {1, 2}
    assert "| `RoutingHead`, all depths | 100.0 ± 0.0 |" in report.PAGE.read_text()
    before = [path.stat().st_mtime_ns for path in sorted((tmp_path / "work/weights").iterdir())]
    call()  # adds the best depth and trains nothing twice
    after = [path.stat().st_mtime_ns for path in sorted((tmp_path / "work/weights").glob("*-all-*"))]
    assert set(after) <= set(before)
    assert len(report.read_rows("runs")) == len(rows) + 7
    credit = report.read_rows("credit")
    shutil.rmtree(tmp_path / "work")  # a machine that has the tables alone
    call("--test")
    assert report.read_rows("credit") == credit
    again = report.read_rows("runs")
    assert texts.wanted_runs(again, (5e-4, 2e-3), "sst2", "minilm", "routing", "all", 0) == []
    for row in again:
        row.pop("test", None)
    assert len(texts.wanted_runs(again, (5e-4, 2e-3), "sst2", "minilm", "routing", "all", 0)) == 5
    call("--check")
    report.PAGE.write_text(report.PAGE.read_text().replace("100.0 ± 0.0", "99.0 ± 0.0"))
    with pytest.raises(SystemExit, match="out of date"):
        call("--check")
