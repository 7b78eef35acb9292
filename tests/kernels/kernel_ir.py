"""Translates the kernels of some cases as for a GPU, without one: `python tests/kernel_ir.py gaussian`, or `kmeans`.

The interpreter does not mind a name that is a number here and a tensor there; the compiler does. It has to come to an
end, too, and threads that need the same sum must get the same: no thread may add its own product, not yet rounded, to
what another hands it, for the other would add them the other way round. And no sum over a tile's inputs may be formed
twice, in two orders. Arguments have to be those that `native.cpp` hands over.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from capsroute.routing.triton import moments_host, votes_host
from capsroute.routing.triton.launch import Launch
from capsroute.routing.triton.native import Spot, fits, slots_of
from capsroute.routing.triton.sizes import Hard, Plan, Sizes
from capsroute.testing import Shape

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32", torch.int64: "i64"}
CHUNKS = {
    "several chunks, own weights": Shape(2, 90, 150, 11, 5, 17, fixed_inp=True),
    "products, several chunks": Shape(2, 70, 5, 2, 33, 4),
}
ONE_FOR_ALL = {"products, several chunks, weights that outputs share": Shape(2, 70, 3, 2, 33, 6)}
KMEANS_TO_PTX = ("a program a sample", "several chunks", "many outputs")
"""Forms whose kernels for k-means go that far too; most of them are like those for Gaussians."""
LIKE_ANOTHER = ("products, several chunks",)
"""Forms that do not go that far: but for a sum they are what they are where outputs share weights."""


def type_of(arg: Any) -> Any:
    """Of an argument, in Triton's words."""
    if isinstance(arg, tuple):
        return type(arg)(*map(type_of, arg)) if hasattr(arg, "_fields") else tuple(map(type_of, arg))
    if isinstance(arg, Tensor):
        return f"*{TYPES[arg.dtype]}"
    return "fp32" if isinstance(arg, float) else "i32"


def as_spots(arg: Any) -> Any:
    """Memory's places instead of memory."""
    if isinstance(arg, tuple) and hasattr(arg, "_fields"):
        return type(arg)(*map(as_spots, arg))
    return Spot(0) if isinstance(arg, Tensor) else arg


def translate(launch: Launch, pieces: list[Any], last: str) -> dict[str, str]:
    """One kernel, stage by stage up to this one, and what each made of it."""
    signature, constants = {}, {}
    for place, (param, arg) in enumerate(zip(launch.kernel.params, launch.arguments(pieces), strict=True)):
        signature[param.name] = "constexpr" if param.is_constexpr else type_of(arg)
        if param.is_constexpr:
            constants[place,] = arg
    backend: Any = make_backend(TARGET)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(launch.options)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    source: Any = ASTSource(launch.kernel, signature, constants, {})
    module = source.make_ir(TARGET, options, functions, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata, texts = {"target": TARGET, **vars(options)}, {}
    for name in list(stages)[: list(stages).index(last) + 1]:
        module = stages[name](module, metadata)
        texts[name] = str(module)
    if "ptx" in texts:
        slots = slots_of(signature.values(), map(as_spots, launch.arguments(pieces)))
        assert fits(texts["ptx"], slots)
        assert not fits(texts["ptx"], slots[1:])
    return texts


def sums_of_inputs(text: str) -> int:
    """Sums over the first of several axes, in float32."""
    reductions = re.findall(r'"tt\.reduce"[^\n]*axis = (\d)(.*?)\}\) : \(tensor<([^,>]*)', text, re.DOTALL)
    return sum(
        axis == "0" and "addf" in how and re.fullmatch(r"\d+(x\d+)+xf32", of) is not None
        for axis, how, of in reductions
    )


def handed_by_halves(ptx: str) -> set[str]:
    """Registers of 64 bits with what a thread got from another for a sum, not because it is wanted there instead."""
    handed: set[str] = set()
    moves = r"(shfl\.sync\.bfly|cvt\.u64\.u32|shl\.b64|or\.b64)\S*\s+(%\w+), (%\w+)(?:, (%\w+))?"
    for name, to, *of in re.findall(moves, ptx):
        if name.startswith("shfl") or handed & set(of):
            handed.add(to)
    return handed


def translate_alike(launch: Launch, pieces: list[Any]) -> None:
    """One kernel as PTX, where threads must come to the same sums."""
    texts = translate(launch, pieces, "ptx")
    assert sums_of_inputs(texts["ttgir"]) <= sums_of_inputs(texts["ttir"]), f"{launch.kernel.__name__} sums twice"
    ptx = texts["ptx"]
    handed = set(re.findall(r"shfl\.sync\S+\s+(%\w+)", ptx))
    assert handed, "no thread hands another anything: is this still how sums are compiled?"
    for kind, registers in {"f32": handed, "f64": handed_by_halves(ptx)}.items():
        added = re.findall(rf"fma\.rn\.{kind}\s+%\w+, %\w+, %\w+, (%\w+);", ptx)
        assert not registers & set(added), f"{launch.kernel.__name__} adds products to what threads hand each other"


def both(run: Any, like: dict[str, Tensor], shape: Shape, use: Callable[[Launch, list[Any]], object]) -> None:
    """Kernels of both passes; a shape's tensors need not have numbers."""
    given = [like[name] for name in ("a_inp", "mu_inp", "mu_inp", "W", "B", "beta_use", "beta_ign")]
    one, all_ = (shape.batch, shape.n_out), (shape.batch, shape.n_out, shape.d_cov, shape.d_out)
    outs = [torch.empty(one), torch.empty(all_), torch.empty(all_)]
    saved, fwd, bwd = (layout.make(given[3]) for layout in run.rooms)
    count = torch.empty(1, dtype=torch.int32)
    memory = [[*given, fwd, saved, *outs], [*given, saved, bwd, *outs, *given[:2], *given[3:]]]
    for each, tensors in zip((run.run_fwd, run.run_bwd), memory, strict=True):
        pieces = each.pieces([*[count] * each.counts, *tensors])
        for launch in {(id(one.kernel), one.key): one for one in each.launches}.values():
            use(launch, pieces)


def main(agreement: str, part: str = "0", parts: str = "1") -> None:
    """All forms, or every so manieth of them, from this one on."""
    votes_host.programs_at_once = lambda _, per_core: 132 * per_core
    moments_host.programs_at_once = lambda _, per_core: per_core  # then models come in both sizes
    gaussian = agreement == "gaussian"
    single, device = (torch.float32, torch.float32), torch.device("cpu")
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    forms = import_module("every_form")
    every = forms.BY_VOTES | forms.LARGE | CHUNKS | ONE_FOR_ALL | forms.BY_MOMENTS
    del every["moments"], every["moments run again"]  # of the same kernels as those in float64, which branch
    for name, shape in list(every.items())[int(part) :: int(parts)]:
        s, i = shape, shape.n_inp if shape.fixed_inp else 1
        sizes = {
            "a_inp": (s.batch, s.n_inp), "mu_inp": (s.batch, s.n_inp, s.d_cov, s.d_inp),
            "W": (i, 1 if name in ONE_FOR_ALL else s.n_out, s.d_inp, s.d_out), "B": (i, s.n_out, s.d_cov, s.d_out),
            "beta_use": (i, s.n_out), "beta_ign": (i, s.n_out),
        }  # fmt: skip
        like, shapes = {key: torch.empty(size) for key, size in sizes.items()}, tuple(sizes.values())[2:]
        case = Sizes(s.batch, s.n_inp, s.n_out, s.d_cov, s.d_inp, s.d_out, False)
        plan = Plan(3, gaussian, 1e-5)
        if name in forms.BY_MOMENTS:
            run = moments_host.Runner(plan, case, shapes, single, device, Hard())
        else:
            run = votes_host.Runner(plan, case, s.batch * s.n_inp, shapes, single, device)
        far = name not in LIKE_ANOTHER if gaussian else name in KMEANS_TO_PTX
        both(run, like, shape, translate_alike if far else partial(translate, last="ttir"))
        print(name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
