"""Sentences as a task: settings, splits, what reaches the network, and whole runs on a handful of trees."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capsroute.lab.baselines import AttentionPooling, LinearProbe
from capsroute.lab.data.published import DataError
from capsroute.lab.errors import StoppedError, UserError
from capsroute.lab.report.run_report import write_run_report
from capsroute.lab.training import language as module
from capsroute.lab.training.config import SettingError, change_settings
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.evaluate import score_run
from capsroute.lab.training.experiments import make_config, make_task
from capsroute.lab.training.language import Language, LanguageConfig
from capsroute.lab.training.regime import Regime
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.trainer import Trainer
from capsroute.nets import SST
from test_encoders import save
from test_trainer import equal, read_log, read_state
from tiny import interrupt_after

TREES = {
    "train.txt": [
        "(3 (2 a) (3 (3 fine) (2 film)))",
        "(1 (2 the) (1 (2 plot) (1 (2 is) (1 thin))))",
        "(4 (3 (2 a) (4 joy)) (3 (2 to) (2 watch)))",
        "(0 (1 dull) (0 (2 ,) (1 (1 thin) (2 film))))",
        "(2 (2 the) (2 cast))",
    ],
    "dev.txt": [
        "(3 (2 the) (3 (2 film) (3 (2 is) (3 fine))))",
        "(1 (2 a) (1 (1 dull) (2 plot)))",
        "(2 (2 a) (2 cast))",
    ],
    "test.txt": [
        "(4 (2 the) (4 (2 cast) (4 (2 is) (4 (2 a) (4 joy)))))",
        "(2 (2 the) (2 plot))",
        "(0 (1 thin) (1 (2 ,) (1 dull)))",
        "(3 (3 fine) (2 film))",
    ],
}
N_PHRASES, N_POLAR = 25, 15  # of the training trees, counted by hand
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("encoder") / "bert", "bert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trees")
    for name, lines in TREES.items():
        (place / name).write_text("".join(f"{line}\n" for line in lines))
    return place


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of embeddings go to a folder of their own."""
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))


@pytest.fixture
def settings(bert: Path, folder: Path) -> dict[str, Any]:
    """Settings of a run of ten steps."""
    places = {"experiment": "sst5", "data": "sst", "encoder": str(bert), "folder": str(folder)}
    return places | {
        "epochs": 2,
        "batch_size": 5,
        "log_every": 3,
        "save_every": 0.0,
        "beta1_max": 0.9,
        "beta1_min": 0.8,
    }


def run(
    folder: Path, settings: dict[str, Any], *, resume: bool = False, stop_after: int | None = None
) -> dict[str, Any]:
    """Train in a folder; Ctrl-C comes after the step `stop_after`."""
    environment, task = Environment(accelerator="cpu"), make_task(LanguageConfig(**settings))
    trainer = Trainer(task, RunFolder(folder), environment, environment.launch())
    return trainer.train(resume=resume, on_step=interrupt_after(stop_after))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": 3}, "classes: expected 2 or 5, got 3"),
        ({"data": "sst"}, "encoder: expected the name or the folder of a transformer, got none"),
        ({"cache_gb": -1.0}, r"cache_gb: expected at least 0, got -1\.0"),
        ({"cache_gb": float("nan")}, "cache_gb: expected at least 0, got nan"),
        ({"treebank_seed": -1}, "treebank_seed: expected at least 0, got -1"),
        ({"max_tokens": 0}, "max_tokens: expected at least 1, got 0"),
        ({"train_on": 0}, "train_on: expected at least 1, got 0"),
        ({"epochs": 0}, "epochs: expected at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageConfig(experiment="test", **wrong)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("head=mlp", "head: expected one of routing, linear, attention, got 'mlp'"),
        ("cache=tape", "cache: expected one of auto, disk, memory, none, got 'tape'"),
        ("encoder_precision=int8", "encoder_precision: expected one of fp32, fp16, bf16, got 'int8'"),
        ("clases=2", "clases: sst5 has no such field; did you mean classes?"),
        ("size=96", "size: sst5 has no such field"),
        ("classes=4", "classes: expected 2 or 5, got 4"),
    ],
)
def test_wrong_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        change_settings(make_config("sst5"), [setting])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("name", "classes"), [("sst5", 5), ("sst2", 2)])
def test_sst_has_the_papers_regime(name: str, classes: int) -> None:
    config = make_config(name)
    assert isinstance(config, LanguageConfig)
    assert (config.epochs, config.batch_size, config.classes) == (3, 20, classes)
    assert (config.lr_min, config.lr_max, config.mixup, config.warmup) == (1e-5, 5e-4, 0.2, 0.1)
    defaults = asdict(Regime())
    assert {field: asdict(config)[field] for field in defaults} == defaults | {"epochs": 3}
    assert (config.data, config.head, config.train_on, config.max_tokens) == ("sst", "routing", None, None)
    assert config.encoder.endswith("gpt2-large")


def test_treebank_needs_no_settings() -> None:
    config = make_config("treebank")
    assert isinstance(config, LanguageConfig)
    assert (config.data, config.encoder, config.classes, config.head) == ("treebank", "", 5, "routing")


def test_splits_have_their_sentences_and_classes(settings: dict[str, Any]) -> None:
    five, two = (Language(LanguageConfig(**settings, classes=classes)) for classes in (5, 2))
    assert [len(five.phrases(split).text) for split in ("train", "validation", "test")] == [N_PHRASES, 3, 4]
    assert [len(two.phrases(split).text) for split in ("train", "validation", "test")] == [N_POLAR, 2, 3]
    assert five.phrases("test").text == ["the cast is a joy", "the plot", "thin , dull", "fine film"]
    assert five.phrases("test").label.tolist() == [4, 2, 0, 3]
    assert two.phrases("test").label.tolist() == [1, 0, 1]
    assert five.names == ("very negative", "negative", "neutral", "positive", "very positive")
    assert two.names == ("negative", "positive")
    assert len(five.source("train", CPU)) == N_PHRASES


def test_limits_select_the_same_phrases(settings: dict[str, Any]) -> None:
    whole = Language(LanguageConfig(**settings)).phrases("train")
    limited = [Language(LanguageConfig(**settings, train_on=7, test_on=2, validate_on=100)) for _ in range(2)]
    some = [task.phrases("train") for task in limited]
    assert some[0].text == some[1].text
    assert len(some[0].text) == 7
    places = [whole.text.index(text) for text in some[0].text]
    assert places == sorted(places)
    assert places != list(range(7))
    assert some[0].label.tolist() == whole.label[places].tolist()
    assert [len(limited[0].phrases(split).text) for split in ("validation", "test")] == [3, 2]


@pytest.mark.parametrize("head", ["routing", "linear", "attention"])
def test_network_has_the_encoders_sizes(settings: dict[str, Any], head: str) -> None:
    network = Language(LanguageConfig(**settings, head=head, classes=2)).network()
    assert type(network) is {"routing": SST, "linear": LinearProbe, "attention": AttentionPooling}[head]
    assert network.encoder == settings["encoder"]
    assert network.eval()(torch.ones(1, 3), torch.randn(1, 3, 4, 32)).a.shape == (1, 2)


def test_every_cache_gives_the_same_inputs(settings: dict[str, Any]) -> None:
    rows = torch.tensor([3, 0, 21, 8])
    tasks = {cache: Language(LanguageConfig(**settings, cache=cache)) for cache in ("disk", "memory", "none")}
    sources = {cache: task.source("train", CPU) for cache, task in tasks.items()}
    assert {cache: source.on_device for cache, source in sources.items()} == {
        "disk": True,
        "memory": True,
        "none": False,
    }
    expected = sources["disk"].batch(rows)
    texts = tasks["disk"].phrases("train").text
    direct = tasks["disk"].encoder()
    for found, wanted in zip(expected, direct.encode(direct.tokenize([texts[row] for row in rows])), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    for source in sources.values():
        assert torch.equal(source.target, sources["disk"].target)
        for inputs in (source.batch(rows), source.augmented_batch(rows, torch.zeros(4, 0))):
            for found, wanted in zip(inputs, expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cache", ["disk", "none"])
def test_repeated_rows_are_encoded_once(settings: dict[str, Any], cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch and its partners for mixup hold the same texts; without a cache each is encoded once."""
    task = Language(LanguageConfig(**settings, cache=cache))
    source = task.source("train", CPU)
    rows = torch.tensor([9, 2, 9, 14, 2, 2])
    expected = source.batch(rows)
    encoder, seen = task.encoder(), []
    encode = encoder.encode

    def counted(ids: Sequence[Sequence[int]]) -> Any:
        seen.extend(ids)
        return encode(ids)

    monkeypatch.setattr(encoder, "encode", counted)
    found = source.augmented_batch(rows, torch.zeros(6, 0))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert torch.equal(found[1][0], found[1][2])
    assert len(seen) == (3 if cache == "none" else 0)


def test_max_tokens_truncates_texts(settings: dict[str, Any]) -> None:
    source = Language(LanguageConfig(**settings, max_tokens=4)).source("test", CPU)
    mask, _ = source.batch(torch.arange(4))
    assert mask.sum(1).tolist() == [4, 4, 4, 4]
    with pytest.raises(UserError, match=r"max_tokens: expected from 3 to 40 for .*, got 100"):
        Language(LanguageConfig(**settings, max_tokens=100)).source("test", CPU)


def test_half_precision_embeddings_become_float32(settings: dict[str, Any]) -> None:
    whole, half = (
        Language(LanguageConfig(**settings, encoder_precision=p)).source("test", CPU).batch(torch.arange(4))[1]
        for p in ("fp32", "fp16")
    )
    assert half.dtype == torch.float32
    assert torch.equal(half, whole.half().float())
    assert not torch.equal(half, whole)


def test_measure_counts_right_answers(settings: dict[str, Any]) -> None:
    task = Language(LanguageConfig(**settings))
    scores = torch.eye(5)[[4, 2, 1, 0]]  # true are 4, 2, 0, 3
    result = task.measure(scores, "test")
    assert (result.right, result.total, result.accuracy) == (2, 4, 0.5)
    low, high = result.intervals["sentences"]
    assert 0 < low < 0.5 < high < 1


def test_missing_trees_say_what_to_do(settings: dict[str, Any], tmp_path: Path) -> None:
    task = Language(LanguageConfig(**settings | {"folder": str(tmp_path)}))
    with pytest.raises(DataError, match=r"lacks train\.txt .* Run `capsroute data fetch sst`"):
        task.source("train", CPU)


def test_treebank_makes_its_own_encoder(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in the folder of the data from its own sentences, another for another seed."""
    made = []

    def make(folder: Path, texts: Sequence[str], *, seed: int, **_: Any) -> Path:
        made.append((folder, len(texts), seed))
        return bert

    monkeypatch.setattr("capsroute.lab.encoders.tiny.pretrain", make)
    monkeypatch.setattr(module, "PRETRAINED_ON", 20)
    task = Language(LanguageConfig(experiment="treebank", folder=str(tmp_path), treebank_seed=3, train_on=50))
    source = task.source("train", CPU)
    assert len(source) == 50
    assert task.network().encoder == str(bert)
    (place, n, seed) = made[0]
    assert (place.parent, n, seed) == (tmp_path, 20, 3)
    assert "3" in place.name
    assert len(made) == 1


@pytest.mark.parametrize("head", ["routing", "linear", "attention"])
def test_stopped_run_resumes_bit_for_bit(settings: dict[str, Any], head: str, tmp_path: Path) -> None:
    settings |= {"head": head}
    facts = run(tmp_path / "whole", settings)
    assert (facts["steps"], facts["samples"], facts["phrases"]) == (10, N_PHRASES, N_PHRASES)
    with pytest.raises(StoppedError, match="after step 7 of 10; go on with: capsroute train --resume"):
        run(tmp_path / "halves", settings, stop_after=7)
    run(tmp_path / "halves", settings, resume=True)
    assert equal(read_state(tmp_path / "halves"), read_state(tmp_path / "whole"))
    assert read_log(tmp_path / "halves") == read_log(tmp_path / "whole")


@pytest.mark.parametrize("head", ["routing", "linear", "attention"])
def test_training_lowers_loss(settings: dict[str, Any], head: str, tmp_path: Path) -> None:
    """A readout of random hidden states fits 25 phrases easily; routing needs the auxiliary loss to learn so soon."""
    fast = {"epochs": 20, "lr_max": 1e-2, "beta2": 0.99, "mixup": 0.0, "log_every": 5, "save_every": 60.0}
    run(tmp_path, settings | fast | {"head": head, "auxiliary_weight": 1.0 if head == "routing" else 0.0})
    loss = RunFolder(tmp_path).training.read()["loss"]
    assert loss[-3:].mean() < loss[0] - 0.6


def test_run_record_and_report(settings: dict[str, Any], tmp_path: Path) -> None:
    facts = run(tmp_path, settings)
    task = Language(LanguageConfig(**settings))
    assert facts["data"] == "sst"
    assert facts["encoder"] == {"key": task.encoder().key(), "depth": 4, "width": 32}
    assert json.loads((tmp_path / "config.json").read_text())["encoder"] == settings["encoder"]
    assert json.loads((tmp_path / "model/config.json").read_text())["encoder"] == settings["encoder"]
    assert RunFolder(tmp_path).validation.read()["epoch"].tolist() == [1, 2]
    fabric = Environment(accelerator="cpu").launch()
    page, result = write_run_report(tmp_path, fabric, progress=False)
    words = page.read_text()
    assert all(name in words for name in task.names)
    assert "the cast is a joy" in words
    assert "Stanford Sentiment Treebank" in words
    assert ">Credit</h2>" in words
    assert "Left out" not in words
    assert result.total == 4
    scores, again = score_run(RunFolder(tmp_path), task, fabric, progress=False)
    assert again == result
    assert result.right == int((scores.argmax(1).numpy() == np.array([4, 2, 0, 3])).sum())


def test_cached_embeddings_are_reused(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Language(LanguageConfig(**settings)).source("train", CPU)
    task = Language(LanguageConfig(**settings))
    encoder = task.encoder()

    def refuse(*_: Any) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(encoder, "encode", refuse)
    rows = torch.arange(N_PHRASES)
    assert torch.equal(task.source("train", CPU).batch(rows)[1], first.batch(rows)[1])
