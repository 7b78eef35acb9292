"""A routing head on frames of sound: does a note rise, fall or stay, and when does it sound?"""

import torch
from torch import Tensor, nn

from capsroute import RoutingHead
from capsroute.credit import for_class


def sounds(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spectra of a second of noise with a note in it `[n, frames, 65]`, classes `[n]`, and the frames of the note."""
    random = torch.Generator().manual_seed(seed)
    classes, start = torch.randint(3, (n, 1), generator=random), 0.7 * torch.rand(n, 1, generator=random)
    after = torch.arange(4000) / 4000 - start  # seconds since the note began, for 0.3 seconds
    holds, change = (after >= 0) & (after < 0.3), torch.tensor([4000.0, -4000.0, 0.0])[classes]
    pitch = 900 + 200 * torch.rand(n, 1, generator=random)  # in the middle of the note
    wave = torch.sin(2 * torch.pi * after * (pitch + change * (after - 0.3) / 2)) * holds
    wave = wave + 0.1 * torch.randn(n, 4000, generator=random)
    frames = torch.stft(wave, 128, hop_length=40, window=torch.hann_window(128), return_complex=True).abs()
    return frames.log1p().mT[:, :100], classes[:, 0], holds[:, ::40]


torch.manual_seed(0)
trunk = nn.Sequential(nn.Conv1d(65, 32, 7, padding=3), nn.ReLU())  # a frame and its neighbours
head = RoutingHead(32, n_classes=3)
optimizer = torch.optim.AdamW([*trunk.parameters(), *head.parameters()], lr=3e-3)
test, classes, sounding = sounds(300, seed=10_000)
print(f"accuracy before: {(head.logits(trunk(test.mT).mT).argmax(-1) == classes).double().mean():.3f}")
for step in range(120):
    frames, labels, _ = sounds(32, seed=step)
    loss = nn.functional.cross_entropy(head.logits(trunk(frames.mT).mT), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = head.credit(trunk(test.mT).mT)  # [b, parts, frames, classes]
print(f"accuracy after: {(found.scores.argmax(-1) == classes).double().mean():.3f}")
worth = for_class(found.net.sum(1), found.scores)  # [b, frames]
print(f"credit of a frame of the note: {worth[sounding].mean():+.3f}")
print(f"credit of a frame of noise: {worth[~sounding].mean():+.3f}")
