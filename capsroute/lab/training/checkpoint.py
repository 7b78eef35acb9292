"""A run's state in one safetensors file, replaced as a whole or not at all."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..atomic_files import write_atomically
from ..errors import UserError


class CheckpointError(UserError):
    """A checkpoint that cannot be read, with its path and what to do."""


def save(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    record: Tensor,
    facts: dict[str, Any],
    **more: Tensor,
) -> None:
    """Write beside the file, then put it in its place: who reads it finds the old state or the new one, whole."""
    from safetensors.torch import save as serialise

    tensors = {f"network.{name}": t for name, t in network.state_dict().items()} | {"record": record} | more
    for k, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{k}.{name}": t for name, t in state.items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_atomically(path, serialise(tensors, metadata={"facts": json.dumps(facts)}))


def load(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Tensor, dict[str, Any]]:
    """Bring network and optimizer to a saved state; returns the record and the facts saved with it."""
    tensors, facts = read(path)
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    network_state: dict[str, Tensor] = {}
    for key, t in tensors.items():
        part, _, rest = key.partition(".")
        if part == "network":
            network_state[rest] = t
        elif part == "optimizer":
            k, name = rest.split(".", 1)
            optimizer_state.setdefault(int(k), {})[name] = t
    network.load_state_dict(network_state)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": optimizer_state, "param_groups": groups})
    return tensors["record"], facts


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a checkpoint and the facts saved with them."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"{path}: no checkpoint here; give the folder of a run that has saved one")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole checkpoint ({error}); delete it and train anew") from error
