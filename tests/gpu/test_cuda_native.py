"""Plain calls without Python on a GPU: the same bits as by Python, on any stream and thread, and beside graphs."""

import sys
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from capsroute import route
from capsroute.routing import triton as kernels
from capsroute.routing.api import route_packed
from capsroute.testing import Shape, make_inputs

sys.path.insert(0, "benchmarks")
from every_form import BY_MOMENTS, BY_VOTES, ENDS, PACKED, enough  # pyright: ignore

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SHAPE = Shape(2, 700, 7, 1, 5, 6)
Results = tuple[Tensor, ...]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each call went without Python; before anything else, wait until that is possible."""
    from capsroute.routing.triton import native

    assert kernels.ready() == ""
    kernels.settled.cache_clear()
    told, before = [], native.Kernels.direct

    def watched(self: Any, inputs: Any) -> Any:
        found = before(self, inputs)
        told.append(found is not None)
        return found

    monkeypatch.setattr(native.Kernels, "direct", watched)
    yield told
    torch.cuda.synchronize()


def both(inputs: list[Tensor]) -> Results:
    """Of what is returned nothing holds on to the stream it was computed on."""
    out = route(*inputs, impl="triton")
    return *[t.detach() for t in out], *torch.autograd.grad(out, inputs, [t.sin() + 1 for t in out])


def same(one: Results, two: Results) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, two, strict=True))


def compare(call: Callable[[], Results], told: list[bool]) -> None:
    """First launches are Python's, in the backward pass too."""
    results = [call() for _ in range(4)]
    assert told == [False, False, True, True]
    assert all(same(results[0], one) for one in results)


@pytest.mark.parametrize("form", BY_VOTES | BY_MOMENTS)
def test_the_same_bits(form: str, direct: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    if form in BY_MOMENTS:
        monkeypatch.setattr(kernels, "ENOUGH", enough(form))
    inputs = list(make_inputs((BY_VOTES | BY_MOMENTS)[form], device="cuda").values())
    compare(lambda: both(inputs), direct)


def test_the_same_bits_of_packed_samples(direct: list[bool]) -> None:
    a_inp, mu_inp, *params = make_inputs(PACKED, device="cuda").values()
    inputs, ends = [*(t[0].detach().requires_grad_() for t in (a_inp, mu_inp)), *params], torch.tensor(ENDS).cuda()

    def call() -> Results:
        out = route_packed(*inputs[:2], ends, *params, impl="triton")
        return *out, *torch.autograd.grad(out, inputs, [t.sin() + 1 for t in out])

    compare(call, direct)


def test_the_same_bits_of_half_precision(direct: list[bool]) -> None:
    inputs = list(make_inputs(SHAPE, device="cuda").values())
    inputs[:2] = [t.detach().bfloat16().requires_grad_() for t in inputs[:2]]
    compare(lambda: both(inputs), direct)


def test_inference_alone(direct: list[bool]) -> None:
    inputs = make_inputs(SHAPE, device="cuda")
    with torch.no_grad():
        results = [route(**inputs, impl="triton") for _ in range(4)]
    assert direct == [False, False, True, True]
    assert all(same(results[0], one) for one in results)


def test_gradients_that_are_wanted_later(direct: list[bool]) -> None:
    """Where only the forward pass was known, Python has the first two backward passes."""
    inputs = list(make_inputs(SHAPE, device="cuda").values())
    with torch.no_grad():
        for _ in range(3):
            route(*inputs, impl="triton")
    results = [both(inputs) for _ in range(4)]
    assert direct == [False, False] + [True] * 5
    assert all(same(results[0], one) for one in results)


def test_on_other_streams(direct: list[bool]) -> None:
    inputs = list(make_inputs(SHAPE, device="cuda").values())
    expected = [both(inputs) for _ in range(3)][-1]
    found, streams = [], [torch.cuda.Stream() for _ in range(3)]
    for _ in range(20):
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append(both(inputs))
    torch.cuda.synchronize()
    assert all(direct[2:])
    assert all(same(expected, one) for one in found)


def test_in_other_threads(direct: list[bool]) -> None:
    """The first thing a thread does on the GPU may be to route."""
    inputs = list(make_inputs(SHAPE, device="cuda").values())
    expected, found = [both(inputs) for _ in range(3)][-1], []

    def work() -> None:
        found.extend(both(inputs) for _ in range(20))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(found) == 80
    assert all(same(expected, one) for one in found)
    assert sum(direct) >= 70


@pytest.mark.parametrize("form", ["shared weights", "moments"])
def test_beside_graphs(form: str, direct: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured is Python's; calls before, in between and after are not."""
    if form in BY_MOMENTS:
        monkeypatch.setattr(kernels, "ENOUGH", enough(form))
    inputs = list(make_inputs((BY_VOTES | BY_MOMENTS)[form], device="cuda").values())
    expected = [both(inputs) for _ in range(3)][-1]
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both(inputs)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = both(inputs)
    assert direct[-2:] == [True, False]
    for _ in range(5):
        graph.replay()
        assert same(expected, captured)
        assert same(expected, both(inputs))
    assert direct[-1]


def test_in_the_callers_thread(direct: list[bool]) -> None:
    inputs = list(make_inputs(SHAPE, device="cuda").values())
    with torch.autograd.set_multithreading_enabled(False):
        compare(lambda: both(inputs), direct)
