"""Settings of runs on one's own data."""

from dataclasses import dataclass
from typing import Literal

from .config import Config


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


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(OwnConfig):
    """Settings of runs on images in folders by class; what is 0 is found from the images."""

    rows: int = 0  # pixels of the images that the network gets
    columns: int = 0
    size: int = 0  # pixels of their longer side, if rows and columns are 0
    channels: int = 0  # 1 for grey, 3 for colour
    views: int = 0  # 2 for stereo pairs
    shift: float = 0.1  # largest random shift, as a share of the side
    zoom: float = 0.1  # largest random change of size, as a share
    rotation: float = 10.0  # largest random rotation in degrees
    colour: float = 0.5  # how much colours are mixed at random; 0 where the shade itself tells classes apart
    flip: bool = False  # mirror half of the images
    backbone: str = ""  # a pretrained vision model instead of convolutions of our own
    frozen: bool = True  # keep the backbone as it is
    n_pairs: int = 3  # pairs of convolutions without a backbone
    d_out: int = 64  # their channels

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(
            rows=0, columns=0, size=0, views=0, shift=0, zoom=0, rotation=0, colour=0, n_pairs=1, d_out=2
        )
        self.check("channels", self.channels in (0, 1, 3), "1 or 3")
        self.check("zoom", self.zoom < 1, "below 1")
        self.check(
            "flip", not (self.flip and self.views == 2), "false for stereo pairs, which it would turn inside out"
        )
        features = bool(self.backbone) and self.frozen
        self.check("mixup", not (self.mixup and features), "0 for features of a frozen backbone")


@dataclass(frozen=True, kw_only=True)
class TextsConfig(OwnConfig):
    """Settings of runs on texts with labels."""

    text: str = ""  # columns; guessed where they are not named
    label: str = ""
    encoder: str = ""  # a frozen transformer; by default words are read without one
    encoder_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    depths: str = ""  # hidden states of the encoder that are read, such as 8 or 6,8,10; all by default
    max_tokens: int | None = None  # longer texts are truncated; none for the encoder's limit, or 512 words
    cache: Literal["auto", "disk", "memory", "none"] = "auto"  # where hidden states are stored
    cache_gb: float = 20.0  # gigabytes they may take on disk
    n_buckets: int = 0  # vectors of words and their pieces, without an encoder; found from the number of texts
    dropout: float = 0.3  # share of the words that training hides, without an encoder
    noise: float = 0.6  # deviation of the random factors of an encoder's features in training

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(cache_gb=0, max_tokens=1, n_buckets=0, noise=0)
        numbers = self.depths.split(",") if self.depths else []
        self.check("depths", all(number.strip().isdecimal() for number in numbers), "numbers such as 8 or 6,8,10")
        self.check("depths", bool(self.encoder) or not numbers, "none without an encoder")
        self.check("dropout", 0 <= self.dropout < 1, "at least 0 and below 1")
        self.check("mixup", not self.mixup, "0 for texts, which differ in length")


@dataclass(frozen=True, kw_only=True)
class ArraysConfig(OwnConfig):
    """Settings of runs on sets of vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("mixup", not self.mixup, "0 for sets, which differ in size")
