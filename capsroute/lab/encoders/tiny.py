"""A tiny GPT-2 pretrained on the spot: an encoder that needs no download.

It is made of the `transformers` library's own classes and saved in its format, so whatever reads GPT-2 reads it.
"""

import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..progress import progress_bar
from .encoder import hash_texts, replace_surrogates
from .loading import silence_transformers

VERSION = 3  # of the models: raise it with every change to them, so that no old one is read
SETTINGS = "tiny.json"
UNKNOWN, END = "<unk>", "<end>"
WORD = "\\w+(?:['\u2019-]\\w+)*|[^\\w\\s]"  # with inner apostrophes and hyphens; punctuation mark by mark
IGNORED = -100  # label of padding
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
    max_tokens: int = 128,
    vocabulary: int = 8192,
    progress: bool = True,
) -> Path:
    """Pretrain a tiny GPT-2 to predict each text's next word, unless the folder holds it already.

    Args:
        folder: Where it goes; created if absent, replaced if it holds another of these models.
        texts: Training texts, which also make the vocabulary.
        seed: Of the initial weights and of the order of texts.
        n_steps: Training steps, of 64 texts each.
        n_layers: Its hidden states are one more, the embedding of the words.
        width: Of its embeddings, a multiple of 16.
        max_tokens: Longer texts are truncated.
        vocabulary: Size of the vocabulary: the most frequent words.
        progress: Show a progress bar.
    """
    folder = Path(folder)
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    settings = {"n_steps": n_steps, "n_layers": n_layers, "width": width, "max_tokens": max_tokens}
    settings |= {"vocabulary": vocabulary, "seed": seed, "version": VERSION, "texts": hash_texts(texts)}
    if _is_saved(folder, settings):
        return folder
    if folder.exists() and not (folder / SETTINGS).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"folder: expected a new or empty folder for the tiny encoder, found other files in {folder}")
    with silence_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = _make_tokenizer(texts, vocabulary, max_tokens)
        model = _make_model(len(tokenizer), tokenizer.eos_token_id, n_layers, width, max_tokens)
        rows = tokenizer([replace_surrogates(text) for text in texts], truncation=True)["input_ids"]
        rows = [[*row, tokenizer.eos_token_id] for row in rows if row]
        if not rows:
            raise ValueError("texts: expected words, found none")
        loss = _train(model, rows, n_steps, progress)
        _save(model, tokenizer, settings, loss, folder)
    return folder


def perplexity(folder: Path, texts: Sequence[str]) -> float:
    """Return a saved model's perplexity on texts: on each text's words but the first, and on its end."""
    with silence_transformers():
        from transformers import AutoTokenizer, GPT2LMHeadModel

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = GPT2LMHeadModel.from_pretrained(folder, local_files_only=True).eval()
        ids = tokenizer([replace_surrogates(text) for text in texts], truncation=True)["input_ids"]
    rows = [[*row, tokenizer.eos_token_id] for row in ids if row]
    if not rows:
        raise ValueError("texts: expected words, found none")
    total, n = 0.0, 0
    with torch.no_grad():
        for k in range(0, len(rows), BATCH):
            inputs, labels = _pad_rows(rows[k : k + BATCH])
            total += float(_next_word_loss(model, inputs, labels, "sum"))
            n += int((labels != IGNORED).sum())
    return math.exp(total / n)


def _is_saved(folder: Path, settings: dict[str, Any]) -> bool:
    """Say whether the folder holds a model with these settings, with all files of the right size."""
    try:
        saved = json.loads((folder / SETTINGS).read_text())
        sizes = {name: (folder / name).stat().st_size for name in saved["files"]}
        return {name: saved[name] for name in settings} == settings and sizes == saved["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _save(model: Any, tokenizer: Any, settings: dict[str, Any], loss: float, folder: Path) -> None:
    """Save into a temporary folder, then rename it, so that no part of a model is ever taken for one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
        (temporary / SETTINGS).write_text(json.dumps({**settings, "loss": loss, "files": sizes}, indent=1))
        umask = os.umask(0)
        os.umask(umask)
        for path in (temporary, *temporary.iterdir()):  # only their owner could read them so far
            os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~umask)
        if _is_saved(folder, settings):  # by another process, in the meantime
            return
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make_tokenizer(texts: Sequence[str], vocabulary: int, max_tokens: int) -> Any:
    """Build a tokenizer of lower-case words and punctuation marks."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    lower, split = Lowercase(), Split(Regex(WORD), "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(lower.normalize_str(replace_surrogates(text))))
    words = sorted(counts, key=lambda word: (-counts[word], word))  # ties in a fixed order
    ids = {word: k for k, word in enumerate([UNKNOWN, END, *words[:vocabulary]])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = lower, split
    special = {"unk_token": UNKNOWN, "bos_token": END, "eos_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_tokens, **special)


def _make_model(n_words: int, end: int, n_layers: int, width: int, max_tokens: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"vocab_size": n_words, "n_embd": width, "n_layer": n_layers, "n_head": width // 16}
    settings |= {"n_positions": max_tokens + 1, "bos_token_id": end, "eos_token_id": end}  # a text and its end
    settings |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    # GPT-2's activation as one fused operation
    return GPT2LMHeadModel(GPT2Config(**settings, activation_function="gelu_pytorch_tanh"))


def _train(model: Any, rows: list[list[int]], n_steps: int, progress: bool) -> float:
    """Fit the model to next words and return the mean loss of the last 50 steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=n_steps, pct_start=0.3)
    losses: list[float] = []
    label = "Pretraining a tiny GPT-2"
    with progress_bar(label, n_steps, show=progress) as advance:
        for inputs, labels in islice(_sample_batches(rows), n_steps):
            loss = _next_word_loss(model, inputs, labels)
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


def _next_word_loss(model: Any, inputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    # padding is on the right, where a causal model does not see it
    logits = model(input_ids=inputs, use_cache=False).logits  # [b, n, words]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction=reduction)


def _sample_batches(rows: list[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of texts of about the same length, epoch after epoch."""
    while True:
        order, pool = torch.randperm(len(rows)).tolist(), 16 * BATCH
        pools = [sorted(order[k : k + pool], key=lambda k: len(rows[k])) for k in range(0, len(rows), pool)]
        batches = [pool[k : k + BATCH] for pool in pools for k in range(0, len(pool), BATCH)]
        for k in torch.randperm(len(batches)).tolist():
            yield _pad_rows([rows[row] for row in batches[k]])


def _pad_rows(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return inputs and next words, both `[b, n]`."""
    n = max(map(len, rows)) - 1
    inputs = torch.tensor([[*row[:-1], *[0] * (n + 1 - len(row))] for row in rows])
    labels = torch.tensor([[*row[1:], *[IGNORED] * (n + 1 - len(row))] for row in rows])
    return inputs, labels
