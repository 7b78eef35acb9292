"""Saving networks, loading them from a folder or the Hugging Face hub, and reading the author's files."""

import inspect
import json
import os
import re
from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
REPEATED = re.compile(r"(layer|depth|pair|block|group|stage|expert|iter)s?$")  # settings that count modules or rounds
MAX_REPEATED = 1000  # more than any network has
CARD_TEXT = """---
license: mit
library_name: capsroute
pipeline_tag: {task}
tags: [capsroute, capsules, routing]
---

# {name}

{summary} Routing by agreement turns detected parts into class capsules, whose scores classify.

- Parameters: {n_parameters:,}
- Configuration: {config}

```python
from {module} import {name}

network = {name}.from_pretrained("path or repository").eval()
scores = network({inputs}).a  # a softmax gives probabilities
```

This card was written when the weights were saved, and knows nothing of the data they were trained on.
"""


class Hub(nn.Module):
    """A network with `save_pretrained`, `from_pretrained` and `push_to_hub`.

    Subclasses call `super().__init__` with their own arguments, by name.
    """

    task: str
    """Pipeline tag on the hub."""
    example_inputs: ClassVar[str]
    """Arguments of a call, as the model card shows them."""

    def __init__(self, **config: Any):
        super().__init__()
        self.config = config

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the configuration, the weights and a model card to a folder.

        A process that is killed leaves each file old or new, never in part, and new weights come last.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        # copies, for the file format has no tensors that share memory, as tied benefits and costs do
        copy = {"device": "cpu", "copy": True, "memory_format": torch.contiguous_format}
        weights = {name: t.detach().to(**copy) for name, t in self.state_dict().items()}
        # as bytes, for the package's own writer makes files that only their owner can read
        data = import_extra("safetensors.torch").save(weights, metadata={"format": "pt"})
        config = {"network": type(self).__name__, **self.config}
        replace_file(target / CARD, self.model_card().encode())
        replace_file(target / CONFIG, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
        replace_file(target / WEIGHTS, data)

    def model_card(self) -> str:
        """Return a model card: what the network is, and how to load it."""
        summary = (type(self).__doc__ or "").strip().splitlines()[0]
        return CARD_TEXT.format(
            task=self.task,
            name=type(self).__name__,
            summary=summary,
            n_parameters=sum(p.numel() for p in self.parameters()),
            config=", ".join(f"`{name}={value!r}`" for name, value in self.config.items()),
            module=type(self).__module__,
            inputs=self.example_inputs,
        )

    @classmethod
    def from_pretrained(cls, source: str | PathLike[str], *, revision: str | None = None, **overrides: Any) -> Self:
        """Load a network from a folder, or from a repository on the hub; `overrides` replace its configuration.

        Settings and weights that do not belong together are refused before anything of the network's size is made.
        """
        import_extra("safetensors.torch")
        folder = Path(source)
        if not folder.is_dir():
            options = {"revision": revision, "allow_patterns": [CONFIG, WEIGHTS]}
            folder = Path(import_extra("huggingface_hub").snapshot_download(fspath(source), **options))
        config = read_settings(folder / CONFIG)
        if (kind := config.pop("network", cls.__name__)) != cls.__name__:
            raise ValueError(f"{folder / CONFIG}: expected the settings of a {cls.__name__}, got those of a {kind}")
        check_settings(cls, config, folder / CONFIG)
        weights = read_safetensors(folder / WEIGHTS)
        try:
            with torch.device("meta"):
                expected = cls(**{**config, **overrides}).state_dict()
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{folder / CONFIG}: expected settings that make a {cls.__name__} ({error})") from error
        wanted = f"{folder / WEIGHTS}: expected the weights of a {cls.__name__} as {CONFIG} says"
        check_weights(expected, weights, wanted)
        network = cls(**{**config, **overrides})
        network.load_state_dict(weights)
        return network

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload what `save_pretrained` writes to a repository, created if missing, and return its address.

        `options` go to `huggingface_hub.upload_folder`; `private` and `token` also to `create_repo`.
        """
        hub, private = import_extra("huggingface_hub"), options.pop("private", None)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)  # first, so that no empty repository is left if this fails
            url = hub.create_repo(repo_id, private=private, token=options.get("token"), exist_ok=True)
            hub.upload_folder(repo_id=repo_id, folder_path=folder, **options)
        return str(url)


def import_extra(name: str, extra: str = "train") -> Any:
    """Import a module of an extra."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"saving and loading networks needs {package}: pip install 'capsroute[{extra}]'") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under another name and rename it, so that a reader finds the old content or the new."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # a full disk's error has none
        raise
    finally:
        temporary.unlink(missing_ok=True)


def read_settings(file: Path) -> dict[str, Any]:
    """Return the settings in a network's config.json."""
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: expected the settings of a network, cannot read them ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: expected the settings of a network, got {type(settings).__name__}")
    return settings


def check_settings(kind: type[nn.Module], settings: Mapping[str, Any], file: Path) -> None:
    """Raise an error that names a setting which a network does not have, or whose type or size is wrong."""
    parameters = inspect.signature(kind).parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name, value in settings.items():
        if name not in parameters and not is_open:
            raise ValueError(f"{file}: {name}: a {kind.__name__} has no such setting")
        wanted = parameters[name].annotation if name in parameters else Any
        if wanted in (int, float, str, bool) and type(value) is not wanted:
            raise ValueError(f"{file}: {name}: expected {wanted.__name__}, got {value!r}")
    check_repeated(settings, str(file))


def check_repeated(settings: Any, file: str) -> None:
    """Raise if any setting, nested ones too, asks for so many layers that making them would never end."""
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        values = value if isinstance(value, list) else [value]
        if REPEATED.search(name) and any(isinstance(v, int) and v > MAX_REPEATED for v in values):
            raise ValueError(f"{file}: {name}: expected at most {MAX_REPEATED:,}, got {value}")
        for inner in values:
            check_repeated(inner, file)


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the weights in a file of safetensors."""
    try:
        return import_extra("safetensors.torch").load_file(file)
    except import_extra("safetensors").SafetensorError as error:
        raise ValueError(f"{file}: expected weights as safetensors, the file is damaged ({error})") from error


def check_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], expected: str) -> None:
    """Raise an error that begins with `expected` unless weights have the names, shapes and kinds of a network's own."""
    wrong = sorted(own.keys() ^ weights.keys()) or [n for n in own if own[n].shape != weights[n].shape]
    if wrong:
        raise ValueError(f"{expected}, but these names or shapes differ: {', '.join(wrong[:5])}")
    for name, w in weights.items():
        if w.layout != torch.strided:
            raise ValueError(f"{expected}, but {name} is sparse")
        if not (w.is_floating_point() if own[name].is_floating_point() else w.dtype == own[name].dtype):
            kind = "floating point" if own[name].is_floating_point() else own[name].dtype
            raise ValueError(f"{expected}, but {name} is {w.dtype} and not {kind}")


def read_weights(path: str | PathLike[str], kind: type[nn.Module]) -> dict[str, Tensor]:
    """Return the weights in a file published by the paper's author, without executing anything in it."""
    file = Path(path)
    expected = f"expected the weights the paper's author published for {kind.__name__}"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: {expected}, found nothing there")
    try:
        weights = torch.load(file, weights_only=True, map_location="cpu")
    except Exception:  # torch's own words advise to execute the file
        advice = "it is damaged, or holds more than tensors, which could execute code"
        raise ValueError(f"{file}: {expected}, cannot read it: {advice}") from None
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ValueError(f"{file}: {expected}, found something else")
    return {name: w for name, w in weights.items() if not name.endswith(".CONST_one")}


def load_official(network: nn.Module, weights: dict[str, Tensor], path: str | PathLike[str]) -> None:
    """Load the weights of the author's file into a network, or refuse them if their names or shapes differ."""
    expected = f"{fspath(path)}: expected the weights the paper's author published for {type(network).__name__}"
    check_weights(network.state_dict(), weights, expected)
    network.load_state_dict(weights)
