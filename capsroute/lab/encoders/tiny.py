"""A tiny GPT-2 pretrained on the spot: an encoder that needs no download.

It is made of the `transformers` library's own classes and saved in its format, so whatever reads GPT-2 reads it.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from .loading import quiet
from .transformer import mended

VERSION = 3  # of what is made: to be raised with every change of it, so that no old model is read
STAMP = "tiny.json"
UNKNOWN, END = "<unk>", "<end>"
WORD = "\\w+(?:['\u2019-]\\w+)*|[^\\w\\s]"  # with inner apostrophes and hyphens; punctuation mark by mark
PAD = -100  # a label that counts for nothing


def make(
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
        folder: Where it goes; made if absent, replaced if it holds another of these models.
        texts: What it learns from and takes its words from.
        seed: Of the first weights and of the order of texts.
        n_steps: Steps of training, of 64 texts each.
        n_layers: Its hidden states are one more, the embedding of the words.
        width: Of its embeddings, a multiple of 16.
        max_tokens: Of a text; longer ones are cut.
        vocabulary: The most frequent words, as many as this, are known.
        progress: Show a bar.
    """
    folder = Path(folder)
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    settings = {"n_steps": n_steps, "n_layers": n_layers, "width": width, "max_tokens": max_tokens}
    settings |= {"vocabulary": vocabulary, "seed": seed, "version": VERSION, "texts": _digest(texts)}
    if _made(folder, settings):
        return folder
    if folder.exists() and not (folder / STAMP).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"folder: expected a new or empty folder for the tiny encoder, found other files in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = _tokenizer(texts, vocabulary, max_tokens)
        model = _model(len(tokenizer), tokenizer.eos_token_id, n_layers, width, max_tokens)
        rows = [row for row in tokenizer([mended(text) for text in texts], truncation=True)["input_ids"] if row]
        if not rows:
            raise ValueError("texts: expected words, found none")
        with _bar(progress, n_steps) as advance:
            loss = _train(model, [[*row, tokenizer.eos_token_id] for row in rows], n_steps, advance)
        with _replacing(folder, lambda: _made(folder, settings)) as target:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
            sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
            (target / STAMP).write_text(json.dumps({**settings, "loss": loss, "files": sizes}, indent=1))
    return folder


def perplexity(folder: Path, texts: Sequence[str]) -> float:
    """Of each text's words but the first, and of its end: how many equally likely words would be as hard to guess."""
    with quiet():
        from transformers import AutoTokenizer, GPT2LMHeadModel

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)
        rows = [row for row in tokenizer([mended(text) for text in texts], truncation=True)["input_ids"] if row]
    total = n = 0.0
    model.eval()
    with torch.no_grad():
        for k in range(0, len(rows), 64):
            ids, labels = _table([[*row, tokenizer.eos_token_id] for row in rows[k : k + 64]])
            total += float(_loss(model, ids, labels, "sum"))
            n += int((labels != PAD).sum())
    if not n:
        raise ValueError("texts: expected words, found none")
    return math.exp(total / n)


def _digest(texts: Sequence[str]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for text in texts:
        content = mended(text).encode()
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def _made(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds just this model, whole."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        files = stamp["files"].items()
        return {name: stamp[name] for name in settings} == settings and all(
            (folder / name).stat().st_size == size for name, size in files
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _tokenizer(texts: Sequence[str], vocabulary: int, max_tokens: int) -> Any:
    """Whole lower-case words and punctuation marks."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    lower, split = Lowercase(), Split(Regex(WORD), "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(lower.normalize_str(mended(text))))
    words = sorted(counts, key=lambda word: (-counts[word], word))  # the same for the same texts
    known = {word: k for k, word in enumerate([UNKNOWN, END, *islice(words, vocabulary)])}
    tokenizer = Tokenizer(WordLevel(known, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = lower, split
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=END, eos_token=END, model_max_length=max_tokens
    )


def _model(n_words: int, end: int, n_layers: int, width: int, max_tokens: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=n_words,
            n_positions=max_tokens + 1,  # a text and its end
            n_embd=width,
            n_layer=n_layers,
            n_head=width // 16,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one step
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def _train(model: Any, rows: list[list[int]], n_steps: int, advance: Callable[[float], None]) -> float:
    """Fit the model to next words; gives the mean loss of the last steps."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=n_steps, pct_start=0.3)
    recent = torch.zeros(0)
    for ids, labels in islice(_batches(rows), n_steps):
        loss = _loss(model, ids, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent = torch.cat([recent[-49:], loss.detach()[None]])
        advance(float(loss.detach()))
    mean = float(recent.mean())
    if not math.isfinite(mean):
        raise ArithmeticError(f"pretraining the tiny encoder ended with a loss of {mean}")
    return mean


def _loss(model: Any, ids: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    # padding is on the right, where no word before it can see it
    logits = model(input_ids=ids, use_cache=False).logits  # [b, n, words]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction=reduction)


def _batches(rows: list[list[int]], size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Without end: batches of texts of about the same length, all texts in each round."""
    while True:
        order = torch.randperm(len(rows)).tolist()
        pools = [sorted(order[k : k + 16 * size], key=lambda k: len(rows[k])) for k in range(0, len(rows), 16 * size)]
        batches = [pool[k : k + size] for pool in pools for k in range(0, len(pool), size)]
        for k in torch.randperm(len(batches)).tolist():
            yield _table([rows[row] for row in batches[k]])


def _table(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Inputs and next words, both `[b, n]`, of texts with their ends."""
    n = max(map(len, rows)) - 1
    ids = torch.tensor([[*row[:-1], *[0] * (n + 1 - len(row))] for row in rows])
    labels = torch.tensor([[*row[1:], *[PAD] * (n + 1 - len(row))] for row in rows])
    return ids, labels


@contextmanager
def _replacing(folder: Path, settled: Callable[[], bool]) -> Iterator[Path]:
    """A folder under a name of its own that takes the place of `folder` once it is whole."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        for path in (temporary, *temporary.iterdir()):  # which were their owner's alone
            os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~umask)
        if settled():  # another process made it in the meantime
            return
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _bar(show: bool, n_steps: int) -> Iterator[Callable[[float], None]]:
    if not show:
        yield lambda loss: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("Pretraining a tiny GPT-2", total=n_steps)
        yield lambda loss: bar.update(task, advance=1, description=f"Pretraining a tiny GPT-2, loss {loss:.2f}")
