"""The operator as PyTorch sees it: gradients, transforms, graphs, support; under the interpreter without a GPU."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from capsroute import Routing, route
from capsroute.routing import pick
from capsroute.routing.agreement import Quadratic
from capsroute.routing.triton import check_support
from capsroute.testing import SHAPES, Shape, make_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Shape(4, 3, 2, 1, 2, 1)
ONE_ITERATION = {"impl": "triton", "n_iters": 1}
"""As little as possible: interpreted iterations are slow."""
pytestmark = pytest.mark.usefixtures("watched")


def detached_inputs() -> dict[str, Tensor]:
    return {name: t.detach() for name, t in make_inputs(SMALL, device=DEVICE).items()}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("batch", [(), (2, 2), (0,)], ids=str)
def test_any_batch_axes(batch: tuple[int, ...]) -> None:
    """One node of the autograd graph each, so that no reshape is differentiated."""
    inputs = detached_inputs()
    for name in ("a_inp", "mu_inp"):
        inputs[name] = inputs[name][: torch.Size(batch).numel()].reshape(*batch, *inputs[name].shape[1:])
    found, expected = [{name: t.clone().requires_grad_() for name, t in inputs.items()} for _ in range(2)]
    out, exact = route(**found, **ONE_ITERATION), route(**expected, **ONE_ITERATION | {"impl": "reference"})
    assert out.mu.grad_fn is not None
    assert {type(node).__name__ for node, _ in out.mu.grad_fn.next_functions if node} == {"AccumulateGrad"}
    assert_same(tuple(out), tuple(exact))
    (out.mu.sum() + out.a.sum()).backward()  # no gradient of the variances
    (exact.mu.sum() + exact.a.sum()).backward()
    for name, t in found.items():
        assert_same(t.grad, expected[name].grad)


def test_gradients_of_some_outputs_and_arguments() -> None:
    inputs = make_inputs(SMALL, device=DEVICE)
    for name in ("W", "a_inp"):
        inputs[name].requires_grad_(False)
    leaves = [t for t in inputs.values() if t.requires_grad]
    out = route(**inputs, **ONE_ITERATION)
    some = torch.autograd.grad(out.mu.sum(), leaves, retain_graph=True)
    weights = [torch.zeros_like(out.a), torch.ones_like(out.mu), torch.zeros_like(out.sig2)]
    assert all(torch.equal(*pair) for pair in zip(some, torch.autograd.grad(out, leaves, weights), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.mu.sum(), leaves)


def test_arguments_changed_in_place_are_noticed() -> None:
    inputs = make_inputs(SMALL, device=DEVICE)
    out = route(**inputs, **ONE_ITERATION)
    with torch.no_grad():
        inputs["W"].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.a.sum().backward()


def test_without_gradients_nothing_is_saved() -> None:
    inputs, saved = make_inputs(SMALL, device=DEVICE), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        with torch.no_grad():
            assert not route(**inputs, **ONE_ITERATION).mu.requires_grad
        with torch.inference_mode():
            route(**inputs, **ONE_ITERATION)
        assert not saved
        out = route(**inputs, **ONE_ITERATION)
    assert len(saved) == 7  # six arguments and the workspace
    out.a.sum().backward()


def test_transforms() -> None:
    inputs = detached_inputs()
    a_inp, mu_inp = inputs.pop("a_inp"), inputs.pop("mu_inp")
    func = torch.func

    def mapped(impl: str, a: Tensor, mu: Tensor) -> tuple[Tensor, ...]:
        return tuple(route(a, mu, **inputs, **ONE_ITERATION | {"impl": impl}))

    def transformed(impl: str) -> list[Any]:
        return [
            func.vmap(lambda a, mu: mapped(impl, a, mu))(a_inp, mu_inp),
            func.vmap(lambda a: mapped(impl, a, mu_inp[0]), in_dims=1)(a_inp.mT),
            func.grad(lambda mu: mapped(impl, a_inp, mu)[1].sum())(mu_inp),
            func.vmap(func.grad(lambda a, mu: mapped(impl, a, mu)[2].sum(), (0, 1)))(a_inp, mu_inp),
            func.jacrev(lambda a: mapped(impl, a, mu_inp[0])[0])(a_inp[0]),
        ]

    for found, expected in zip(transformed("triton"), transformed("reference"), strict=True):
        assert_same(found, expected)


def test_batched_gradients() -> None:
    inputs = make_inputs(SMALL, device=DEVICE)
    out = route(**inputs, **ONE_ITERATION).a
    weights = torch.randn(2, *out.shape, device=DEVICE)

    def back(weight: Tensor, batched: bool = False) -> Tensor:
        (grad,) = torch.autograd.grad(out, inputs["W"], weight, retain_graph=True, is_grads_batched=batched)
        return grad

    expected = torch.stack([back(weight) for weight in weights])
    assert torch.equal(back(weights, batched=True), expected)
    assert torch.equal(torch.func.vmap(back)(weights), expected)


@pytest.mark.parametrize("names", [("mu_inp",), ("a_inp", "mu_inp", "W")], ids=str)
def test_second_derivatives_are_refused(names: tuple[str, ...]) -> None:
    inputs = detached_inputs()
    leaves = [inputs[name].requires_grad_() for name in names]
    first = torch.autograd.grad(route(**inputs, **ONE_ITERATION).a.sum(), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match="impl='moments' or 'reference'"):
        first[-1].sum().backward()


def test_second_derivatives_are_refused_under_transforms() -> None:
    inputs = detached_inputs()
    a_inp = inputs.pop("a_inp")

    def score(a: Tensor) -> Tensor:
        return route(a, **inputs, **ONE_ITERATION).a.sum()

    with pytest.raises(NotImplementedError, match="impl='moments' or 'reference'"):
        torch.func.grad(lambda a: torch.func.grad(score)(a).sum())(a_inp)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, at the first dual tensor
def test_forward_mode_is_refused() -> None:
    inputs = detached_inputs()
    with torch.autograd.forward_ad.dual_level():
        inputs["a_inp"] = torch.autograd.forward_ad.make_dual(inputs["a_inp"], torch.ones_like(inputs["a_inp"]))
        with pytest.raises(NotImplementedError, match="jvp"):
            route(**inputs, **ONE_ITERATION)


def test_fake_tensors_have_shapes_and_launch_nothing() -> None:
    with FakeTensorMode() as fake:
        inputs = {name: fake.from_tensor(t) for name, t in make_inputs(SMALL).items()}
        out = route(**inputs, impl="triton")
        grads = torch.autograd.grad(out, list(inputs.values()), [torch.ones_like(t) for t in out])
    assert [tuple(t.shape) for t in out] == [(4, 2), (4, 2, 1, 1), (4, 2, 1, 1)]
    assert [t.shape for t in grads] == [t.shape for t in inputs.values()]


@pytest.mark.parametrize("packed", [False, True])
def test_operators_are_registered_as_pytorch_expects(packed: bool) -> None:
    """Schemas, fake tensors, autograd, and graphs of both operators."""
    a_inp, mu_inp, *params = (t.clone().requires_grad_() for t in detached_inputs().values())
    offsets, lengths = None, (0, 0)
    if packed:
        a_inp, mu_inp = (t.flatten(0, 1).detach().requires_grad_() for t in (a_inp, mu_inp))
        offsets, lengths = torch.tensor([0, 5, 12], device=DEVICE), (5, 7)
    args = a_inp, mu_inp, offsets, *params, 1, True, 1e-5, *lengths
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills the padding of workspaces, which is compared too
    try:
        torch.library.opcheck(torch.ops.capsroute.route.default, args)
        *outs, saved = torch.ops.capsroute.route(*args)
        args = *[torch.ones_like(t) for t in outs], saved, *[t.detach() if torch.is_tensor(t) else t for t in args]
        torch.library.opcheck(torch.ops.capsroute.route_backward.default, args)
    finally:
        torch.use_deterministic_algorithms(False)


def test_exported_graphs_use_another_implementation() -> None:
    inputs = detached_inputs()
    layer = Routing(SMALL.d_cov, SMALL.d_inp, SMALL.d_out, n_out=SMALL.n_out, impl="triton").to(DEVICE)
    with pytest.raises(ValueError, match="exported graph"):
        torch.export.export(layer, (inputs["a_inp"], inputs["mu_inp"]))
    layer.impl = "auto"
    graph = torch.export.export(layer, (inputs["a_inp"], inputs["mu_inp"])).graph
    assert not any("capsroute" in str(node.target) for node in graph.nodes)


def test_auto_picks_it_on_a_gpu_alone() -> None:
    assert {pick(shape.case(device="cpu")) for shape in SHAPES.values()} <= {"reference", "moments", "blocked"}
    if DEVICE == "cuda":
        assert {pick(shape.case(device="cuda")) for shape in SHAPES.values()} == {"triton"}


class Flat(Quadratic):
    def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(sig2), sig2.sum((-2, -1))


def test_unsupported_cases_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(SMALL, device=DEVICE)
    with pytest.raises(ValueError, match="'flat' has no kernel"):
        route(**inputs, agreement=Flat(), impl="triton")
    with pytest.raises(ValueError, match="float64"):
        route(**{name: t.double() for name, t in inputs.items()}, impl="triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        route(**make_inputs(SMALL), eps=1e-4, impl="triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match="pip install"):
        route(**make_inputs(SMALL), eps=1e-3, impl="triton")


@pytest.mark.parametrize(("capability", "supported"), [((7, 5), False), ((8, 0), True)])
def test_old_gpus_are_refused(capability: tuple[int, int], supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert check_support("cuda") == ("" if supported else "the GPU's compute capability is (7, 5), below (8, 0)")


def test_layers_on_a_cpu_leave_cuda_alone() -> None:
    """Or a process that made one could not fork."""
    script = """
import torch

def refuse(*args):
    raise AssertionError("CUDA was initialised")

torch.cuda._lazy_init = torch._C._cuda_init = torch.cuda.is_available = torch.cuda.device_count = refuse
torch.cuda.get_device_capability = torch.cuda.get_device_properties = refuse
from capsroute import Routing
layer = Routing(2, 2, 2, n_out=3)
layer(torch.randn(2, 5), torch.randn(2, 5, 2, 2)).a.sum().backward()
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
