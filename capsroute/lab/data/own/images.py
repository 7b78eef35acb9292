"""Images in folders by class: `DIR/class/*.png`, or the same below `train`, `val` and `test`."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from .labelled import Labelled, find_split, match_groups

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
EYE = re.compile(r"[-_](left|right)$", re.IGNORECASE)
N_OPENED = 200  # images whose size is looked at
MAX_SIDE, STEP = 64, 8  # pixels: the longer side of images unless asked otherwise, and what sides are multiples of
LAYOUT = "one folder for each class with images in it, or such folders below train/ and test/"


def list_images(folder: Path, group_by: str = "") -> Labelled:
    """Return the images below a folder, labelled by the folders they are in; items are lists of files, one per view.

    `NAME-left.png` and `NAME-right.png` are a stereo pair.

    Args:
        folder: Has a folder for each class, or the folders `train`, `test` and perhaps `val` that do.
        group_by: A regular expression; images in whose path it matches the same text are in the same split.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise UserError(f"{folder}: expected a folder with {LAYOUT}, found {found}")
    inside = _subfolders(folder)
    by_split = {split: path for path in inside if (split := find_split(path.name))}
    if len(by_split) < len(inside):  # folders of classes
        by_split = {"": folder}
    for loose in (path for top in {folder, *by_split.values()} for path in sorted(top.iterdir()) if inside):
        if loose.suffix.lower() in SUFFIXES:
            raise UserError(f"{loose}: an image outside of the folders of classes; move it into one, or away")
    classes = [(split, path) for split, top in by_split.items() for path in _subfolders(top)]
    rows = [(split, path, views) for split, path in classes for views in _find_views(path)]
    if not rows:
        raise UserError(f"{folder}: expected {LAYOUT}; found no {', '.join(SUFFIXES)} in folders there")
    if len({len(views) for _, _, views in rows}) > 1:
        single = next(views[0] for _, _, views in rows if len(views) == 1)
        raise UserError(f"{single}: the other image of the stereo pair is missing; add it, or remove -left and -right")
    places = [str(views[0].relative_to(folder)) for _, _, views in rows]
    groups = match_groups(group_by, places) if group_by else None
    splits = [split for split, _, _ in rows]
    return Labelled(
        [views for *_, views in rows], [path.name for _, path, _ in rows], places, groups, splits if splits[0] else None
    )


def pair_views(files: Iterable[Path]) -> list[list[Path]]:
    """Return the files of each thing: `NAME-left` and `NAME-right` of a folder together, all others alone."""
    things: list[dict[str, Path]] = []
    by_name: dict[Path, dict[str, Path]] = {}
    for path in files:
        eye = EYE.search(path.stem)
        name, side = (path.parent / EYE.sub("", path.stem), eye[1].lower()) if eye else (path, "")
        if side in by_name.get(name, {side: path}):  # new, or a second file with the same name and side
            by_name[name] = {}
            things.append(by_name[name])
        by_name[name][side] = path
    return [[thing[side] for side in sorted(thing)] for thing in things]


def image_size(items: Sequence[Sequence[Path]], longest: int | None = None) -> dict[str, int]:
    """Return rows, columns, channels and views that suit most of some images.

    Args:
        items: The files of each sample.
        longest: Pixels of the longer side; by default that of the images, but at most `MAX_SIDE`.
    """
    from PIL import Image

    rng = np.random.default_rng(0)
    sizes, colour = [], False
    for k in rng.permutation(len(items))[:N_OPENED]:
        try:
            with Image.open(items[k][0]) as image:
                sizes.append((image.height, image.width))
                colour = colour or _has_colour(image)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # reported when all are read
    rows, columns = np.median(sizes or [(MAX_SIDE, MAX_SIDE)], axis=0)
    side = longest or min(MAX_SIDE, max(rows, columns, MAX_SIDE // 2))
    rows, columns = (max(STEP, STEP * round(n * side / max(rows, columns) / STEP)) for n in (rows, columns))
    return {"rows": rows, "columns": columns, "channels": 3 if colour else 1, "views": len(items[0])}


def _has_colour(image: Any) -> bool:
    if image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;"):
        return False
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    pixels = np.asarray(image.convert("RGB"), int)
    return bool(np.ptp(pixels, axis=-1).max() > 8)  # JPEG rounds grey a little


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def find_images(folder: Path) -> list[Path]:
    """Return the image files in a folder and in the folders below it, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _find_views(folder: Path) -> list[list[Path]]:
    """Return the images of a class, pairs together; a class without any is an error."""
    found = find_images(folder)
    if not found:
        raise UserError(f"{folder}: a class without images ({', '.join(SUFFIXES)}); add some, or remove the folder")
    return pair_views(found)
