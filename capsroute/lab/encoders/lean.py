"""A plain GPT-2 without the `transformers` library, whose import takes longer than judging a text.

It reads the same folders and gives the same hidden states but for rounding. It takes nothing it does not know exactly:
any other file, setting or weight, and `transformers` reads the folder.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
WITHOUT_EFFECT = {"README.md", "generation_config.json", "tiny.json"}  # on hidden states
GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
SIZES = {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "layer_norm_epsilon"}
FIXED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
UNUSED = {  # by hidden states: they matter in training, in writing texts, or for other outputs
    *("architectures", "attn_pdrop", "bos_token_id", "dtype", "embd_pdrop", "eos_token_id", "initializer_range"),
    *("pad_token_id", "resid_pdrop", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj", "tie_word_embeddings", "transformers_version", "use_cache"),
}
SPECIAL = {"bos_token", "eos_token", "unk_token", "pad_token"}
AS_IT_STANDS = {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend"}  # `transformers` changes others


def read_plain(folder: Path, dtype: torch.dtype) -> "tuple[Words, GPT2] | None":
    """The tokenizer and model of a folder, as far as `Encoder` needs them; none if it holds anything unknown."""
    try:
        names = {path.name for path in folder.iterdir()}
        config = json.loads((folder / "config.json").read_text())
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        if not (FILES <= names <= FILES | WITHOUT_EFFECT and _plain_model(config) and _plain_tokenizer(settings)):
            return None
        words = Words(folder / "tokenizer.json", settings)
        if not words.plain():
            return None
        return words, GPT2(config, _weights(folder / "model.safetensors", dtype))
    except Exception:  # of many kinds; what is wrong with a folder is for `transformers` to say
        return None


class Words:
    """A tokenizer, with what `Encoder` asks of those of `transformers`.

    Args:
        file: In the format of `tokenizers`.
        settings: What `tokenizer_config.json` says.
    """

    def __init__(self, file: Path, settings: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))
        self.model_max_length: int = settings["model_max_length"]
        known = {token.content: k for k, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        ids = {name: known[settings[name]] for name in settings.keys() & SPECIAL}
        self.bos_token_id, self.eos_token_id = ids.get("bos_token"), ids.get("eos_token")
        self.unk_token_id, self.pad_token_id = ids.get("unk_token"), ids.get("pad_token")

    def __call__(self, texts: str | list[str], *, max_length: int | None = None, **_: Any) -> dict[str, list[Any]]:
        """Token numbers, and where in the text each token is, of one text or of each of several."""
        if max_length is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(max_length)
        if isinstance(texts, str):
            found = self._tokenizer.encode(texts)
            return {"input_ids": found.ids, "offset_mapping": found.offsets}
        rows = self._tokenizer.encode_batch(texts)
        return {"input_ids": [row.ids for row in rows], "offset_mapping": [row.offsets for row in rows]}

    def plain(self) -> bool:
        """Whether its file asks for nothing special: no token added, no padding, texts cut at their end if at all."""
        cut = self._tokenizer.truncation
        at_end = cut is None or cut["direction"] == "right"
        return at_end and self._tokenizer.padding is None and not self.num_special_tokens_to_add()

    def num_special_tokens_to_add(self) -> int:
        return self._tokenizer.num_special_tokens_to_add(False)

    def convert_ids_to_tokens(self, ids: int | list[int]) -> Any:
        return self._tokenizer.id_to_token(ids) if isinstance(ids, int) else [*map(self._tokenizer.id_to_token, ids)]


class GPT2(nn.Module):
    """Hidden states of a GPT-2; modules are named as in its files.

    Args:
        config: What `config.json` says.
        weights: All of them, and no other.
    """

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().__init__()
        d_emb, n_positions = config["n_embd"], config["n_positions"]
        self.config = SimpleNamespace(max_position_embeddings=n_positions)
        self.wte, self.wpe = _Affine(config["vocab_size"], d_emb, bias=False), _Affine(n_positions, d_emb, bias=False)
        self.h = nn.ModuleList(_Block(config) for _ in range(config["n_layer"]))
        self.ln_f, self.eps = _Affine(d_emb), config["layer_norm_epsilon"]
        self.load_state_dict(weights, assign=True)

    def forward(self, *, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        """Embeddings, and what each block makes of them, all `[b, n, d_emb]`.

        Texts are padded on the right, where nothing that is read looks, so no mask is needed.
        """
        x = F.embedding(input_ids, self.wte.weight) + self.wpe.weight[: input_ids.shape[1]]  # [b, n, d_emb]
        states = [x]
        for block in self.h:
            x = block(x)
            states.append(x)
        states[-1] = self.ln_f.normed(states[-1], self.eps)
        return SimpleNamespace(hidden_states=tuple(states))


class _Block(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        d_emb = config["n_embd"]
        d_inner = 4 * d_emb if config["n_inner"] is None else config["n_inner"]
        self.n_heads, self.eps = config["n_head"], config["layer_norm_epsilon"]
        self.gelu = GELU[config["activation_function"]]
        self.ln_1, self.ln_2 = _Affine(d_emb), _Affine(d_emb)
        self.attn = nn.ModuleDict({"c_attn": _Affine(d_emb, 3 * d_emb), "c_proj": _Affine(d_emb, d_emb)})
        self.mlp = nn.ModuleDict({"c_fc": _Affine(d_emb, d_inner), "c_proj": _Affine(d_inner, d_emb)})

    def forward(self, x: Tensor) -> Tensor:
        y = self.attn["c_attn"](self.ln_1.normed(x, self.eps))  # [b, n, 3 * d_emb]
        q, k, v = y.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # each [b, heads, n, d_head]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)  # [b, n, d_emb]
        x = x + self.attn["c_proj"](y)
        y = F.gelu(self.mlp["c_fc"](self.ln_2.normed(x, self.eps)), approximate=self.gelu)  # [b, n, d_inner]
        return x + self.mlp["c_proj"](y)


class _Affine(nn.Module):
    """A weight and a bias, to be loaded: of a linear map, as `[inputs, outputs]`, or of a normalisation."""

    def __init__(self, *shape: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, device="meta"))
        self.bias = nn.Parameter(torch.empty(shape[-1], device="meta")) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T, self.bias)

    def normed(self, x: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps)


def _plain_model(config: dict[str, Any]) -> bool:
    fixed = all(config[name] == value for name, value in FIXED.items())
    known = config.keys() <= {*FIXED, *SIZES, *UNUSED, "activation_function"}
    return fixed and known and config["n_embd"] % config["n_head"] == 0


def _plain_tokenizer(settings: dict[str, Any]) -> bool:
    as_it_stands = all(settings[name] == value for name, value in AS_IT_STANDS.items())
    return as_it_stands and settings.keys() <= {*AS_IT_STANDS, *SPECIAL, "model_max_length"}


def _weights(file: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Under the names of the model itself, whether or not a head was saved with it."""
    from safetensors.torch import load_file

    weights = {name.removeprefix("transformer."): weight.to(dtype) for name, weight in load_file(file).items()}
    weights.pop("lm_head.weight", None)
    return weights
