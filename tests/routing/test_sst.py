"""The networks for texts: sizes, padding, packing, and the author's weights."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracle
from capsroute import Capsules
from capsroute.lab.baselines import AttentionPooling, LinearProbe
from capsroute.nets import SST
from capsroute.nets.sst import PACKING_THRESHOLDS, PackingThreshold, find_tokens_to_pack

DEPTH, D_EMB = 3, 8
HEADS: dict[str, Callable[..., nn.Module]] = {
    "routing": SST,
    "linear": LinearProbe,
    "attention": AttentionPooling,
}
OFFICIAL = {5: "SST5R_pretrained_model_state_dict.pt", 2: "SST2R_pretrained_model_state_dict.pt"}


def n_parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def small(head: str, **sizes: int) -> nn.Module:
    """A narrow network whose parameters are all random: as it starts out, many are zero and hide mistakes."""
    parts = {} if head == "linear" else {"n_parts": 6}
    network = HEADS[head](**{"depth": DEPTH, "d_emb": D_EMB, **parts, **sizes}).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.3 * torch.randn_like(p))
    return network


def some_texts(*lengths: int, n: int | None = None) -> tuple[Tensor, Tensor]:
    """Mask and random embeddings, zero after a text's end."""
    mask = (torch.arange(n or max(lengths)) < torch.tensor(lengths)[:, None]).float()
    return mask, torch.randn(*mask.shape, DEPTH, D_EMB) * mask[..., None, None]


@pytest.mark.parametrize(("n_classes", "expected"), [(5, 140_480), (2, 138_944)])
def test_number_of_parameters(n_classes: int, expected: int) -> None:
    assert n_parameters(SST(n_classes=n_classes)) == expected


def test_attention_pooling_has_similar_size() -> None:
    sizes = {"depth": 7, "d_emb": 384}
    assert n_parameters(AttentionPooling(**sizes)) == pytest.approx(n_parameters(SST(**sizes)), rel=0.1)


@pytest.mark.parametrize("n_classes", [5, 2])
@pytest.mark.parametrize("head", HEADS)
def test_output_shapes(head: str, n_classes: int) -> None:
    out = small(head, n_classes=n_classes)(*some_texts(4, 1, 3))
    assert out.a.shape == (3, n_classes)
    if head == "routing":
        assert isinstance(out, Capsules)
        assert out.mu.shape == out.sig2.shape == (3, n_classes, 1, 2)


def test_score_and_vector_of_a_part_match() -> None:
    network = small("routing")
    assert isinstance(network, SST)
    mask, embs = some_texts(2, 4)
    a, mu = network.parts(mask, embs)
    assert a.shape == (2, 4 * DEPTH)
    assert mu.shape == (2, 4 * DEPTH, 1, 64)
    token, layer = 1, 2
    expected = network.detect_parts(embs[0, token, layer] + network.depth_emb[layer])
    torch.testing.assert_close(mu[0, token * DEPTH + layer, 0], expected)
    assert a[0].tolist() == [torch.inf] * 2 * DEPTH + [-torch.inf] * 2 * DEPTH


@pytest.mark.parametrize("head", HEADS)
def test_wrong_arguments_are_refused(head: str) -> None:
    network = small(head)
    mask, embs = some_texts(4, 2)
    for wrong in (embs[0], embs[:, :, :2], embs[..., :5], embs.flatten(2)):
        with pytest.raises(ValueError, match=rf"embs: expected \[b, n, {DEPTH}, {D_EMB}\], got shape"):
            network(mask, wrong)
    for wrong in (mask[0], mask[:1], mask[:, :3], mask[..., None]):
        with pytest.raises(ValueError, match=r"mask: expected \[2, 4\], as embs has, got shape"):
            network(wrong, embs)
    for wrong, value in ((mask.long() * 2, "0 and 1, got 2"), (mask * 1.5, "numbers from 0 to 1, got 1.5")):
        with pytest.raises(ValueError, match=f"mask: expected {value}"):
            network(wrong, embs)
    with pytest.raises(TypeError, match=r"embs: expected floating point, got torch\.int32"):
        network(mask, embs.int())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_mask_of_any_dtype(head: str, dtype: torch.dtype) -> None:
    """As tokenizers return it."""
    network, (mask, embs) = small(head).double(), some_texts(4, 2)
    assert torch.equal(network(mask.to(dtype), embs.double()).a, network(mask.double(), embs.double()).a)


@pytest.mark.parametrize("head", HEADS)
def test_texts_are_independent_of_batch_and_padding(head: str) -> None:
    network = small(head)
    lengths = [1, 2, 5, 9, 17]
    mask, embs = some_texts(*lengths)
    together = network(mask, embs).a
    assert together.std(0).min() > 1e-3  # texts differ
    for k, length in enumerate(lengths):
        for n in (length, length + 1, 40):
            alone = torch.zeros(1, n, DEPTH, D_EMB)
            alone[0, :length] = embs[k, :length]
            found = network((torch.arange(n) < length)[None].float(), alone).a[0]
            torch.testing.assert_close(found, together[k], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e18, 1e30])
@pytest.mark.parametrize("head", HEADS)
def test_padding_values_do_not_matter(head: str, size: float) -> None:
    network = small(head)
    mask, embs = some_texts(4, 1, 3)
    garbage = torch.where(mask[..., None, None] > 0, embs, size * torch.randn_like(embs))
    scores = network(mask, garbage).a
    torch.testing.assert_close(scores, network(mask, embs).a, rtol=0, atol=1e-5)
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("head", HEADS)
def test_padding_alone_gives_finite_scores(head: str) -> None:
    network = small(head)
    mask, embs = some_texts(3, 0)
    scores = network(mask, embs).a
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    torch.testing.assert_close(scores[:1], network(mask[:1], embs[:1]).a, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_mixup_of_lengths_gives_finite_gradients(head: str) -> None:
    """Where mixup lays a token over padding the mask is a fraction, tiny ones included."""
    network = small(head).train()
    mask, embs = some_texts(5, 2, 4, 1)
    weight = torch.tensor([0.3, 1e-30, 1 - 6e-8, 0.0])
    mask, embs = (torch.lerp(x.flip(0), x, weight.view(-1, *[1] * (x.ndim - 1))) for x in (mask, embs))
    assert ((mask > 0) & (mask < 1)).any()
    scores = network(mask, embs).a
    assert scores.isfinite().all()
    nn.functional.cross_entropy(scores, torch.arange(4)).backward()
    for name, p in network.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@pytest.mark.parametrize("head", HEADS)
def test_fraction_of_a_token_counts_less(head: str) -> None:
    network = small(head)
    _, embs = some_texts(2)
    shares = [torch.tensor([[1.0, share]]) for share in (0.0, 0.01, 0.5, 1.0)]
    scores = torch.cat([network(share, embs).a for share in shares])
    distance = (scores - scores[0]).norm(dim=1)
    assert 0 < distance[1] < distance[2] < distance[3]


ALWAYS, NEVER = PackingThreshold(0.0, 0), PackingThreshold(2.0, 2**62)


@pytest.fixture
def network() -> SST:
    network = small("routing")
    assert isinstance(network, SST)
    return network


def texts_with_garbage(*lengths: int) -> tuple[Tensor, Tensor]:
    """Draw a mask and embeddings in float64, huge after a text's end."""
    mask, embs = some_texts(*lengths, n=max(1, *lengths))
    return mask.double(), embs.double().masked_fill((mask == 0)[..., None, None], 1e9)


def compute_results(network: nn.Module, mask: Tensor, embs: Tensor) -> list[Tensor]:
    """Return outputs and gradients."""
    embs = embs.detach().requires_grad_()
    out = network(mask, embs)
    gradients = torch.autograd.grad(sum(t.sin().sum() for t in out), [embs, *network.parameters()])
    return [*out, *gradients]


@pytest.mark.parametrize("lengths", [(4, 1, 9, 3, 17), (5, 0, 2), (0, 0), (6, 6)], ids=str)
def test_packed_matches_padded(network: SST, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, with texts that are empty, all empty, and all of one length."""
    mask, embs = texts_with_garbage(*lengths)
    network = network.double()
    called: list[int] = []
    first = network.routings[0]
    packed = first.forward_packed
    monkeypatch.setattr(first, "forward_packed", lambda *args: (called.append(1), packed(*args))[1])
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", NEVER)
    padded = compute_results(network, mask, embs)
    assert not called
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    for one, other in zip(padded, compute_results(network, mask, embs), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
    assert called


def test_packed_mixup_matches_padded(network: SST, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fraction of a token, as mixup makes it, is no padding."""
    mask, embs = texts_with_garbage(5, 2, 4)
    mask[0, 3:], mask[2, 1] = 0.25, 1e-30
    network = network.double()
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", NEVER)
    padded = compute_results(network, mask, embs)
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    for one, other in zip(padded, compute_results(network, mask, embs), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_packing_needs_enough_padding() -> None:
    least = PACKING_THRESHOLDS["cpu"]
    tokens = -(-least.numbers // 1000)
    mask, embs = torch.ones(4, tokens), torch.empty(4, tokens, 10, 100, device="meta")
    assert find_tokens_to_pack(mask, embs) is None
    mask[0] = 0  # enough numbers, a quarter of all
    assert find_tokens_to_pack(mask, embs) is None
    mask[1] = 0
    there = find_tokens_to_pack(mask, embs)
    assert there is not None
    assert there.equal(mask.bool())
    assert find_tokens_to_pack(mask, embs[:, :, :5, :90]) is None  # half of all, too few numbers
    assert find_tokens_to_pack(mask.to("meta"), embs) is None  # a device on which nobody measured it


def test_mask_is_not_read_where_packing_cannot_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would be waited for; a tensor without numbers cannot be read at all."""
    mask, embs = torch.empty(4, 10, device="meta"), torch.empty(4, 10, 3, 8, device="meta")
    monkeypatch.setitem(PACKING_THRESHOLDS, "meta", PackingThreshold(0.0, embs.numel() + 1))
    assert find_tokens_to_pack(mask, embs) is None
    monkeypatch.setitem(PACKING_THRESHOLDS, "meta", PackingThreshold(0.0, embs.numel()))
    with pytest.raises(NotImplementedError):
        find_tokens_to_pack(mask, embs)


def test_graphs_and_transforms_do_not_pack(network: SST, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot read the mask."""
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    mask, embs = some_texts(3, 1)
    expected = network(mask, embs).a
    mapped = torch.func.vmap(lambda m, e: network(m[None], e[None]).a[0])(mask, embs)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-5)
    captured = torch.compile(network, backend="eager", fullgraph=True)(mask, embs).a
    torch.testing.assert_close(captured, expected, rtol=0, atol=1e-5)


@pytest.mark.data
@pytest.mark.parametrize("n_classes", OFFICIAL)
def test_official_weights_match_equations(data: Path, n_classes: int) -> None:
    """Two texts in one batch, against the figure and the equations in float64."""
    path = data / "official_checkpoints" / OFFICIAL[n_classes]
    network = SST.from_official(path).eval()
    assert network.encoder == "openai-community/gpt2-large"
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    embs = torch.randn(2, 3, 37, 1280) * mask[..., None, None]
    with torch.no_grad():
        out = network(mask, embs)
    weights = {name: w.double().numpy() for name, w in torch.load(path, "cpu", weights_only=True).items()}
    expected = [classify(weights, m, e) for m, e in zip(mask.double().numpy(), embs.double().numpy(), strict=True)]
    for name in ("a", "mu", "sig2"):
        found, wanted = getattr(out, name).double().numpy(), np.stack([record[name] for record in expected])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4, err_msg=name)
    assert np.ptp(out.a.numpy(), axis=1).min() > 0.1  # scores that a constant would not pass for


def classify(weights: dict[str, np.ndarray], mask: np.ndarray, embs: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the paper's figure step by step for one text: mask [n] and embeddings [n, l, m]."""
    x = embs + weights["depth_emb"]
    x = x @ weights["detect_parts.0.weight"].T + weights["detect_parts.0.bias"]  # [n, l, 64]
    x = x / (1 + np.exp(-x))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * weights["detect_parts.2.weight"] + weights["detect_parts.2.bias"]
    with np.errstate(divide="ignore"):
        a = np.log(mask) - np.log1p(-mask)
    a, mu = np.repeat(a, embs.shape[1]), x.reshape(-1, 1, 64)
    record: dict[str, np.ndarray] = {}
    for k in range(2):
        W, B, beta_use, beta_ign = (weights[f"routings.{k}.{name}"] for name in ("W", "B", "beta_use", "beta_ign"))
        of_each = [np.broadcast_to(p, (len(a), *p.shape[1:])) for p in (W, B, beta_use, beta_ign)]
        record = oracle.route(a, mu, *of_each, 3, 1e-5, oracle.gaussian)[-1]
        a, mu = record["a"], record["mu"]
    return record
