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
        with redirect_stdout(StringIO()):  # the mixin announces every folder it reads
            return super()._from_pretrained(**kwargs)


def official_weights(path: str | PathLike[str], network: nn.Module) -> dict[str, Tensor]:
    """The weights in a file published by the paper's author, without executing anything in it."""
    file = Path(fspath(path))
    if not file.is_file():
        raise FileNotFoundError(f"{file}: expected the author's file of weights, found nothing there")
    advice = f"expected the weights the paper's author published for {type(network).__name__}"
    try:
        weights = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:
        raise ValueError(f"{file}: {advice}, cannot read it ({error})") from error
    own = network.state_dict()
    if not isinstance(weights, dict) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise ValueError(f"{file}: {advice}, found something else")
    weights = {name: w for name, w in weights.items() if not name.endswith(".CONST_one")}
    wrong = sorted(own.keys() ^ weights.keys()) or [n for n in own if own[n].shape != weights[n].shape]
    if wrong:
        raise ValueError(f"{file}: {advice}, but these names or shapes differ: {', '.join(wrong[:5])}")
    return weights
