"""The tiny GPT-2: made once, the same for the same seed, and better than chance at what it learned."""

import json
import math
import random
from pathlib import Path

import pytest
import torch

from capsroute.lab.encoders import Encoder, tiny
from capsroute.lab.errors import UserError

SMALL = {"n_steps": 120, "n_layers": 2, "width": 32, "progress": False}


def sentences(seed: int, n: int) -> list[str]:
    """A subject and its own verb: what comes next can be learned."""
    rng = random.Random(seed)
    verbs = {f"Noun{k}": f"verb{k % 7}" for k in range(20)}
    chosen = [rng.choices(sorted(verbs), k=rng.randint(1, 3)) for _ in range(n)]
    return [" , and ".join(f"the {noun} {verbs[noun]}s" for noun in nouns) + " ." for nouns in chosen]


TEXTS = [*sentences(0, 400), "Don't stop"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / "model", TEXTS, **SMALL)


def test_it_is_an_encoder(made: Path) -> None:
    encoder = Encoder(made)
    assert (encoder.depth, encoder.d_emb, encoder.max_tokens) == (3, 32, 128)
    assert encoder.tokens("The noun3, DON'T zebra!") == (["The", "noun3", ",", "DON'T", "zebra", "!"], False)
    assert encoder.tokenize(["zebra"]) == encoder.tokenize(["!"]) == [[0]]
    assert encoder.tokens("") == (["<end>"], False)
    ids = encoder.tokenize([*TEXTS[:9], "", "😀 \ud800", "the " * 10_000])
    mask, embs = encoder.encode(ids)
    assert embs.isfinite().all()
    for row, found in zip(ids, embs, strict=True):
        torch.testing.assert_close(found[: len(row)], encoder.encode([row])[1][0], rtol=0, atol=1e-5)
    assert mask.sum() == sum(map(len, ids))
    assert encoder.tokens("the " * 129)[1]
    assert not encoder.tokens("the " * 128)[1]


def test_it_learns(made: Path) -> None:
    unseen = sentences(1, 200)
    stamp = json.loads((made / "tiny.json").read_text())
    assert math.isfinite(stamp["loss"])
    # nouns cannot be guessed, of 20; what follows them can
    assert 1 < tiny.perplexity(made, unseen) < 4
    assert tiny.perplexity(made, [" ".join(reversed(text.split())) for text in unseen]) > 20


def test_it_is_made_once_and_the_same_for_a_seed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (made / "model.safetensors").read_bytes()
    other = {seed: tiny.make(tmp_path / str(seed), TEXTS, **SMALL, seed=seed) for seed in (0, 1)}
    assert (other[0] / "model.safetensors").read_bytes() == weights
    assert (other[1] / "model.safetensors").read_bytes() != weights
    assert Encoder(other[0]).key() == Encoder(made).key() != Encoder(other[1]).key()
    monkeypatch.setattr(tiny, "_train", None)
    assert tiny.make(made, TEXTS, **SMALL) == made
    for change in ({"seed": 2}, {"n_steps": 121}):
        with pytest.raises(TypeError):  # another model, so it trains
            tiny.make(made, TEXTS, **SMALL | change)
    with pytest.raises(TypeError):
        tiny.make(made, TEXTS[1:], **SMALL)
    assert (made / "model.safetensors").read_bytes() == weights
    assert sorted(path.name for path in made.parent.iterdir()) == ["model"]


def test_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    options = SMALL | {"n_steps": 2}
    folder = tiny.make(tmp_path / "model", TEXTS, **options)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:100])
    tiny.make(folder, TEXTS, **options)
    assert (folder / "model.safetensors").read_bytes() == weights
    (folder / "tiny.json").write_text("{")
    tiny.make(folder, TEXTS, **options)
    assert Encoder(folder).depth == 3


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    tiny.make(tmp_path / "model", TEXTS, **SMALL | {"n_steps": 2})
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")
    tiny.make(tmp_path / "model", TEXTS, **SMALL | {"n_steps": 3, "progress": True})
    assert "Pretraining a tiny GPT-2" in capfd.readouterr().err


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="texts: expected at least one text, got none"):
        tiny.make(tmp_path / "model", [])
    with pytest.raises(ValueError, match="texts: expected words, found none"):
        tiny.make(tmp_path / "model", ["", " "])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="folder: expected a new or empty folder for the tiny encoder, found other"):
        tiny.make(tmp_path / "mine", TEXTS, **SMALL)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
