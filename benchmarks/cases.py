"""What is timed: the named shapes, those that bars are set for, and families of shapes that grow along one axis."""

from dataclasses import dataclass, replace

from capsroute.testing import SHAPES, Shape

MILLION = Shape(1, 1_000_000, 64, 4, 4, 4)
CASES = {
    **SHAPES,
    "smallnorb_1_b20": replace(SHAPES["smallnorb_1"], batch=20),
    "smallnorb_1_b128": replace(SHAPES["smallnorb_1"], batch=128),
    "million_inp": MILLION,
    "tiny": Shape(2, 12, 5, 2, 3, 2),  # for tests
}
CPU_CASES = tuple(name for name in SHAPES if name != "wide_out")
"""What a CPU is timed on unless told otherwise: `wide_out` takes it a minute per call."""
CUDA_CASES = ("smallnorb_1_b20", "smallnorb_1_b128", "sst_1", "smallnorb_2", "sst_2", "wide_out", "million_inp")


@dataclass(frozen=True)
class Bar:
    """What the fused kernels may take at most, forward and backward in float32 on one H200."""

    ms: float
    mib: float | None = None


BARS = {
    "smallnorb_1_b20": Bar(0.45, 40),
    "smallnorb_1_b128": Bar(1.1, 250),
    "sst_1": Bar(0.40),
    "smallnorb_2": Bar(0.30),
    "wide_out": Bar(60, 4 * 1024),
    "million_inp": Bar(8, 1024),
}

FAMILIES = {
    "inputs": [replace(MILLION, n_inp=n) for n in (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000)],
    "outputs": [replace(SHAPES["wide_out"], n_out=n) for n in (16, 128, 1_024, 8_192, 30_000)],
    "batch": [replace(SHAPES["smallnorb_1"], batch=n) for n in (1, 4, 16, 64, 256)],
}
"""Shapes from small to large, by the axis along which they grow."""


def along(family: str, shape: Shape) -> int:
    """Where a shape lies on its family's axis."""
    return {"inputs": shape.n_inp, "outputs": shape.n_out, "batch": shape.batch}[family]
