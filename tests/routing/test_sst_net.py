"""The networks for sentences: sizes, the author's weights, padding, and sharing."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import oracle
from capsroute import Capsules
from capsroute.lab.baselines import AttentionPooling, LinearProbe
from capsroute.nets import SST, SmallNORB

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
def test_it_has_the_papers_number_of_parameters(n_classes: int, expected: int) -> None:
    assert n_parameters(SST(n_classes=n_classes)) == expected


def test_pooling_by_attention_is_of_about_the_same_size() -> None:
    sizes = {"depth": 7, "d_emb": 384}
    assert n_parameters(AttentionPooling(**sizes)) == pytest.approx(n_parameters(SST(**sizes)), rel=0.1)


@pytest.mark.parametrize("n_classes", [5, 2])
@pytest.mark.parametrize("head", HEADS)
def test_shapes(head: str, n_classes: int) -> None:
    out = small(head, n_classes=n_classes)(*some_texts(4, 1, 3))
    assert out.a.shape == (3, n_classes)
    if head == "routing":
        assert isinstance(out, Capsules)
        assert out.mu.shape == out.sig2.shape == (3, n_classes, 1, 2)


def test_a_part_keeps_its_score_and_vector_together() -> None:
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
def test_what_does_not_fit_is_refused(head: str) -> None:
    network = small(head)
    mask, embs = some_texts(4, 2)
    for wrong in (embs[0], embs[:, :, :2], embs[..., :5], embs.flatten(2)):
        with pytest.raises(ValueError, match=rf"embs: expected \[b, n, {DEPTH}, {D_EMB}\], got shape"):
            network(mask, wrong)
    for wrong in (mask[0], mask[:1], mask[:, :3], mask[..., None]):
        with pytest.raises(ValueError, match=r"mask: expected \[2, 4\], as embs has, got shape"):
            network(wrong, embs)
    for wrong in (mask.bool(), mask.long()):
        with pytest.raises(TypeError, match="mask: expected floating point, got torch"):
            network(wrong, embs)
    with pytest.raises(TypeError, match=r"embs: expected floating point, got torch\.int32"):
        network(mask, embs.int())


@pytest.mark.parametrize("head", HEADS)
def test_a_text_does_not_depend_on_its_batch_mates_nor_on_padding(head: str) -> None:
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
def test_what_padding_holds_does_not_matter(head: str, size: float) -> None:
    network = small(head)
    mask, embs = some_texts(4, 1, 3)
    garbage = torch.where(mask[..., None, None] > 0, embs, size * torch.randn_like(embs))
    scores = network(mask, garbage).a
    torch.testing.assert_close(scores, network(mask, embs).a, rtol=0, atol=1e-5)
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("head", HEADS)
def test_a_text_of_padding_alone_gets_finite_scores(head: str) -> None:
    network = small(head)
    mask, embs = some_texts(3, 0)
    scores = network(mask, embs).a
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    torch.testing.assert_close(scores[:1], network(mask[:1], embs[:1]).a, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_mixed_texts_of_different_lengths_give_finite_gradients(head: str) -> None:
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
def test_half_a_token_counts_for_less_than_a_whole_one(head: str) -> None:
    network = small(head)
    _, embs = some_texts(2)
    shares = [torch.tensor([[1.0, share]]) for share in (0.0, 0.01, 0.5, 1.0)]
    scores = torch.cat([network(share, embs).a for share in shares])
    distance = (scores - scores[0]).norm(dim=1)
    assert 0 < distance[1] < distance[2] < distance[3]


@pytest.mark.parametrize("head", HEADS)
def test_a_network_is_saved_and_read_back(head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = HEADS[head](depth=DEPTH, d_emb=D_EMB, n_classes=2, encoder="someone/some-model").eval()
    network.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["encoder"] == "someone/some-model"
    again = HEADS[head].from_pretrained(tmp_path).eval()  # pyright: ignore[reportFunctionMemberAccess]
    assert again.encoder == "someone/some-model"
    inputs = some_texts(3, 2)
    assert torch.equal(network(*inputs).a, again(*inputs).a)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("head", HEADS)
def test_a_copy_is_the_same_and_apart(head: str) -> None:
    network = small(head)
    other = copy.deepcopy(network)
    inputs = some_texts(3, 2)
    before = network(*inputs).a
    assert torch.equal(other(*inputs).a, before)
    with torch.no_grad():
        next(other.parameters()).add_(1)
        list(other.parameters())[-1].add_(1)
    assert torch.equal(network(*inputs).a, before)
    assert not torch.equal(other(*inputs).a, before)


def test_files_that_are_not_the_authors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with pytest.raises(FileNotFoundError, match=r"weights\.pt: expected the weights .* for SST, found nothing there"):
        SST.from_official(path)
    official = SST().state_dict()
    shorter = {**official, "depth_emb": torch.zeros(13, 768)}
    for content, why in (
        ([1, 2], "found something else"),
        ({"other": torch.ones(1)}, "these names or shapes differ: depth_emb"),
        ({name: t for name, t in official.items() if name != "routings.1.W"}, "differ: routings.1.W"),
        (shorter, "differ: depth_emb"),
        ({**official, "routings.1.beta_use": torch.ones(1)}, "differ: routings.1.beta_use"),
        (SmallNORB().state_dict(), "differ: "),
    ):
        torch.save(content, path)
        with pytest.raises(ValueError, match=rf"weights\.pt: expected the weights .* published for SST, .*{why}"):
            SST.from_official(path)
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match=r"weights\.pt: expected the weights .* for SST, cannot read it"):
        SST.from_official(path)


def test_the_other_networks_file_is_refused_too(tmp_path: Path) -> None:
    torch.save(SST().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"published for SmallNORB, but these names or shapes differ"):
        SmallNORB.from_official(tmp_path / "weights.pt")


@pytest.mark.data
@pytest.mark.parametrize("n_classes", OFFICIAL)
def test_the_authors_network_gives_the_papers_scores(data: Path, n_classes: int) -> None:
    """Two texts in one batch, against the figure and the equations in float64."""
    path = data / "official_checkpoints" / OFFICIAL[n_classes]
    network = SST.from_official(path).eval()
    assert network.encoder == "openai-community/gpt2-large"
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    embs = torch.randn(2, 3, 37, 1280) * mask[..., None, None]
    with torch.no_grad():
        out = network(mask, embs)
    weights = {name: w.double().numpy() for name, w in torch.load(path, "cpu", weights_only=True).items()}
    expected = [judged(weights, m, e) for m, e in zip(mask.double().numpy(), embs.double().numpy(), strict=True)]
    for name in ("a", "mu", "sig2"):
        found, wanted = getattr(out, name).double().numpy(), np.stack([record[name] for record in expected])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4, err_msg=name)
    assert np.ptp(out.a.numpy(), axis=1).min() > 0.1  # scores that a constant would not pass for


def judged(weights: dict[str, np.ndarray], mask: np.ndarray, embs: np.ndarray) -> dict[str, np.ndarray]:
    """The paper's figure, step by step, for one text: mask [n] and embeddings [n, l, m]."""
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
