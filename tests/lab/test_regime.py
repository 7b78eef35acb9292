"""The regime: schedule, random numbers, mixup and crops."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from capsroute.lab.data import Pairs
from capsroute.lab.training.config import change_settings
from capsroute.lab.training.experiments import make_config
from capsroute.lab.training.regime import Regime, mix, mixed_loss, paste, plan_epoch
from capsroute.lab.training.vision import PairSource

STEPS = 1000


def test_schedule_is_the_papers() -> None:
    regime = Regime()
    assert regime.schedule(0, STEPS) == (1e-5, 0.999)
    lr, beta1 = regime.schedule(50, STEPS)  # half of the way up
    assert lr == pytest.approx((1e-5 + 5e-4) / 2)
    assert beta1 == pytest.approx((0.999 + 0.8991) / 2)
    assert regime.schedule(100, STEPS) == pytest.approx((5e-4, 0.8991))
    lr, beta1 = regime.schedule(550, STEPS)  # half of the way back
    assert lr == pytest.approx((1e-5 + 5e-4) / 2)
    assert regime.schedule(STEPS - 1, STEPS) == pytest.approx((1e-5, 0.999), rel=1e-2)
    quarter = regime.schedule(325, STEPS)[0]
    assert quarter == pytest.approx(1e-5 + 4.9e-4 * (0.5 + 0.5 * np.cos(np.pi / 4)))


OUT_OF_RANGE = {
    "epochs": [0],
    "batch_size": [0],
    "lr_min": [0.0, 1.0],
    "lr_max": [float("nan")],
    "beta1_min": [1.0],
    "beta2": [1.0],
    "warmup": [0.0, 1.0],
    "mixup": [-0.1, float("nan")],
    "cutmix": [-0.1, 1.1],
    "sam": [-0.1, float("nan")],
    "auxiliary_weight": [-0.1],
    "weight_decay": [-0.1],
    "average": [-0.1, 1.0],
    "label_smoothing": [1.0],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in OUT_OF_RANGE for value in OUT_OF_RANGE[field]]
)
def test_values_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        dataclasses.replace(Regime(), **{field: value})


def test_plan_depends_on_seed_and_epoch_alone() -> None:
    make = lambda seed, epoch: plan_epoch(Regime(), 103, seed=seed, epoch=epoch, n_noise=2)  # noqa: E731
    one, again = make(0, 3), make(0, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one.rows, make(0, 4).rows)
    assert not torch.equal(one.rows, make(1, 3).rows)


def test_plan_uses_each_sample_at_most_once() -> None:
    plan = plan_epoch(Regime(), 103, seed=0, epoch=0, n_noise=2)
    assert plan.rows.shape == (5, 2, 20)  # three samples are left out
    own, partner = plan.rows.unbind(1)
    assert len(own.unique()) == 100
    assert torch.equal(partner.sort(1).values, own.sort(1).values)
    assert not torch.equal(partner, own)
    assert plan.noise.shape == (5, 2, 20, 2)
    by_row = dict(
        zip(own.flatten().tolist(), plan.noise[:, 0].flatten(0, 1), strict=True)
    )  # a partner has the noise of its sample
    expected = torch.stack([by_row[row] for row in partner.flatten().tolist()]).view(5, 20, 2)
    assert torch.equal(plan.noise[:, 1], expected)
    assert plan.noise.min() >= 0
    assert plan.noise.max() < 1


def test_mixup_weights_have_beta_distribution() -> None:
    weight = plan_epoch(Regime(), 100_000, seed=0, epoch=0, n_noise=0).weight.double()
    assert weight.mean() == pytest.approx(0.5, abs=0.01)
    assert weight.var() == pytest.approx(0.25 / 1.4, rel=0.02)  # of Beta(0.2, 0.2)
    assert (plan_epoch(Regime(mixup=0.0), 100, seed=0, epoch=0, n_noise=0).weight == 1).all()


def test_boxes_cover_what_the_weight_leaves_of_their_share_of_samples() -> None:
    regime = Regime(mixup=1.0, cutmix=0.3)
    plan, mixed = (plan_epoch(one, 100_000, seed=0, epoch=0, n_noise=2) for one in (regime, Regime(mixup=1.0)))
    assert all(torch.equal(one, other) for one, other in zip(plan[:3], mixed[:3], strict=True))  # nothing else changes
    assert not mixed.box.any()
    top, left, bottom, right = plan.box.double().unbind(-1)
    drawn = bottom > 0
    assert drawn.double().mean() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(
        ((bottom - top) * (right - left))[drawn], 1 - plan.weight.double()[drawn], atol=1e-5, rtol=0
    )
    assert (plan.box >= 0).all()
    assert (plan.box <= 1).all()
    middle = (plan.box[..., :2] + plan.box[..., 2:])[drawn] / 2
    assert torch.allclose(middle.mean(0), torch.tensor(0.5), atol=0.01)
    assert middle.std(0).min() > 0.1


def test_paste_takes_the_box_from_the_other() -> None:
    x, other = torch.zeros(2, 2, 4, 8), torch.ones(2, 2, 4, 8)
    pasted = paste(x, other, torch.tensor([[0.25, 0.5, 0.75, 0.875], [0, 0, 0, 0]]))
    expected = torch.zeros(2, 2, 4, 8)
    expected[0, :, 1:3, 4:7] = 1
    assert torch.equal(pasted, expected)


def test_cutmix_needs_mixtures_of_images() -> None:
    with pytest.raises(ValueError, match="cutmix: expected 0 to 1, and 0 without mixup"):
        Regime(mixup=0.0, cutmix=0.5)
    with pytest.raises(ValueError, match="cutmix: expected 0, sentences are no images"):
        change_settings(make_config("sst5"), ["cutmix=0.5"])


def test_mix_weighs_samples() -> None:
    x, other, weight = torch.ones(3, 2, 2), torch.zeros(3, 2, 2), torch.tensor([1.0, 0.25, 0.0])
    assert torch.equal(mix(x, other, weight)[:, 0, 0], weight)


def test_loss_is_cross_entropy_with_mixed_targets() -> None:
    scores, target, other = torch.randn(6, 5), torch.arange(6) % 5, torch.arange(1, 7) % 5
    weight = torch.tensor([1.0, 0.9, 0.5, 0.4, 0.1, 0.0])
    soft = weight[:, None] * F.one_hot(target, 5) + (1 - weight)[:, None] * F.one_hot(other, 5)
    loss, hit = mixed_loss(scores, target, other, weight)
    torch.testing.assert_close(loss, F.cross_entropy(scores, soft))
    smooth, _ = mixed_loss(scores, target, other, weight, label_smoothing=0.2)
    torch.testing.assert_close(smooth, F.cross_entropy(scores, 0.8 * soft + 0.2 / scores.shape[1]))
    larger = torch.cat([target[:3], other[3:]])
    assert hit == (scores.argmax(1) == larger).float().mean()


def make_source(n: int = 4, size: int = 7, padding: int = 3) -> PairSource:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 2, size, size), dtype=np.uint8)
    return PairSource(Pairs(images, np.arange(n), np.zeros((n, 4), int)), padding, torch.device("cpu"))


def test_crop_pads_with_the_edge() -> None:
    source = make_source()
    rows, noise = torch.tensor([2, 0]), torch.tensor([[0.0, 0.999], [0.5, 0.3]])  # shifts -3, 3 and 0, -1
    padded = F.pad(source.images[rows].float() / 255, (3, 3, 3, 3), mode="replicate")
    expected = torch.stack([padded[0, :, 0:7, 6:13], padded[1, :, 3:10, 2:9]])
    (crops,) = source.augmented_batch(rows, noise)
    torch.testing.assert_close(crops, expected)


def test_shifts_are_equally_likely() -> None:
    source = make_source(n=1, size=9, padding=2)
    source.images[0] = torch.arange(81).reshape(9, 9)  # the value of the middle pixel gives the shift
    noise = torch.stack(torch.meshgrid(torch.arange(0, 1, 0.01), torch.arange(0, 1, 0.01), indexing="ij"), -1)
    (crops,) = source.augmented_batch(torch.zeros(10_000, dtype=torch.long), noise.reshape(-1, 2))
    middle, counts = (crops[:, 0, 4, 4] * 255).round().unique(return_counts=True)
    assert len(middle) == 25
    assert (counts == 400).all()


def test_batch_scales_images_to_0_to_1() -> None:
    source = make_source()
    (images,) = source.batch(torch.tensor([3, 1]))
    assert torch.equal((images * 255).round().byte(), source.images[[3, 1]])
    assert len(source) == 4
    assert source.on_device
