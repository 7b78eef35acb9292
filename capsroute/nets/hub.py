"""What networks share: sharing through the Hugging Face hub, and reading the author's files."""

from contextlib import redirect_stdout
from io import StringIO
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from huggingface_hub import PyTorchModelHubMixin as Mixin
else:
    try:
        from huggingface_hub import PyTorchModelHubMixin as Mixin
    except ImportError:

        class Mixin:
            """Stands in where huggingface_hub is missing: networks run, sharing them says what to install."""

            def __init_subclass__(cls, **_: Any) -> None:
                super().__init_subclass__()

            def _refuse(self, *_: Any, **__: Any) -> NoReturn:
                raise ImportError("sharing networks needs huggingface_hub and safetensors: pip install huggingface_hub")

            save_pretrained = push_to_hub = _refuse
            from_pretrained = classmethod(_refuse)


class Hub(Mixin, library_name="capsroute", tags=["capsroute", "capsules", "routing"]):
    """Gives a network `from_pretrained`, `save_pretrained` and `push_to_hub`."""

    @classmethod
    def _from_pretrained(cls, **kwargs: Any) -> Any:
        kwargs["strict"] = True  # weights that are missing would stay random
        with redirect_stdout(StringIO()):  # the mixin announces every folder it reads
            return super()._from_pretrained(**kwargs)


def read_weights(path: str | PathLike[str], kind: type[nn.Module]) -> dict[str, Tensor]:
    """What a file published by the paper's author holds, without executing anything in it."""
    file = Path(fspath(path))
    advice = f"expected the weights the paper's author published for {kind.__name__}"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: {advice}, found nothing there")
    try:
        weights = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(f"{file}: {advice}, cannot read it ({error})") from error
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ValueError(f"{file}: {advice}, found something else")
    return {name: w for name, w in weights.items() if not name.endswith(".CONST_one")}


def fill(network: nn.Module, weights: dict[str, Tensor], path: str | PathLike[str]) -> None:
    """Give a network the weights of the author's file, if they are its own."""
    own = network.state_dict()
    wrong = sorted(own.keys() ^ weights.keys()) or [n for n in own if own[n].shape != weights[n].shape]
    if wrong:
        advice = f"expected the weights the paper's author published for {type(network).__name__}"
        raise ValueError(f"{fspath(path)}: {advice}, but these names or shapes differ: {', '.join(wrong[:5])}")
    network.load_state_dict(weights)
