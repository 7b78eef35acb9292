"""Transforms of PyTorch: compile, export, ONNX, vmap, functional_call."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from capsroute import Capsules, Routing, route
from capsroute.nets import SmallNORB
from capsroute.testing import Shape, make_inputs
from impls import ANYWHERE

LAYERS = {
    "any inputs": {"d_cov": 4, "d_inp": 4, "d_out": 4, "n_out": 7},
    "any inputs, long vectors": {"d_cov": 1, "d_inp": 64, "d_out": 2, "n_out": 7},
    "fixed inputs": {"d_cov": 4, "d_inp": 4, "d_out": 4, "n_inp": 20, "n_out": 7},
    "kinds of inputs": {"d_cov": 4, "d_inp": 4, "d_out": 4, "n_out": 7, "n_kinds": 4},
}


def make_layer(name: str, **settings: Any) -> Routing:
    layer = Routing(**LAYERS[name], n_iters=2, **settings)  # every iteration adds seconds of tracing
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)
    return layer


def make_layer_inputs(layer: Routing, n_inp: int = 20, batch: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, n_inp), torch.randn(batch, n_inp, layer.d_cov, layer.d_inp)


def assert_close(found: Capsules, expected: Capsules, atol: float = 1e-4) -> None:
    for name, one, two in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", LAYERS)
def test_compile_full_graph_dynamic_inputs(name: str) -> None:
    layer = make_layer(name)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for n_inp in (20,) if layer.n_inp else (20, 32, 8) if layer.n_kinds > 1 else (20, 31, 8):
        inputs = make_layer_inputs(layer, n_inp)
        out = compiled(*inputs)
        assert_close(out, layer(*inputs))
        layer.zero_grad()
        out.mu.sum().backward()
        assert layer.W.grad is not None
        assert layer.W.grad.isfinite().all()


def test_compile_default_backend() -> None:
    layer = make_layer("any inputs")
    compiled = torch.compile(layer, fullgraph=True)
    inputs = make_layer_inputs(layer)
    assert_close(compiled(*inputs), layer(*inputs))


def test_compile_refuses_blocked() -> None:
    layer = make_layer("any inputs", impl="blocked")
    with pytest.raises(Exception, match="its loop over blocks cannot be captured"):
        torch.compile(layer, fullgraph=True, backend="eager")(*make_layer_inputs(layer))


@pytest.mark.parametrize("name", ["any inputs", "any inputs, long vectors", "kinds of inputs"])
def test_export_saved_and_loaded_with_dynamic_inputs(name: str, tmp_path: Path) -> None:
    layer = make_layer(name)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(layer, make_layer_inputs(layer), dynamic_shapes=(dynamic, dynamic))
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    for n_inp, batch in ((20, 3), (32, 5), (8, 2)) if layer.n_kinds > 1 else ((20, 3), (31, 5), (2, 2)):
        inputs = make_layer_inputs(layer, n_inp, batch)
        out = loaded(*inputs)
        assert isinstance(out, Capsules)
        assert_close(out, layer(*inputs))


def test_exported_network_saves_and_loads(tmp_path: Path) -> None:
    network, images = SmallNORB(n_parts=3, n_channels=4).eval(), torch.rand(2, 2, 32, 32)
    torch.export.save(torch.export.export(network, (images,)), tmp_path / "network.pt2")
    found = torch.export.load(tmp_path / "network.pt2").module()(images)
    assert_close(found, network(images))


@pytest.mark.parametrize("name", ["any inputs", "any inputs, long vectors"])
def test_onnx_names_and_dynamic_inputs(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = make_layer(name).eval()
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    path = tmp_path / "layer.onnx"
    names = {"input_names": ["a_inp", "mu_inp"], "output_names": list(Capsules._fields)}
    torch.onnx.export(
        layer, make_layer_inputs(layer), path, dynamo=True, dynamic_shapes=(dynamic, dynamic), verbose=False, **names
    )
    session = onnxruntime.InferenceSession(path)
    assert [output.name for output in session.get_outputs()] == ["a", "mu", "sig2"]
    for n_inp, batch in ((20, 3), (31, 5), (2, 2)):
        inputs = make_layer_inputs(layer, n_inp, batch)
        found = session.run(None, dict(zip(names["input_names"], (t.numpy() for t in inputs), strict=True)))
        assert_close(Capsules(*map(torch.from_numpy, found)), layer(*inputs))


@pytest.mark.parametrize("name", ["any inputs", "kinds of inputs"])
@pytest.mark.parametrize("impl", ANYWHERE)
def test_vmap_over_batch(impl: str, name: str) -> None:
    layer = make_layer(name, impl=impl)
    inputs = make_layer_inputs(layer)
    assert_close(vmap(layer)(*inputs), layer(*inputs), atol=1e-5)


@pytest.mark.parametrize("n_kinds", [1, 4])
@pytest.mark.parametrize("impl", ANYWHERE)
def test_vmap_over_gradients(impl: str, n_kinds: int) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(Shape(3, 20, 7, 2, 3, 4, n_kinds=n_kinds)).items()}

    def loss(W: Tensor, a_inp: Tensor, mu_inp: Tensor) -> Tensor:
        return route(**inputs | {"W": W, "a_inp": a_inp, "mu_inp": mu_inp}, impl=impl).mu.square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(inputs["W"], inputs["a_inp"], inputs["mu_inp"])
    for k in range(3):
        expected = grad(loss)(inputs["W"], inputs["a_inp"][k], inputs["mu_inp"][k])
        torch.testing.assert_close(found[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_functional_call_and_ensembles(impl: str) -> None:
    layers = [make_layer("any inputs", impl=impl) for _ in range(3)]
    inputs = make_layer_inputs(layers[0])
    for layer in layers:
        assert_close(functional_call(layers[0], dict(layer.named_parameters()), inputs), layer(*inputs), atol=1e-5)
    params, _ = torch.func.stack_module_state(layers)
    out = vmap(lambda p: functional_call(layers[0], p, inputs))(params)
    for k, layer in enumerate(layers):
        assert_close(Capsules(*(t[k] for t in out)), layer(*inputs), atol=1e-5)


@pytest.mark.parametrize(("impl", "n_inp"), [("auto", 4), ("auto", 400), ("reference", 4), ("moments", 4)])
def test_hessians_by_any_modes_agree(impl: str, n_inp: int) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(Shape(1, n_inp, 64, 1, 9, 2), dtype=torch.float64).items()}

    def loss(shift: Tensor) -> Tensor:
        return route(**inputs | {"mu_inp": inputs["mu_inp"] + shift}, impl=impl, eps=0.1).mu.square().sum()

    modes, zero = (torch.func.jacfwd, torch.func.jacrev), torch.zeros(9).double()
    first, *others = [outer(inner(loss))(zero) for outer in modes for inner in modes]
    for hessian in others:
        torch.testing.assert_close(hessian, first)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_activation_checkpointing_gives_equal_gradients(impl: str) -> None:
    inputs = make_inputs(Shape(2, 20, 7, 2, 3, 4))
    plain = torch.autograd.grad(route(**inputs, impl=impl).mu.sum(), inputs["W"])
    out = checkpoint(lambda *args: route(*args, impl=impl), *inputs.values(), use_reentrant=False)
    assert torch.equal(*torch.autograd.grad(out.mu.sum(), inputs["W"]), *plain)


@pytest.mark.parametrize("n_inp", [20, 888])
def test_gradient_penalties_of_any_size(n_inp: int) -> None:
    inputs = make_inputs(Shape(1, n_inp, 64, 1, 16, 2))
    (first,) = torch.autograd.grad(route(**inputs).mu.sum(), inputs["mu_inp"], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), inputs["W"])
    assert second.isfinite().all()
    assert second.any()
