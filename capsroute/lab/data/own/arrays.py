"""Sets of vectors with labels from a file of arrays, `.npz` or `.safetensors`.

| key | shape | what |
|---|---|---|
| `x` | `[n, i, d]`, or `[total, d]` with `offsets` | n sets of vectors |
| `mask` | `[n, i]`, optional | 1 for vectors that count, 0 for padding |
| `offsets` | `[n + 1]`, optional | start of each set and the end of the last one |
| `label` | `[n]` | classes, as text or as numbers |
| `classes` | optional | names of the classes that the numbers stand for, from 0 on |
| `group` | `[n]`, optional | sets of one group are in the same split |
| `split` | `[n]`, optional | train, validation or test |

A file of safetensors holds no text: there `classes` is a JSON list in its metadata.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from .labelled import Labelled, find_splits

SUFFIXES = (".npz", ".safetensors")
KEYS = ("x", "mask", "offsets", "label", "classes", "split")


def read_arrays(file: Path, group_by: str = "") -> Labelled:
    """Return the sets `[i, d]` of a file with their labels; `group_by` names another array of groups."""
    arrays = _read_file(file, group_by or "group")

    def refuse(name: str, expected: str) -> UserError:
        got = f"{arrays[name].dtype} {list(arrays[name].shape)}" if name in arrays else f"only {', '.join(arrays)}"
        return UserError(f"{file}: {name}: expected {expected}, got {got}")

    for name in ("x", "label", *([group_by] if group_by else [])):
        if name not in arrays:
            raise refuse(name, "an array of this name")
    x, n = arrays["x"], len(arrays["label"])
    if x.dtype.kind not in "fiub" or x.ndim != (2 if "offsets" in arrays else 3):
        raise refuse("x", "numbers [n, i, d], or [total, d] with offsets")
    if "offsets" in arrays:
        offsets = arrays["offsets"]
        if offsets.shape != (n + 1,) or offsets[0] != 0 or offsets[-1] != len(x) or (np.diff(offsets) < 0).any():
            raise refuse("offsets", f"[{n + 1}] from 0 to {len(x)}, ascending")
        sets = np.split(x, offsets[1:-1])
    elif len(x) != n:
        raise refuse("x", f"{n} sets, one for each label")
    elif "mask" in arrays:
        if arrays["mask"].shape != x.shape[:2]:
            raise refuse("mask", str(list(x.shape[:2])))
        sets = [vectors[keep] for vectors, keep in zip(x, arrays["mask"].astype(bool), strict=True)]
    else:
        sets = list(x)
    group = group_by or "group"
    for name in ("label", group, "split"):
        if name in arrays and arrays[name].shape != (n,):
            raise refuse(name, f"[{n}]")
    labels = arrays["label"].tolist()
    if "classes" in arrays:
        names = arrays["classes"].tolist()
        if arrays["label"].dtype.kind not in "iu" or not 0 <= min(labels) <= max(labels) < len(names):
            raise refuse("label", f"whole numbers from 0 to {len(names) - 1}, for {len(names)} classes")
        labels = [names[k] for k in labels]
    groups = list(map(str, arrays[group].tolist())) if group in arrays else None
    splits = find_splits(list(map(str, arrays["split"].tolist())), f"{file}: split") if "split" in arrays else None
    return Labelled(sets, list(map(str, labels)), [f"{file.name}, set {k}" for k in range(n)], groups, splits)


def _read_file(file: Path, group: str) -> dict[str, np.ndarray]:
    if not file.is_file() or file.suffix not in SUFFIXES:
        raise UserError(f"{file}: expected a file of arrays ({' or '.join(SUFFIXES)}), found none")
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in (*KEYS, group) if name in arrays}
        from safetensors import safe_open

        with safe_open(file, framework="np") as tensors:
            present = set(tensors.keys()) & {*KEYS, group}
            found: dict[str, Any] = {name: tensors.get_tensor(name) for name in present}
            named = json.loads((tensors.metadata() or {}).get("classes", "null"))
            return found if named is None else found | {"classes": np.array(named)}
    except Exception as error:  # zip, numpy and safetensors raise unrelated classes
        if isinstance(error, ModuleNotFoundError | MemoryError):
            raise
        hint = "; arrays of objects are not read, store text as text" if isinstance(error, ValueError) else ""
        raise UserError(f"{file}: cannot be read as arrays ({error}){hint}") from error
