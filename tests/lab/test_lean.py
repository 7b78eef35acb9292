"""A plain GPT-2 without `transformers`: the same tokens and hidden states, and nothing read that it does not know."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from capsroute.lab.encoders import Encoder, lean, loading, tiny
from capsroute.lab.errors import UserError
from capsroute.pretrained import HOME
from conftest import ROOT
from test_encoders import STRANGE, TEXTS, save
from test_predict import TRAINING_ONLY

SHIPPED = HOME / "treebank/encoder"
MORE = {
    "its own tokens": "a <end> film <END> <unk>, <|end|>",
    "typography": "It\u2019s the star\u2019s well-worn \u2014 \u201cnot bad\u201d \u2026 \u0130stanbul \ufb01lm",
    "as long as it goes": "star " * 128,
    "one more": "star " * 129,
}
KINDS = ["shipped", "bytes", "headed"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The shipped encoder, one with GPT-2's kind of tokenizer, and one saved with its head and unusual sizes."""
    home = tmp_path_factory.mktemp("models")
    folders = {"shipped": SHIPPED, "bytes": save(home / "bytes", "gpt2"), "headed": home / "headed"}
    with loading.quiet():
        from transformers import GPT2Config, GPT2LMHeadModel

        shutil.copytree(folders["bytes"], folders["headed"])
        sizes = {"vocab_size": 310, "n_positions": 50, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 40}
        config = GPT2Config(**sizes, activation_function="gelu", layer_norm_epsilon=1e-3, initializer_range=0.3)
        GPT2LMHeadModel(config).save_pretrained(folders["headed"])
    assert (folders["headed"] / "generation_config.json").exists()
    return folders


@pytest.fixture(scope="module")
def pairs(folders: dict[str, Path]) -> dict[str, tuple[Encoder, Encoder]]:
    return {kind: (Encoder(folders[kind], lean=True), Encoder(folders[kind])) for kind in KINDS}


def same(ours: Encoder, theirs: Encoder, texts: list[str]) -> None:
    ids = theirs.tokenize(texts)
    assert ours.tokenize(texts) == ids
    assert [ours.tokens(text) for text in texts] == [theirs.tokens(text) for text in texts]
    (mask, embs), (their_mask, their_embs) = ours.encode(ids), theirs.encode(ids)
    assert torch.equal(mask, their_mask)
    torch.testing.assert_close(embs, their_embs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_transformers_gives(pairs: dict[str, tuple[Encoder, Encoder]], kind: str) -> None:
    ours, theirs = pairs[kind]
    assert isinstance(ours._model, lean.GPT2)
    assert type(theirs._model).__module__.startswith("transformers.")
    assert repr(ours) == repr(theirs)
    texts = {**STRANGE, **MORE}
    for text in texts.values():
        same(ours, theirs, [text])
    same(ours, theirs, [*TEXTS, *texts.values()])  # a batch with padding
    assert not ours.encode([[0]])[1].requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_shorter_texts_and_half_precision(folders: dict[str, Path], kind: str) -> None:
    ours, theirs = (Encoder(folders[kind], lean=lean, max_tokens=5) for lean in (True, False))
    same(ours, theirs, TEXTS)
    assert ours.tokens(TEXTS[2])[1]
    half = Encoder(folders[kind], lean=True, precision="bf16").encode([[0, 1]])[1]
    assert torch.equal(half, ours.encode([[0, 1]])[1].bfloat16())


def test_padding_changes_nothing(pairs: dict[str, tuple[Encoder, Encoder]]) -> None:
    ours, _ = pairs["shipped"]
    ids = ours.tokenize(TEXTS)
    for row, embs in zip(ids, ours.encode(ids)[1], strict=True):
        torch.testing.assert_close(embs[: len(row)], ours.encode([row])[1][0], rtol=0, atol=1e-5)


def test_rounding_has_a_key_of_its_own(pairs: dict[str, tuple[Encoder, Encoder]]) -> None:
    ours, theirs = pairs["shipped"]
    assert ours.key() != theirs.key()


def changed(name: str, **values: Any) -> Callable[[Path], Any]:
    """Sets fields of a JSON file; `...` removes one."""

    def change(folder: Path) -> None:
        old = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: value for key, value in old.items() if value is not ...}))

    return change


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], Any]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return rewrite


CLOSED = {  # adds a token at the end of each text
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<end>": {"id": "<end>", "ids": [1], "tokens": ["<end>"]}},
}
CUT = {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}
PADDED = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
PADDED |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
UNKNOWN = {
    "another model": changed("config.json", model_type="gpt_neo"),
    "no kind of model": changed("config.json", model_type=...),
    "another activation": changed("config.json", activation_function="relu"),
    "a scale by layer": changed("config.json", scale_attn_by_inverse_layer_idx=True),
    "no scale": changed("config.json", scale_attn_weights=False),
    "reordered attention": changed("config.json", reorder_and_upcast_attn=True),
    "cross attention": changed("config.json", add_cross_attention=True),
    "a setting nobody heard of": changed("config.json", quantization_config={}),
    "a size that is not given": changed("config.json", n_layer=...),
    "other sizes": changed("config.json", n_positions=100),
    "heads that do not divide": changed("config.json", n_head=5),
    "no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "no object": lambda folder: (folder / "config.json").write_text("[]"),
    "a class that changes its tokenizer": changed("tokenizer_config.json", tokenizer_class="GPT2Tokenizer"),
    "a setting of the tokenizer": changed("tokenizer_config.json", add_bos_token=True),
    "a token to be added": changed("tokenizer_config.json", pad_token="<pad>"),
    "tokens of its own": changed("tokenizer.json", post_processor=CLOSED),
    "texts cut at their beginning": changed("tokenizer.json", truncation=CUT | {"direction": "Left"}),
    "padded texts": changed("tokenizer.json", padding=PADDED),
    "a token like any word": lambda folder: replace(folder / "tokenizer.json", '"special": true', '"special": false'),
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "another file": lambda folder: (folder / "added_tokens.json").write_text("{}"),
    "a missing weight": weights(lambda tensors: tensors.pop("transformer.ln_f.bias")),
    "one weight more": weights(lambda tensors: tensors.update(extra=torch.zeros(1))),
    "half of the weights": lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 1000),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_it_does_not_know_is_left_to_transformers(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    (folder / tiny.STAMP).write_text("{}")  # which no number depends on
    assert lean.read_plain(folder, torch.float32)
    UNKNOWN[case](folder)
    assert lean.read_plain(folder, torch.float32) is None


def test_transformers_reads_it_then_or_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    changed("config.json", scale_attn_by_inverse_layer_idx=True)(folder)
    encoder = Encoder(folder, lean=True)
    assert type(encoder._model).__module__.startswith("transformers.")
    assert encoder.key() == Encoder(folder).key()
    UNKNOWN["a missing weight"](folder)
    with pytest.raises(UserError, match=r"1 are missing, the first is ln_f\.bias"):
        Encoder(folder, lean=True)


def test_the_command_does_without_transformers() -> None:
    """A process of its own, whose imports are all the command's."""
    script = (
        "import sys; from capsroute.lab.cli import app; app(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, "predict", "treebank", "a fine film", "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer, modules = result.stdout.splitlines()
    assert json.loads(answer)["read"] == 3
    packages = {name.split(".")[0] for name in modules.split()}
    assert {"torch", "tokenizers", "safetensors"} <= packages
    assert not packages & {"transformers", *TRAINING_ONLY}
