"""The tiny GPT-2: pretrained once, reproducible, and better than chance."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from capsroute.lab.encoders import Encoder, tiny
from capsroute.lab.encoders.loading import silence_transformers
from capsroute.lab.errors import UserError
from test_encoders import split

SMALL = {"n_steps": 80, "n_layers": 2, "width": 32}


def sentences(seed: int, n: int) -> list[str]:
    """Return sentences whose verbs follow from their subjects."""
    rng = random.Random(seed)
    verbs = {f"Noun{k}": f"verb{k % 7}" for k in range(20)}
    chosen = [rng.choices(sorted(verbs), k=rng.randint(1, 3)) for _ in range(n)]
    return [" , and ".join(f"the {noun} {verbs[noun]}s" for noun in nouns) + " ." for nouns in chosen]


TEXTS = [*sentences(0, 400), "Don't stop"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.pretrain(tmp_path_factory.mktemp("tiny") / "model", TEXTS, **SMALL)


def perplexity(folder: Path, texts: list[str]) -> float:
    """Return a model's perplexity on each text's words but the first, and on its end."""
    with silence_transformers():
        from transformers import AutoTokenizer, GPT2LMHeadModel

        tokenizer, model = AutoTokenizer.from_pretrained(folder), GPT2LMHeadModel.from_pretrained(folder).eval()
    losses = []
    for text in texts:
        ids = torch.tensor([*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
        with torch.no_grad():
            losses.append(cross_entropy(model(ids[None, :-1]).logits[0], ids[1:], reduction="none"))
    return float(torch.cat(losses).mean().exp())


def test_model_is_an_encoder(made: Path) -> None:
    encoder = Encoder(made)
    assert (encoder.depth, encoder.d_emb, encoder.max_tokens) == (3, 32, 128)
    assert split(encoder, "The noun3, DON'T zebra!") == (["The", "noun3", ",", "DON'T", "zebra", "!"], False)
    assert encoder.tokenize(["zebra"]) == encoder.tokenize(["!"]) == [[0]]
    assert split(encoder, "") == (["<end>"], False)
    ids = encoder.tokenize([*TEXTS[:9], "", "😀 \ud800", "the " * 10_000])
    mask, embs = encoder.encode(ids)
    assert embs.isfinite().all()
    for row, found in zip(ids, embs, strict=True):
        torch.testing.assert_close(found[: len(row)], encoder.encode([row])[1][0], rtol=0, atol=1e-5)
    assert mask.sum() == sum(map(len, ids))
    assert split(encoder, "the " * 129)[1]
    assert not split(encoder, "the " * 128)[1]


def test_model_learns(made: Path) -> None:
    unseen = sentences(1, 200)
    stamp = json.loads((made / "tiny.json").read_text())
    assert math.isfinite(stamp["loss"])
    # one of 20 nouns cannot be guessed, its verb can
    assert 1 < perplexity(made, unseen) < 4
    assert perplexity(made, [" ".join(reversed(text.split())) for text in unseen]) > 20


def test_same_seed_gives_same_model(tmp_path: Path) -> None:
    options = SMALL | {"n_steps": 5}
    first, same = (tiny.pretrain(tmp_path / name, TEXTS, **options) for name in ("first", "same"))
    other = tiny.pretrain(tmp_path / "other", TEXTS, **options, seed=1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, same, other)]
    assert weights[0] == weights[1] != weights[2]
    assert Encoder(first).key() == Encoder(same).key() != Encoder(other).key()
    before = (first / "model.safetensors").stat()
    assert tiny.pretrain(first, TEXTS, **options) == first
    assert (first / "model.safetensors").stat() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "other", "same"]


def test_other_settings_pretrain_again(tmp_path: Path) -> None:
    options, seen = SMALL | {"n_steps": 2}, set()
    for texts, change in ((TEXTS, {}), (TEXTS, {"seed": 2}), (TEXTS, {"n_steps": 3}), (TEXTS[1:], {})):
        folder = tiny.pretrain(tmp_path / "model", texts, **options | change)
        seen.add((folder / "model.safetensors").read_bytes())
    assert len(seen) == 4


def test_damaged_model_is_pretrained_again(tmp_path: Path) -> None:
    options = SMALL | {"n_steps": 2}
    folder = tiny.pretrain(tmp_path / "model", TEXTS, **options)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:100])
    tiny.pretrain(folder, TEXTS, **options)
    assert (folder / "model.safetensors").read_bytes() == weights
    (folder / "tiny.json").write_text("{")
    tiny.pretrain(folder, TEXTS, **options)
    assert Encoder(folder).depth == 3


def test_random_state_is_restored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    tiny.pretrain(tmp_path / "model", TEXTS, **SMALL | {"n_steps": 2})
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match="folder: expected a new or empty folder for the tiny encoder, found other"):
        tiny.pretrain(tmp_path / "mine", TEXTS, **SMALL)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
