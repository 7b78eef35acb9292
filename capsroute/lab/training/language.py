"""Judging sentences by the hidden states of a frozen transformer: those of SST, or generated ones."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...lab.baselines import AttentionPooling, LinearProbe
from ...nets import SST
from ..analysis.accuracy import wilson_interval
from ..data import folder
from ..data.trees import POLARITIES, SENTIMENTS, Phrases
from ..encoders import Embeddings, Encoder, embed
from .config import Config
from .task import Inputs, Result

HEADS = {"routing": SST, "linear": LinearProbe, "attention": AttentionPooling}
PRETRAINED_ON = 40_000  # generated reviews the tiny encoder reads before it is frozen


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Config):
    """Runs that judge sentences."""

    data: Literal["treebank", "sst"] = "treebank"
    classes: int = 5  # or 2: neutral ones are left out
    encoder: str = ""  # a transformer's name or folder; where empty, a tiny one is made for the treebank
    head: Literal["routing", "linear", "attention"] = "routing"  # the latter two are what routing is compared with
    folder: str = ""  # where the data lies; CAPSROUTE_DATA or a cache in the user's home where empty
    treebank_seed: int = 0
    encoder_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    max_tokens: int | None = None  # of a text, the rest is cut off; none for as many as the encoder takes
    cache: Literal["auto", "disk", "memory", "none"] = "auto"  # where embeddings are kept
    cache_gb: float = 20.0  # gigabytes they may take on disk

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes not in (2, 5):
            raise ValueError(f"classes: expected 2 or 5, got {self.classes}")
        if self.guide and self.head != "routing":
            raise ValueError(f"guide: expected 0, there is no routing to guide in head={self.head}, got {self.guide}")
        if self.data == "sst" and not self.encoder:
            raise ValueError("encoder: expected the name or the folder of a transformer, got none")
        for name, least in (("treebank_seed", 0), ("cache_gb", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name}: expected at least {least}, got {value}")


class Language:
    """Sentences in, one capsule for each sentiment out."""

    samples = "sentences"
    unseen = "sentences never seen in training"

    def __init__(self, config: LanguageConfig):
        self.config = config
        self.names = SENTIMENTS if config.classes == 5 else POLARITIES
        self._phrases: dict[str, Phrases] = {}
        self._encoder: Encoder | None = None

    def network(self) -> nn.Module:
        encoder = self.encoder()
        kind = HEADS[self.config.head]
        return kind(depth=encoder.depth, d_emb=encoder.d_emb, n_classes=self.config.classes, encoder=encoder.name)

    def restore(self, folder: Path) -> nn.Module:
        return HEADS[self.config.head].from_pretrained(folder).eval()

    def phrases(self, split: str) -> Phrases:
        """Phrases of the training trees, whole sentences of the others."""
        if split not in self._phrases:
            limits = {"train": self.config.train_on, "validation": self.config.validate_on, "test": self.config.test_on}
            found, limit = self._load(split), limits[split]
            if limit is not None and len(found.text) > limit:
                found = found.take(np.sort(np.random.default_rng(0).permutation(len(found.text))[:limit]))
            self._phrases[split] = found
        return self._phrases[split]

    def source(self, split: str, device: torch.device) -> "TextSource":
        found, config = self.phrases(split), self.config
        kept = embed(
            self.encoder(device),
            found.text,
            folder=folder(),
            cache_gb=config.cache_gb,
            device=device,
            cache=config.cache,
        )
        return TextSource(kept, torch.from_numpy(found.label).to(device), device)

    def describe(self) -> dict[str, Any]:
        encoder = self.encoder()
        facts = {"key": encoder.key(), "depth": encoder.depth, "width": encoder.d_emb}
        return {"data": self.config.data, "encoder": facts, "phrases": len(self.phrases("train").text)}

    def judge(self, scores: Tensor, split: str) -> Result:
        right, total = int((scores.argmax(1).numpy() == self.phrases(split).label).sum()), len(scores)
        return Result(right, total, {"sentences": wilson_interval(right, total)})

    def encoder(self, device: torch.device | None = None) -> Encoder:
        """Loaded when it is first asked for, onto the device of whoever asks."""
        if self._encoder is None:
            precision, limit = self.config.encoder_precision, self.config.max_tokens
            place = device or torch.device("cpu")
            self._encoder = Encoder(self._encoder_folder(), precision=precision, device=place, max_tokens=limit)
        return self._encoder

    def _encoder_folder(self) -> str:
        if self.config.encoder:
            return self.config.encoder
        from ..data import treebank
        from ..encoders import tiny

        seed = self.config.treebank_seed
        return str(tiny.make(self.where / f"tiny-gpt2-{seed}", treebank.reviews(seed, PRETRAINED_ON), seed=seed))

    @cached_property
    def where(self) -> Path:
        if self.config.folder:
            return Path(self.config.folder)
        return folder() / "sst" if self.config.data == "sst" else folder()

    def _load(self, split: str) -> Phrases:
        from ..data import sst, treebank

        if self.config.data == "sst":
            return sst.load(self.where, split, self.config.classes)
        return treebank.load(self.where, split, self.config.classes, seed=self.config.treebank_seed)


class TextSource:
    """Hidden states of texts; nothing about them is altered but by mixing."""

    n_noise = 0

    def __init__(self, embeddings: Embeddings, target: Tensor, device: torch.device):
        self.embeddings, self.target, self.resident = embeddings, target, embeddings.resident
        self.one_size = device.type == "cuda" and self.resident  # for a captured step; else as long as their longest
        self.length = embeddings.longest if self.one_size else None

    def __len__(self) -> int:
        return len(self.target)

    def plain(self, rows: Tensor) -> Inputs:
        return self.embeddings.batch(rows)

    def altered(self, rows: Tensor, noise: Tensor) -> Inputs:
        if self.resident:
            return self.embeddings.batch(rows, self.length)
        some, places = rows.unique(return_inverse=True)  # partners are of the same batch: each is fetched once
        mask, embs = self.embeddings.batch(some)
        return cast(Inputs, tuple(t[places] for t in (mask, embs)))
