"""A routing head on point clouds as PyTorch Geometric gives them, and graphs: points, and the cloud of each."""

import torch
from torch import Tensor, nn

from capsroute import RoutingHead
from capsroute.credit import for_class


def clouds(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points `[points, 2]`, the cloud of each, which of them are stray, and the class of each cloud `[n]`."""
    random = torch.Generator().manual_seed(seed)
    classes, sizes = torch.randint(3, (n,), generator=random), torch.randint(12, 40, (n,), generator=random)
    batch = torch.arange(n).repeat_interleave(sizes)
    angle, along = 2 * torch.rand(2, len(batch), 1, generator=random) - 1
    ring = torch.cat([(torch.pi * angle).cos(), (torch.pi * angle).sin()], 1)
    shapes = torch.stack([ring, ring * along, along.expand(-1, 2)])[classes[batch], torch.arange(len(batch))]
    noise = torch.rand(len(batch), generator=random) < 0.2
    stray = 3 * torch.rand(len(batch), 2, generator=random) - 1.5
    return torch.where(noise[:, None], stray, shapes), batch, noise, classes


torch.manual_seed(0)
trunk, head = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32)), RoutingHead(32, n_classes=3)
optimizer = torch.optim.AdamW([*trunk.parameters(), *head.parameters()], lr=3e-3)
points, batch, noise, classes = clouds(300, seed=10_000)
print(f"accuracy before: {(head.logits(trunk(points), batch=batch).argmax(-1) == classes).double().mean():.3f}")
for step in range(150):
    x, samples, _, labels = clouds(32, seed=step)
    loss = nn.functional.cross_entropy(head.logits(trunk(x), batch=samples), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

found = head.credit(trunk(points), batch=batch)  # [clouds, parts, points of the largest, classes]
print(f"accuracy after: {(found.scores.argmax(-1) == classes).double().mean():.3f}")
worth = for_class(found.net.sum(1), found.scores)[found.use[:, 0, :, 0] > 0]  # without padding: as in `points`
print(f"credit of a point of the shape: {worth[~noise].mean():+.3f}")
print(f"credit of a stray point: {worth[noise].mean():+.3f}")
