"""Saving, loading and sharing networks, and reading the author's files."""

import copy
import errno
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import capsroute
from capsroute.lab.baselines import AttentionPooling, LinearProbe
from capsroute.nets import SST, SmallNORB
from capsroute.nets.hub import Hub
from capsroute.pretrained import HOME, SHIPPED
from conftest import ROOT

TEXT = {"depth": 3, "d_emb": 8, "n_classes": 2, "encoder": "someone/some-model"}
NETWORKS: dict[str, Callable[[], Hub]] = {
    "SmallNORB": lambda: SmallNORB(n_classes=3, n_parts=4, n_channels=5),
    "SST": lambda: SST(**TEXT, n_parts=6),
    "LinearProbe": lambda: LinearProbe(**TEXT),
    "AttentionPooling": lambda: AttentionPooling(**TEXT, n_parts=6),
}
BLOCKED = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import torch
from capsroute.nets import SmallNORB
network = SmallNORB(n_parts=2, n_channels=2)
assert network(torch.rand(1, 2, 48, 48)).a.shape == (1, 5)
calls = {network.push_to_hub: "a/b", network.save_pretrained: "x", SmallNORB.from_pretrained: "x"}
for call, place in calls.items():
    try:
        call(place)
    except ImportError as error:
        assert "pip install 'capsroute[train]'" in str(error), error
    else:
        raise AssertionError
"""


def make_network(name: str) -> Hub:
    """Make a small network with random parameters: initial ones are often zero and hide mistakes."""
    network = NETWORKS[name]().eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.3 * torch.randn_like(p))
    return network


def make_arguments(name: str) -> tuple[Tensor, ...]:
    if name == "SmallNORB":
        return (torch.rand(1, 2, 48, 48),)
    return torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]), torch.randn(2, 3, 3, 8)


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_network_loads_equal(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, arguments = make_network(name), make_arguments(name)
    network.save_pretrained(tmp_path / "new" / "folder")
    loaded = type(network).from_pretrained(tmp_path / "new" / "folder").eval()
    assert torch.equal(network(*arguments).a, loaded(*arguments).a)
    assert loaded.config == network.config
    saved = json.loads((tmp_path / "new/folder/config.json").read_text())
    assert saved == {"network": type(network).__name__, **network.config}
    assert capsys.readouterr().out == ""


def test_overrides_replace_the_configuration(tmp_path: Path) -> None:
    make_network("SmallNORB").save_pretrained(tmp_path)
    assert SmallNORB.from_pretrained(tmp_path, impl="reference").routings[0].impl == "reference"


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    make_network("SmallNORB").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        SmallNORB.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("SmallNORB", {"n_classes": 7}, "but these names or shapes differ: routings.1.W"),
        ("SmallNORB", {"n_classes": 3_000_000_000}, "but these names or shapes differ: routings.1.W"),
        ("SST", {"n_parts": 10**18}, "expected settings that make a SST"),
        ("SST", {"depth": 10**9}, "depth: expected at most 1,000, got 1000000000"),
        ("SST", {"depth": "37"}, "depth: expected int, got '37'"),
        ("SST", {"n_classes": 3e9}, "n_classes: expected int, got 3000000000.0"),
        ("SST", {"colour": 1}, "colour: a SST has no such setting"),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused_at_once(
    name: str, settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    make_network(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | settings
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{tmp_path}/(config.json|model.safetensors): .*{words}"):
        capsroute.load(tmp_path)


@pytest.mark.parametrize(
    ("convert", "words"),
    [
        (lambda w: w.to(torch.complex64), "is torch.complex64 and not floating point"),
        (lambda w: w.long(), "is torch.int64 and not floating point"),
        (lambda w: w.to_sparse(), "is sparse"),
        (lambda w: w.flatten()[:1], "these names or shapes differ: routings.1.W"),
        (lambda w: w.flatten()[:1].expand(64, 3_000_000_000), "these names or shapes differ: routings.1.W"),
    ],
)
def test_weights_of_another_kind_are_refused(convert: Callable[[Tensor], Tensor], words: str, tmp_path: Path) -> None:
    weights = SmallNORB().state_dict()
    weights["routings.1.W"] = convert(weights["routings.1.W"])
    torch.save(weights, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf"weights\.pt: expected the weights the paper's author .*{words}"):
        SmallNORB.from_official(tmp_path / "weights.pt")
    if weights["routings.1.W"].is_contiguous() and not weights["routings.1.W"].is_sparse:
        SmallNORB().save_pretrained(tmp_path)
        safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=rf"model\.safetensors: expected the weights of a SmallNORB .*{words}"):
            SmallNORB.from_pretrained(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    make_network("SmallNORB").save_pretrained(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1000)
    with pytest.raises(ValueError, match=r"model\.safetensors: expected weights as safetensors, the file is damaged"):
        capsroute.load(tmp_path)
    for content in ("{", "[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config\.json: expected the settings of a network"):
            capsroute.load(tmp_path)


def test_failed_save_leaves_the_old_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network("SmallNORB")
    network.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with torch.no_grad():
        next(network.parameters()).add_(1)
    with pytest.raises(OSError, match=f"no space left: '{tmp_path}"):
        network.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", NETWORKS)
def test_model_card_describes_the_network(name: str, tmp_path: Path) -> None:
    network = make_network(name)
    network.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "More Information Needed" not in card
    front, text = card.removeprefix("---\n").split("---\n", 1)
    assert f"pipeline_tag: {network.task}" in front
    assert "license: mit" in front
    assert f"{sum(p.numel() for p in network.parameters()):,}" in text
    assert f"{name}.from_pretrained" in text
    assert all(f"`{key}={value!r}`" in text for key, value in network.config.items())


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_saved_files_honour_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_network("SmallNORB").save_pretrained(tmp_path)
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("config.json", "model.safetensors", "README.md"), "0o644"
    )


@pytest.mark.parametrize("missing", ["huggingface_hub", "safetensors"])
def test_missing_package_names_the_extra(missing: str, tmp_path: Path) -> None:
    """Networks run without it; saving needs safetensors alone."""
    names = [missing] if missing == "safetensors" else ["safetensors", "huggingface_hub"]
    subprocess.run(
        [sys.executable, "-c", BLOCKED, *names], check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


def test_push_to_hub_uploads_the_saved_files(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: dict[str, object] = {}

    def create_repo(repo_id: str, **options: object) -> str:
        calls["create_repo"] = (repo_id, options)
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(*, repo_id: str, folder_path: str, **options: object) -> None:
        calls["upload_folder"] = (repo_id, sorted(p.name for p in Path(folder_path).iterdir()), options)

    monkeypatch.setattr(huggingface_hub, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload_folder)
    url = make_network("SmallNORB").push_to_hub("someone/toys", private=True, commit_message="first")
    assert url == "https://huggingface.co/someone/toys"
    assert calls["create_repo"] == ("someone/toys", {"private": True, "token": None, "exist_ok": True})
    files = ["README.md", "config.json", "model.safetensors"]
    assert calls["upload_folder"] == ("someone/toys", files, {"commit_message": "first"})


@pytest.mark.parametrize("name", NETWORKS)
def test_deepcopy_is_independent(name: str) -> None:
    network, arguments = make_network(name), make_arguments(name)
    other = copy.deepcopy(network)
    before = network(*arguments).a
    assert torch.equal(other(*arguments).a, before)
    with torch.no_grad():
        next(other.parameters()).add_(1)
        list(other.parameters())[-1].add_(1)
    assert torch.equal(network(*arguments).a, before)
    assert not torch.equal(other(*arguments).a, before)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_network_classifies(name: str) -> None:
    network = capsroute.load(name)
    assert not network.training
    if isinstance(network, SST):
        assert network.encoder or (HOME / name / "encoder" / "config.json").is_file()
        inputs = torch.ones(2, 3), torch.randn(2, 3, *network.depth_emb.shape)
    else:
        assert sum(p.numel() for p in network.parameters()) == 271_688
        inputs = (torch.rand(2, 2, 96, 96),)
    with torch.no_grad():
        assert network(*inputs).a.isfinite().all()
    card = (HOME / name / "README.md").read_text()
    assert all(word in card for word in ("Data", "Training", "seed", "Accuracy", "commit"))
    assert (HOME / name / "model.safetensors").stat().st_size < 1.3e6


def test_unknown_name_lists_the_shipped() -> None:
    with pytest.raises(
        ValueError, match=r"name: expected the folder of a run, a folder of .*smallnorb.*, got 'resnet'"
    ):
        capsroute.load("resnet")


@pytest.mark.parametrize("kind", [SST, SmallNORB])
def test_other_files_than_the_authors_are_refused(kind: type[nn.Module], tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    said = rf"weights\.pt: expected the weights the paper's author published for {kind.__name__}"
    with pytest.raises(FileNotFoundError, match=f"{said}, found nothing there"):
        kind.from_official(path)  # pyright: ignore[reportAttributeAccessIssue]
    official, other = kind().state_dict(), (SmallNORB if kind is SST else SST)().state_dict()
    for content, why in (
        ([1, 2], "found something else"),
        ({"other": torch.ones(1)}, f"these names or shapes differ: {min(official)}"),
        ({name: t for name, t in official.items() if name != "routings.1.W"}, "differ: routings.1.W"),
        ({**official, "routings.0.W": torch.zeros(13, 768)}, "differ: routings.0.W"),
        ({**official, "routings.1.beta_use": torch.ones(1)}, "differ: routings.1.beta_use"),
        (other, "differ: "),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=f"{said}, .*{why}"):
            kind.from_official(path)  # pyright: ignore[reportAttributeAccessIssue]
    torch.save({"weights": torch.nn.Linear(1, 1)}, path)  # which only unpickling could read
    with pytest.raises(ValueError, match=f"{said}, cannot read it: it is damaged, or holds more than") as caught:
        kind.from_official(path)  # pyright: ignore[reportAttributeAccessIssue]
    assert "weights_only" not in "".join(traceback.format_exception(caught.value)).replace("weights_only=True", "")
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match=f"{said}, cannot read it"):
        kind.from_official(path)  # pyright: ignore[reportAttributeAccessIssue]
