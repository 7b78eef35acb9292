"""A routing head on the feature maps `[b, d, rows, columns]` of a vision backbone, here two convolutions."""

import torch
from torch import Tensor, nn

from capsroute import RoutingHead
from capsroute.credit import for_class

SHAPES = torch.zeros(3, 7, 7)  # a bar across, a bar upright, and a cross of thinner bars
SHAPES[0, 2:5] = SHAPES[1, :, 2:5] = SHAPES[2, 3] = SHAPES[2, :, 3] = 1


def pictures(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures `[n, 1, 20, 20]`, their classes `[n]`, and row and column of the shape's middle `[n, 2]`."""
    random = torch.Generator().manual_seed(seed)
    classes, corners = torch.randint(3, (n,), generator=random), torch.randint(14, (n, 2), generator=random)
    images = 0.3 * torch.randn(n, 1, 20, 20, generator=random)
    for image, c, (row, column) in zip(images, classes.tolist(), corners.tolist(), strict=True):
        image[0, row : row + 7, column : column + 7] += SHAPES[c]
    return images, classes, corners + 3


torch.manual_seed(0)
convolutions = nn.Conv2d(1, 32, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()
backbone, head = nn.Sequential(*convolutions), RoutingHead(32, n_classes=3, coordinates=True)
optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=3e-3)
test, classes, middles = pictures(300, seed=10_000)
print(f"accuracy before: {(head.logits(backbone(test)).argmax(-1) == classes).double().mean():.3f}")
for step in range(150):
    images, labels, _ = pictures(32, seed=step)
    loss = nn.functional.cross_entropy(head.logits(backbone(images)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = head.credit(backbone(test))  # [b, parts, rows, columns, classes]
print(f"accuracy after: {(found.scores.argmax(-1) == classes).double().mean():.3f}")
worth = for_class(found.net.sum(1).flatten(1, 2), found.scores)  # [b, rows * columns]
distance = (torch.cartesian_prod(torch.arange(5), torch.arange(5)) * 4 - middles[:, None]).abs().amax(-1)
print(f"credit of a location in the shape: {worth[distance <= 3].mean():+.3f}")
print(f"credit of a location beside it: {worth[distance > 5].mean():+.3f}")
