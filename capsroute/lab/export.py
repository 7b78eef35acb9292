"""Networks as ONNX and pt2 files, compared with torch at several sizes before they are written."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from .. import __version__
from ..nets import SST, SmallNORB
from .atomic_files import write_atomically
from .errors import UserError, first_line, import_extra
from .inference import Predictor
from .preprocessing import PIECES, preprocessing_settings

FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
TOLERANCE = 1e-4  # of probabilities, and of scores in units of the largest one
SIZES = ((1, 1), (2, 5), (3, 40), (5, 17))  # batch and length at which a file is compared
OUTPUTS = ("scores", "probabilities")

Run = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


class ScoringNetwork(nn.Module):
    """A network with scores and probabilities as its outputs."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.network(*inputs).a
        return scores, scores.softmax(-1)


@dataclass(frozen=True)
class Signature:
    """The inputs of an exported network."""

    shapes: Mapping[str, tuple[int | str, ...]]  # by name; axes that vary have a name too
    n_values: int = 0  # of `words`, the only integers, which are from 0 to this

    def example(self, batch: int, length: int) -> tuple[Tensor, ...]:
        """Return random inputs; the last third of each odd sample is masked."""
        sizes, values = {"batch": batch, "length": length}, []
        for name, shape in self.shapes.items():
            size = [sizes[n] if isinstance(n, str) else n for n in shape]
            if name == "mask":
                mask = torch.ones(size)
                mask[1::2, max(1, 2 * length // 3) :] = 0
                values.append(mask)
            elif name == "words":
                values.append(torch.randint(1, self.n_values, size))
            else:
                values.append(torch.rand(size))
        return tuple(values)


def export_network(predictor: Predictor, form: str, path: Path) -> dict[str, Any]:
    """Write a network to a file, and a JSON file beside it; refuses one that does not compute what torch does.

    Args:
        predictor: The network.
        form: `"onnx"` or `"pt2"`.
        path: The file to write.

    Returns:
        What the JSON file says: inputs, outputs, classes, preprocessing, and the largest difference from torch.
    """
    if form not in FORMATS:
        raise UserError(f"form: expected one of {list(FORMATS)}, got {form!r}")
    network, signature = ScoringNetwork(predictor.network.cpu()).eval(), find_signature(predictor)
    with TemporaryDirectory(prefix="capsroute-") as folder, quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        draft = Path(folder) / f"network{FORMATS[form]}"
        save, load = (save_onnx, load_onnx) if form == "onnx" else (save_pt2, load_pt2)
        try:
            save(network, signature, draft)
        except (ModuleNotFoundError, UserError):
            raise
        except Exception as error:  # torch and ONNX raise unrelated classes
            raise UserError(f"{predictor.name}: cannot be exported to {form} ({first_line(error)})") from error
        difference = compare(network, load(draft, signature), signature)
        dtypes = {name: "int64" if name == "words" else "float32" for name in signature.shapes}
        facts = {
            "format": form,
            "inputs": {name: {"shape": s, "dtype": dtypes[name]} for name, s in signature.shapes.items()},
            "outputs": {name: {"shape": ("batch", len(predictor.classes)), "dtype": "float32"} for name in OUTPUTS},
            "classes": predictor.classes,
            "preprocessing": preprocessing_settings(predictor.preprocessing),
            "largest difference from torch": difference,
            "compared at batch and length": SIZES,
            "capsroute": __version__,
            "torch": torch.__version__,
        }
        write_atomically(path, draft.read_bytes())
    write_atomically(path.with_name(f"{path.name}.json"), (json.dumps(facts, indent=2) + "\n").encode())
    return facts


def find_signature(predictor: Predictor) -> Signature:
    """Return the inputs of a network."""
    network, given = predictor.network, predictor.preprocessing
    mask = {"mask": ("batch", "length")}
    if isinstance(network, SST):
        return Signature(mask | {"hidden_states": ("batch", "length", *network.depth_emb.shape)})
    if isinstance(network, SmallNORB):
        return Signature({"images": ("batch", 2, given.rows, given.columns)})
    trunk = network.config["trunk"]
    match trunk["name"]:
        case "words":
            return Signature({"words": ("batch", "length", PIECES)} | mask, trunk.get("n_buckets", 2**15))
        case "vectors" if trunk.get("n_kinds") is not None:
            return Signature({"hidden_states": ("batch", trunk["n_kinds"], "length", trunk["d_inp"])} | mask)
        case "vectors" if network.kind == "images":  # features of a frozen backbone, all of which count
            return Signature({"features": ("batch", "length", trunk["d_inp"])})
        case "vectors":
            return Signature({"vectors": ("batch", "length", trunk["d_inp"])} | mask)
    return Signature({"images": ("batch", given.views * given.channels, given.rows, given.columns)})


def save_onnx(network: nn.Module, signature: Signature, path: Path) -> None:
    import_extra("onnxscript")  # before torch reports it in words of its own
    options: dict[str, Any] = {"input_names": list(signature.shapes), "output_names": list(OUTPUTS)}
    example, dims = signature.example(3, 7), dynamic_shapes(signature)
    torch.onnx.export(
        network, example, path, dynamo=True, dynamic_shapes=(dims,), external_data=False, verbose=False, **options
    )


def load_onnx(path: Path, signature: Signature) -> Run:
    onnxruntime = import_extra("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        values = {name: value.numpy() for name, value in zip(signature.shapes, inputs, strict=True)}
        return tuple(torch.from_numpy(value) for value in session.run(list(OUTPUTS), values))

    return run


def save_pt2(network: nn.Module, signature: Signature, path: Path) -> None:
    exported = torch.export.export(network, signature.example(3, 7), dynamic_shapes=(dynamic_shapes(signature),))
    torch.export.save(exported, path)


def load_pt2(path: Path, _: Signature) -> Run:
    module = torch.export.load(path).module()
    return lambda inputs: module(*inputs)


def dynamic_shapes(signature: Signature) -> tuple[dict[int, Any], ...]:
    """Return the axes that vary, as `torch.export` takes them."""
    dims = {"batch": Dim("batch", min=1), "length": Dim("length", min=1)}
    return tuple({k: dims[n] for k, n in enumerate(s) if isinstance(n, str)} for s in signature.shapes.values())


def compare(network: nn.Module, run: Run, signature: Signature) -> float:
    """Return the largest difference of outputs from torch's over all sizes, or refuse one above the tolerance."""
    worst = 0.0
    for batch, length in SIZES:
        inputs = signature.example(batch, length)
        with torch.no_grad():
            expected = network(*inputs)
        for name, one, other in zip(OUTPUTS, run(inputs), expected, strict=True):
            if one.shape != other.shape:
                raise UserError(f"{name}: expected shape {list(other.shape)} as in torch, got {list(one.shape)}")
            difference = float((one - other).abs().max() / other.abs().max().clamp(min=1))
            if not difference <= TOLERANCE:
                size = f"batch {batch}, length {length}"
                raise UserError(
                    f"{name}: expected torch's within {TOLERANCE}, got a difference of {difference:.2g}, {size}"
                )
            worst = max(worst, difference)
    return worst


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch prints about every export."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
