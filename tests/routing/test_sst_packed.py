"""The network for sentences packs texts where much is padding, and nothing else changes."""

import pytest
import torch
from torch import Tensor

from capsroute.nets import SST
from capsroute.nets.sst import PACKING_THRESHOLDS, PackingThreshold, find_tokens_to_pack

DEPTH, D_EMB = 3, 8
ALWAYS, NEVER = PackingThreshold(0.0, 0), PackingThreshold(2.0, 2**62)


@pytest.fixture
def network() -> SST:
    """All of its parameters random: as it starts out, many are zero and hide mistakes."""
    network = SST(depth=DEPTH, d_emb=D_EMB, n_parts=6)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.3 * torch.randn_like(p))
    return network


def some_texts(*lengths: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Mask and random embeddings, huge after a text's end."""
    mask = (torch.arange(max(1, *lengths)) < torch.tensor(lengths)[:, None]).to(dtype)
    return mask, torch.randn(*mask.shape, DEPTH, D_EMB, dtype=dtype).masked_fill((mask == 0)[..., None, None], 1e9)


def results(network: SST, mask: Tensor, embs: Tensor) -> list[Tensor]:
    """Outputs and gradients."""
    embs = embs.detach().requires_grad_()
    out = network(mask, embs)
    gradients = torch.autograd.grad(sum(t.sin().sum() for t in out), [embs, *network.parameters()])
    return [*out, *gradients]


@pytest.mark.parametrize("lengths", [(4, 1, 9, 3, 17), (5, 0, 2), (0, 0), (6, 6)], ids=str)
def test_packed_texts_give_the_same(network: SST, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, with texts that are empty, all empty, and all of one length."""
    mask, embs = some_texts(*lengths, dtype=torch.float64)
    network = network.double()
    called: list[int] = []
    first = network.routings[0]
    packed = first.forward_packed
    monkeypatch.setattr(first, "forward_packed", lambda *args: (called.append(1), packed(*args))[1])
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", NEVER)
    padded = results(network, mask, embs)
    assert not called
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    for one, other in zip(padded, results(network, mask, embs), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
    assert called


def test_mixed_texts_give_the_same(network: SST, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fraction of a token, as mixup makes it, is no padding."""
    mask, embs = some_texts(5, 2, 4, dtype=torch.float64)
    mask[0, 3:], mask[2, 1] = 0.25, 1e-30
    network = network.double()
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", NEVER)
    padded = results(network, mask, embs)
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    for one, other in zip(padded, results(network, mask, embs), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_packing_needs_a_share_of_padding_and_enough_of_it() -> None:
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


def test_a_mask_is_not_read_where_packing_cannot_be_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would be waited for; a tensor without numbers cannot be read at all."""
    mask, embs = torch.empty(4, 10, device="meta"), torch.empty(4, 10, 3, 8, device="meta")
    monkeypatch.setitem(PACKING_THRESHOLDS, "meta", PackingThreshold(0.0, embs.numel() + 1))
    assert find_tokens_to_pack(mask, embs) is None
    monkeypatch.setitem(PACKING_THRESHOLDS, "meta", PackingThreshold(0.0, embs.numel()))
    with pytest.raises(NotImplementedError):
        find_tokens_to_pack(mask, embs)


def test_graphs_and_transforms_do_not_pack(network: SST, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot look into the mask."""
    monkeypatch.setitem(PACKING_THRESHOLDS, "cpu", ALWAYS)
    mask, embs = some_texts(3, 1)
    expected = network(mask, embs).a
    mapped = torch.func.vmap(lambda m, e: network(m[None], e[None]).a[0])(mask, embs)
    torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-5)
    captured = torch.compile(network, backend="eager", fullgraph=True)(mask, embs).a
    torch.testing.assert_close(captured, expected, rtol=0, atol=1e-5)
