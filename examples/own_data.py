"""Own images in the package's network: stereo pairs as arrays, weights trained on toys, and new classes.

Put your own arrays in place of `pictures`: images `[n, 2, m, m]` of bytes, left and right, and classes `[n]`.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

import capsroute
from capsroute.nets import SmallNORB

CLASSES, SIZE, EPOCHS, BATCH = ("disc", "ring", "cross"), 32, 6, 20


def pictures(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shapes of any size, place and brightness, which two eyes see a little apart."""
    random = np.random.default_rng(seed)
    classes = random.integers(len(CLASSES), size=n)

    def any_of(low: float, high: float) -> np.ndarray:
        return random.uniform(low, high, (n, 1, 1, 1))

    radius, apart = any_of(6, 9), any_of(0, 2) * np.array([-1, 1])[:, None, None]
    rows = np.arange(SIZE)[:, None] - any_of(11, SIZE - 11) + 0 * apart  # [n, 2, m, m], from the shape's middle
    columns = np.arange(SIZE) - any_of(12, SIZE - 12) - apart
    distance = np.hypot(rows, columns)
    thin = np.minimum(abs(rows), abs(columns)) < 0.3 * radius
    shapes = np.stack([distance < radius, (distance < radius) & (distance > 0.55 * radius), (distance < radius) & thin])
    light = 40 + shapes[classes, np.arange(n)] * any_of(60, 200) + random.normal(0, 12, (n, 2, SIZE, SIZE))
    return light.clip(0, 255).astype(np.uint8), classes


def tensors(images: np.ndarray, classes: np.ndarray) -> tuple[Tensor, Tensor]:
    """As the network takes them: images in 0..1."""
    return torch.from_numpy(images).float() / 255, torch.from_numpy(classes)


def accuracy(network: SmallNORB, images: Tensor, classes: Tensor) -> float:
    network.eval()
    with torch.no_grad():
        return (network(images).a.argmax(-1) == classes).double().mean().item()


torch.manual_seed(0)
images, classes = tensors(*pictures(240, seed=0))
test = tensors(*pictures(300, seed=2))

network = SmallNORB(n_classes=len(CLASSES))
known = capsroute.load("toys").state_dict()  # all but the last layer serves other classes too
network.load_state_dict({name: w for name, w in known.items() if not name.startswith("routings.1.")}, strict=False)
print(f"accuracy before: {accuracy(network, *test):.3f}")

optimizer = torch.optim.Adam(network.parameters())
cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.006, total_steps=EPOCHS * len(images) // BATCH)
for _ in range(EPOCHS):
    network.train()
    for batch in torch.randperm(len(images)).split(BATCH):
        loss = nn.functional.cross_entropy(network(images[batch]).a, classes[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
print(f"accuracy after: {accuracy(network, *test):.3f}")

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/shapes"
network.save_pretrained(folder)
again = SmallNORB.from_pretrained(folder)
print(f"accuracy of the saved network: {accuracy(again, *test):.3f}")
