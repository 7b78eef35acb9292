"""Judging texts with a trained network and its encoder, without anything that only training needs."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from ..nets import SST
from ..pretrained import HOME, SHIPPED, encoder_of, load
from .data.trees import POLARITIES, SENTIMENTS
from .encoders import Encoder
from .errors import UserError
from .formatting import readable


class Answer(NamedTuple):
    """What the network makes of a text."""

    text: str
    label: str  # empty where there is nothing to judge
    probabilities: dict[str, float]
    read: int  # tokens of the text that the encoder took
    whole: bool  # whether these are all

    @property
    def chance(self) -> float:
        return self.probabilities.get(self.label, 0.0)


class Judge:
    """A trained network with its encoder.

    Args:
        what: The name of shipped weights, a folder of weights, or a run's folder.
        encoder: Another place of the encoder, such as a folder it was downloaded to.
        device: Where it runs.
    """

    def __init__(self, what: str, encoder: str | None = None, device: str | torch.device = "cpu"):
        place = _place(device)
        network, named = _network(what)
        if not (encoder or named):
            raise UserError(f"{what}: does not say which encoder it was trained with; name it with --encoder")
        n_classes = network.routings[-1].n_out
        self.names: tuple[str, ...] = next((k for k in (SENTIMENTS, POLARITIES) if len(k) == n_classes), ())
        if not self.names:
            raise UserError(f"{what}: expected a network with 5 classes or 2, got {n_classes}")
        self.encoder = Encoder(encoder or named, device=place, lean=True)
        expected, found = tuple(network.depth_emb.shape), (self.encoder.depth, self.encoder.d_emb)
        if expected != found:
            sizes = "{} hidden states of width {}".format
            raise UserError(f"{self.encoder.name}: expected {sizes(*expected)}, as {what} needs, got {sizes(*found)}")
        self.network = network.to(place)

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[Answer]:
        """An answer for each text, in their order."""
        there = [text for text in texts if text.strip()]
        scores = self.network(*self.encoder.encode(self.encoder.tokenize(there))).a if there else torch.empty(0)
        rows = iter(scores.double().softmax(-1).tolist() if there else [])
        return [self._answer(text, next(rows)) if text.strip() else Answer(text, "", {}, 0, True) for text in texts]

    def _answer(self, text: str, chances: list[float]) -> Answer:
        probabilities = dict(zip(self.names, chances, strict=True))
        pieces, cut = self.encoder.tokens(text)
        return Answer(text, max(probabilities, key=probabilities.__getitem__), probabilities, len(pieces), not cut)


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Lines of text, whatever bytes come; what is no UTF-8 is replaced."""
    for line in stream:
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def shown(answer: Answer, as_json: bool) -> str:
    """One line for one text, safe to print on a terminal."""
    if as_json:
        return json.dumps(answer._asdict())
    text = readable(answer.text)
    if not answer.label:
        return f"{'nothing to judge':16}       {text}"
    note = "" if answer.whole else f" [only its first {answer.read:,} tokens were read]"
    return f"{answer.label:16} {100 * answer.chance:4.0f}%  {text}{note}"


def in_batches(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Some at a time, the last ones too."""
    some: list[str] = []
    for line in lines:
        some.append(line)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def _network(what: str) -> tuple[SST, str]:
    """The network, and its encoder's name or folder."""
    folder = Path(what)
    if (folder / "run.json").exists():
        place = folder / "model"
        _check_run(folder)
        network = _restored(place)
    elif (folder / "model.safetensors").exists():
        network, place = _restored(folder), folder
    elif what in SHIPPED:
        network, place = load(what), HOME / what
    else:
        names = [name for name, experiment in SHIPPED.items() if experiment in ("treebank", "sst5", "sst2")]
        wanted = ", ".join([*names, "the folder of a run", "or a folder of weights"])
        raise UserError(f"{readable(what)}: expected {wanted}")
    if not isinstance(network, SST):
        raise UserError(f"{what}: judges images, not texts")
    return network.eval(), encoder_of(place, network.encoder)


def _check_run(folder: Path) -> None:
    """That it is a finished run of the network on texts."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        experiment, head = config.get("experiment"), config.get("head")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / 'config.json'}: expected the settings of a run, cannot read them") from error
    if head != "routing":
        other = f"{experiment}, which judges images" if head is None else f"{experiment} with head={head}"
        raise UserError(f"{folder}: expected a run of the routing network on texts, got {other}")
    if not (folder / "model" / "model.safetensors").is_file():
        raise UserError(f"{folder}: the run has not finished; go on with `capsroute train --resume {folder}`")


def _restored(folder: Path) -> SST:
    """The network of a folder, all of whose weights must be there and nothing else."""
    try:
        return SST.from_pretrained(folder, strict=True)
    except Exception as error:  # what json, safetensors and torch raise has nothing in common
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(":.")
        raise UserError(f"{folder}: expected weights of a network for texts, cannot load them ({reason})") from error


def _place(device: str | torch.device) -> torch.device:
    """The device, if this machine has it."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"device: expected cpu, or cuda where there is a GPU, got {str(device)!r}") from error
    return place
