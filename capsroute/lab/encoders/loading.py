"""Models of the `transformers` library, from a folder or by name: loaded quietly, or refused in plain words."""

import gc
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import UserError
from .lean import read_plain

TIMEOUT = 10.0  # seconds for the hub to say that it is there
WHOLE = 1 << 28  # bytes of a file up to which all of it is hashed
SAMPLES, SAMPLE = 256, 1 << 16  # of a larger file: so many pieces of so many bytes
UNUSED = ("pooler",)  # weights that no hidden state depends on, which many checkpoints lack


class Loaded(NamedTuple):
    """A model and what belongs to it."""

    tokenizer: Any
    model: Any
    identity: Callable[[], str]  # changes with the weights and the tokenizer


def load(name: str, dtype: torch.dtype, *, lean: bool = False) -> Loaded:
    """A model, its tokenizer and, when asked for, its identity.

    A name is looked up among the models that were downloaded before, so that nothing changes unasked and no connection
    is needed, and then at the hub. If `lean`, the folder of a plain GPT-2 is read without `transformers`.
    """
    if name.startswith("~"):
        name = str(Path(name).expanduser())
    if Path(name).is_dir():
        found = read_plain(Path(name), dtype) if lean else None
        if found:
            return Loaded(*found, lambda: f"lean {_fingerprint(Path(name))}")
        tokenizer, model = _from_folder(name, dtype)
        return Loaded(tokenizer, model, lambda: _fingerprint(Path(name)))
    if Path(name).is_absolute() or name.startswith(".") or Path(name).exists() or name.count("/") > 1:
        raise UserError(f"encoder: expected the folder of a model, found none at {name}")
    try:
        tokenizer, model = _load(name, dtype, local=True)
    except OSError:
        _check_hub(name)
        try:
            tokenizer, model = _load(name, dtype, local=False)
        except Exception as error:
            raise _unreadable(name, error) from error
    except Exception as error:
        raise _unreadable(name, error) from error
    commit = getattr(model.config, "_commit_hash", None)
    return Loaded(tokenizer, model, lambda: f"{name}@{commit}")


@contextmanager
def quiet(bars: bool = False) -> Iterator[None]:
    """Without what `transformers` says about every model it reads; bars are worth showing for downloads."""
    with _uncollected():
        from transformers.utils import logging
    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if shown and not bars:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shown and not bars:
            logging.enable_progress_bar()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Tokenizers that start no threads: a process that forks after they did is warned, and could hang."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would take a fifth of the time of a large import."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(name: str, dtype: torch.dtype, *, local: bool) -> tuple[Any, Any]:
    with _uncollected(), quiet(bars=not local):
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local)
        # without safetensors a pickle is read, by torch's reader of weights alone, which runs no code
        model, report = AutoModel.from_pretrained(
            name, dtype=dtype, local_files_only=local, weights_only=True, output_loading_info=True
        )
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"encoder: expected a model with a fast tokenizer, {name} has none")
    missing = sorted(str(key) for key in report["missing_keys"] if not any(part in str(key) for part in UNUSED))
    if missing or report["mismatched_keys"]:
        lacking = f"{len(missing)} are missing, the first is {missing[0]}" if missing else "some have another shape"
        raise UserError(f"encoder: expected all of a model's weights in {name}, but {lacking}")
    return tokenizer, model


def _from_folder(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    if not (Path(name) / "config.json").is_file():
        raise UserError(
            f"encoder: expected the folder of a model in the format of `transformers`, {name} has no config.json"
        )
    try:
        return _load(name, dtype, local=True)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> Exception:
    """An error in words, where a user can mend it."""
    if isinstance(error, (UserError, ModuleNotFoundError, torch.OutOfMemoryError)):
        return error
    return UserError(f"encoder: {name} cannot be loaded ({_first_line(error)})")


def _check_hub(name: str) -> None:
    """That the hub is there and has the model; asked first, for a download would try for half a minute."""
    from huggingface_hub import HfApi, constants

    advice = "A folder that holds a model works too."
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"encoder: {name} was not downloaded before, and HF_HUB_OFFLINE forbids it now. Unset it. {advice}"
        )
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=TIMEOUT)
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise UserError(
            f"encoder: expected the name of a model on the Hugging Face hub, which has no {name!r}. {advice}"
        ) from error
    except Exception as error:
        raise UserError(
            f"encoder: {name} was not downloaded before, and the Hugging Face hub cannot be reached "
            f"({_first_line(error)}). Check the connection. {advice}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _fingerprint(folder: Path) -> str:
    """A hash of the files a model is made of."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".safetensors", ".bin", ".jinja"):
            total.update(f"{path.name}:{path.stat().st_size}:".encode() + _digest(path))
    return total.hexdigest()


def _digest(path: Path) -> bytes:
    """A hash of a file; of a very large one, of pieces all over it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        total = hashlib.blake2b(digest_size=16)
        for k in range(SAMPLES):
            file.seek(k * (size - SAMPLE) // (SAMPLES - 1))
            total.update(file.read(SAMPLE))
        return total.digest()
