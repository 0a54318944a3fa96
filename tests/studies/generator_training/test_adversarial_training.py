"""Training a generator: what it learns, what it hands over, and what it is shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from keyhole.attacks.generative.conditional import ConditionalGenerator
from keyhole.errors import BadValue
from keyhole.seeds import generator
from keyhole_studies.generator_training import augmentation
from keyhole_studies.generator_training.adversarial_training import (
    GeneratorSettings,
    train_generator,
)
from keyhole_studies.generator_training.discriminator import Discriminator

SMALL = GeneratorSettings(
    steps=120,
    batch=16,
    lr=4e-3,
    discriminator_lr=4e-3,
    discriminator_steps=1,
    latent=4,
    features=(16, 12),
    discriminator_features=(16, 16),
    average=0.9,
)


@pytest.fixture(scope="module")
def toys() -> tuple[Tensor, Tensor]:
    """Two classes of 8x8: bright above and dark below, and the other way round."""
    labels = torch.arange(64) % 2
    images = torch.full((64, 3, 8, 8), 40.0)
    images[labels == 0, :, :4] = 215.0
    images[labels == 1, :, 4:] = 215.0
    noise = torch.randn(images.shape, generator=generator(0, "toys"))
    return (images + 15 * noise).clamp(0, 255).byte(), labels


def distance(network: ConditionalGenerator, images: Tensor, labels: Tensor) -> float:
    """Between the mean image of each class, true and drawn."""
    apart = []
    for number in range(2):
        classes = torch.full((64,), number)
        drawn = network(network.sample_codes(64, generator(1)), classes).mean(0)
        true = images[labels == number].float().mean(0) / 255
        apart.append((drawn - true).abs().mean())
    return float(torch.stack(apart).mean())


def test_training_draws_nearer_to_each_class(toys: tuple[Tensor, Tensor]) -> None:
    before = train_generator(
        *toys, GeneratorSettings(**{**vars_of(SMALL), "steps": 1}), classes=2
    ).generator
    after = train_generator(*toys, SMALL, classes=2)
    assert after.steps == 120
    assert [step for step, _, _ in after.losses] == [100, 120]
    assert distance(after.generator, *toys) < 0.5 * distance(before, *toys)


def vars_of(settings: GeneratorSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in GeneratorSettings.__dataclass_fields__}


def test_the_same_seed_trains_the_same_generator(
    toys: tuple[Tensor, Tensor], same_rng: Callable[[], bool]
) -> None:
    short = {**vars_of(SMALL), "steps": 3}
    one, two, other = (
        train_generator(
            *toys, GeneratorSettings(**{**short, "seed": seed}), classes=2
        ).generator.state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert same_rng()


def test_what_is_handed_over_is_ready_to_draw(toys: tuple[Tensor, Tensor]) -> None:
    made = train_generator(
        *toys, GeneratorSettings(**{**vars_of(SMALL), "steps": 2}), classes=2
    ).generator
    assert not made.training
    assert not any(p.requires_grad for p in made.parameters())
    assert all(p.is_contiguous() for p in made.parameters())
    codes, classes = made.sample_codes(3, generator(0)), torch.tensor([0, 1, 0])
    assert torch.equal(made(codes, classes)[:2], made(codes[:2], classes[:2]))


def test_time_ends_it_and_progress_is_told(toys: tuple[Tensor, Tensor]) -> None:
    told: list[tuple[int, float, str]] = []
    settings = GeneratorSettings(**{**vars_of(SMALL), "steps": 10**6, "seconds": 0.2})
    done = train_generator(*toys, settings, classes=2, progress=lambda *what: told.append(what))
    assert 1 <= done.steps < 10**4
    assert done.seconds < 10
    assert told[-1][:2] == (done.steps, 1.0)


def test_senseless_settings_are_refused(toys: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValidationError):
        GeneratorSettings(batch=1)
    with pytest.raises(BadValue, match="63 labels"):
        train_generator(toys[0], toys[1][:63], SMALL, classes=2)


def test_the_discriminators_matrices_have_spectral_norm_one() -> None:
    discriminator = Discriminator(3, (16, 16), 4, (8, 12))
    images, classes = torch.randn(4, 3, 16, 16), torch.arange(4)
    for _ in range(20):
        assert discriminator(images, classes).shape == (4,)
    layers = [m for m in discriminator.modules() if hasattr(m, "parametrizations")]
    assert len(layers) == 2 * 3 + 2
    for layer in layers:
        norm = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
        assert float(norm) == pytest.approx(1.0, abs=0.05)


def test_a_discriminator_looks_at_the_class() -> None:
    discriminator = Discriminator(3, (8, 8), 2, (8,))
    image = torch.randn(1, 3, 8, 8)
    assert discriminator(image, torch.tensor([0])) != discriminator(image, torch.tensor([1]))


def test_augmentation_passes_gradients_and_differs_from_image_to_image() -> None:
    images = torch.rand(6, 3, 16, 16).mul(2).sub(1)[:1].repeat(6, 1, 1, 1).requires_grad_()
    shown = augmentation.augment_images(images, generator(0))
    assert shown.shape == images.shape
    assert all(not torch.equal(shown[0], other) for other in shown[1:])
    shown.square().sum().backward()
    assert images.grad is not None
    assert (images.grad != 0).flatten(1).float().mean(1).min() > 0.3


def test_moving_moves_and_covering_covers() -> None:
    images = torch.arange(1, 65).float().view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    moved = augmentation.shift_images(images, generator(0))
    places = {(int(r), int(c)) for m in moved for r, c in (m[0] == 28).nonzero()}
    assert places == {(row, column) for row in (2, 3, 4) for column in (2, 3, 4)}
    covered = augmentation.cover_part(images, generator(0))
    assert ((covered == images) | (covered == 0)).all()
    holes = (covered == 0).flatten(1).sum(1)
    assert int(holes.max()) == 16
    assert int(holes.min()) >= 4


def test_colours_change_brightness_saturation_and_contrast_only() -> None:
    images = torch.rand(50, 3, 4, 4)
    shown = augmentation.change_colours(images, generator(0))
    grey, before = shown.mean(1).flatten(1), images.mean(1).flatten(1)
    for one, other in zip(grey, before, strict=True):
        fit = torch.corrcoef(torch.stack([one, other]))[0, 1]
        assert float(fit) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_runs_on_a_gpu(toys: tuple[Tensor, Tensor]) -> None:
    there = (toys[0].cuda(), toys[1].cuda())
    done = train_generator(*there, SMALL, classes=2)
    assert distance(done.generator.cpu(), *toys) < 0.25
