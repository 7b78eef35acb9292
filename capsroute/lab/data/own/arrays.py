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
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from ...errors import UserError, first_line
from .labelled import Labelled, find_splits

SUFFIXES = (".npz", ".safetensors")
KEYS = ("x", "mask", "offsets", "label", "classes", "split")


def read_arrays(file: Path, group_by: str = "") -> Labelled:
    """Return the sets `[i, d]` of a file with their labels; `group_by` names another array of groups."""
    if not file.is_file() or file.suffix not in SUFFIXES:
        raise UserError(f"{file}: expected a file of arrays ({' or '.join(SUFFIXES)}), found none")
    group = group_by or "group"
    arrays = load_arrays(file, (*KEYS, group))
    for name in ("x", "label", *([group_by] if group_by else [])):
        if name not in arrays:
            raise array_error(file, arrays, name, "an array of this name")
    if arrays["label"].ndim != 1:
        raise array_error(file, arrays, "label", "[n], a class for each set")
    labels = arrays["label"].tolist()
    n = len(labels)
    if "offsets" in arrays and arrays["offsets"].shape != (n + 1,):
        raise array_error(file, arrays, "offsets", f"[{n + 1}] from 0 to {len(arrays['x'])}, ascending")
    sets = split_sets(file, arrays)
    if len(sets) != n:
        raise array_error(file, arrays, "x", f"{n} sets, one for each label")
    for name in (group, "split"):
        if name in arrays and arrays[name].shape != (n,):
            raise array_error(file, arrays, name, f"[{n}]")
    if "classes" in arrays:
        names = arrays["classes"].tolist()
        if arrays["label"].dtype.kind not in "iu" or not 0 <= min(labels) <= max(labels) < len(names):
            expected = f"whole numbers from 0 to {len(names) - 1}, for {len(names)} classes"
            raise array_error(file, arrays, "label", expected)
        labels = [names[k] for k in labels]
    groups = list(map(str, arrays[group].tolist())) if group in arrays else None
    splits = find_splits(list(map(str, arrays["split"].tolist())), f"{file}: split") if "split" in arrays else None
    return Labelled(sets, list(map(str, labels)), [f"{file.name}, set {k}" for k in range(n)], groups, splits)


def load_arrays(file: Path, keys: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, of those in `keys` if any are given; that of a .npy file is called x."""
    try:
        if file.suffix.lower() == ".safetensors":
            from safetensors import safe_open

            with safe_open(file, framework="np") as tensors:
                found = {name: tensors.get_tensor(name) for name in tensors.keys() if not keys or name in keys}  # noqa: SIM118
                named = json.loads((tensors.metadata() or {}).get("classes", "null"))
                return found | {"classes": np.array(named)} if named is not None and "classes" in keys else found
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"x": loaded}
        with loaded as arrays:
            return {name: arrays[name] for name in arrays if not keys or name in keys}
    except Exception as error:  # zip, numpy and safetensors raise unrelated classes
        if isinstance(error, ModuleNotFoundError | MemoryError):
            raise
        reason = "it is damaged, or holds objects: store text as text" if "pickle" in str(error) else first_line(error)
        raise UserError(
            f"{file}: cannot be read as arrays ({reason}); write it with numpy.savez or safetensors"
        ) from error


def split_sets(file: Path, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the sets `[i, d]` of vectors in `x`, which a `mask` or `offsets` tell apart."""
    x = arrays["x"]
    if x.dtype.kind not in "fiub" or x.ndim != (2 if "offsets" in arrays else 3):
        raise array_error(file, arrays, "x", "numbers [n, i, d], or [total, d] with offsets")
    if "offsets" in arrays:
        offsets = arrays["offsets"]
        if offsets.ndim != 1 or [*offsets[:1], *offsets[-1:]] != [0, len(x)] or (np.diff(offsets) < 0).any():
            raise array_error(file, arrays, "offsets", f"[n + 1] from 0 to {len(x)}, ascending")
        return np.split(x, offsets[1:-1])
    if "mask" not in arrays:
        return list(x)
    if arrays["mask"].shape != x.shape[:2]:
        raise array_error(file, arrays, "mask", str(list(x.shape[:2])))
    return [vectors[keep] for vectors, keep in zip(x, arrays["mask"].astype(bool), strict=True)]


def array_error(file: Path, arrays: Mapping[str, np.ndarray], name: str, expected: str) -> UserError:
    """Return the error for an array that is missing or wrong."""
    found = arrays.get(name)
    none = f"{', '.join(arrays) or 'none'} of those that are read: {', '.join(KEYS)}"
    got = none if found is None else f"{found.dtype} {list(found.shape)}"
    return UserError(f"{file}: {name}: expected {expected}, got {got}")
