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
from capsroute.routing.triton.room import ALIGNED, Layout, Piece, Room
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


class Kernel:
    """Takes down how it was launched, first through Triton, then directly."""

    def __init__(self) -> None:
        self.first, self.again = [], []
        self.function, self.packed_metadata = "function", "metadata"

    def __getitem__(self, size: Any) -> Any:
        def start(*args: Any, **options: Any) -> Any:
            self.first.append((size, args, options))
            return self

        return start

    def run(self, *args: Any) -> None:
        self.again.append(args)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As if there were one; what is said of it here can be changed."""
    told = SimpleNamespace(capturing=False, stream=7)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: told.stream))
    monkeypatch.setattr(launch, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=driver)))
    for module in (grid, launch):
        monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(launch, "LAUNCHES", {})
    monkeypatch.setattr(grid, "COUNTERS", {})
    monkeypatch.setattr(grid, "programs_at_once", lambda device, per_core: 100 * per_core)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # where tensors of the CPU are
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: told.capturing)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    return told


def test_a_kernel_is_compiled_once_and_then_launched_with_addresses(gpu: SimpleNamespace) -> None:
    kernel, x, room = Kernel(), torch.zeros(3), Room.make(LAYOUT, torch.zeros(1))
    for units in (50, 50, 50, 20):
        grid.run_phases(kernel, 4, units, x, 8, 1, "key", x, room, 5)
    (size, args, options), (other, *_) = kernel.first
    assert (size, other) == ((50, 1, 1), (20, 1, 1))
    assert options == {"num_warps": 8, "num_stages": 1, "launch_cooperative_grid": True}
    assert [type(arg) for arg in args] == [torch.Tensor, int, int, torch.Tensor, torch.Tensor, Pair, torch.Tensor, int]
    assert len(kernel.again) == 2
    assert kernel.again[0][:9] == (50, 1, 1, 7, "function", "metadata", None, None, None)
    _, first, last, one, *pieces, five = kernel.again[0][9:]
    assert (first, last, five) == (0, 4, 5)
    assert one is x
    assert pieces == room.addresses()


def test_a_profiler_is_told_of_launches(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    for hook in (None, print):
        monkeypatch.setattr(launch.knobs.runtime, "launch_enter_hook", hook)
        for _ in range(2):
            launch.launch(kernel, 3, x, 4, "key", x)
    assert len(kernel.again) == 1
    assert [options for _, _, options in kernel.first[1:]] == [{"stream": 7}] * 2


def test_a_kernel_of_another_version_is_launched_as_its_version_does(gpu: SimpleNamespace) -> None:
    kernel, x = Kernel(), torch.zeros(3)
    del kernel.packed_metadata
    for _ in range(2):
        launch.launch(kernel, 3, x, 4, "key", x)
    assert kernel.again == []
    assert kernel.first[1] == ((3, 1, 1), (x,), {"stream": 7})


def test_each_stream_keeps_a_counter_and_each_graph_has_its_own(gpu: SimpleNamespace) -> None:
    kernel, x = Kernel(), torch.zeros(3)

    def counter() -> torch.Tensor:
        grid.run_phases(kernel, 4, 10, x, 8, 1, "key", x)
        return kernel.again[-1][9] if kernel.again else kernel.first[-1][1][0]

    assert counter() is not counter()  # as long as none is kept
    grid.keep_counter(x)
    kept = counter()
    grid.keep_counter(x)
    assert counter() is kept
    gpu.capturing = True
    assert counter() is not kept
    gpu.stream = 8
    grid.keep_counter(x)  # not while a graph is captured, whose memory it would be
    assert counter() is not counter()
    gpu.capturing = False
    grid.keep_counter(x)
    assert counter() is counter()
    assert counter() is not kept
    gpu.stream = 7
    assert counter() is kept


def test_pieces_of_a_room_are_apart_and_aligned() -> None:
    room = Room.make(LAYOUT, torch.zeros(1), zero=True)
    first, pair, last = room.tensors()
    assert isinstance(pair, Pair)
    whole = [first, *pair, last]
    assert [(t.dtype, tuple(t.shape)) for t in whole] == [
        (torch.float32, (3, 5)), (torch.float64, (7,)), (torch.float16, (0,)), (torch.int32, (1,)),
    ]  # fmt: skip
    for k, t in enumerate(whole):
        t.fill_(k + 1)
    assert [set(t.flatten().tolist()) for t in whole] == [{1}, {2}, set(), {4}]
    addresses = room.addresses()
    assert addresses[0] == first.data_ptr()
    assert addresses[1] == (pair.one.data_ptr(), addresses[2])  # nothing lies between: the other is empty
    assert addresses[2] == last.data_ptr()
    assert not (addresses[2] - addresses[0]) % ALIGNED
    again, other = Room(LAYOUT.only(2, 0), room.base).tensors()
    assert torch.equal(again, last)
    assert torch.equal(other, first)
    assert Room(LAYOUT.only(2, 0), room.base).addresses() == [addresses[2], addresses[0]]


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
