"""Plain calls without Python: `native.cpp` on a CPU, by a made-up driver that has kernels interpreted."""

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs

from capsroute import Capsules, route
from capsroute.routing import triton as kernels
from capsroute.routing.api import route_packed
from capsroute.routing.triton import build, native
from capsroute.routing.triton.launch import Launch, Pass
from capsroute.testing import Shape, make_inputs

sys.path.insert(0, "benchmarks")
from every_form import BY_MOMENTS, BY_VOTES, enough  # pyright: ignore

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/test_cuda.py does it with a GPU"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
]
SMALL = Shape(2, 6, 3, 2, 2, 2)
WORD = ctypes.c_uint
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[WORD] * 7, *[ctypes.c_void_p] * 3)
LAUNCH_TOGETHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[WORD] * 7, *[ctypes.c_void_p] * 2)
CAPTURING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
NUMBERS = {int: ("i64", ctypes.c_int64), float: ("fp64", ctypes.c_double)}
"""Arguments that kernels get when they run, as the made-up compiler has them."""
STREAM = 7


class Kernel(NamedTuple):
    """A launch, its pass, and tensors like those of the pass's memory."""

    one: Launch
    run: Pass
    n_phases: int
    memory: list[Tensor]


class Machine:
    """A driver, whose kernels are numbers, and what it was told."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.error = self.capturing = self.launched = 0
        self.functions = LAUNCH(self.launch), LAUNCH_TOGETHER(self.launch), CAPTURING(self.asked)
        self.addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]

    def asked(self, stream: int, status: Any) -> int:
        assert stream == STREAM
        status[0] = self.capturing
        return 0

    def launch(self, kernel: int, programs: int, *rest: Any) -> int:
        """Interpret a kernel, with tensors that lie where its arguments say."""
        one, run, n_phases, memory = self.kernels[kernel - 1]
        threads, stream, slots = rest[2], rest[6], ctypes.cast(rest[7], ctypes.POINTER(ctypes.c_void_p))
        assert (programs, threads, stream) == (one.grid[0], 32 * one.options["num_warps"], STREAM)
        lie = {}
        for k, (kind, arg) in enumerate(zip(*handed(one.arguments(spots(run))), strict=True)):
            if isinstance(arg, native.Spot):
                lie[arg.place] = (ctypes.c_uint64.from_address(slots[k]).value - arg.offset) % 2**64
            else:
                assert dict(NUMBERS.values())[kind].from_address(slots[k]).value == arg
        first = 0 if run.counts else 1
        tensors = [at(lie.get(first + k), like) for k, like in enumerate(memory)]
        arguments = list(one.arguments(run.pieces(tensors)))
        self.launched += 1
        for phase in range(n_phases):
            if n_phases > 1:
                arguments[1:3] = phase, phase + 1
            if not self.error:
                one.kernel[one.grid](*arguments, num_warps=one.options["num_warps"])
        return self.error


def at(address: int | None, like: Tensor) -> Tensor:
    """A tensor where there is memory of the same size; a kernel that gets no address reads nothing."""
    if not address or not like.nbytes:
        return like
    buffer = (ctypes.c_byte * like.nbytes).from_address(address)
    return torch.frombuffer(buffer, dtype=like.dtype).view(like.shape)


def spots(run: Pass) -> list[Any]:
    (_, pieces), *_ = native.launches(run)
    return pieces


def kinds(args: Sequence[Any]) -> list[Any]:
    """Types as the made-up compiler names them."""
    return [
        "*" if isinstance(arg, native.Spot)
        else kinds(arg) if isinstance(arg, tuple) and any(isinstance(one, native.Spot) for one in arg)
        else NUMBERS[type(arg)][0] if type(arg) in NUMBERS else "constexpr"
        for arg in args
    ]  # fmt: skip


def flat(nested: Sequence[Any]) -> Iterator[Any]:
    for one in nested:
        if isinstance(one, list) or (isinstance(one, tuple) and not isinstance(one, native.Spot)):
            yield from flat(one)
        else:
            yield one


def handed(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Types and values that a kernel gets when it runs."""
    pairs = [(kind, arg) for kind, arg in zip(kinds(args), args, strict=True) if kind != "constexpr"]
    return [*flat([kind for kind, _ in pairs])], [*flat([arg for _, arg in pairs])]


@pytest.fixture(scope="session")
def module() -> Any:
    """Compiled once, by whoever comes first."""
    folder = Path(knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "capsroute_tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build.load(build.compiled(folder))


@pytest.fixture
def machine(module: Any, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Every plain call goes through `native.cpp` from the first on."""
    found, python = Machine(), native.Kernels.direct
    module.set_up(*found.addresses, kernels.python_backward)
    monkeypatch.setattr(native, "stream_of", lambda device: STREAM)
    kernels.settled.cache_clear()

    def direct(self: Any, inputs: Sequence[Any]) -> Any:
        if self.native is None:
            self.native = SimpleNamespace(module=module)
            prepare(found, self, inputs)
        return python(self, inputs)

    monkeypatch.setattr(native.Kernels, "direct", direct)
    return found


def ptx(one: Launch, run: Pass) -> str:
    """How a kernel begins, with an address of scratch memory after its arguments, as Triton has it."""
    n_args = len(handed(one.arguments(spots(run)))[0]) + 1
    return f".visible .entry kernel(\n{', '.join(['.param .u64 .ptr x'] * n_args)}\n) .reqntid 128"


def prepare(found: Machine, run: Any, inputs: Sequence[Any]) -> None:
    """As if both passes had run, compiled, twice."""
    a_inp, x, offsets, *params = inputs
    n, given = run.sizes, [a_inp, x, x if offsets is None else offsets, *params]
    outs = [torch.empty(n.b, n.j), *[torch.empty(n.b, n.j, n.c, n.h)] * 2]
    saved, fwd, bwd = (room.make(params[0]) for room in run.rooms)
    memory = [[*given, fwd, saved, *outs], [*given, saved, bwd, *outs, a_inp, x, *params]]
    phases = (run.how.fwd.phases, run.how.bwd.phases) if hasattr(run, "how") else (1, 1)
    for each, tensors, n_phases in zip((run.run_fwd, run.run_bwd), memory, phases, strict=True):
        each.usual = True
        tensors = [torch.zeros(1, dtype=torch.int32)] * each.counts + tensors
        for one in each.launches:
            found.kernels.append(Kernel(one, each, n_phases if each.counts else 1, tensors))
            one.compiled = SimpleNamespace(
                function=len(found.kernels),
                src=SimpleNamespace(signature=dict(enumerate(kinds(one.arguments(spots(each)))))),
                metadata=SimpleNamespace(num_warps=one.options["num_warps"], shared=0),
                asm={"ptx": ptx(one, each)},
            )


def results(inputs: Sequence[Tensor], out: Capsules) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator) for t in out]
    return [*out, *torch.autograd.grad(out, inputs, weights)]


def same(inputs: Sequence[Tensor], call: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit as Python launches it, by as many launches as were planned."""
    by_native = results(inputs, call())
    assert machine.launched == len(machine.kernels) > 0
    monkeypatch.setattr(native.Kernels, "direct", lambda *_: None)
    assert all(torch.equal(one, two) for one, two in zip(by_native, results(inputs, call()), strict=True))
    assert machine.launched == len(machine.kernels)


@pytest.mark.parametrize(
    "form",
    ["a program a sample", "shared weights", "own weights", "products", "moments of 2x5", "moments run again"],
)
def test_the_same_bits(form: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (BY_VOTES | BY_MOMENTS)[form]
    if form in BY_MOMENTS:
        monkeypatch.setattr(kernels, "ENOUGH", enough(form))
    inputs = list(make_inputs(replace(shape, batch=2, n_inp=min(shape.n_inp, 66))).values())
    same(inputs, lambda: route(*inputs, impl="triton"), machine, monkeypatch)


def test_the_same_bits_of_packed_samples(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    a_inp, mu_inp, *params = make_inputs(Shape(1, 19, 3, 2, 2, 2)).values()
    inputs, ends = (
        [*(t[0].detach().requires_grad_() for t in (a_inp, mu_inp)), *params],
        torch.tensor([0, 3, 3, 12, 19]),
    )
    same(inputs, lambda: route_packed(*inputs[:2], ends, *params, impl="triton"), machine, monkeypatch)


def test_the_same_bits_wherever_tensors_lie(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = list(make_inputs(SMALL).values())
    apart = [torch.stack([t, t], -1).detach()[..., 0].requires_grad_() for t in inputs]
    shifted = [torch.cat([t.new_zeros(1), t.flatten()]).detach()[1:].view(t.shape).requires_grad_() for t in inputs]
    for odd in (apart, shifted):
        machine.launched = 0
        machine.kernels.clear()
        kernels.settled.cache_clear()
        with monkeypatch.context() as patched:
            same(odd, lambda odd=odd: route(*odd, impl="triton"), machine, patched)


def test_gradients_of_some_outputs(machine: Machine) -> None:
    inputs = list(make_inputs(SMALL).values())
    out = route(*inputs, impl="triton")
    assert machine.launched
    some = torch.autograd.grad(out.mu.sum(), inputs, retain_graph=True)
    zeros = [torch.zeros_like(out.a), torch.ones_like(out.mu), torch.zeros_like(out.sig2)]
    assert all(torch.equal(*pair) for pair in zip(some, torch.autograd.grad(out, inputs, zeros), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.mu.sum(), inputs)


def test_gradients_of_some_arguments(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    inputs["W"].requires_grad_(False)
    inputs["a_inp"].requires_grad_(False)
    out = route(**inputs, impl="triton")
    out.sig2.sum().backward()
    assert inputs["W"].grad is None
    assert inputs["B"].grad is not None
    assert machine.launched == len(machine.kernels)


def test_arguments_changed_in_between_are_noticed(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    out = route(**inputs, impl="triton")
    with torch.no_grad():
        inputs["W"].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.a.sum().backward()


def test_nothing_is_kept_where_no_gradient_is_wanted(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    with torch.no_grad():
        out = route(**inputs, impl="triton")
    with torch.inference_mode():
        route(**inputs, impl="triton")
    assert machine.launched == 2
    assert not out.mu.requires_grad


def test_second_derivatives_are_refused(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    out = route(**inputs, impl="triton")
    grads = torch.autograd.grad(out.mu.sum(), [inputs["W"]], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        grads[0].sum().backward()


def test_gradients_in_batches_of_the_old_kind_are_refused(machine: Machine) -> None:
    """As without `native.cpp`: their tensors have no memory to read."""
    inputs = make_inputs(SMALL)
    mu = route(**inputs, impl="triton").mu
    with pytest.raises(RuntimeError, match="storage"):
        torch.autograd.grad(mu, [inputs["W"]], torch.randn(3, *mu.shape), is_grads_batched=True)


def test_what_others_store_for_the_backward_pass(machine: Machine) -> None:
    inputs, packed = list(make_inputs(SMALL).values()), []
    plain = results(inputs, route(*inputs, impl="triton"))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t.clone()):
        out = route(*inputs, impl="triton")
    assert all(torch.equal(*pair) for pair in zip(plain, results(inputs, out), strict=True))
    assert len(packed) == 7  # six arguments, and what the forward pass keeps


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, at the first dual tensor
@pytest.mark.parametrize("unusual", ["captured", "dual", "subclass", "mode", "mapped"])
def test_python_does_what_is_not_plain(unusual: str, machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    route(**inputs, impl="triton")
    before = machine.launched
    if unusual == "captured":
        machine.capturing = 1
        route(**inputs, impl="triton").a.sum().backward()
    elif unusual == "dual":
        with torch.autograd.forward_ad.dual_level():
            a_inp = torch.autograd.forward_ad.make_dual(inputs.pop("a_inp"), torch.ones(SMALL.batch, SMALL.n_inp))
            with pytest.raises(RuntimeError, match="jvp"):
                route(a_inp=a_inp, **inputs, impl="triton")
    elif unusual == "subclass":
        route(**{name: t.as_subclass(Other) for name, t in inputs.items()}, impl="triton")
    elif unusual == "mode":
        with FakeTensorMode() as fake:
            out = route(**{name: fake.from_tensor(t) for name, t in inputs.items()}, impl="triton")
            assert out.a.shape == (SMALL.batch, SMALL.n_out)
    else:
        torch.vmap(lambda a: route(**inputs | {"a_inp": a}, impl="triton").a)(torch.stack([inputs["a_inp"]] * 2))
    assert machine.launched == before


class Other(Tensor):
    pass


def test_a_capture_that_begins_in_between(machine: Machine) -> None:
    inputs = list(make_inputs(SMALL).values())
    plain, out = results(inputs, route(*inputs, impl="triton")), route(*inputs, impl="triton")
    before, machine.capturing = machine.launched, 1
    assert all(torch.equal(*pair) for pair in zip(plain, results(inputs, out), strict=True))
    assert machine.launched == before


def test_a_launch_that_fails_says_so(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    out = route(**inputs, impl="triton")
    machine.error = 719
    for call in (lambda: route(**inputs, impl="triton"), out.a.sum().backward):
        with pytest.raises(RuntimeError, match="CUDA's error 719"):
            call()


OTHERS = {".u64": ".u32", ".param": ".param .u64 x, .param .u64 y, .param", ".entry": ".function"}


@pytest.mark.parametrize("what", OTHERS)
def test_kernels_that_take_other_arguments_are_left_to_python(
    what: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ptx
    monkeypatch.setattr(sys.modules[__name__], "ptx", lambda *args: before(*args).replace(what, OTHERS[what], 1))
    assert route(**make_inputs(SMALL), impl="triton").a.isfinite().all()
    assert machine.launched == 0
    assert machine.kernels


def test_shared_parameters_are_left_to_python(machine: Machine) -> None:
    inputs = make_inputs(SMALL)
    inputs["beta_use"] = inputs["beta_use"].detach()[:, :1].requires_grad_()
    route(**inputs, impl="triton").a.sum().backward()
    assert machine.launched == 0


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.NoNativeError, match="install g\\+\\+"):
        build.compiled(tmp_path)


def test_what_the_compiler_says_is_told_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("no C++")
    monkeypatch.setattr(build, "SOURCE", wrong)
    with pytest.raises(build.NoNativeError, match=r"failed: .*wrong\.cpp"):
        build.compiled(tmp_path / "folder")
    assert not [*(tmp_path / "folder").iterdir()]


def test_where_there_is_no_driver_python_serves() -> None:
    made = build.Build(kernels.python_backward)
    assert "libcuda" in made.wait()
    assert made.module is None


def ended(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that began to build and came to its end."""
    begin = "from capsroute.routing.triton import build\nbuild.addresses = lambda: []\n"
    settings: dict[str, Any] = {"env": os.environ | environment, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, "-c", begin + script], **settings, check=False)


def test_a_process_that_ends_stops_the_compiler_and_what_that_started(tmp_path: Path) -> None:
    compiler, began = tmp_path / "compiler", tmp_path / "began"
    compiler.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {began}.tmp\nmv {began}.tmp {began}\nwait\n")
    compiler.chmod(0o755)
    script = f"""
from pathlib import Path
from time import sleep
made = build.Build(print)
while not Path({str(began)!r}).exists():
    sleep(0.01)
"""
    folder, start = tmp_path / "cache", time.monotonic()
    done = ended(script, CXX=str(compiler), TRITON_CACHE_DIR=str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - start < 40
    assert not [*folder.iterdir()]
    command = Path("/proc", began.read_text().strip(), "cmdline")
    assert not (command.exists() and command.read_bytes())  # of a process that nobody asked after there is no command


def test_a_process_that_ends_waits_for_what_is_being_loaded() -> None:
    """Python would end the thread in the midst of C++, which aborts."""
    script = """
from time import sleep
build.compiled = lambda folder: folder
build.load = lambda file: [sleep(0.5), print("loaded")]
build.Build(print)
"""
    done = ended(script)
    assert (done.returncode, done.stdout) == (0, "loaded\n")
