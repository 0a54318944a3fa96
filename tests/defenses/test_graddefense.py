"""GradDefense: slices of equal sensitivity, noise in some of them, and how it is found again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import Acted, ClientSide, GradDefense, check_defense
from keyhole.defenses.graddefense import (
    NEIGHBOURS,
    ROOT_IMAGES,
    cut_equally,
    find_loud_values,
    measure_sensitivity,
)
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("lenet", classes=10, channels=1, image_size=8)


def zeros(model: nn.Module, lr: float = 1.0, steps: int = 1) -> Update:
    change = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    return Update(change, lr=lr, steps=steps)


def side_of(model: nn.Module, seed: int = 0) -> ClientSide:
    return ClientSide(
        generator(seed), model, digits.images([1]), digits.labels[[1]], normalise=digits.normalise
    )


def test_sensitivity_is_the_slope_of_the_gradient_s_sum() -> None:
    """Against a numeric derivative along one pixel of one image."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    found = measure_sensitivity(model, torch.Size((1, 2, 2)))
    pixels = torch.rand(ROOT_IMAGES, 1, 2, 2, generator=generator(0, "root images")).double()
    labels = torch.arange(ROOT_IMAGES) % 2

    def gradient_sums(x: Tensor) -> list[float]:
        loss = F.cross_entropy(model(x), labels)
        return [float(g.sum()) for g in torch.autograd.grad(loss, list(model.parameters()))]

    slopes = torch.zeros(4, ROOT_IMAGES, 4)
    for image in range(ROOT_IMAGES):
        for pixel in range(4):
            shift = torch.zeros_like(pixels)
            shift[image].view(-1)[pixel] = 1e-5
            ups, downs = gradient_sums(pixels + shift), gradient_sums(pixels - shift)
            for number, (up, down) in enumerate(zip(ups, downs, strict=True)):
                slopes[number, image, pixel] = (up - down) / 2e-5
    expected = slopes.norm(dim=2).mean(1).tolist()
    assert list(found.values()) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_slices_have_equal_sensitivity() -> None:
    density = torch.cat([torch.full((1000,), 3.0), torch.full((4000,), 0.5)]).double()
    number = cut_equally(density, 5)
    sums = torch.stack([density[number == i].sum() for i in range(5)])
    torch.testing.assert_close(sums, torch.full((5,), 1000.0).double(), rtol=0.01, atol=0)
    assert bool((number.diff() >= 0).all())
    assert cut_equally(torch.zeros(10), 2).tolist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(("perturbed", "share"), [(1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_as_many_slices_as_asked_for_get_noise(
    model: nn.Module, perturbed: int, share: float
) -> None:
    client = side_of(model)
    sent = GradDefense(slices=4, perturbed=perturbed, sigma=0.1).on_update(zeros(model), client)
    values = torch.cat([t.flatten() for t in sent.change.values()])
    noisy = values != 0
    density = measure_sensitivity(model, torch.Size((1, 8, 8)), client)
    weights = torch.cat(
        [torch.full((p.numel(),), density[n] / p.numel()) for n, p in model.named_parameters()]
    )
    assert float(weights[noisy].sum() / weights.sum()) == pytest.approx(share, abs=0.01)
    assert float(values[noisy].std()) == pytest.approx(0.1, rel=0.1)
    assert client.telemetry["values_perturbed"] == int(noisy.sum())


def test_noise_has_the_units_of_the_gradient(model: nn.Module) -> None:
    sent = GradDefense(perturbed=10, sigma=0.1).on_update(zeros(model, 0.01, 5), side_of(model))
    gradient = torch.cat([t.flatten() for t in sent.gradient().values()])
    assert float(gradient.std()) == pytest.approx(0.1, rel=0.05)


def test_slices_change_from_update_to_update(model: nn.Module) -> None:
    defense = GradDefense(slices=20, perturbed=10, sigma=1.0)
    sent = [defense.on_update(zeros(model), side_of(model, seed)) for seed in (0, 1)]
    first, second = (torch.cat([t.flatten() for t in s.change.values()]) != 0 for s in sent)
    assert not torch.equal(first, second)


def test_the_update_shows_where_the_noise_is(model: nn.Module) -> None:
    """Nearly all rows far from a border are judged rightly if noise is above the signal."""
    quiet = Update(
        {
            n: 0.01 * torch.randn(p.shape, generator=generator(0, n))
            for n, p in model.named_parameters()
        }
    )
    defense = GradDefense(slices=10, perturbed=5, sigma=0.1)
    sent = defense.on_update(quiet, side_of(model))
    believed = defense.noise_model(sent, model)
    right = total = 0
    for name, noise in believed.items():
        noisy = (sent.change[name] != quiet.change[name]).view(len(noise.variance), -1)
        clear = noisy.all(1) | ~noisy.any(1)
        right += int(((noise.variance > 0) == noisy.any(1))[clear].sum())
        total += int(clear.sum())
    assert right > 0.8 * total
    highest = max(float(noise.variance.max()) for noise in believed.values())
    assert highest == pytest.approx(0.01)


def test_loud_values_are_judged_by_their_neighbours() -> None:
    values = torch.zeros(20 * NEIGHBOURS)
    values[10 * NEIGHBOURS :] = 1.0
    loud = find_loud_values(values, 1.0)
    assert not bool(loud[: 9 * NEIGHBOURS].any())
    assert bool(loud[11 * NEIGHBOURS :].all())


def test_switched_off_it_declares_no_noise(model: nn.Module) -> None:
    assert GradDefense(sigma=0).noise_model(zeros(model), model) == {}
    assert GradDefense(perturbed=0).on_update(zeros(model)).norm() == 0


def test_no_client_is_blamed_for_noise_that_was_only_guessed(model: nn.Module) -> None:
    sent = GradDefense().on_update(zeros(model), side_of(model))
    assert GradDefense().noise_model(sent, model)
    alone = check_defense(GradDefense(), sent, model)
    assert alone is not None
    assert [check.passed for check in alone.checks] == [None]
    known = check_defense(GradDefense(), sent, model, reference=zeros(model))
    assert known is not None
    assert known.status is Acted.ACTED


def test_it_needs_the_model(model: nn.Module) -> None:
    with pytest.raises(DoesNotFit, match=r"pass ClientSide\(model=..., images=...\)"):
        GradDefense().on_update(zeros(model), ClientSide(model=model))
