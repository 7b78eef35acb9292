"""Data to try `capsroute train images`, `texts` and `arrays` on: drawn shapes, letters to a shop, sets of points.

python examples/own_data.py FOLDER
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = {"circle": 40, "square": 4, "triangle": 3}  # corners
THINGS = ("camera", "phone", "router", "printer", "laptop", "watch", "keyboard", "speaker", "tablet", "game")
LETTERS = {
    "billing": ("I was charged twice for my {}", "please refund the {} I paid for", "the invoice of the {} is wrong"),
    "shipping": ("my {} has not arrived", "where is the parcel with the {}?", "the courier lost my {}"),
    "technical": ("the {} crashes at the start", "an error appears on my {}", "my {} is frozen since the update"),
    "praise": ("I love this {}", "thank you for the wonderful {}", "the best {} I ever had"),
}


def outline(corners: int) -> np.ndarray:
    """Return the corners of a shape that stands upright, around zero."""
    angles = 2 * np.pi * np.arange(corners) / corners + (np.pi / 4 if corners == 4 else -np.pi / 2)
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def draw_shapes(folder: Path, each: int = 60, *, size: int = 64, seed: int = 0) -> Path:
    """Draw shapes of any colours, place and size into folders by class, `each` of every class."""
    rng = np.random.default_rng(seed)
    for name, corners in SHAPES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for k in range(each):
            back, front = rng.integers(0, 256, (2, 3)).tolist()
            while sum(abs(a - b) for a, b in zip(back, front, strict=True)) < 200:
                front = rng.integers(0, 256, 3).tolist()
            image = Image.new("RGB", (4 * size, 4 * size), tuple(back))
            radius = 4 * size * rng.uniform(0.2, 0.35)
            places = rng.uniform(radius, 4 * size - radius, 2) + radius * outline(corners)
            ImageDraw.Draw(image).polygon([(x, y) for x, y in places.tolist()], fill=tuple(front))
            image.resize((size, size)).save(folder / name / f"{k:03}.png")
    return folder


def write_letters(file: Path, each: int = 100, *, seed: int = 0) -> Path:
    """Write letters to a shop with the department they are for, `each` of every department, shuffled."""
    rng = np.random.default_rng(seed)
    rows = [(rng.choice(forms).format(rng.choice(THINGS)), to) for to, forms in LETTERS.items() for _ in range(each)]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "message", "department"])
        writer.writerows((k, *rows[row]) for k, row in enumerate(rng.permutation(len(rows))))
    return file


def make_points(each: int = 100, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Return sets of 20 to 40 noisy points on the outlines of the shapes: arrays `x`, `offsets`, `label`, `classes`."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.repeat(np.arange(len(SHAPES)), each))
    sets = []
    for corners in np.array(list(SHAPES.values()))[label]:
        n, ends = rng.integers(20, 41), outline(corners)
        start, part = rng.integers(corners, size=n), rng.random((n, 1))
        on_line = (1 - part) * ends[start] + part * ends[(start + 1) % corners]
        sets.append(rng.uniform(0.7, 1.3) * on_line + rng.normal(0, 0.03, (n, 2)))
    offsets = np.cumsum([0, *map(len, sets)])
    return {
        "x": np.concatenate(sets).astype(np.float32),
        "offsets": offsets,
        "label": label,
        "classes": np.array([*SHAPES]),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    draw_shapes(folder / "shapes")
    write_letters(folder / "letters.csv")
    np.savez(folder / "points.npz", **make_points())  # pyright: ignore[reportArgumentType]
    print(f"{folder}: shapes, letters.csv, points.npz")
