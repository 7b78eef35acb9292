"""Arguments: what is refused gets an error that names the argument, what was expected and what came."""

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from capsroute import Routing, route
from capsroute.routing.agreement import Agreement, Gaussian, Quadratic
from capsroute.testing import Shape, make_inputs
from impls import ANYWHERE

SHAPE = Shape(2, 9, 5, 3, 4, 2, fixed_inp=True)


def changed(**changes: Callable[[Tensor], Any] | Any) -> dict[str, Any]:
    """Return valid arguments of `route` but for some changes: functions of the valid tensor, or other settings."""
    good = {name: t.detach() for name, t in make_inputs(SHAPE).items()}
    return good | {name: change(good[name]) if callable(change) else change for name, change in changes.items()}


BAD = {
    "a_inp is no tensor": (changed(a_inp=lambda t: t.tolist()), TypeError, "a_inp: expected a tensor, got list"),
    "W is None": (changed(W=None), TypeError, "W: expected a tensor, got NoneType"),
    "mu_inp is of integers": (changed(mu_inp=lambda t: t.long()), TypeError, "mu_inp: expected a floating.*int64"),
    "W is of integers": (changed(W=lambda t: t.int()), TypeError, "W: expected a floating.*int32"),
    "a_inp has no axis": (changed(a_inp=lambda t: t[0, 0]), ValueError, r"a_inp: expected \[..., i\], got shape \[\]"),
    "mu_inp of rank 2": (changed(mu_inp=lambda t: t[0, 0]), ValueError, r"mu_inp: expected .* got shape \[3, 4\]"),
    "W of rank 3": (changed(W=lambda t: t[0]), ValueError, r"W: expected \[k, j, d, h\], got shape \[5, 4, 2\]"),
    "B of rank 3": (changed(B=lambda t: t[0]), ValueError, r"B: expected \[k, j, c, h\], got shape \[5, 3, 2\]"),
    "beta of rank 1": (changed(beta_use=lambda t: t[0]), ValueError, r"beta_use: expected \[k, j\], got shape \[5\]"),
    "other batch axes": (changed(a_inp=lambda t: t[:1]), ValueError, r"a_inp: expected \[2, 9\].*got shape \[1, 9\]"),
    "other n_inp in a_inp": (changed(a_inp=lambda t: t[:, :8]), ValueError, r"a_inp: .*got shape \[2, 8\]"),
    "kinds that do not divide inputs": (
        changed(W=lambda t: t[:7]),
        ValueError,
        r"W: expected n_kinds to be a number that divides the 9 inputs of mu_inp, got shape \[7, 5, 4, 2\]",
    ),
    "other n_kinds in B": (
        changed(B=lambda t: t[:3]),
        ValueError,
        r"B: expected n_kinds of 1 or 9, as in the others, got shape \[3, 5, 3, 2\]",
    ),
    "other n_kinds in W": (changed(W=lambda t: t[:3]), ValueError, r"B: expected n_kinds of 1 or 3.*\[9, 5, 3, 2\]"),
    "no kinds": (changed(beta_use=lambda t: t[:0]), ValueError, r"beta_use: expected n_kinds of 1 or 9.*\[0, 5\]"),
    "other n_out in B": (changed(B=lambda t: t[:, :4]), ValueError, r"B: expected n_out of 1 or 5"),
    "other n_out in beta": (changed(beta_ign=lambda t: t[:, :4]), ValueError, r"beta_ign: expected n_out of 1 or 5"),
    "other d_inp": (changed(W=lambda t: t[:, :, :3]), ValueError, r"W: expected d_inp of 4.*\[9, 5, 3, 2\]"),
    "other d_cov": (changed(B=lambda t: t[:, :, :2]), ValueError, r"B: expected d_cov and d_out of \[3, 2\]"),
    "other d_out": (changed(B=lambda t: t[..., :1]), ValueError, r"B: expected d_cov and d_out of \[3, 2\]"),
    "no output": (
        changed(**dict.fromkeys(("W", "B", "beta_use", "beta_ign"), lambda t: t[:, :0])),
        ValueError,
        "expected n_out and d_out of at least 1",
    ),
    "other device": (changed(W=lambda t: t.to("meta")), ValueError, "W: expected on cpu.*got on meta"),
    "bias on another device": (changed(B=lambda t: t.to("meta")), ValueError, "B: expected on cpu"),
    "n_iters of zero": (changed(n_iters=0), ValueError, "n_iters: expected at least 1, got 0"),
    "n_iters of 2.5": (changed(n_iters=2.5), TypeError, "n_iters: expected an integer, got float"),
    "n_iters of 1.0": (changed(n_iters=1.0), TypeError, "n_iters: expected an integer, got float"),
    "n_iters of True": (changed(n_iters=True), TypeError, "n_iters: expected an integer, got bool"),
    "n_iters of a list": (changed(n_iters=[1]), TypeError, "n_iters: expected an integer, got list"),
    "eps of zero": (changed(eps=0.0), ValueError, "eps: expected a finite number above 0, got 0.0"),
    "eps below zero": (changed(eps=-1e-5), ValueError, "eps: expected a finite number above 0, got -1e-05"),
    "eps of nan": (changed(eps=float("nan")), ValueError, "eps: expected a finite number above 0, got nan"),
    "unknown agreement": (changed(agreement="cauchy"), ValueError, "agreement: expected .*gaussian.*got 'cauchy'"),
    "agreement is a number": (changed(agreement=3), TypeError, "agreement: expected a name or an Agreement, got int"),
    "agreement is a list": (changed(agreement=[]), TypeError, "agreement: expected a name or an Agreement, got list"),
    "unknown impl": (changed(impl="cuda"), ValueError, "impl: expected one of .*reference.*got 'cuda'"),
    "impl that cannot": (
        changed(impl="triton", W=Tensor.double),
        ValueError,
        "impl: expected .*, got 'triton': .*float64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_route_refuses(name: str) -> None:
    arguments, error, message = BAD[name]
    with pytest.raises(error, match=message):
        route(**arguments)


BAD_LAYERS = {
    "d_cov of zero": ((0, 4, 2), {}, ValueError, "d_cov: expected at least 1, got 0"),
    "n_out of zero": ((3, 4, 2), {"n_out": 0}, ValueError, "n_out: expected at least 1, got 0"),
    "n_inp below zero": ((3, 4, 2), {"n_inp": -1}, ValueError, "n_inp: expected at least 1, got -1"),
    "d_inp of 1.5": ((3, 1.5, 2), {}, TypeError, "d_inp: expected an integer, got float"),
    "no d_out": ((3, 4, None), {}, TypeError, "d_out: expected an integer, got NoneType"),
    "n_kinds of zero": ((3, 4, 2), {"n_kinds": 0}, ValueError, "n_kinds: expected at least 1, got 0"),
    "n_kinds of True": ((3, 4, 2), {"n_kinds": True}, TypeError, "n_kinds: expected an integer, got bool"),
    "n_kinds that do not divide n_inp": (
        (3, 4, 2),
        {"n_inp": 12, "n_kinds": 5},
        ValueError,
        "n_kinds: expected a number that divides n_inp, 12, got 5",
    ),
    "n_iters of zero": ((3, 4, 2), {"n_iters": 0}, ValueError, "n_iters: expected at least 1"),
    "eps of zero": ((3, 4, 2), {"eps": 0}, ValueError, "eps: expected a finite number above 0"),
    "unknown agreement": ((3, 4, 2), {"agreement": "x"}, ValueError, "agreement: expected .* got 'x'"),
    "unknown impl": ((3, 4, 2), {"impl": "x"}, ValueError, "impl: expected one of .* got 'x'"),
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_constructor_refuses(name: str) -> None:
    sizes, settings, error, message = BAD_LAYERS[name]
    with pytest.raises(error, match=message):
        Routing(*sizes, **settings)


A, MU = torch.zeros(2, 9), torch.zeros(2, 9, 3, 4)
FIXED, OPEN = {"n_inp": 9, "n_out": 5}, {}
BAD_CALLS = {
    "other n_inp": (
        FIXED,
        (A[:, 1:], MU[:, 1:]),
        {},
        ValueError,
        r"mu_inp: .*ending in \[9, 3, 4\], got .*\[2, 8, 3, 4\]",
    ),
    "other d_cov": (FIXED, (A, MU[:, :, 1:]), {}, ValueError, r"mu_inp: .*ending in \[9, 3, 4\]"),
    "other d_inp": (OPEN, (A, MU[..., 1:]), {}, ValueError, r"mu_inp: .*ending in \[9, 3, 4\]"),
    "no multiple of n_kinds": (
        {"n_kinds": 4},
        (A, MU),
        {},
        ValueError,
        r"mu_inp: expected as many inputs of each of 4 kinds, got shape \[2, 9, 3, 4\]",
    ),
    "wrong rank": (FIXED, (A, MU[0, 0]), {}, ValueError, r"mu_inp: expected \[..., n_inp, d_cov, d_inp\], got"),
    "a_inp is no tensor": (FIXED, (0.0, MU), {}, TypeError, "a_inp: expected a tensor, got float"),
    "batch axes": (FIXED, (A[:1], MU), {}, ValueError, r"a_inp: expected \[2, 9\]"),
    "integers": (FIXED, (A.int(), MU), {}, TypeError, "a_inp: expected a floating-point tensor .*got torch.int32"),
    "device": (FIXED, (A, MU.to("meta")), {}, ValueError, "a_inp: expected on meta"),
    "n_out given twice": (FIXED, (A, MU), {"n_out": 5}, ValueError, "n_out: expected none at the call.*fixes it at 5"),
    "n_out of zero": (OPEN, (A, MU), {"n_out": 0}, ValueError, "n_out: expected at least 1"),
    "n_out of 2.5": (OPEN, (A, MU), {"n_out": 2.5}, TypeError, "n_out: expected an integer, got float"),
    "n_out missing, no inputs": (
        OPEN,
        (A[:, :0], MU[:, :0]),
        {},
        ValueError,
        "n_out: expected a number where there are no inputs",
    ),
    "mask of fractions": (FIXED, (A, MU), {"mask": A + 0.5}, ValueError, "mask: expected 0 and 1, got 0.5"),
    "mask of other integers": (FIXED, (A, MU), {"mask": A.long() + 2}, ValueError, "mask: expected 0 and 1, got 2"),
    "mask of nan": (FIXED, (A, MU), {"mask": A + torch.nan}, ValueError, "mask: expected 0 and 1, got nan"),
    "mask of a list": (FIXED, (A, MU), {"mask": [True]}, TypeError, "mask: expected a tensor, got list"),
    "mask of another shape": (
        FIXED,
        (A, MU),
        {"mask": A[:1] > 0},
        ValueError,
        r"mask: expected shape \[2, 9\].*\[1, 9\]",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_call_refuses(name: str) -> None:
    sizes, arguments, settings, error, message = BAD_CALLS[name]
    layer = Routing(3, 4, 2, **sizes)
    for call in (layer, layer.trace):
        with pytest.raises(error, match=message):
            call(*arguments, **settings)


def nest(t: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([t, t], layout=torch.jagged)


WRONG = {
    "a list": Tensor.tolist,
    "an array": Tensor.numpy,
    "None": lambda t: None,
    "of integers": Tensor.long,
    "of bool": Tensor.bool,
    "complex": lambda t: t.to(torch.complex64),
    "of 8 bits": lambda t: t.to(torch.float8_e4m3fn),
    "sparse": Tensor.to_sparse,
    "nested": nest,
    "of no axis": Tensor.sum,
    "of one axis more": lambda t: t[..., None],
    "of other size": lambda t: torch.cat([t, t, t[..., :1, :], t[..., -2:, :]], -2),
    "elsewhere": lambda t: t.to("meta"),
}
BAD_SETTINGS = {
    "n_iters": (0, -1, 2.5, "3", None, True, [3], 3j, torch.tensor(3)),
    "eps": (
        0,
        -1e-5,
        "1e-5",
        None,
        True,
        [1e-5],
        1e-5j,
        torch.inf,
        torch.nan,
        torch.tensor(1e-5),
        10**400,
        Fraction(1, 9),
    ),
    "agreement": ("x", "", None, 3, True, Gaussian, ["gaussian"]),
    "impl": ("x", "", None, 3, True, ["auto"], {"auto"}, b"auto"),
}
BAD_SIZES = (0, -1, 2.5, "3", True, [3], 3j, np.float64(3), torch.tensor(3))
BAD_OWN = {
    **dict.fromkeys(("d_cov", "d_inp", "d_out"), (*BAD_SIZES, None)),
    **dict.fromkeys(("n_inp", "n_out", "n_kinds"), BAD_SIZES),
    "tie_betas": ("no", None, 1, [True]),
    "init": ("x", None, 3, ["paper"]),
    "beta_scale": (0, -1, "1", None, True, torch.inf, torch.nan),
}
BAD_OFFSETS = {
    "a list": [0, 9],
    "None": None,
    "of floats": torch.tensor([0.0, 9.0]),
    "complex": torch.tensor([0j, 9 + 0j]),
    "of bool": torch.tensor([False, True]),
    "sparse": torch.tensor([0, 9]).to_sparse(),
    "elsewhere": torch.tensor([0, 9], device="meta"),
    "of two axes": torch.tensor([[0, 9]]),
    "of nothing": torch.tensor([], dtype=torch.int64),
    "too long": torch.tensor([0, 10]),
    "late": torch.tensor([1, 9]),
    "descending": torch.tensor([0, 5, 3, 9]),
}
BAD_MASKS = {
    **{
        name: change(A) for name, change in WRONG.items() if name not in ("None", "of bool", "of integers", "of 8 bits")
    },
    "of halves": A + 0.5,
}


class Wrong(Agreement):
    """An agreement that returns something else."""

    def __init__(self, change: Callable[[Tensor], Any]):
        self.change = change

    def log_p(self, V: Tensor, mu: Tensor, sig2: Tensor) -> Any:
        return self.change(V)


WRONG_LOG_P = (
    *(Tensor.sum, Tensor.tolist, lambda V: None, lambda V: V, lambda V: V[..., 0], lambda V: V[..., 0, 0, 0]),
    *(lambda V: V[..., :1, :, 0, 0], lambda V: V[..., 0, 0].long(), lambda V: V[..., 0, 0].double()),
    *(lambda V: V[..., 0, 0].to_sparse(), lambda V: V[..., 0, 0].to("meta")),
)


class WrongWeights(Quadratic):
    """A quadratic agreement that returns something else."""

    def __init__(self, change: Callable[[Tensor], Any]):
        self.change = change

    def weights(self, sig2: Tensor) -> Any:
        return self.change(sig2)


WRONG_WEIGHTS = (
    *(lambda s: s, lambda s: None, lambda s: (s, s, s), lambda s: (s, s), lambda s: (s, 0.0), lambda s: (s[..., 0], s)),
    *(lambda s: (s[..., :1], s[..., 0, 0]), lambda s: (s.half(), s[..., 0, 0]), lambda s: (s.to("meta"), s[..., 0, 0])),
)


def list_unclear() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield names of arguments, what is wrong with them, and calls with them."""
    for name, (wrong, change) in product(changed(), WRONG.items()):
        if name != "mu_inp" or wrong not in ("of one axis more", "of other size", "elsewhere"):  # as said of others
            yield name, wrong, lambda name=name, change=change: route(**changed(**{name: change}))
    for name in BAD_SETTINGS:
        for value in BAD_SETTINGS[name]:
            yield name, f"{value!r}", lambda name=name, value=value: route(**changed() | {name: value})
    for name, values in (BAD_SETTINGS | BAD_OWN).items():
        for value in values:
            sizes = {"d_cov": 3, "d_inp": 4, "d_out": 2, name: value}
            yield name, f"{value!r} for a layer", lambda sizes=sizes: Routing(**sizes)
    layer = Routing(3, 4, 2)
    for value in BAD_SIZES:
        yield "n_out", f"{value!r} at the call", lambda value=value: layer(A, MU, n_out=value)
    for wrong, offsets in BAD_OFFSETS.items():
        yield "offsets", wrong, lambda offsets=offsets: layer.forward_packed(A[0], MU[0], offsets, n_out=5)
    for wrong, mask in BAD_MASKS.items():
        yield "mask", wrong, lambda mask=mask: layer(A, MU, mask=mask)
    for k, change in enumerate(WRONG_LOG_P):
        yield "agreement", f"log_p {k}", lambda change=change: route(**changed(), agreement=Wrong(change))
    for impl, (k, change) in product(ANYWHERE, enumerate(WRONG_WEIGHTS)):
        settings = {"agreement": WrongWeights(change), "impl": impl}
        yield "agreement", f"weights {k}, {impl}", lambda settings=settings: route(**changed(), **settings)


UNCLEAR = {f"{name}: {wrong}": (name, call) for name, wrong, call in list_unclear()}


@pytest.mark.parametrize("case", UNCLEAR)
def test_errors_name_argument_expected_and_given(case: str) -> None:
    name, call = UNCLEAR[case]
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected .*, got "):
        call()


def test_numpy_integers_are_sizes() -> None:
    layer = Routing(np.int64(3), np.int32(4), np.uint8(2), n_inp=np.int64(9), n_kinds=np.int64(3), n_iters=np.int64(2))
    assert repr(layer) == repr(Routing(3, 4, 2, n_inp=9, n_kinds=3, n_iters=2))
    assert layer(A, MU, n_out=np.int64(5)).a.shape == route(**changed(), n_iters=np.int64(2)).a.shape == (2, 5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_mask_of_any_dtype_equals_bool(dtype: torch.dtype) -> None:
    layer, mask = Routing(3, 4, 2, n_out=5), torch.rand(2, 9) > 0.4
    a_inp, mu_inp = torch.randn(2, 9), torch.randn(2, 9, 3, 4)
    for found, expected in zip(layer(a_inp, mu_inp, mask=mask.to(dtype)), layer(a_inp, mu_inp, mask=mask), strict=True):
        assert torch.equal(found, expected)


def test_mask_values_are_not_read_in_graphs_and_transforms() -> None:
    layer, mask = Routing(3, 4, 2, n_out=5), (torch.rand(2, 9) > 0.4).long()
    a_inp, mu_inp = torch.randn(2, 9), torch.randn(2, 9, 3, 4)
    expected = layer(a_inp, mu_inp, mask=mask).a
    call = lambda a, mu, mask: layer(a, mu, mask=mask).a  # noqa: E731
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(a_inp, mu_inp, mask), expected)
    torch.testing.assert_close(torch.func.vmap(call)(a_inp, mu_inp, mask), expected)
    assert layer.to("meta")(a_inp.to("meta"), mu_inp.to("meta"), mask=mask.to("meta")).a.shape == (2, 5)


def test_route_with_symbolic_sizes() -> None:
    one, other = ([t.detach() for t in make_inputs(replace(SHAPE, batch=b, fixed_inp=False)).values()] for b in (2, 4))
    traced = make_fx(lambda *args: tuple(route(*args)), tracing_mode="symbolic")(*one)
    for found, expected in zip(traced(*other), route(*other), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("impl", ANYWHERE)
def test_betas_per_input_without_inputs(impl: str) -> None:
    """One beta is shared, and the other has one number for each of no inputs."""
    inputs = make_inputs(replace(SHAPE, n_inp=0, fixed_inp=False))
    inputs["beta_ign"] = inputs["beta_ign"][:0]
    out = route(**inputs, impl=impl)
    assert not out.a.any()
    assert not out.mu.any()
    assert torch.equal(out.sig2, torch.full_like(out.sig2, 1e-5))


def test_agreement_is_called_and_not_held() -> None:
    class Counting(Gaussian):
        calls = 0

        def weights(self, sig2: Tensor) -> tuple[Tensor, Tensor]:
            self.calls += 1
            return super().weights(sig2)

    inputs, mine = make_inputs(SHAPE), [Counting(), Counting()]
    for agreement in mine:
        route(**inputs, agreement=agreement, impl="reference")
        layer = Routing(3, 4, 2, n_out=5, agreement=agreement, impl="reference")
        layer(A, MU)
        layer.trace(A, MU)
    assert [agreement.calls for agreement in mine] == [6, 6]
    del layer
    held = weakref.ref(mine.pop())
    del agreement
    gc.collect()
    assert held() is None
