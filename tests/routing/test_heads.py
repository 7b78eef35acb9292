"""The routing head: the features it takes, what it returns, and that it learns."""

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from capsroute import Capsules, RoutingHead
from capsroute.heads import EPS, SHARPNESS

D, CLASSES, KINDS, PARTS = 6, 3, 2, 5
"""Sizes of small heads."""


def make_head(**settings: Any) -> RoutingHead:
    """Return a small head in double precision, in which equal results differ by rounding far below the tolerance."""
    return RoutingHead(D, CLASSES, **{"n_parts": PARTS, "d_hidden": 8} | settings).double()


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def assert_equal(found: Capsules, expected: Capsules) -> None:
    for name, one, two in zip(expected._fields, found, expected, strict=True):
        torch.testing.assert_close(one, two, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (4, 7, D)),
        ({}, (7, D)),
        ({}, (2, 3, 4, 7, D)),
        ({}, (4, D, 5, 7)),
        ({"coordinates": True}, (4, D, 5, 7)),
        ({"n_kinds": KINDS}, (4, KINDS, 7, D)),
        ({"n_kinds": KINDS}, (KINDS, 7, D)),
    ],
)
def test_features_of_every_form(settings: dict[str, Any], shape: tuple[int, ...], layers: int) -> None:
    head = make_head(**settings, layers=layers, d_out=4, d_cov=2)
    out = head(features(*shape))
    batch = shape[:1] if len(shape) == 4 else shape[:-3] if "n_kinds" in settings else shape[:-2]
    assert isinstance(out, Capsules)
    assert [t.shape[len(batch) :] for t in out] == [(CLASSES,), (CLASSES, 2, 4), (CLASSES, 2, 4)]
    assert all(t.shape[: len(batch)] == batch for t in out)
    assert len(head.routings) == layers


def test_list_of_hidden_states_equals_their_stack() -> None:
    head, states = make_head(n_kinds=KINDS), [features(4, 7, D) for _ in range(KINDS)]
    mask = torch.rand(4, 7) < 0.7
    assert_equal(head(states, mask=mask), head(torch.stack(states, 1), mask=mask))
    assert_equal(head(tuple(states)), head(torch.stack(states, 1)))


@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_parts_by_hand(n_iters: int) -> None:
    """Places one by one, parts one by one, as docs/heads.md has it."""
    head, x = make_head(n_iters=n_iters), features(7, D)
    hidden, size = head.embed(x), 1 + 4  # a score, and a capsule of four numbers
    votes = head.describe(hidden).view(7, size, PARTS)
    fit = head.attend(hidden)
    shares, scale = fit.softmax(0), torch.ones(PARTS).double()
    for _ in range(n_iters - 1):
        log_R = fit.clone()
        for m in range(PARTS):
            mean = shares[:, m] @ votes[:, :, m]
            sig2 = shares[:, m] @ (votes[:, :, m] - mean) ** 2 + EPS
            log_R[:, m] += torch.distributions.Normal(mean, sig2.sqrt()).log_prob(votes[:, :, m]).sum(-1)
        none = math.log(PARTS) - size / 2 * math.log(2 * math.pi)  # as if in all parts, at means of votes of variance 1
        R = log_R.exp() / (log_R.exp().sum(1, keepdim=True) + math.exp(none))
        shares, scale = R / R.sum(0), 2 * R.sum(0) / (R.sum(0) + 7 / PARTS)
    found = scale * torch.einsum("nm,nvm->vm", shares, votes)
    a, mu, of_places = head.parts(x)
    torch.testing.assert_close(a, SHARPNESS * found[0])
    torch.testing.assert_close(mu[:, 0], found[1:].T)
    torch.testing.assert_close(of_places, shares.T)


def test_a_place_that_disagrees_counts_less() -> None:
    """Its share in a part is less than by attention, and less the further off it is."""
    head, x = make_head(n_parts=1), features(1, D).repeat(9, 1) + 0.1 * features(9, D)
    with torch.no_grad():
        head.attend.weight.zero_()  # all places fit alike: attention gives a ninth
    shares = []
    for distance in (0.0, 1.0, 2.0):
        x[0] = x[1] + distance * torch.ones(D)
        shares.append(head.parts(x)[2][0, 0].item())
    assert shares[0] > shares[1] > shares[2]
    assert shares[1] < 1 / 9


def test_kinds_are_told_apart() -> None:
    head, x = make_head(n_kinds=KINDS), features(4, KINDS, 7, D)
    assert head.kind_emb is not None
    nn.init.normal_(head.kind_emb)
    assert not torch.allclose(head.logits(x), head.logits(x.flip(1)))


def test_feature_map_equals_its_locations_as_places() -> None:
    head, x = make_head(), features(4, D, 5, 7)
    mask = torch.rand(4, 5, 7) < 0.7
    assert_equal(head(x, mask=mask), head(x.flatten(2).mT, mask=mask.flatten(1)))


def test_coordinates_tell_where() -> None:
    x = features(4, D, 5, 7)
    for coordinates in (False, True):
        head = make_head(coordinates=coordinates)
        assert torch.allclose(head.logits(x), head.logits(x.flip(-1))) != coordinates


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("n_kinds", [None, KINDS])
def test_mask_equals_absence(n_kinds: int | None, dtype: torch.dtype) -> None:
    head = make_head(n_kinds=n_kinds)
    x = features(2, *([n_kinds] if n_kinds else []), 7, D)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).to(dtype)
    x[0, ..., 4:, :] = torch.nan
    found = head(x, mask=mask)
    assert_equal(Capsules(*(t[0] for t in found)), head(x[0, ..., :4, :]))
    assert_equal(Capsules(*(t[1] for t in found)), head(x[1]))


@pytest.mark.parametrize("n_kinds", [None, KINDS])
def test_offsets_and_batch_equal_single_samples(n_kinds: int | None) -> None:
    head, kinds = make_head(n_kinds=n_kinds), [n_kinds] if n_kinds else []
    samples = [features(*kinds, n, D) for n in (4, 0, 7, 1)]
    x, sizes = torch.cat(samples, -2), torch.tensor([s.shape[-2] for s in samples])
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    found = head(x, offsets=offsets)
    assert_equal(found, head(x, batch=torch.arange(4).repeat_interleave(sizes)))
    if n_kinds:
        assert_equal(found, head(list(x), offsets=offsets))
    for k, sample in enumerate(samples):
        assert_equal(Capsules(*(t[k] for t in found)), head(sample))


def test_empty_graphs_at_the_end_of_a_batch() -> None:
    head, x = make_head(), features(5, D)
    batch = torch.tensor([1, 1, 1, 2, 2])
    found = head(x, batch=batch, n_samples=5)
    assert_equal(found, head(x, offsets=torch.tensor([0, 0, 3, 5, 5, 5])))
    assert head.logits(x, batch=batch).shape == (3, CLASSES)
    assert head.logits(x[:0], batch=batch[:0], n_samples=2).shape == (2, CLASSES)
    assert head.credit(x, batch=batch, n_samples=5).net.shape == (5, PARTS, 3, CLASSES)


@pytest.mark.parametrize("layers", [1, 2])
def test_empty_samples_are_finite(layers: int) -> None:
    head, x = make_head(layers=layers), features(2, 4, D).requires_grad_()
    out = head(x, mask=torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]]))
    assert all(t.isfinite().all() for t in (*out, *head(features(3, 0, D))))
    out.a.sum().backward()
    assert x.grad is not None
    assert x.grad[0].eq(0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())
    if layers == 1:
        assert out.a[0].eq(0).all()  # nothing to route


def test_noise_multiplies_features_of_all_places_alike_in_training() -> None:
    head, plain, x = make_head(n_kinds=KINDS, noise=0.5), make_head(n_kinds=KINDS), features(1, KINDS, 1, D)
    head.load_state_dict(plain.state_dict())
    assert_equal(head.eval()(x), plain(x))
    head.train()
    torch.manual_seed(0)
    found = head(x.expand(-1, -1, 7, -1))  # places that are alike stay so, and are as good as one
    assert (found.a - plain(x).a).abs().max() > 1e-3
    torch.manual_seed(0)
    assert_equal(head(x), found)


@pytest.mark.parametrize("layers", [1, 2])
def test_credit_sums_to_scores(layers: int) -> None:
    for settings, shape, axes in (
        ({}, (4, 7, D), (4, PARTS, 7, CLASSES)),
        ({}, (4, D, 5, 7), (4, PARTS, 5, 7, CLASSES)),
        ({"n_kinds": KINDS}, (4, KINDS, 7, D), (4, KINDS, PARTS, 7, CLASSES)),
    ):
        head, x = make_head(layers=layers, **settings), features(*shape)
        found = head.credit(x)
        assert found.net.shape == axes
        torch.testing.assert_close(found.net.flatten(1, -2).sum(1), head.logits(x))
        torch.testing.assert_close(found.scores, head.logits(x))


def test_padding_has_no_credit() -> None:
    head, x = make_head(), features(2, 7, D)
    mask = torch.rand(2, 7) < 0.5
    found = head.credit(x, mask=mask)
    assert found.net.mT[..., ~mask.any(0)].eq(0).all()
    assert all(t.masked_select(~mask[:, None, :, None]).eq(0).all() for t in found[:4])
    torch.testing.assert_close(found.net.sum((1, 2)), head.logits(x, mask=mask))
    packed = head.credit(x.flatten(0, 1), offsets=torch.tensor([0, 3, 14]))
    assert packed.use[0, :, 3:].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    head = make_head().to(dtype)
    out = head(torch.randn(2, 7, D).to(dtype), mask=torch.tensor([[1] * 7, [0] * 7]))
    assert all(t.dtype == dtype and t.isfinite().all() for t in out)


def test_autocast() -> None:
    head, x = make_head().float(), torch.randn(2, 7, D)
    with torch.autocast("cpu", torch.bfloat16):
        out = head(x, mask=torch.rand(2, 7) < 0.7)
        cross_entropy(out.a, torch.tensor([0, 1])).backward()
    torch.testing.assert_close(out.a, head.logits(x, mask=torch.ones(2, 7)), rtol=1, atol=1)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_compiles_into_one_graph() -> None:
    head = make_head()
    compiled = torch.compile(head, fullgraph=True, dynamic=True, backend="aot_eager")
    for b, n in ((2, 7), (3, 9)):
        x, mask = features(b, n, D), torch.rand(b, n) < 0.7
        out = compiled(x, mask=mask)
        assert_equal(out, head(x, mask=mask))
        out.a.sum().backward()


ANY_SIZE = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}


def test_exports_with_any_batch_and_length(tmp_path: Path) -> None:
    head, example = make_head(), (features(2, 7, D),)
    program = torch.export.export(
        head, example, {"mask": torch.ones(2, 7)}, dynamic_shapes={"x": ANY_SIZE, "mask": ANY_SIZE}
    )
    torch.export.save(program, tmp_path / "head.pt2")
    loaded = torch.export.load(tmp_path / "head.pt2").module()
    for b, n in ((2, 7), (5, 9)):
        x, mask = features(b, n, D), torch.rand(b, n).round()
        assert_equal(loaded(x, mask=mask), head(x, mask=mask))


def test_onnx_with_any_batch_and_length(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    head, path = make_head().float(), tmp_path / "head.onnx"
    names = {"input_names": ["x"], "output_names": ["a", "mu", "sig2"]}
    torch.onnx.export(
        head.eval(), (torch.randn(2, 7, D),), path, dynamic_shapes={"x": ANY_SIZE}, verbose=False, **names
    )
    session = onnxruntime.InferenceSession(path)
    for b, n in ((2, 7), (5, 9)):
        x = torch.randn(b, n, D)
        found = session.run(None, {"x": x.numpy()})
        for one, two in zip(found, head(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(one), two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_second_derivatives(layers: int) -> None:
    head = make_head(layers=layers)
    assert torch.autograd.gradgradcheck(lambda x: head(x).a, features(2, 3, D).requires_grad_())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))])
def test_copies_give_equal_results(copied: Callable[[RoutingHead], RoutingHead]) -> None:
    head, x = make_head(n_kinds=KINDS), features(4, KINDS, 7, D)
    assert_equal(copied(head)(x), head(x))


def test_state_dict_of_another_head() -> None:
    one, two = (make_head(layers=2, coordinates=True) for _ in range(2))
    x = features(4, D, 3, 3)
    assert not torch.allclose(one.logits(x), two.logits(x))
    two.load_state_dict(one.state_dict())
    assert_equal(one(x), two(x))


def test_repr_names_sizes() -> None:
    text = repr(RoutingHead(D, CLASSES, n_kinds=KINDS, n_parts=PARTS))
    assert text.startswith("RoutingHead(\n  6, 3, n_kinds=2, n_parts=5, d_cov=1, d_part=")
    assert "init='random'" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": -0.1}, "noise: expected a number of at least 0, got -0.1"),
        ({"layers": 3}, "layers: expected 1 or 2, got 3"),
        ({"coordinates": True, "n_kinds": 2}, "coordinates: expected only for feature maps"),
        ({"n_parts": 0}, "n_parts: expected at least 1, got 0"),
        ({"d_hidden": 2.5}, "d_hidden: expected an integer, got float"),
        ({"n_kinds": 0}, "n_kinds: expected at least 1, got 0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        RoutingHead(D, CLASSES, **settings)


@pytest.mark.parametrize(
    ("settings", "x", "options", "message"),
    [
        ({}, (2, 7, 5), {}, r"x: expected \[..., n, 6\], got shape \[2, 7, 5\]"),
        ({}, (2, 5, 3, 3), {}, r"x: expected \[b, 6, rows, columns\], got shape"),
        ({"n_kinds": 2}, (2, 3, 7, D), {}, r"x: expected \[..., 2, n, 6\], got shape"),
        ({"coordinates": True}, (2, 7, D), {}, r"x: expected a feature map \[b, 6, rows, columns\], got shape"),
        ({}, (2, 7, D), {"mask": torch.ones(2, 6)}, r"mask: expected .*\[2, 7\]"),
        ({}, (2, 7, D), {"mask": torch.full((2, 7), 0.5)}, "mask: expected 0 and 1, got 0.5"),
        ({}, (7, D), {"mask": torch.ones(7), "batch": torch.zeros(7).long()}, "mask, offsets, batch: expected one"),
        ({}, (2, 7, D), {"offsets": torch.tensor([0, 7])}, "x: expected the places of all samples on one axis"),
        ({}, (7, D), {"offsets": torch.tensor([0, 6])}, "offsets: expected 0 to 7"),
        ({}, (3, D), {"batch": torch.tensor([0, 1, 0])}, r"batch: expected \[3\] in ascending order"),
        ({}, (3, D), {"batch": torch.tensor([0, 1])}, r"batch: expected \[3\] in ascending order"),
        ({}, (3, D), {"batch": torch.tensor([-1, 0, 0])}, "batch: expected samples from 0 on, got -1"),
        ({}, (3, D), {"batch": torch.tensor([0.0, 0.0, 0.0])}, "batch: expected a tensor of integers, got torch.float"),
        ({}, (3, D), {"batch": torch.tensor([0, 1, 1]), "n_samples": 1}, "n_samples: expected at least 2, got 1"),
        ({}, (2, 7, D), {"n_samples": 2}, "n_samples: expected only with batch"),
    ],
)
def test_wrong_inputs(settings: dict[str, Any], x: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_head(**settings)(features(*x), **options)


def test_list_where_there_are_no_kinds() -> None:
    with pytest.raises(TypeError, match="x: expected a tensor, for the head has no n_kinds, got list"):
        make_head()([features(2, 7, D)])
    with pytest.raises(ValueError, match="x: expected 2 hidden states of one shape, got shapes"):
        make_head(n_kinds=2)([features(2, 7, D), features(2, 6, D)])


@pytest.mark.parametrize("rate", [1e-3, 3e-3, 1e-2])
def test_learns_within_a_hundred_steps(rate: float) -> None:
    """Which of three patterns one of the places holds: chance is a third."""
    head = RoutingHead(D, CLASSES)
    patterns, optimizer = torch.randn(CLASSES, D), torch.optim.AdamW(head.parameters(), lr=rate)
    for _ in range(100):
        y = torch.randint(CLASSES, (32,))
        x = torch.cat([patterns[y, None], torch.randn(32, 5, D)], 1)
        loss = cross_entropy(head.logits(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    y = torch.arange(CLASSES).repeat(200)
    x = torch.cat([patterns[y, None], torch.randn(600, 5, D)], 1)
    assert (head.logits(x).argmax(-1) == y).double().mean() > 0.6
