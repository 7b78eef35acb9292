"""Classification of sentences by the hidden states of a frozen transformer: SST, or generated reviews."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...nets import SST
from ..analysis.accuracy import wilson_interval
from ..baselines import AttentionPooling, LinearProbe
from ..data import POLARITIES, SENTIMENTS, Phrases, folder, sst, treebank
from ..encoders import Embeddings, Encoder, embed, tiny
from .config import Config
from .task import Inputs, Result, Source, limit_rows, load_network

HEADS = {"routing": SST, "linear": LinearProbe, "attention": AttentionPooling}
PRETRAINED_ON = 40_000  # generated reviews the tiny encoder is trained on before it is frozen


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Config):
    """Settings of runs on sentences."""

    data: Literal["treebank", "sst"] = "treebank"
    classes: int = 5  # or 2, without neutral phrases
    encoder: str = ""  # a transformer's name or folder; by default a tiny one is made for the treebank
    head: Literal["routing", "linear", "attention"] = "routing"  # the other two are baselines
    folder: str = ""  # of the data; by default CAPSROUTE_DATA or a cache in the user's home
    treebank_seed: int = 0
    encoder_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    max_tokens: int | None = None  # longer texts are truncated; none for the encoder's limit
    cache: Literal["auto", "disk", "memory", "none"] = "auto"  # where embeddings are stored
    cache_gb: float = 20.0  # gigabytes they may take on disk

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(treebank_seed=0, cache_gb=0, max_tokens=1)
        self.check("classes", self.classes in (2, 5), "2 or 5")
        self.check("cutmix", not self.cutmix, "0, sentences are no images")
        no_layers = f"0 for head={self.head}, which has no routing layers"
        self.check("auxiliary_weight", self.head == "routing" or not self.auxiliary_weight, no_layers)
        if self.data == "sst" and not self.encoder:
            raise ValueError("encoder: expected the name or the folder of a transformer, got none")


class Language:
    """Sentences in, one capsule for each sentiment out."""

    samples = "sentences"
    unseen = "sentences never seen in training"

    def __init__(self, config: LanguageConfig):
        self.config = config
        self.names: Sequence[str] = SENTIMENTS if config.classes == 5 else POLARITIES
        self._phrases: dict[str, Phrases] = {}
        self._encoder: Encoder | None = None

    def network(self) -> nn.Module:
        encoder, head = self.encoder(), HEADS[self.config.head]
        return head(depth=encoder.depth, d_emb=encoder.d_emb, n_classes=self.config.classes, encoder=encoder.name)

    def restore(self, folder: Path) -> nn.Module:
        return load_network(HEADS[self.config.head], folder, self.names)

    def phrases(self, split: str) -> Phrases:
        """Return all phrases of the training trees, or the sentences of another split."""
        if split not in self._phrases:
            place, seed = self.config.folder or folder() / "sst", self.config.treebank_seed
            if self.config.data == "sst":
                phrases = sst.load(Path(place), split, self.config.classes)
            else:
                phrases = treebank.load(split, self.config.classes, seed=seed)
            self._phrases[split] = phrases.take(limit_rows(len(phrases.text), self.config.sample_limit(split)))
        return self._phrases[split]

    def source(self, split: str, device: torch.device) -> "TextSource":
        phrases, config = self.phrases(split), self.config
        place: dict[str, Any] = {"folder": folder(), "cache": config.cache, "cache_gb": config.cache_gb}
        embeddings = embed(self.encoder(device), phrases.text, device=device, **place)
        return TextSource(embeddings, torch.from_numpy(phrases.label).to(device), device)

    def describe(self) -> dict[str, Any]:
        encoder = self.encoder()
        facts = {"key": encoder.key(), "depth": encoder.depth, "width": encoder.d_emb}
        return {"data": self.config.data, "encoder": facts, "phrases": len(self.phrases("train").text)}

    def measure(self, scores: Tensor, split: str) -> Result:
        right, total = int((scores.argmax(1).numpy() == self.phrases(split).label).sum()), len(scores)
        return Result(right, total, {"sentences": wilson_interval(right, total)})

    def encoder(self, device: torch.device | None = None) -> Encoder:
        """Return the encoder, loaded at the first call onto the device of that call."""
        if self._encoder is None:
            name: str | Path = self.config.encoder
            if not name:
                seed = self.config.treebank_seed
                place = Path(self.config.folder or folder()) / f"tiny-gpt2-{seed}"
                name = tiny.pretrain(place, treebank.generate_reviews(seed, PRETRAINED_ON), seed=seed)
            precision, limit = self.config.encoder_precision, self.config.max_tokens
            self._encoder = Encoder(name, precision=precision, device=device or "cpu", max_tokens=limit)
        return self._encoder


class TextSource(Source):
    """Batches of hidden states of texts; mixup is their only augmentation."""

    def __init__(self, embeddings: Embeddings, target: Tensor, device: torch.device):
        self.embeddings, self.target, self.on_device = embeddings, target, embeddings.resident
        self.fixed_size = device.type == "cuda" and self.on_device  # for a captured step; else as long as their longest
        self.length = embeddings.longest if self.fixed_size else None

    def batch(self, rows: Tensor) -> Inputs:
        return self.embeddings.batch(rows)

    def augmented_batch(self, rows: Tensor, noise: Tensor) -> Inputs:
        if self.on_device:
            return self.embeddings.batch(rows, self.length)
        distinct, places = rows.unique(return_inverse=True)  # partners are of the same batch: fetch each text once
        mask, embs = self.embeddings.batch(distinct)
        return mask[places], embs[places]
