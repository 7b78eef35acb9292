"""Credit: its sums, cases made by hand, and the two networks."""

import numpy as np
import pytest
import torch
from torch import Tensor

import capsroute
import oracle
from capsroute import Routing
from capsroute.credit import FIRST_CENTRE, Credit, credit, for_class, heat_maps, image_credit, text_credit
from capsroute.nets import SST, SmallNORB

SIZE = 60  # pixels, for a grid of 4 x 4 locations


def stack(n_layers: int, *, tie_betas: bool = False, agreement: str = "gaussian", n_iters: int = 3) -> list[Routing]:
    """Layers of 6, 5 and 4 outputs, all but the first with parameters for each input, all of them random."""
    sizes = [(None, 6), (6, 5), (5, 4)][:n_layers]
    settings = {"tie_betas": tie_betas, "agreement": agreement, "n_iters": n_iters}
    layers = [Routing(2, 3, 3, n_inp=n_inp, n_out=n_out, **settings).double() for n_inp, n_out in sizes]
    for layer in layers:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
    return layers


def inputs(*batch: int, n: int = 9) -> tuple[Tensor, Tensor]:
    a, mu = 2 * torch.randn(*batch, n), torch.randn(*batch, n, 2, 3)
    return a.double(), mu.double()


def through(layers: list[Routing], a: Tensor, mu: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in layers:
        a, mu, _ = layer(a, mu, mask=mask)
        mask = None
    return a


def check_sums(layers: list[Routing], found: Credit, a: Tensor, mu: Tensor, mask: Tensor | None = None) -> None:
    data = torch.sigmoid(a)[..., None] if mask is None else (torch.sigmoid(a) * mask)[..., None]
    assert (found.use >= 0).all()
    torch.testing.assert_close(found.use + found.ign, data.expand(found.use.shape))
    assert (found.use.sum(-1, keepdim=True) <= data + 1e-9).all()
    torch.testing.assert_close(found.net.sum(-2), through(layers, a, mu, mask))


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"tie_betas": True}, {"agreement": "kmeans"}, {"n_iters": 1}], ids=str)
def test_sums_match_data_and_scores(n_layers: int, settings: dict) -> None:
    layers, (a, mu) = stack(n_layers, **settings), inputs(2, 3)
    check_sums(layers, credit(layers, (a, mu)), a, mu)


@pytest.mark.parametrize("n_kinds", [(3, None), (3, 2), (None, 2)], ids=str)
@pytest.mark.parametrize("n_layers", [1, 2])
def test_kinds_of_inputs(n_layers: int, n_kinds: tuple[int | None, int | None]) -> None:
    """Sums match, and credit is that of layers with parameters repeated for each place."""
    (a, mu), n_inp = inputs(2), (9, 6)
    layers = [Routing(2, 3, 3, n_out=6, n_kinds=n_kinds[0]), Routing(2, 3, 3, n_inp=6, n_out=4, n_kinds=n_kinds[1])]
    layers = [layer.double() for layer in layers[:n_layers]]
    repeated = []
    for layer, n in zip(layers, n_inp, strict=False):
        twin = Routing(2, 3, 3, n_inp=n, n_out=layer.n_out).double()
        for p in layer.parameters():
            torch.nn.init.normal_(p)
        twin.load_state_dict({name: p.repeat_interleave(n // len(p), 0) for name, p in layer.state_dict().items()})
        repeated.append(twin)
    found = credit(layers, (a, mu), slice_votes=1000)
    check_sums(layers, found, a, mu)
    for name, t in credit(repeated, (a, mu))._asdict().items():
        torch.testing.assert_close(getattr(found, name), t, msg=name)


def test_masked_inputs_get_no_credit() -> None:
    layers, (a, mu) = stack(2), inputs(2)
    mask = torch.tensor([True] * 5 + [False] * 4).expand(2, 9)
    a, mu = a.masked_fill(~mask, 1e30), mu.masked_fill(~mask[..., None, None], torch.nan)
    found = credit(layers, (a, mu, mask))
    check_sums(layers, found, a, mu, mask)
    for name, t in found._asdict().items():
        assert (t[:, 5:] == 0).all(), name
        torch.testing.assert_close(t[:, :5], getattr(credit(layers, (a[:, :5], mu[:, :5])), name))


def test_scores_are_shared_where_nothing_is_used() -> None:
    layers, (a, mu) = stack(2), inputs()
    with torch.no_grad():
        layers[0].beta_ign[0, 0] = 1e5  # the first output would have to pay too much
    unused = layers[0].trace(a, mu)[-1].D_use[:, 0]
    assert (unused == 0).all()
    check_sums(layers, credit(layers, (a, mu)), a, mu)
    nothing = torch.full_like(a, -torch.inf)
    check_sums(layers, credit(layers, (nothing, mu)), nothing, mu)


@pytest.fixture(scope="module")
def slow() -> tuple[Credit, np.ndarray, np.ndarray, np.ndarray]:
    """Credit of two layers, and its `use`, `benefit` and `cost` in loops over the oracle's records."""
    torch.manual_seed(0)
    layers, (a, mu) = stack(2), inputs(n=7)
    full, traces = [], []
    x, m = a.numpy(), mu.numpy()
    for layer in layers:
        n, j = len(x), layer.W.shape[1]
        axes = [layer.W.expand(n, j, 3, 3), layer.B.expand(n, j, 2, 3), layer.beta_use.expand(n, j)]
        full.append([t.detach().numpy() for t in (*axes, layer.beta_ign.expand(n, j))])
        traces.append(oracle.route(x, m, *full[-1], 3, layer.eps, oracle.gaussian))
        x, m = traces[-1][-1]["a"], traces[-1][-1]["mu"]
    (W, B, _, _), (W_up, B_up, beta_use, beta_ign) = full
    D, R, D_up = traces[0][-1]["D_use"], traces[1][-1]["R"], traces[1][-1]["D_use"]
    models = traces[1][-2]
    use, benefit, cost = np.zeros((7, 5)), np.zeros((7, 5)), np.zeros((7, 5))
    for j in range(6):
        share = D[:, j] / D[:, j].sum()
        own = np.zeros((7, 5))
        for i in range(7):
            vote = mu[i].numpy() @ W[i, j] + B[i, j]
            votes = np.stack([vote @ W_up[j, k] + B_up[j, k] for k in range(5)])
            weights = [oracle.logistic(a) for a in models["a"]] * oracle.gaussian(votes, models["mu"], models["sig2"])
            own[i] = weights / weights.sum()
        own += R[j] - share @ own  # so that the mean over the inputs is what j was
        data = D_up[j].sum()
        use += D[:, j, None] * D_up[j]
        benefit += share[:, None] * data * beta_use[j] * own
        cost += share[:, None] * data * beta_ign[j] * (1 - own)
    return credit(layers, (a, mu)), use, benefit, cost


@pytest.mark.parametrize("place", range(3), ids=["use", "benefit", "cost"])
def test_credit_matches_loops(slow: tuple[Credit, np.ndarray, np.ndarray, np.ndarray], place: int) -> None:
    found, *by_hand = slow
    fast = (found.use, found.benefit, found.cost)[place]
    np.testing.assert_allclose(fast.detach().numpy(), by_hand[place], atol=1e-10)


def test_slices_change_nothing() -> None:
    layers, arguments = stack(2), inputs(2)
    expected = credit(layers, arguments)
    two_at_a_time = 2 * 2 * 6 * 5 * 2 * 3
    for name, t in credit(layers, arguments, slice_votes=two_at_a_time)._asdict().items():
        torch.testing.assert_close(t, getattr(expected, name), msg=name)


def test_equal_votes_get_credit_by_data() -> None:
    layers, (a, mu) = stack(2), inputs()
    net = credit(layers, (a, mu[:1].expand_as(mu))).net
    torch.testing.assert_close(net / torch.sigmoid(a)[:, None], (net / torch.sigmoid(a)[:, None])[:1].expand_as(net))


def test_equal_shares_get_credit_by_vote() -> None:
    """With one capsule in between all inputs are shared alike, and what each is worth is left to its own vote."""
    layers = [Routing(2, 3, 3, n_out=1).double(), Routing(2, 3, 3, n_inp=1, n_out=4, eps=1.0).double()]
    torch.nn.init.normal_(layers[1].beta_use)
    found = credit(layers, (torch.zeros(9).double(), inputs()[1]))
    torch.testing.assert_close(found.use, found.use[:1].expand_as(found.use))
    assert (found.net.std(0) > 0.01 * found.net.mean(0).abs()).all()
    by_class = found.net / layers[1].beta_use  # what is used of an input's vote, beta_ign being zero
    torch.testing.assert_close(by_class.sum(-1), torch.full((9,), 0.5 / 9).double())


def test_for_class_is_derivative_of_log_odds() -> None:
    """The derivative of the logarithm of the odds, taken by torch."""
    scores, net = torch.randn(3, 4).double().requires_grad_(), torch.randn(3, 5, 4).double()
    which = torch.tensor([1, 0, 3])
    chances = scores.softmax(-1).gather(-1, which[:, None])[:, 0]
    (slope,) = torch.autograd.grad((chances / (1 - chances)).log().sum(), scores)
    torch.testing.assert_close(for_class(net, scores.detach(), which), torch.einsum("bik,bk->bi", net, slope))
    torch.testing.assert_close(for_class(net, scores.detach()), for_class(net, scores.detach(), scores.argmax(-1)))


def test_for_class_with_one_class() -> None:
    net = torch.randn(5, 1)
    assert torch.equal(for_class(net, torch.ones(1)), net[:, 0])


def test_credit_is_exported() -> None:
    assert capsroute.credit is credit


@pytest.mark.parametrize(
    ("layers", "given", "message"),
    [([], inputs(), "layers: expected at least one"), (stack(1), inputs()[:1], "inputs: expected a_inp, mu_inp and")],
)
def test_wrong_arguments_are_refused(layers: list[Routing], given: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        credit(layers, given)


def test_image_credit_sums_to_scores() -> None:
    network, images = capsroute.load("toys"), torch.rand(2, 2, SIZE, SIZE)
    assert isinstance(network, SmallNORB)
    found = image_credit(network, images)
    with torch.no_grad():
        scores, (a, _) = network(images).a, network.parts(images)
    assert found.use.shape == (2, 64, 4, 4, 5)
    torch.testing.assert_close(found.scores, scores, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.net.sum((1, 2, 3)), found.scores, atol=1e-5, rtol=1e-5)
    data = torch.sigmoid(a).view(2, 64, 4, 4, 1)
    torch.testing.assert_close(found.use + found.ign, data.expand_as(found.use), atol=1e-5, rtol=0)


def test_heat_maps_peak_at_location_centres() -> None:
    maps = torch.zeros(1, 2, 3, 4, 2)
    maps[0, :, 1, 2, 1] = torch.tensor([0.25, 0.5])
    heat = heat_maps(maps, (45, 60))
    assert heat.shape == (1, 2, 45, 60)
    assert (heat[0, 0] == 0).all()
    row, column = divmod(int(heat[0, 1].argmax()), 60)
    assert (row, column) == (FIRST_CENTRE + 8, FIRST_CENTRE + 16)
    assert heat[0, 1, row, column] == 0.75
    assert heat[0, 1, row + 4, column] == 0.375


def test_receptive_field_of_locations() -> None:
    """By what pixels move it: the first location sees the first 29, the one below it starts 8 lower."""
    network = SmallNORB(n_parts=2, n_channels=2).eval()
    images = torch.rand(1, 2, 37, 37, requires_grad=True)
    a = network.parts(images)[0].view(2, 2, 2)
    for (row, column), first in {(0, 0): (0, 0), (1, 0): (8, 0)}.items():
        (moved,) = torch.autograd.grad(a[:, row, column].sum(), images, retain_graph=True)
        seen = moved.abs().sum((0, 1)).nonzero()
        assert seen.min(0).values.tolist() == list(first)
        assert seen.max(0).values.tolist() == [first[0] + 2 * FIRST_CENTRE, first[1] + 2 * FIRST_CENTRE]


def test_text_credit_sums_to_scores() -> None:
    network = capsroute.load("treebank")
    assert isinstance(network, SST)
    mask = torch.tensor([[1.0] * 4 + [0.0] * 5, [1.0] * 9])
    embs = torch.randn(2, 9, *network.depth_emb.shape)
    found = text_credit(network, mask, embs)
    with torch.no_grad():
        scores = network(mask, embs).a
    assert found.use.shape == (*embs.shape[:3], 5)
    torch.testing.assert_close(found.scores, scores, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.net.sum((1, 2)), scores, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.use + found.ign, mask[:, :, None, None].expand_as(found.use), atol=1e-5, rtol=0)
    assert (found.net[mask == 0] == 0).all()
    alone = text_credit(network, mask[:1, :4], embs[:1, :4])
    torch.testing.assert_close(found.net[:1, :4], alone.net, atol=1e-4, rtol=1e-4)
