"""Any model of the `transformers` library as a frozen encoder: every token's hidden state at every depth."""

import hashlib
from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .loading import load, single_threaded

VERSION = 1  # of what is encoded: to be raised when the same model and text give other numbers
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNKNOWN_LIMIT = 1024  # tokens, for models that set no limit
UNPRINTABLE = "\ufffd"


class Encoder:
    """A frozen language model.

    A model with encoder and decoder is used without its decoder. Code that comes with a model is never run.

    Args:
        name: A folder in the format of `transformers`, or a name on the Hugging Face hub such as `gpt2-large`.
        precision: `"fp32"`, `"bf16"` or `"fp16"`, of the weights and of the result; on a CPU of the result alone.
        device: Where it runs.
        max_tokens: Longer texts are cut; by default what the model can take.
        lean: Read the folder of a plain GPT-2 without `transformers`, whose import takes seconds; numbers are the same
            but for rounding. For other models it changes nothing.
    """

    def __init__(
        self,
        name: str | PathLike[str],
        *,
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        max_tokens: int | None = None,
        lean: bool = False,
    ) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision: expected one of {list(PRECISIONS)}, got {precision!r}")
        self.name, self.precision, self.device = fspath(name), precision, torch.device(device)
        self.dtype, self._identity = PRECISIONS[precision], ""
        # on some CPUs torch's half precision ends the process with an illegal instruction
        inner = torch.float32 if self.device.type == "cpu" else self.dtype
        self._tokenizer, model, self._identify = load(self.name, inner, lean=lean)
        limit = _limit(self._tokenizer, model)
        least = 1 + self._tokenizer.num_special_tokens_to_add()
        if max_tokens is not None and not least <= max_tokens <= limit:
            raise UserError(f"max_tokens: expected from {least} to {limit} for {self.name}, got {max_tokens}")
        self.max_tokens = max_tokens or limit
        # other models' get_encoder is what lies between their first and last layer
        if getattr(model.config, "is_encoder_decoder", False):
            model = model.get_encoder()
        model.config.use_cache = False
        self._model = model.to(self.device).eval().requires_grad_(False)
        self._blank = _blank(self._tokenizer)
        self.depth, self.d_emb = self._sizes()

    def __repr__(self) -> str:
        return f"Encoder({self.name!r}, {self.precision}, {self.depth} x {self.d_emb}, {self.max_tokens} tokens)"

    def key(self) -> str:
        """Short, and another for whatever gives other numbers: model, tokenizer, precision, longest text."""
        self._identity = self._identity or self._identify()
        parts = f"{VERSION}\n{self._identity}\n{self.precision}\n{self.max_tokens}"
        return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text, at most `max_tokens` and at least one.

        A text without any word or sign, where the model adds no token of its own, becomes the token that begins texts,
        or the nearest the model has to it. Halves of surrogate pairs, which are no text, become U+FFFD.
        """
        if isinstance(texts, str):
            raise TypeError("texts: expected a sequence of texts, got one text")
        if not len(texts):
            return []
        with single_threaded():
            ids = self._tokenizer(
                [mended(text) for text in texts],
                truncation=True,
                max_length=self.max_tokens,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        return [list(row) or [self._blank] for row in ids]

    def tokens(self, text: str) -> tuple[list[str], bool]:
        """The piece of the text behind each token, for pictures, and whether the text was cut.

        A sign of several tokens is repeated; a token of white space is shown as ␣, one the model adds by its name.
        """
        text = mended(text)
        with single_threaded():
            found = self._tokenizer(
                text, truncation=True, max_length=self.max_tokens, return_offsets_mapping=True, verbose=False
            )
            whole = self._tokenizer(text, truncation=False, verbose=False)["input_ids"]
        ids = found["input_ids"]
        if not ids:
            return [self._tokenizer.convert_ids_to_tokens(self._blank)], False
        names = self._tokenizer.convert_ids_to_tokens(ids)
        pieces = [_piece(text, span, name) for span, name in zip(found["offset_mapping"], names, strict=True)]
        return pieces, len(whole) > len(ids)

    @torch.no_grad()  # not inference_mode: what it makes may not be an input of training
    def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Mask `[b, n]` of ones and zeros, and embeddings `[b, n, depth, d_emb]`, zero after a text's end.

        What a text gets does not depend on the others: padding is on the right, where it shifts no position, and
        nothing attends to it.
        """
        sizes = [len(row) for row in ids]
        if sizes and not 1 <= min(sizes) <= max(sizes) <= self.max_tokens:
            wrong = next(size for size in sizes if not 1 <= size <= self.max_tokens)
            raise ValueError(f"ids: expected from 1 to {self.max_tokens} tokens in each text, got {wrong}")
        n = max(sizes, default=0)
        if not n:
            mask = torch.zeros(0, 0, device=self.device)
            return mask, torch.zeros(0, 0, self.depth, self.d_emb, dtype=self.dtype, device=self.device)
        pad = self._pad
        table = torch.tensor([[*row, *[pad] * (n - len(row))] for row in ids], device=self.device)  # [b, n]
        mask = torch.arange(n, device=self.device) < torch.tensor(sizes, device=self.device)[:, None]
        embs = torch.stack(self._states(table, mask.long()), dim=2).to(self.dtype)  # [b, n, depth, d_emb]
        return mask.float(), torch.where(mask[..., None, None], embs, 0)

    @property
    def _pad(self) -> int:
        return self._tokenizer.pad_token_id or 0

    def _states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states

    @torch.no_grad()
    def _sizes(self) -> tuple[int, int]:
        """Depth and width, as they come out of the model: what configurations say differs from model to model."""
        ids = torch.full((1, 2), self._blank, device=self.device)
        try:
            shapes = [tuple(state.shape) for state in self._states(ids, torch.ones_like(ids))]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise UserError(
                f"encoder: expected a model that takes texts alone, {self.name} does not: {error}"
            ) from error
        if not shapes or len(set(shapes)) > 1 or len(shapes[0]) != 3 or shapes[0][1] != 2:
            raise UserError(f"encoder: expected hidden states of one size, those of {self.name} are {shapes}")
        return len(shapes), shapes[0][2]


def mended(text: str) -> str:
    """The text as tokenizers can take it: they refuse halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _limit(tokenizer: Any, model: Any) -> int:
    """The most tokens that both can take."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        # some models count positions from behind the one of padding
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    known = [int(limit) for limit in limits if limit is not None and 0 < limit < 1_000_000]
    return min(known, default=UNKNOWN_LIMIT)


def _blank(tokenizer: Any) -> int:
    """What stands for a text without tokens."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id)
    return next((number for number in ids if number is not None), 0)


def _piece(text: str, span: tuple[int, int], name: str) -> str:
    start, end = span
    if start == end:
        return name
    return "".join(c if c.isprintable() else UNPRINTABLE for c in text[start:end].strip()) or "␣"
