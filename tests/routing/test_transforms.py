"""What PyTorch does to modules: compile, export, ONNX, vmap, functional_call."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from capsroute import Capsules, Routing, route
from capsroute.testing import Shape, make_inputs
from impls import ANYWHERE

LAYERS = {
    "any inputs": {"d_cov": 4, "d_inp": 4, "d_out": 4, "n_out": 7},
    "any inputs, long vectors": {"d_cov": 1, "d_inp": 64, "d_out": 2, "n_out": 7},
    "fixed inputs": {"d_cov": 4, "d_inp": 4, "d_out": 4, "n_inp": 20, "n_out": 7},
}


def made(name: str, **settings: str) -> Routing:
    layer = Routing(**LAYERS[name], **settings)  # pyright: ignore[reportArgumentType]
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)
    return layer


def inputs_of(layer: Routing, n_inp: int = 20, batch: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, n_inp), torch.randn(batch, n_inp, layer.d_cov, layer.d_inp)


def assert_close(found: Capsules, expected: Capsules, atol: float = 1e-4) -> None:
    for name, one, two in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", LAYERS)
def test_compile_as_one_graph_for_any_number_of_inputs(name: str) -> None:
    layer = made(name)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for n_inp in (20, 31, 8) if layer.n_inp is None else (20,):
        inputs = inputs_of(layer, n_inp)
        out = compiled(*inputs)
        assert_close(out, layer(*inputs))
        layer.zero_grad()
        out.mu.sum().backward()
        assert layer.W.grad is not None
        assert layer.W.grad.isfinite().all()


def test_compile_with_the_default_backend() -> None:
    layer = made("any inputs")
    compiled = torch.compile(layer, fullgraph=True)
    inputs = inputs_of(layer)
    assert_close(compiled(*inputs), layer(*inputs))


def test_compile_refuses_blocked_with_the_reason() -> None:
    layer = made("any inputs", impl="blocked")
    with pytest.raises(Exception, match="its loop over blocks cannot be captured"):
        torch.compile(layer, fullgraph=True, backend="eager")(*inputs_of(layer))


@pytest.mark.parametrize("name", ["any inputs", "any inputs, long vectors"])
def test_export_with_any_number_of_inputs(name: str) -> None:
    layer = made(name)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(layer, inputs_of(layer), dynamic_shapes=(dynamic, dynamic))
    for n_inp, batch in ((20, 3), (31, 5), (2, 2)):
        inputs = inputs_of(layer, n_inp, batch)
        assert_close(Capsules(*program.module()(*inputs)), layer(*inputs))


@pytest.mark.parametrize("name", ["any inputs", "any inputs, long vectors"])
def test_onnx_with_any_number_of_inputs(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = made(name).eval()
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    path = tmp_path / "layer.onnx"
    names = {"input_names": ["a_inp", "mu_inp"], "output_names": ["a", "mu", "sig2"]}
    torch.onnx.export(
        layer, inputs_of(layer), path, dynamo=True, dynamic_shapes=(dynamic, dynamic), verbose=False, **names
    )
    session = onnxruntime.InferenceSession(path)
    for n_inp, batch in ((20, 3), (31, 5), (2, 2)):
        inputs = inputs_of(layer, n_inp, batch)
        found = session.run(None, dict(zip(names["input_names"], (t.numpy() for t in inputs), strict=True)))
        assert_close(Capsules(*map(torch.from_numpy, found)), layer(*inputs))


@pytest.mark.parametrize("impl", ANYWHERE)
def test_vmap_over_the_batch(impl: str) -> None:
    layer = made("any inputs", impl=impl)
    inputs = inputs_of(layer)
    assert_close(vmap(layer)(*inputs), layer(*inputs), atol=1e-5)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_vmap_over_gradients_of_each_sample(impl: str) -> None:
    inputs = {name: t.detach() for name, t in make_inputs(Shape(3, 20, 7, 2, 3, 4)).items()}

    def loss(W: Tensor, a_inp: Tensor, mu_inp: Tensor) -> Tensor:
        return route(**inputs | {"W": W, "a_inp": a_inp, "mu_inp": mu_inp}, impl=impl).mu.square().sum()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(inputs["W"], inputs["a_inp"], inputs["mu_inp"])
    for k in range(3):
        expected = grad(loss)(inputs["W"], inputs["a_inp"][k], inputs["mu_inp"][k])
        torch.testing.assert_close(found[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_functional_call_and_ensembles(impl: str) -> None:
    layers = [made("any inputs", impl=impl) for _ in range(3)]
    inputs = inputs_of(layers[0])
    for layer in layers:
        assert_close(functional_call(layers[0], dict(layer.named_parameters()), inputs), layer(*inputs), atol=1e-5)
    params, _ = torch.func.stack_module_state(layers)
    out = vmap(lambda p: functional_call(layers[0], p, inputs))(params)
    for k, layer in enumerate(layers):
        assert_close(Capsules(*(t[k] for t in out)), layer(*inputs), atol=1e-5)
