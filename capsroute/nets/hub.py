"""Saving networks, loading them from a folder or the Hugging Face hub, and reading the author's files."""

import json
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
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
        """Write the configuration, the weights and a model card to a folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        # copies, for the file format has no tensors that share memory, as tied benefits and costs do
        copy = {"device": "cpu", "copy": True, "memory_format": torch.contiguous_format}
        weights = {name: t.detach().to(**copy) for name, t in self.state_dict().items()}
        # as bytes, for the package's own writer makes files that only their owner can read
        (target / WEIGHTS).write_bytes(import_extra("safetensors.torch").save(weights, metadata={"format": "pt"}))
        config = {"network": type(self).__name__, **self.config}
        (target / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (target / CARD).write_text(self.model_card())

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
        """Load a network from a folder, or from a repository on the hub; `overrides` replace its configuration."""
        load, folder = import_extra("safetensors.torch").load_file, Path(source)
        if not folder.is_dir():
            files = [CONFIG, WEIGHTS]
            folder = Path(
                import_extra("huggingface_hub").snapshot_download(
                    fspath(source), revision=revision, allow_patterns=files
                )
            )
        config = json.loads((folder / CONFIG).read_text())
        if (kind := config.pop("network", cls.__name__)) != cls.__name__:
            raise ValueError(f"{folder / CONFIG}: expected the settings of a {cls.__name__}, got those of a {kind}")
        network = cls(**{**config, **overrides})
        network.load_state_dict(load(folder / WEIGHTS))
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


def read_weights(path: str | PathLike[str], kind: type[nn.Module]) -> dict[str, Tensor]:
    """Return the weights in a file published by the paper's author, without executing anything in it."""
    file = Path(path)
    expected = f"expected the weights the paper's author published for {kind.__name__}"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: {expected}, found nothing there")
    try:
        weights = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(f"{file}: {expected}, cannot read it ({error})") from error
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ValueError(f"{file}: {expected}, found something else")
    return {name: w for name, w in weights.items() if not name.endswith(".CONST_one")}


def load_official(network: nn.Module, weights: dict[str, Tensor], path: str | PathLike[str]) -> None:
    """Load the weights of the author's file into a network, or refuse them if their names or shapes differ."""
    own = network.state_dict()
    wrong = sorted(own.keys() ^ weights.keys()) or [n for n in own if own[n].shape != weights[n].shape]
    if wrong:
        expected = f"expected the weights the paper's author published for {type(network).__name__}"
        raise ValueError(f"{fspath(path)}: {expected}, but these names or shapes differ: {', '.join(wrong[:5])}")
    network.load_state_dict(weights)
