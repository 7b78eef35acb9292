"""Packed samples: each is routed as if alone, by every implementation."""

import pytest
import torch
from torch import Tensor

from capsroute import Routing
from capsroute.routing import IMPLS, Capsules, api, reference
from capsroute.routing.packing import group_samples
from impls import ANYWHERE

LENGTHS = [5, 1, 0, 17, 8, 9, 1, 3]


def packed(lengths: list[int], d_cov: int, d_inp: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a_inp = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    mu_inp = torch.randn(sum(lengths), d_cov, d_inp, generator=generator, dtype=torch.float64)
    return a_inp.requires_grad_(), mu_inp.requires_grad_(), torch.tensor([0, *lengths]).cumsum(0)


def layer(impl: str, **sizes: int) -> Routing:
    torch.manual_seed(0)
    made = Routing(**({"d_cov": 2, "d_inp": 3, "d_out": 4, "n_out": 6} | sizes), impl=impl).double()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return made


@pytest.mark.parametrize("n_kinds", [1, 3])
@pytest.mark.parametrize("impl", ["auto", *ANYWHERE])
def test_samples_match_unpacked(impl: str, n_kinds: int) -> None:
    """Each with its own number of places for the kinds of inputs."""
    lengths = [n_kinds * n for n in LENGTHS]
    a_inp, mu_inp, offsets = packed(lengths, 2, 3)
    routing = layer(impl, n_kinds=n_kinds)
    together = routing.forward_packed(a_inp, mu_inp, offsets)
    assert together.a.shape == (8, 6)
    assert together.mu.shape == together.sig2.shape == (8, 6, 2, 4)
    weight = torch.randn_like(together.mu)
    grads = torch.autograd.grad((together.mu * weight).sum() + together.a.sum(), (a_inp, mu_inp, routing.W))
    alone = [routing(a, x) for a, x in zip(a_inp.split(lengths), mu_inp.split(lengths), strict=True)]
    for name in ("a", "mu", "sig2"):
        expected = torch.stack([getattr(one, name) for one in alone])
        torch.testing.assert_close(getattr(together, name), expected, rtol=1e-9, atol=1e-11)
    loss = sum((one.mu * w).sum() + one.a.sum() for one, w in zip(alone, weight, strict=True))
    for one, expected in zip(grads, torch.autograd.grad(loss, (a_inp, mu_inp, routing.W)), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-8, atol=1e-9)


def test_samples_are_independent() -> None:
    a_inp, mu_inp, offsets = packed([4, 6], 2, 3)
    other = mu_inp.detach().clone()
    other[4:] = 1e30
    routing = layer("auto")
    first = [routing.forward_packed(a_inp, x, offsets).mu[0] for x in (mu_inp, other)]
    torch.testing.assert_close(*first, rtol=0, atol=0)


@pytest.mark.parametrize("n_kinds", [1, 4])
def test_groups_have_little_padding(n_kinds: int) -> None:
    lengths = [n_kinds * n for n in (1, 2, 3, 5, 9, 100, 120, 64, 65, 0, 7)]
    groups = group_samples(torch.tensor(lengths), n_kinds, torch.device("cpu"))
    assert sorted(int(s) for g in groups for s in g.samples) == list(range(len(lengths)))
    assert sum(g.mask.sum() for g in groups) == sum(lengths)
    assert all(g.mask.float().mean() > 0.5 for g in groups if g.mask.numel())
    inputs = torch.cat([g.inputs[g.mask] for g in groups]).sort().values
    assert inputs.tolist() == list(range(sum(lengths)))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3]])
def test_empty_and_few_samples(lengths: list[int]) -> None:
    a_inp, mu_inp, offsets = packed(lengths, 2, 3)
    out = layer("auto").forward_packed(a_inp, mu_inp, offsets)
    assert out.mu.shape == (len(lengths), 6, 2, 4)
    assert all(t.isfinite().all() for t in out)


def test_open_outputs_need_n_out() -> None:
    a_inp, mu_inp, offsets = packed([4, 6], 2, 3)
    routing = Routing(2, 3, 4).double()
    assert routing.forward_packed(a_inp, mu_inp, offsets, n_out=5).a.shape == (2, 5)
    with pytest.raises(ValueError, match="n_out: expected a number for all samples"):
        routing.forward_packed(a_inp, mu_inp, offsets)


def test_fixed_inputs_are_refused() -> None:
    a_inp, mu_inp, offsets = packed([4, 4], 2, 3)
    with pytest.raises(ValueError, match="n_inp: expected a layer that leaves it open"):
        layer("auto", n_inp=4).forward_packed(a_inp, mu_inp, offsets)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (torch.tensor([0.0, 10.0]), "offsets: expected a tensor of integers"),
        ([0, 10], "offsets: expected a tensor, got list"),
        (torch.tensor([[0, 10]]), r"offsets: expected \[samples \+ 1\]"),
        (torch.tensor([], dtype=torch.long), r"offsets: expected \[samples \+ 1\]"),
        (torch.tensor([0, 9]), "offsets: expected 0 to 10, the number of inputs, got 0 to 9"),
        (torch.tensor([1, 10]), "offsets: expected 0 to 10"),
        (torch.tensor([0, 7, 5, 10]), "offsets: expected them in ascending order"),
    ],
)
def test_wrong_offsets_are_refused(offsets: Tensor, message: str) -> None:
    a_inp, mu_inp, _ = packed([10], 2, 3)
    with pytest.raises((ValueError, TypeError), match=message):
        layer("auto").forward_packed(a_inp, mu_inp, offsets)


def test_samples_with_more_of_one_kind_are_refused() -> None:
    a_inp, mu_inp, offsets = packed([6, 4, 5], 2, 3)
    with pytest.raises(ValueError, match="offsets: expected multiples of 3 kinds of inputs, got a sample of 4"):
        layer("auto", n_kinds=3).forward_packed(a_inp, mu_inp, offsets)


def test_wrong_shapes_are_refused() -> None:
    a_inp, mu_inp, offsets = packed([4, 6], 2, 3)
    with pytest.raises(ValueError, match=r"a_inp: expected \[total\], got shape \[9\]"):
        layer("auto").forward_packed(a_inp[:9], mu_inp, offsets)
    with pytest.raises(ValueError, match=r"mu_inp: expected \[total, d_cov, d_inp\], got shape \[1, 10, 2, 3\]"):
        layer("auto").forward_packed(a_inp, mu_inp[None], offsets)


def test_kernels_get_offsets_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 64-bit integers, which kernels read."""
    seen: list[Tensor] = []

    def route_kernel(a_inp: Tensor, mu_inp: Tensor, offsets: Tensor, *_: object) -> Capsules:
        seen.append(offsets)
        return Capsules(a_inp, mu_inp, mu_inp)

    spy = api.Impl(lambda case: [], reference.route, takes_any_dtype=True, route_packed=route_kernel)
    monkeypatch.setitem(IMPLS, "triton", spy)
    a_inp, mu_inp = torch.empty(9, device="meta"), torch.empty(9, 2, 3, device="meta")
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    Routing(2, 3, 2, n_out=4, impl="triton").to("meta").forward_packed(a_inp, mu_inp, offsets)
    assert [(t.device.type, t.dtype) for t in seen] == [("meta", torch.int64)]
