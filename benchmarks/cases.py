"""Name what is timed: the shapes, and the implementations that route them."""

from dataclasses import replace

from capsroute.testing import SHAPES, Shape

MILLION = Shape(1, 1_000_000, 64, 4, 4, 4)
FAMILIES = {
    "inputs": {f"inputs_{n}": replace(MILLION, n_inp=n) for n in (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000)},
    "outputs": {f"outputs_{n}": replace(SHAPES["wide_out"], n_out=n) for n in (16, 128, 1_024, 8_192, 30_000)},
    "batch": {f"batch_{n}": replace(SHAPES["smallnorb_1"], batch=n) for n in (1, 4, 16, 64, 256)},
}
"""Shapes that grow along one axis."""
CASES = {
    **SHAPES,
    "smallnorb_1_b20": replace(SHAPES["smallnorb_1"], batch=20),
    "smallnorb_1_b128": replace(SHAPES["smallnorb_1"], batch=128),
    "million_inp": MILLION,
    "tiny": Shape(2, 12, 5, 2, 3, 2),  # for tests
    **{name: shape for family in FAMILIES.values() for name, shape in family.items()},
}
DEFAULT_CASES = {
    "cpu": ("smallnorb_1", "smallnorb_2", "sst_1", "sst_2"),  # wide_out takes a CPU a minute per call
    "cuda": ("smallnorb_1_b20", "smallnorb_1_b128", "sst_1", "smallnorb_2", "sst_2", "wide_out", "million_inp"),
}

COMPILED = {"compiled": "reference", "moments compiled": "moments"}
"""Implementations under `torch.compile`, by the name they have here."""
IMPLS = ("reference", "compiled", "moments", "moments compiled", "blocked", "triton", "auto")
DEFAULT_IMPLS = {
    "cpu": ("reference", "compiled", "moments", "blocked", "auto"),
    "cuda": ("reference", "compiled", "moments", "moments compiled", "blocked", "auto"),
}
MODES = ("forward", "forward+backward")
DEFAULT_MODES = {"cpu": MODES, "cuda": MODES[1:]}
SEED = 0
