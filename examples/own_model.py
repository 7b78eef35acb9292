"""A routing layer in a model of one's own: which thing do some scattered parts make up?

Three things consist of the same parts, a triangle, a square and a disc, in another order from top to bottom. They stand
anywhere, parts are missing, and stray parts lie about, so only parts that agree on a middle tell what is there.
"""

import torch
from torch import Tensor, nn

from capsroute import Routing
from capsroute.credit import credit, for_class

THINGS = 3
ORDER = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]])  # height of each part in each thing
N_OWN, N_STRAY = 6, 2  # parts that belong to the thing, two of each kind, and parts that do not


def scenes(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places `[n, i, 2]`, kinds `[n, i]`, which parts are there `[n, i]`, and the things `[n]`."""
    random = torch.Generator().manual_seed(seed)
    things = torch.randint(THINGS, (n,), generator=random)
    own_kinds = torch.arange(N_OWN).remainder(3).expand(n, -1)
    heights = ORDER[things].gather(1, own_kinds)
    own = torch.stack([torch.zeros_like(heights), heights], -1) + 0.1 * torch.randn(n, N_OWN, 2, generator=random)
    stray = 4 * torch.rand(n, N_STRAY, 2, generator=random) - 2
    kinds = torch.cat([own_kinds, torch.randint(3, (n, N_STRAY), generator=random)], 1)
    places = torch.cat([own, stray], 1) + 2 * torch.rand(n, 1, 2, generator=random) - 1  # the thing's own middle
    there = torch.rand(n, N_OWN + N_STRAY, generator=random) < 0.8
    return places, kinds, there, things


class Recogniser(nn.Module):
    """Parts vote for three things, and for a few spare capsules that take what belongs to none of them."""

    def __init__(self, n_spare: int = 5):
        super().__init__()
        self.kind = nn.Embedding(3, 4)
        self.routing = Routing(d_cov=1, d_inp=2 + 4, d_out=4, n_out=THINGS + n_spare)  # any number of parts

    def capsules(self, places: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Scores `[n, i]`, alike for all parts, and capsules `[n, i, 1, 6]`: where a part is, and what."""
        return torch.full(kinds.shape, 3.0), torch.cat([places, self.kind(kinds)], -1).unsqueeze(-2)

    def forward(self, places: Tensor, kinds: Tensor, there: Tensor) -> Tensor:
        return self.routing(*self.capsules(places, kinds), mask=there).a[:, :THINGS]


def accuracy(model: Recogniser, places: Tensor, kinds: Tensor, there: Tensor, things: Tensor) -> float:
    with torch.no_grad():
        return (model(places, kinds, there).argmax(-1) == things).double().mean().item()


torch.manual_seed(0)
model, test = Recogniser(), scenes(1000, seed=10_000)
print(f"accuracy before: {accuracy(model, *test):.3f}")
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(400):
    *inputs, things = scenes(64, seed=step)
    loss = nn.functional.cross_entropy(model(*inputs), things)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"accuracy after: {accuracy(model, *test):.3f}")

places, kinds, there, things = test
capsules = model.capsules(places, kinds)
with torch.no_grad():
    for k, record in enumerate(model.routing.trace(*capsules, mask=there), 1):  # R, D_use, D_ign, a, mu, sig2
        print(f"iteration {k}: a part's likeliest capsule gets {record.R.amax(-1)[there].mean():.2f} of it")
    found = credit([model.routing], (*capsules, there))
    worth = for_class(found.net[..., :THINGS], found.scores[..., :THINGS])  # [n, i]
stray = (torch.arange(N_OWN + N_STRAY) >= N_OWN) & there
print(f"credit of a part: {worth[there & ~stray].mean():+.2f}")
print(f"credit of a stray part: {worth[stray].mean():+.2f}")
