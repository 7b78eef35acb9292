"""Any model of the `transformers` library as a frozen encoder: every token's hidden state at every depth."""

import hashlib
import threading
from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..environment_variables import set_environment
from ..errors import UserError
from .loading import find_commit, load_model

VERSION = 1  # of the numbers: raise it when the same model and text give others
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEFAULT_MAX_TOKENS = 1024  # for models that set no limit
REPLACEMENT = "\ufffd"
TOKENIZING = threading.Lock()  # the environment is that of all threads


class Tokens(NamedTuple):
    """A tokenised text."""

    ids: list[int]
    pieces: list[str]  # the text of each token; white space is ␣, tokens that the model adds have their name
    truncated: bool  # whether the text is longer than `max_tokens`
    spaces: list[str]  # between each piece and the one before it; a space around tokens that the model adds


class Encoder:
    """A frozen language model.

    Of a model with encoder and decoder only the encoder is used. Code that comes with a model is never run.

    Args:
        name: A folder in the format of `transformers`, or a name on the Hugging Face hub such as `gpt2-large`.
        precision: `"fp32"`, `"bf16"` or `"fp16"`, of the weights and of the result; on a CPU of the result alone.
        device: Where it runs.
        max_tokens: Longer texts are truncated; the model's limit by default.
        revision: Commit on the hub; the newest by default.
        depths: Hidden states to return, 0 for the embeddings that the first layer gets; all by default.
    """

    def __init__(
        self,
        name: str | PathLike[str],
        *,
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        max_tokens: int | None = None,
        revision: str | None = None,
        depths: Sequence[int] | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise UserError(f"precision: expected one of {list(PRECISIONS)}, got {precision!r}")
        self.name, self.precision, self.device = fspath(name), precision, torch.device(device)
        self.dtype = PRECISIONS[precision]
        self.batch_tokens = 1 << 11 if self.device.type == "cpu" else 1 << 14  # per pass: few enough for CPU caches
        # on some CPUs torch's half precision ends the process with an illegal instruction
        inner = torch.float32 if self.device.type == "cpu" else self.dtype
        self.tokenizer, model, self._identify = load_model(self.name, inner, revision)
        self.revision: str | None = find_commit(self.name, revision)
        limit = _token_limit(self.tokenizer, model)
        least = 1 + self.tokenizer.num_special_tokens_to_add()
        if max_tokens is not None and not least <= max_tokens <= limit:
            raise UserError(f"max_tokens: expected from {least} to {limit} for {self.name}, got {max_tokens}")
        self.max_tokens = max_tokens or limit
        # get_encoder of other models returns what lies between their first and last layer
        if getattr(model.config, "is_encoder_decoder", False):
            model = model.get_encoder()
        model.config.use_cache = False
        self.model = model.to(self.device).eval().requires_grad_(False)
        special = (getattr(self.tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "unk", "pad"))
        self._empty = next((number for number in special if number is not None), 0)  # stands for a text without tokens
        n_states, self.d_emb = self._measure()
        if depths and not all(0 <= depth < n_states for depth in depths):
            raise UserError(f"depths: expected numbers from 0 to {n_states - 1} for {self.name}, got {list(depths)}")
        self.depths = list(depths or range(n_states))
        self.depth = len(self.depths)

    def key(self) -> str:
        """Return a short hash of all that the numbers depend on: model, tokenizer, precision, tokens and depths."""
        parts = f"{VERSION}\n{self._identify()}\n{self.precision}\n{self.max_tokens}\n{self.depths}"
        return hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, at most `max_tokens` and at least one.

        A text without tokens becomes the token that begins texts, or the nearest the model has to it. Unpaired
        surrogates become U+FFFD.
        """
        return [tokens.ids or [self._empty] for _, tokens in self._tokenize(texts)]

    def split_tokens(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text with the text of each token; a character of several tokens is repeated."""
        split = []
        for text, tokens in self._tokenize(texts):
            ids = tokens.ids or [self._empty]
            names = self.tokenizer.convert_ids_to_tokens(ids)
            spans = tokens.offsets or [(0, 0)]
            pieces = [_cut_piece(text, *span, name) for span, name in zip(spans, names, strict=True)]
            split.append(Tokens(ids, pieces, bool(tokens.overflowing), _find_spaces(text, spans)))
        return split

    @torch.no_grad()  # not inference_mode, whose results cannot be inputs of training
    def encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the mask `[b, n]` of ones and zeros and the embeddings `[b, n, depth, d_emb]`, zero at padding.

        A text's embeddings do not depend on the others: padding is on the right, and nothing attends to it.
        """
        for row in ids:
            if not 1 <= len(row) <= self.max_tokens:
                raise ValueError(f"ids: expected from 1 to {self.max_tokens} tokens in each text, got {len(row)}")
        if not ids:
            mask = torch.zeros(0, 0, device=self.device)
            return mask, torch.zeros(0, 0, self.depth, self.d_emb, dtype=self.dtype, device=self.device)
        sizes, pad = torch.tensor([len(row) for row in ids], device=self.device), self.tokenizer.pad_token_id or 0
        n = max(map(len, ids))
        table = torch.tensor([[*row, *[pad] * (n - len(row))] for row in ids], device=self.device)  # [b, n]
        mask = torch.arange(n, device=self.device) < sizes[:, None]
        states = self._hidden_states(table, mask.long())
        embs = torch.stack([states[depth] for depth in self.depths], dim=2).to(self.dtype)  # [b, n, depth, d_emb]
        return mask.float(), torch.where(mask[..., None, None], embs, 0)

    def _tokenize(self, texts: Sequence[str]) -> list[tuple[str, Any]]:
        """Return each text without surrogates, and its `tokenizers.Encoding`."""
        if isinstance(texts, str):
            raise TypeError("texts: expected a sequence of texts, got one text")
        clean = [replace_surrogates(text) for text in texts]
        if not clean:
            return []
        # tokenizers must start no threads: a process that forks after they did is warned, and could hang
        with TOKENIZING, set_environment(TOKENIZERS_PARALLELISM="false"):
            found = self.tokenizer(clean, truncation=True, max_length=self.max_tokens, verbose=False)
        return list(zip(clean, found.encodings, strict=True))

    def _hidden_states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states

    @torch.no_grad()
    def _measure(self) -> tuple[int, int]:
        """Return depth and width as the model gives them: configurations name them in different ways."""
        ids = torch.full((1, 2), self._empty, device=self.device)
        try:
            shapes = [tuple(state.shape) for state in self._hidden_states(ids, torch.ones_like(ids))]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            expected = "encoder: expected a model that takes texts alone"
            raise UserError(f"{expected}, {self.name} does not: {error}") from error
        if len(set(shapes)) != 1 or shapes[0][:-1] != (1, 2):
            raise UserError(f"encoder: expected hidden states of one size, those of {self.name} are {shapes}")
        return len(shapes), shapes[0][2]


def replace_surrogates(text: str) -> str:
    """Return the text with unpaired surrogates, which tokenizers refuse, replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def hash_texts(texts: Sequence[str], prefix: str = "") -> str:
    """Return a hash of texts that also depends on where each one ends."""
    total = hashlib.blake2b(prefix.encode(), digest_size=16)
    for text in texts:
        content = replace_surrogates(text).encode()
        total.update(len(content).to_bytes(8, "little") + content)
    return total.hexdigest()


def _token_limit(tokenizer: Any, model: Any) -> int:
    """Return the most tokens that both the tokenizer and the model can take."""
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, module in model.named_modules():
        # some models count positions from after that of padding
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    stated = [int(limit) for limit in limits if limit is not None and 0 < limit < 1_000_000]
    return min(stated, default=DEFAULT_MAX_TOKENS)


def _cut_piece(text: str, start: int, end: int, name: str) -> str:
    if start == end:
        return name
    return "".join(c if c.isprintable() else REPLACEMENT for c in text[start:end].strip()) or "␣"


def _find_spaces(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return a space or nothing for each token: whether there is white space before it, or a token of the model."""
    spaces, before = [], 0
    for start, end in spans:
        has_space = start == end or before is None or text[before : start + 1][:1].isspace()
        spaces.append(" " if has_space else "")
        before = None if start == end else end
    return spaces
