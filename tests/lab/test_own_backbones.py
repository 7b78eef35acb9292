"""Pretrained vision models: frozen, with stored features, or trained and saved with the network."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capsroute
from capsroute.lab.encoders.loading import load_vision_model
from capsroute.lab.errors import UserError
from capsroute.lab.preprocessing import make_preprocessing
from capsroute.lab.training.experiments import complete_config, make_task
from capsroute.nets import Classifier
from own_data import draw_shapes
from test_own_training import SHORT, refuse, run

SIDE = 16


def save_vit(folder: Path) -> None:
    """Save a tiny vision transformer with random weights."""
    from transformers import ViTConfig, ViTModel

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(**sizes, intermediate_size=16, image_size=SIDE, patch_size=8)).save_pretrained(folder)


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of a tiny transformer, which has tokens, and of a tiny ResNet, which has feature maps."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("backbones")
    save_vit(folder / "vit")
    stages: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    ResNetModel(ResNetConfig(embedding_size=8, **stages)).save_pretrained(folder / "resnet")
    (folder / "resnet" / "preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": SIDE}}))
    return {"vit": folder / "vit", "resnet": folder / "resnet"}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_shapes(tmp_path_factory.mktemp("shapes"), 8, size=SIDE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("name", ["vit", "resnet"])
@pytest.mark.parametrize("how", ["frozen", "unfreeze"])
def test_trained_network_knows_its_backbone(
    name: str, how: str, backbones: dict[str, Path], shapes: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run("train", "images", shapes, "--backbone", backbones[name], f"--{how}", *SHORT, "--out", out, "--report")
    network = capsroute.load(out)
    assert isinstance(network, Classifier)
    preprocessing = make_preprocessing(network.config["preprocessing"])
    batch = preprocessing.collate([preprocessing.prepare(shapes / "circle" / "000.png")])
    scores = network(batch[0]).a
    assert scores.shape == (1, 3)
    trained = how == "unfreeze"
    assert network.config["trunk"]["name"] == ("backbone" if trained else "vectors")
    assert bool(list((tmp_path / "data").glob("features/*.npy"))) != trained
    evaluated = json.loads(run("eval", out, shapes, "--json").output.splitlines()[-1])
    assert evaluated["total"] == 24


def test_trained_backbone_starts_from_its_weights(backbones: dict[str, Path], shapes: Path) -> None:
    task: Any = make_task(complete_config("images", [f"data={shapes}", f"backbone={backbones['vit']}", "frozen=false"]))
    pretrained = load_vision_model(str(backbones["vit"])).model.state_dict()
    weights = task.network().trunk.model.state_dict()
    assert all(torch.equal(weights[name], pretrained[name]) for name in pretrained)


def test_stored_features_are_those_of_single_images(backbones: dict[str, Path], shapes: Path) -> None:
    task: Any = make_task(complete_config("images", [f"data={shapes}", f"backbone={backbones['vit']}"]))
    alone = task.preprocessing.collate([task.preprocessing.prepare(shapes / task.data.places[5])])[0][0]
    np.testing.assert_allclose(task.data.items[5], alone.numpy(), rtol=2e-3, atol=2e-3)  # half precision


def test_views_of_a_pair_are_features_of_one_thing(backbones: dict[str, Path], tmp_path: Path) -> None:
    for name, grey in (("a", 50), ("b", 200)):
        (tmp_path / "pairs" / name).mkdir(parents=True)
        for k in range(4):
            for eye in ("left", "right"):
                Image.new("L", (9, 9), grey + k).save(tmp_path / "pairs" / name / f"{k}-{eye}.png")
    task: Any = make_task(complete_config("images", [f"data={tmp_path / 'pairs'}", f"backbone={backbones['vit']}"]))
    assert task.data.items[0].shape == (2 * (1 + (SIDE // 8) ** 2), 16)
    settings = [f"data={tmp_path / 'pairs'}", f"backbone={backbones['vit']}", "frozen=false"]
    with pytest.raises(UserError, match="takes single images"):
        make_task(complete_config("images", settings)).network()


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a model, found none"):
        load_vision_model(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_vision_model(str(tmp_path))


@pytest.mark.parametrize("missing", ["timm", "torchvision"])
def test_missing_packages_are_named_with_the_extra_that_brings_them(
    missing: str, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text(f"raise ModuleNotFoundError('no such module', name='{missing}')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    message = refuse("train", "images", shapes, "--backbone", "timm/resnet18")
    assert message == f"{missing} is not installed: pip install 'capsroute[timm]'"
