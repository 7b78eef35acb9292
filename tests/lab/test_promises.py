"""The study of what capsules promise: disturbances, attacks, and all of it on tiny data."""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from capsroute.lab.data import Pairs, toys
from capsroute.lab.variants import Variant
from conftest import ROOT

SIZE = 32
PAGE = """# What capsules promise

{tables}
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of the benchmarks by name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a tiny network with images and classes that it has learned: how bright they are."""
    torch.manual_seed(0)
    classes = torch.arange(30) % 3
    images = (0.3 + 0.2 * classes[:, None, None, None] + 0.02 * torch.randn(30, 2, SIZE, SIZE)).clamp(0, 1)
    network = Variant(n_classes=3, n_parts=4, n_channels=4, routing="mean")
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images).a, classes).backward()
        optimizer.step()
    return network.requires_grad_(False).eval(), images, classes


def load_shades(folder: Path, split: str, size: int, **_: Any) -> Pairs:
    """Return pairs of a few views, whose shade tells the category, in the place of toys."""
    category, info = toys.make_labels(split)
    kept = np.isin(info[:, 1], (0, 4, 8)) & np.isin(info[:, 2], (0, 8, 18, 30))
    noise = np.random.default_rng(len(split)).integers(0, 8, (kept.sum(), 2, size, size), dtype=np.uint8)
    return Pairs(noise + (50 * category[kept, None, None, None]).astype(np.uint8), category[kept], info[kept])


@pytest.mark.parametrize("name", ["noise", "occlusion", "shift"])
def test_corruptions_are_deterministic_and_none_at_strength_zero(bench: Any, name: str) -> None:
    change, strengths = bench("promises_tests").CORRUPTIONS[name]
    images = torch.rand(5, 2, SIZE, SIZE)
    assert strengths[0] == 0
    for strength in strengths:
        one, other = (change(images, strength, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(one, other)
        assert torch.equal(one, images) == (strength == 0)
        assert 0 <= one.min() <= one.max() <= 1


def test_a_square_hides_its_pixels_and_a_shift_moves_all(bench: Any) -> None:
    tests, images = bench("promises_tests"), torch.rand(300, 2, SIZE, SIZE)
    hidden = tests.hide_patch(images, 10, torch.Generator().manual_seed(0)) != images
    assert hidden.sum((2, 3)).tolist() == [[100, 100]] * 300
    assert torch.equal(hidden[:, 0], hidden[:, 1])
    assert hidden.any((0, 1, 2)).all()  # in every column
    assert hidden.any((0, 1, 3)).all()  # and row
    moved = tests.shift(images, 3, torch.Generator().manual_seed(0))[..., 3:-3, 3:-3]
    by = [(y, x) for y in (-3, 0, 3) for x in (-3, 0, 3) if y or x]
    crops = [images[..., 3 + y : SIZE - 3 + y, 3 + x : SIZE - 3 + x] for y, x in by]
    assert all(sum(torch.equal(moved[k], crop[k]) for crop in crops) == 1 for k in range(300))


@pytest.mark.parametrize("how", ["fgsm", "pgd", "pgd, more steps", "pgd, standardised"])
def test_attacks_keep_their_bound_and_lower_accuracy(bench: Any, trained: Any, how: str) -> None:
    tests, (network, images, classes) = bench("promises_tests"), trained
    assert torch.equal(tests.attack(network, images, classes, 0, how), images)
    changed = tests.attack(network, images, classes, 0.3, how)
    assert (changed - images).abs().max() <= 0.3 + 1e-6
    assert 0 <= changed.min() <= changed.max() <= 1
    assert torch.equal(changed, tests.attack(network, images, classes, 0.3, how))
    found = [(tests.find_classes(network, x) == classes).float().mean() for x in (images, changed)]
    assert found[0] == 1
    assert found[1] < 0.7


def test_saturated_scores_hide_gradients_from_plain_attacks_alone(bench: Any, trained: Any) -> None:
    tests, (network, images, classes) = bench("promises_tests"), trained

    class Saturated(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            out = network(x)
            return out._replace(a=1e6 * out.a)

    assert tests.share_without_gradient(network, images, classes) == 0
    assert tests.share_without_gradient(Saturated(), images, classes) > 0.9
    assert tests.share_without_gradient(Saturated(), images, classes, standardised=True) == 0
    strength = tests.STRENGTHS[-1]
    networks = {"mean": network, "other": Saturated()}
    found = tests.measure_attacks(networks, images, classes, (0, strength), (0, strength))["other"]
    rows = {(r["test"], r["strength"]): r["accuracy"] for r in found}
    assert rows["pgd", strength] == 1.0
    assert rows["and standardised", strength] < 1.0
    assert rows["worst", strength] <= rows["transfer from mean", strength]
    assert rows["worst", 0] == 1.0


def test_matched_moment_is_the_first_nearest_to_what_all_reach(bench: Any) -> None:
    promises = bench("promises")
    accuracies = {"routing": [0.4, 0.7, 0.83], "attention": [0.78, 0.82, 0.99], "mean": [0.5, 0.6, 0.7]}
    rows = [
        {"views": "all", "network": name, "seed": 0, "step": step, "accuracy": right}
        for name, values in accuracies.items()
        for step, right in enumerate(values)
    ]
    assert promises.choose_target(rows, "all") == 0.8
    assert promises.choose_moments(rows, promises.Run("all", "attention", 0))["matched"] == (0, 0.78)
    assert promises.choose_moments(rows, promises.Run("all", "mean", 0)) == {"matched": (2, 0.7), "final": (2, 0.7)}


def test_study_is_trained_once_tested_and_reported(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promises, report = (bench(name) for name in ("promises", "promises_report"))
    monkeypatch.setattr(toys, "load", load_shades)
    sizes = ["n_parts=4", "n_channels=4", f"size={SIZE}", "train_on=60", "epochs=2", "validate_on=20", "lr_max=0.02"]
    page, work = tmp_path / "promises.md", tmp_path / "work"
    for module, name, value in (
        (promises, "WORK", work),
        (promises, "FOLDER", tmp_path / "results"),
        (report, "FOLDER", tmp_path / "results"),
        (report, "PAGE", page),
        (report, "PICTURES", tmp_path),
        (promises, "COMMON", [*sizes, f"validate_every={1 / promises.MOMENTS}"]),
        (promises, "VIEWS", {name: promises.VIEWS[name] for name in ("azimuths", "all")}),
        (promises, "SEEDS", range(2)),
        (promises, "TARGETS", range(95, -5, -5)),
        (promises, "PER_TOY_ATTACKED", 1),
        (promises, "STRENGTHS", (0, report.ATTACK)),
    ):
        monkeypatch.setattr(module, name, value)
    tables = [word for word in (ROOT / "docs/promises.md").read_text().split("\n") if word.startswith("<!-- ")]
    page.write_text(PAGE.format(tables="\n".join(tables)))

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["promises.py", *arguments])
        promises.main()

    call()
    runs, curves = report.read_rows("runs"), report.read_rows("curves")
    assert len(runs) == 2 * 3 * 2
    for row in runs:
        assert ("matched_novel" in row) == (row["views"] == "azimuths")
        assert row["steps"] == row["final_step"] == 12
    found = {(r["moment"], r["test"]) for r in curves if r["views"] == "azimuths"}
    assert {("matched", "worst"), ("final", "pgd"), ("final", "shift"), ("matched", "azimuth")} <= found
    assert ("final", "worst") not in found
    assert {r["test"] for r in curves if r["views"] == "all"} == {"azimuth", "elevation"}
    assert "| attention pooling |" in page.read_text()
    assert min(path.stat().st_size for path in tmp_path.glob("promises_*.png")) > 10_000
    times = {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")}
    before = page.read_text()
    call("--train", "--test", "--report")  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")} == times
    shutil.rmtree(work)
    call("--train", "--test", "--report")  # nor on a machine that has the tables alone
    assert not list(work.rglob("*.safetensors"))
    assert page.read_text() == before
    assert (report.read_rows("runs"), report.read_rows("curves")) == (runs, curves)
    call("--check")
    page.write_text(before.replace("±", "+", 1))
    with pytest.raises(SystemExit, match="out of date"):
        call("--check")
