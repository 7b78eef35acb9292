"""Compiles kernels for a GPU without one: `python tests/kernels/kernel_ir.py gaussian FORM ...`, or `kmeans`.

The interpreter accepts a name that is a number here and a tensor there; the compiler does not, and it must come to an
end. Threads that need the same sum must get the same bits: none may fuse its own product into an addition of what
another thread shuffles to it, for the other would round differently, and no sum over a tile's inputs may be computed
twice in two orders.
"""

import re
import sys
from typing import Any

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from capsroute.routing.triton.grid import Launch
from forms import COMPILED, FORMS, empty_arguments, plan_kernels

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32", torch.int64: "i64"}
TO_PTX = ("every input a kind", "products", "moments of 2x5")
"""Forms that need every kernel, though not every branch."""


def type_of(arg: Any) -> Any:
    """Return an argument's type in a signature of Triton."""
    if isinstance(arg, tuple):
        return type(arg)(*map(type_of, arg)) if hasattr(arg, "_fields") else tuple(map(type_of, arg))
    if isinstance(arg, Tensor):
        return f"*{TYPES[arg.dtype]}"
    return "fp32" if isinstance(arg, float) else "i32"


def arguments_of(launch: Launch) -> tuple[Any, ...]:
    """Return all arguments of a launch."""
    count = torch.empty(1, dtype=torch.int32)
    return (count, 0, launch.n_phases, *launch.args) if launch.n_phases else launch.args


def constants_of(launch: Launch) -> tuple[Any, ...]:
    """Return the constants that a kernel is compiled for."""
    pairs = zip(launch.kernel.params, arguments_of(launch), strict=True)
    return tuple([arg for param, arg in pairs if param.is_constexpr])


def compile_to(launch: Launch, last: str) -> dict[str, str]:
    """Compile a kernel stage by stage up to the last one, and return the text of each."""
    signature, constants = {}, {}
    for place, (param, arg) in enumerate(zip(launch.kernel.params, arguments_of(launch), strict=True)):
        signature[param.name] = "constexpr" if param.is_constexpr else type_of(arg)
        if param.is_constexpr:
            constants[place,] = arg
    backend: Any = make_backend(TARGET)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(launch.options())
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    source: Any = ASTSource(launch.kernel, signature, constants, {})
    module = source.make_ir(TARGET, options, functions, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata, texts = {"target": TARGET, **vars(options)}, {}
    for name in list(stages)[: list(stages).index(last) + 1]:
        module = stages[name](module, metadata)
        texts[name] = str(module)
    return texts


def sums_of_inputs(text: str) -> int:
    """Count the float32 sums over the first of several axes."""
    reductions = re.findall(r'"tt\.reduce"[^\n]*axis = (\d)(.*?)\}\) : \(tensor<([^,>]*)', text, re.DOTALL)
    return sum(
        axis == "0" and "addf" in how and re.fullmatch(r"\d+(x\d+)+xf32", of) is not None
        for axis, how, of in reductions
    )


def find_shuffled_pairs(ptx: str) -> set[str]:
    """Return the 64-bit registers made of two halves that another thread shuffled over for a sum."""
    shuffled: set[str] = set()
    moves = r"(shfl\.sync\.bfly|cvt\.u64\.u32|shl\.b64|or\.b64)\S*\s+(%\w+), (%\w+)(?:, (%\w+))?"
    for name, to, *of in re.findall(moves, ptx):
        if name.startswith("shfl") or shuffled & set(of):
            shuffled.add(to)
    return shuffled


def compile_and_check(launch: Launch) -> None:
    """Compile a kernel to PTX, in which all threads must get the same sums."""
    texts = compile_to(launch, "ptx")
    assert sums_of_inputs(texts["ttgir"]) <= sums_of_inputs(texts["ttir"]), f"{launch.kernel.__name__} sums twice"
    ptx = texts["ptx"]
    shuffled = set(re.findall(r"shfl\.sync\S+\s+(%\w+)", ptx))
    assert shuffled, "no thread shuffles: are sums still compiled that way?"
    for kind, registers in {"f32": shuffled, "f64": find_shuffled_pairs(ptx)}.items():
        added = re.findall(rf"fma\.rn\.{kind}\s+%\w+, %\w+, %\w+, (%\w+);", ptx)
        assert not registers & set(added), f"{launch.kernel.__name__} fuses products into sums of shuffled numbers"


def list_launches(name: str, gaussian: bool) -> list[Launch]:
    """Return the launches of both passes of a form that differ in what is compiled."""
    kernels, inputs, s = plan_kernels(name, gaussian), empty_arguments(name), FORMS[name]
    scores, capsules = (s.batch, s.n_out), (s.batch, s.n_out, s.d_cov, s.d_out)
    outs = [torch.empty(size) for size in (scores, capsules, capsules)]
    saved, grads = kernels.saved.allocate(inputs[0]), kernels.empty_grads(inputs)
    launches = [*kernels.fwd(inputs, saved, outs), *kernels.bwd(inputs, saved, outs, grads)]
    return list({(id(one.kernel), constants_of(one)): one for one in launches}.values())


def main(agreement: str, *names: str) -> None:
    """Compile the named forms to PTX, or if none is named some of them, the others to Triton's own code."""
    gaussian = agreement == "gaussian"
    for name in names or COMPILED:
        to_ptx = bool(names) or (gaussian and name in TO_PTX)
        launches = list_launches(name, gaussian)
        for launch in launches:
            compile_and_check(launch) if to_ptx else compile_to(launch, "ttir")
        print(name, *sorted({launch.kernel.__name__ for launch in launches}), sep="; ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
