"""A tiny GPT-2 pretrained on the spot: an encoder that needs no download.

It is made of the `transformers` library's own classes and saved in its format, so whatever reads GPT-2 reads it.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ..atomic_files import staging_folder
from ..data.published import file_digest, name_write_errors
from ..environment_variables import set_environment
from ..errors import UserError
from ..progress import progress_bar
from .encoder import hash_texts
from .loading import silence_transformers

VERSION = 3  # of the models: raise it with every change to them, so that no old one is read
SETTINGS = "tiny.json"
UNKNOWN, END = "<unk>", "<end>"
WORD = "\\w+(?:['\u2019-]\\w+)*|[^\\w\\s]"  # with inner apostrophes and hyphens; punctuation mark by mark
VOCABULARY = 8192  # words
MAX_TOKENS = 128  # longer texts are truncated
PADDING = -100
BATCH = 64  # texts
LEARNING_RATE = 5e-3


def pretrain(
    folder: Path,
    texts: Sequence[str],
    *,
    seed: int = 0,
    n_steps: int = 1500,
    n_layers: int = 4,
    width: int = 64,
) -> Path:
    """Pretrain a tiny GPT-2 to predict each text's next word, unless the folder holds it already.

    Args:
        folder: Where it goes; created if absent, replaced if it holds another of these models.
        texts: Training texts, whose most frequent words make the vocabulary.
        seed: Of the initial weights and of the order of texts.
        n_steps: Training steps, of 64 texts each.
        n_layers: Its hidden states are one more, the embedding of the words.
        width: Of its embeddings, a multiple of 16.
    """
    folder = Path(folder)
    settings = {"n_steps": n_steps, "n_layers": n_layers, "width": width, "max_tokens": MAX_TOKENS}
    settings |= {"vocabulary": VOCABULARY, "seed": seed, "version": VERSION, "texts": hash_texts(texts)}
    if _is_saved(folder, settings):
        return folder
    if folder.exists() and not (folder / SETTINGS).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"folder: expected a new or empty folder for the tiny encoder, found other files in {folder}")
    with (
        name_write_errors(folder),
        staging_folder(folder) as staging,
        silence_transformers(),
        torch.random.fork_rng(devices=[]),
    ):
        if _is_saved(folder, settings):  # by another process, in the meantime
            return folder
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(seed)
        tokenizer = _make_tokenizer(texts)
        end = tokenizer.eos_token_id
        config = GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=width,
            n_layer=n_layers,
            n_head=width // 16,
            n_positions=MAX_TOKENS + 1,  # a text and its end
            bos_token_id=end,
            eos_token_id=end,
            activation_function="gelu_pytorch_tanh",  # GPT-2's as one fused operation
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        )
        model = GPT2LMHeadModel(config)
        rows = [torch.tensor([*row, end]) for row in tokenizer(list(texts), truncation=True).input_ids]
        loss = _train(model, rows, n_steps)
        _save(model, tokenizer, settings | {"loss": loss}, staging)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(staging, folder)  # at once, so that no part of a model is ever taken for one
    return folder


def _is_saved(folder: Path, settings: dict[str, Any]) -> bool:
    """Say whether the folder holds a model with these settings, with all files as they were saved."""
    try:
        saved = json.loads((folder / SETTINGS).read_text())
        same = {name: saved[name] for name in settings} == settings
        return same and saved["files"] == _hash_files(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _save(model: Any, tokenizer: Any, settings: dict[str, Any], folder: Path) -> None:
    """Save a model, and its settings with the hashes of its files."""
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # what the system said is in its words alone
        raise OSError(str(error)) from error
    tokenizer.save_pretrained(folder)
    (folder / SETTINGS).write_text(json.dumps(settings | {"files": _hash_files(folder)}, indent=1))
    for path in folder.iterdir():  # safetensors writes files that only their owner can read
        path.chmod((folder / SETTINGS).stat().st_mode)


def _hash_files(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path, "sha256") for path in sorted(folder.iterdir()) if path.name != SETTINGS}


def _make_tokenizer(texts: Sequence[str]) -> Any:
    """Build a tokenizer of lower-case words and punctuation marks."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Split
    from tokenizers.trainers import WordLevelTrainer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Split(Regex(WORD), "removed", invert=True)
    first = [UNKNOWN, END]
    trainer = WordLevelTrainer(vocab_size=len(first) + VOCABULARY, special_tokens=first, show_progress=False)
    with set_environment(TOKENIZERS_PARALLELISM="false"):  # no threads, see encoder.py
        tokenizer.train_from_iterator(texts, trainer)
    special = {"unk_token": UNKNOWN, "bos_token": END, "eos_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **special)


def _train(model: Any, rows: Sequence[Tensor], n_steps: int) -> float:
    """Fit the model to next words and return the mean loss of the last 50 steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=n_steps, pct_start=0.3)
    losses: list[float] = []
    label = "Pretraining a tiny GPT-2"
    with progress_bar(label, n_steps) as advance:
        for ids in islice(_sample_batches(rows), n_steps):
            # padding is on the right, where a causal model does not see it
            logits = model(input_ids=ids[:, :-1].clamp(min=0), use_cache=False).logits  # [b, n, words]
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PADDING)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            advance(label=f"{label}, loss {losses[-1]:.2f}")
    mean = float(torch.tensor(losses[-50:]).mean())
    if not math.isfinite(mean):
        raise ArithmeticError(f"pretraining the tiny encoder ended with a loss of {mean}")
    return mean


def _sample_batches(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield batches `[b, n + 1]` of texts of about the same length, epoch after epoch."""
    while True:
        order, pool = torch.randperm(len(rows)).tolist(), 16 * BATCH
        pools = [sorted(order[k : k + pool], key=lambda k: len(rows[k])) for k in range(0, len(rows), pool)]
        batches = [pool[k : k + BATCH] for pool in pools for k in range(0, len(pool), BATCH)]
        for k in torch.randperm(len(batches)).tolist():
            yield pad_sequence([rows[row] for row in batches[k]], batch_first=True, padding_value=PADDING)
