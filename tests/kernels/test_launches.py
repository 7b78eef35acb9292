"""How kernels are launched and what they get, without a GPU: a stand-in for a kernel takes down its calls."""

import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from capsroute import route
from capsroute.routing.triton import grid, launch
from capsroute.routing.triton.launch import At, Launch, Pass
from capsroute.routing.triton.workspace import ALIGNED, Layout, Piece
from capsroute.testing import Shape, make_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOP = -(2**31)
SMALL = Shape(4, 3, 2, 1, 2, 1)
ONCE = {"impl": "triton", "n_iters": 1}
"""As little as shows it: without a GPU an iteration takes a second."""


class Pair(NamedTuple):
    one: Any
    two: Any


LAYOUT = Layout(
    Piece(torch.float32, 3, 5), Pair(Piece(torch.float64, 7), Piece(torch.float16, 0)), Piece(torch.int32, 1)
)


@triton.jit
def arrivals_kernel(p_out):
    pid = tl.program_id(0)
    tl.store(p_out + pid, grid.arrival(pid, tl.num_programs(0)))


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("start", [0, TOP])
def test_the_top_bit_flips_when_the_last_program_comes(n: int, start: int) -> None:
    steps = torch.zeros(n, dtype=torch.int32, device=DEVICE)
    arrivals_kernel[(n,)](steps)
    for order in itertools.permutations(steps.tolist()):
        count = torch.tensor(start, dtype=torch.int32)
        for step in order[:-1]:
            count += step
            assert (count ^ start) >= 0
        count += order[-1]
        assert (count ^ start) == TOP  # and nothing else is left in it


class Launcher:
    """Triton's, which hands its arguments on to a function in C, here one that takes them down."""

    as_one = False
    global_scratch_size = 0

    def __init__(self, told: list[Any]):
        self.told, self.launch = told, lambda *args: told.append(("direct", *args))

    def __call__(self, x: int, y: int, z: int, stream: Any, function: str, *args: Any) -> None:
        if self.global_scratch_size:
            self.told.append(("launcher", x, y, z, stream, function, *args))
        elif self.as_one:
            self.launch(x, y, z, stream, function, "more", *args[:4], args[4:])
        else:
            self.launch(x, y, z, stream, function, "more", *args)


class AsOne(Launcher):
    as_one = True


class WithScratch(Launcher):
    global_scratch_size = 16


class Kernel:
    """Takes down how it was compiled and launched."""

    def __init__(self, launcher: type[Launcher] = Launcher) -> None:
        self.compiled, self.told = [], []
        self.function, self.packed_metadata, self.run = "function", "metadata", launcher(self.told)

    def warmup(self, *args: Any, grid: Any, **options: Any) -> "Kernel":
        self.compiled.append((grid, args, options))
        return self

    def __getitem__(self, size: Any) -> Any:
        return lambda *args: self.told.append(("plain", *size, *args))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As if there were one; what is said of it here can be changed."""
    told = SimpleNamespace(capturing=False, stream=7)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: told.stream))
    monkeypatch.setattr(launch, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=driver)))
    for module in (grid, launch):
        monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(launch, "COMPILED", {})
    monkeypatch.setattr(grid, "COUNTERS", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # where tensors of the CPU are
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: told.capturing)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    return told


def one_launch(kernel: Kernel, n_programs: int = 50, **options: Any) -> Pass:
    """Of a kernel that gets a tensor, a number and the pieces of a room."""
    return Pass([None, LAYOUT], [Launch(kernel, n_programs, 8, "key", At(0), 5, At(1), At(2), At(3), **options)])


ABOUT = "function", "more", "metadata", None, None, None


def test_a_kernel_is_compiled_once_and_then_launched_with_addresses(gpu: SimpleNamespace) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    room = LAYOUT.make(x)
    for run in (one_launch(kernel, together=True), one_launch(kernel, 20, together=True)):
        run.start([x, room])
    ((size, args, options),) = kernel.compiled
    assert size == (50, 1, 1)
    assert options == {"num_warps": 8, "num_stages": 1, "launch_cooperative_grid": True}
    assert [type(arg) for arg in args] == [torch.Tensor, int, torch.Tensor, Pair, torch.Tensor]
    given = x.data_ptr(), 5, *LAYOUT.pieces(room.data_ptr())
    assert kernel.told == [("direct", n, 1, 1, 7, *ABOUT, *given) for n in (50, 20)]


def test_calls_are_put_together_anew_where_memory_or_the_stream_is_another(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x, other = Kernel(), torch.zeros(3), torch.zeros(3)
    room, run, made = LAYOUT.make(x), one_launch(kernel), []
    calls = run.calls
    monkeypatch.setattr(run, "calls", lambda *args: made.append(args) or calls(*args))
    for t, stream in ((x, 7), (x, 7), (other, 7), (x, 7), (other, 8), (other, 8)):
        gpu.stream = stream
        run.start([t, room])
        assert kernel.told[-1][4] == stream
        assert kernel.told[-1][11] == t.data_ptr()
    assert len(made) == 3
    rooms = [LAYOUT.make(x) for _ in range(9)]
    for one in rooms:
        run.start([x, one])
    assert len(run.known) <= launch.MOST_CALLS


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (Launcher, ("direct", 50, 1, 1, 7, *ABOUT)),
        (AsOne, ("direct", 50, 1, 1, 7, *ABOUT)),
        (WithScratch, ("launcher", 50, 1, 1, 7, "function", "metadata", None, None, None)),
    ],
)
def test_what_lies_below_the_launcher_is_called_where_it_may(
    gpu: SimpleNamespace, launcher: type[Launcher], expected: tuple[Any, ...]
) -> None:
    kernel, x = Kernel(launcher), torch.zeros(3)
    room = LAYOUT.make(x)
    one_launch(kernel).start([x, room])
    given = x.data_ptr(), 5, *LAYOUT.pieces(room.data_ptr())
    assert kernel.told == [(*expected, given) if launcher is AsOne else (*expected, *given)]


def test_a_profiler_is_told_of_launches(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    run, tensors = one_launch(kernel), [x, LAYOUT.make(x)]
    for hook in (None, print, None):
        monkeypatch.setattr(launch.knobs.runtime, "launch_enter_hook", hook)
        run.start(tensors)
    assert [how for how, *_ in kernel.told] == ["direct", "plain", "direct"]
    assert kernel.told[1][4:] == kernel.told[0][11:]


def test_a_kernel_of_another_version_is_launched_as_its_version_does(gpu: SimpleNamespace) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    del kernel.packed_metadata
    one_launch(kernel).start([x, LAYOUT.make(x)])
    assert kernel.told[0][:5] == ("plain", 50, 1, 1, x.data_ptr())


def test_each_stream_keeps_a_counter_and_each_graph_has_its_own(gpu: SimpleNamespace) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    run = Pass([None, None], [Launch(kernel, 10, 8, "key", At(0), 0, 4, At(1), together=True)])

    def counter() -> int:
        grid.run_phases(run, 4, [x])
        *_, count, first, last, address = kernel.told[-1]
        assert (first, last, address) == (0, 4, x.data_ptr())
        return count

    grid.keep_counter(x)
    kept = counter()
    assert kept == grid.COUNTERS[None, 7].data_ptr()
    grid.keep_counter(x)
    assert counter() == kept
    gpu.capturing = True
    assert counter() != kept
    gpu.stream = 8
    grid.keep_counter(x)  # not while a graph is captured, whose memory it would be
    assert (None, 8) not in grid.COUNTERS
    assert counter() != kept  # but there is one
    gpu.capturing = False
    grid.keep_counter(x)
    assert counter() == counter() == grid.COUNTERS[None, 8].data_ptr() != kept
    gpu.stream = 7
    assert counter() == kept


def test_pieces_of_a_room_are_apart_and_aligned() -> None:
    room = LAYOUT.make(torch.zeros(1)).zero_()
    first, pair, last = LAYOUT.pieces(room)
    assert isinstance(pair, Pair)
    whole = [first, *pair, last]
    assert [(t.dtype, tuple(t.shape)) for t in whole] == [
        (torch.float32, (3, 5)), (torch.float64, (7,)), (torch.float16, (0,)), (torch.int32, (1,)),
    ]  # fmt: skip
    for k, t in enumerate(whole):
        t.fill_(k + 1)
    assert [set(t.flatten().tolist()) for t in whole] == [{1}, {2}, set(), {4}]
    addresses = LAYOUT.pieces(room.data_ptr())
    assert addresses[0] == first.data_ptr()
    assert addresses[1] == (pair.one.data_ptr(), addresses[2])  # nothing lies between: the other is empty
    assert addresses[2] == last.data_ptr()
    assert not (addresses[2] - addresses[0]) % ALIGNED


def test_tensors_that_a_kernel_gets_as_one() -> None:
    run = Pass([None, Pair, LAYOUT], [])
    one, *others = run.pieces([1, 2, 3, 0])
    assert one == 1
    assert others == [Pair(2, 3), *LAYOUT.pieces(0)]


@pytest.mark.parametrize("batch", [(), (2, 2), (0,)], ids=str)
def test_any_batch_axes_in_one_node_of_the_graph(batch: tuple[int, ...]) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SMALL, device=DEVICE).items()}
    for name in ("a_inp", "mu_inp"):
        inputs[name] = inputs[name][: torch.Size(batch).numel()].reshape(*batch, *inputs[name].shape[1:])
    found, expected = [{name: t.clone().requires_grad_() for name, t in inputs.items()} for _ in range(2)]
    out, exact = route(**found, **ONCE), route(**expected, **ONCE | {"impl": "reference"})
    assert out.mu.grad_fn is not None
    assert {type(node).__name__ for node, _ in out.mu.grad_fn.next_functions if node} == {"AccumulateGrad"}
    for one, two in zip(out, exact, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    (out.mu.sum() + out.a.sum()).backward()  # nothing comes back through the variances
    (exact.mu.sum() + exact.a.sum()).backward()
    for name, t in found.items():
        torch.testing.assert_close(t.grad, expected[name].grad, rtol=1e-3, atol=1e-4, msg=name)


def test_second_derivatives_of_one_argument_alone_are_refused_too() -> None:
    inputs = {name: t.detach() for name, t in make_inputs(SMALL, device=DEVICE).items()}
    mu_inp = inputs["mu_inp"].requires_grad_()
    first = torch.autograd.grad(route(**inputs, **ONCE).a.sum(), mu_inp, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        first.sum().backward()


def test_gradients_of_many_weights_at_once() -> None:
    inputs = make_inputs(SMALL, device=DEVICE)
    out = route(**inputs, **ONCE).a
    weights = torch.eye(out.numel(), device=DEVICE).view(-1, *out.shape)[:1]

    def back(weight: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(out, inputs["W"], weight, retain_graph=True)[0]

    for found, weight in zip(torch.func.vmap(back)(weights), weights, strict=True):
        torch.testing.assert_close(found, back(weight))
