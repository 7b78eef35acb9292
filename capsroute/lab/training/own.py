"""Classification of one's own data: images in folders, texts in a table, sets of vectors in a file."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...nets import Classifier
from ..analysis.accuracy import bootstrap_interval, wilson_interval
from ..data.own.labelled import Labelled, check_classes, split_samples
from ..errors import UserError, first_line
from ..formatting import readable
from ..preprocessing import make_preprocessing
from .config import Config
from .task import Result, Source, limit_rows

N_STANDARDISED = 1000  # samples that mean and standard deviation of vectors are computed on
LEAST_VARIANCE = 1e-9  # of the mean square; components that vary less are constant
USES = {"train": "to train", "validation": "for validation", "test": "to test"}


@dataclass(frozen=True, kw_only=True)
class OwnConfig(Config):
    """Settings that runs on images, texts and arrays share."""

    data: str = ""  # folder or file
    group_by: str = ""  # what samples of one group have in common: they are in the same split
    test_share: float = 0.2  # of all samples, where the data name no test split
    validation_share: float = 0.1  # of all samples; 0 for no validation
    split_seed: int = 0
    min_samples: int = 1  # classes with fewer samples are left out
    class_weights: Literal["balanced", "none"] = "balanced"  # balanced: all classes weigh alike in the loss
    n_parts: int = 64  # looked for by the routing head
    layers: int = 1  # of routing

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(split_seed=0, min_samples=1, n_parts=1)
        self.check("layers", self.layers in (1, 2), "1 or 2")
        self.check("test_share", 0 < self.test_share < 1, "above 0 and below 1")
        shares = self.test_share + self.validation_share
        self.check("validation_share", self.validation_share >= 0 and shares < 1, "at least 0, below 1 with test_share")
        self.check("auxiliary_weight", not self.auxiliary_weight, "0: it serves the paper's networks alone")


class OwnTask(ABC):
    """Samples of one's own in, one capsule for each class out.

    Args:
        config: Settings, complete: see `find_settings`.
        network: A trained network, whose classes and preprocessing are taken; all samples are its test split then,
            unless the data name one.
    """

    kind: str  # of the classifier
    samples: str
    expected: str  # what the data are, for messages

    def __init__(self, config: Any, network: Classifier | None = None):
        self.config, self.trained = config, network

    @classmethod
    @abstractmethod
    def find_settings(cls, config: Any) -> dict[str, Any]:
        """Return settings that follow from the data."""

    @abstractmethod
    def read(self) -> Labelled:
        """Return the samples as preprocessing has prepared them; those that cannot be read are left out and named."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings of the preprocessing of a new network."""

    def saved_settings(self) -> dict[str, Any]:
        """Return what a network is saved with: the same, and the revision of an encoder."""
        return self.settings()

    @abstractmethod
    def trunk(self) -> dict[str, Any]:
        """Return the trunk of a new network, and its settings."""

    @abstractmethod
    def make_source(self, samples: Sequence[Any], target: Tensor, weights: Tensor | None) -> Source: ...

    @cached_property
    def preprocessing(self) -> Any:
        return make_preprocessing(self.trained.config["preprocessing"] if self.trained else self.settings())

    @cached_property
    def data(self) -> Labelled:
        if not self.config.data:
            raise UserError(f"data: expected {self.expected}, got none: capsroute train {self.config.experiment} DATA")
        data, source = self.read(), Path(self.config.data)
        if self.trained is None:
            return check_classes(data, source, self.config.min_samples)
        unknown = [k for k, label in enumerate(data.labels) if label not in self.trained.classes]
        if unknown:
            label, known = readable(data.labels[unknown[0]]), ", ".join(map(readable, self.trained.classes))
            raise UserError(f"{data.places[unknown[0]]}: its class {label!r} is none of the network's: {known}")
        return data

    @property
    def names(self) -> Sequence[str]:
        return self.trained.classes if self.trained else sorted(set(self.data.labels))

    @cached_property
    def labels(self) -> np.ndarray:
        """Return the class of each sample [n]."""
        number = {name: k for k, name in enumerate(self.names)}
        return np.array([number[label] for label in self.data.labels])

    @cached_property
    def splits(self) -> np.ndarray:
        """Return the split of each sample [n]."""
        if self.trained and not self.data.splits:
            return np.full(len(self.data.labels), "test")
        names = ("test_share", "validation_share")
        shares = {name: getattr(self.config, name) for name in names}
        return split_samples(self.data, **shares, seed=self.config.split_seed)

    def rows(self, split: str) -> np.ndarray:
        """Return the indices of the samples of a split."""
        rows = np.flatnonzero(self.splits == split)
        return rows[limit_rows(len(rows), self.config.sample_limit(split))]

    @property
    def unseen(self) -> str:
        kept = f"{self.samples} of groups" if self.data.groups else self.samples
        return f"{kept} never seen in training"

    def source(self, split: str, device: torch.device) -> Source | None:
        rows = self.rows(split)
        if not len(rows):
            return None
        target = torch.from_numpy(self.labels[rows]).to(device)
        return self.make_source([self.data.items[k] for k in rows], target, self._class_weights(split, device))

    def network(self) -> Classifier:
        config: OwnConfig = self.config
        head = {"n_parts": config.n_parts, "layers": config.layers}
        network = Classifier(self.kind, self.names, self.trunk(), head, self.saved_settings())
        self.initialise(network)
        return network

    def initialise(self, network: Classifier) -> None:
        """Set what a network starts from other than random weights: here mean and deviation of vectors."""
        trunk = network.trunk
        if not hasattr(trunk, "mean") or network.config["trunk"]["name"] != "vectors":
            return
        source = self.source("train", torch.device("cpu"))
        assert source is not None
        rows = torch.linspace(0, len(source) - 1, min(len(source), N_STANDARDISED)).long()
        sums, count = torch.zeros(2, *trunk.mean.shape[:-2], trunk.d_out, dtype=torch.float64), 0.0
        for batch in rows.split(20):
            x, *mask = (t.double() for t in source.batch(batch))
            weight = mask[0] if mask else x.new_ones(len(x), x.shape[-2])  # [b, n]
            sums += torch.stack([torch.einsum("b...nd,bn->...d", t, weight) for t in (x, x * x)])
            count += float(weight.sum())
        mean, squares = (t.view_as(trunk.mean) for t in sums / count)
        variance = (squares - mean**2).clamp(min=0)
        trunk.mean.copy_(mean)
        trunk.std.copy_(variance.sqrt().where(variance > LEAST_VARIANCE * squares, 1.0))

    def restore(self, folder: Path) -> Classifier:
        return load_classifier(folder, self.kind, self.names)

    def describe(self) -> dict[str, Any]:
        """Return counts of samples, and a checksum that tells whether the data have changed."""
        counts = {split: int((self.splits == split).sum()) for split in ("train", "validation", "test")}
        lines = "\n".join(f"{place}\t{label}" for place, label in zip(self.data.places, self.data.labels, strict=True))
        classes = {name: int(n) for name, n in zip(self.names, np.bincount(self.labels), strict=True)}
        facts = {"samples by split": counts, "samples by class": classes, "split": self.describe_split()}
        checksum = hashlib.blake2b(lines.encode("utf-8", "replace"), digest_size=8).hexdigest()
        return {"data": Path(self.config.data).name, **facts, "checksum": checksum}

    def summary(self) -> str:
        """Return what was found, in a line."""
        counts = [f"{len(self.rows(split)):,} {use}" for split, use in USES.items()]
        found = f"{len(self.labels):,} {self.samples} of {len(self.names):,} classes"
        return f"{found}: {', '.join(counts)}; {self.describe_inputs()}"

    @abstractmethod
    def describe_inputs(self) -> str:
        """Return what the network reads."""

    def check_unchanged(self, record: dict[str, Any]) -> None:
        """Refuse to go on if the data are not those that a run began with."""
        checksum = self.describe()["checksum"]
        if record.get("checksum", checksum) != checksum:
            raise UserError(f"{self.config.data}: has changed since the run began; train a new one")

    def describe_split(self) -> str:
        """Return how samples came into their splits."""
        if self.data.splits:
            given = set(self.data.splits)
            return "by the data" if "validation" in given else "test by the data, validation drawn from training"
        how = f"drawn with equal shares of every class, split_seed={self.config.split_seed}"
        return f"{how}, groups together" if self.data.groups else how

    def measure(self, scores: Tensor, split: str) -> Result:
        rows = self.rows(split)
        hit = scores.argmax(1).numpy() == self.labels[rows]
        right, total = int(hit.sum()), len(hit)
        intervals = {self.samples: wilson_interval(right, total)}
        if self.data.groups:
            groups = np.unique([self.data.groups[k] for k in rows], return_inverse=True)[1]
            intervals["groups"] = bootstrap_interval(hit, np.zeros_like(groups), groups)
        return Result(right, total, intervals)

    def measure_classes(self, scores: Tensor, split: str) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and the number of samples of each class."""
        from sklearn.metrics import classification_report

        numbers, true = list(range(len(self.names))), self.labels[self.rows(split)]
        options: dict[str, Any] = {"labels": numbers, "target_names": list(self.names), "zero_division": 0}
        report: Any = classification_report(true, scores.argmax(1).numpy(), output_dict=True, **options)
        return {name: report[name] for name in self.names}

    def _class_weights(self, split: str, device: torch.device) -> Tensor | None:
        """Return weights by which all classes count alike in the training loss."""
        if split != "train" or self.config.class_weights == "none":
            return None
        counts = np.bincount(self.labels[self.rows("train")], minlength=len(self.names))
        weights = counts.sum() / (np.maximum(counts, 1) * np.count_nonzero(counts))
        return torch.from_numpy(weights).float().to(device)


def load_classifier(folder: Path, kind: str = "", names: Sequence[str] = ()) -> Classifier:
    """Load a classifier, and refuse one for other inputs or other classes."""
    try:
        network = Classifier.from_pretrained(folder).eval()
    except Exception as error:  # json, safetensors and torch raise unrelated classes
        problem = f"{folder}: expected a classifier of one's own data, cannot load it"
        raise UserError(f"{problem} ({first_line(error)})") from error
    if kind and network.kind != kind:
        raise UserError(f"{folder}: expected a network for {kind}, got one for {network.kind}")
    if names and set(names) != set(network.classes):
        known, got = (", ".join(map(readable, classes)) for classes in (network.classes, names))
        raise UserError(f"{folder}: the network's classes are {known}; those of the data are {got}")
    return network
