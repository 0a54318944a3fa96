from __future__ import annotations

from typing import Any

import pytest
import torch

from keyhole.data import Normalisation, load
from keyhole.data.image_set import normalise
from keyhole.data.normalisation import common_normalisations, fit_normalisation
from keyhole.seeds import generator

digits, photos = load("digits"), load("photos", image_size=16)


@pytest.mark.parametrize("data", [digits, photos], ids=lambda d: d.name)
@pytest.mark.parametrize("which", range(6))
def test_exact_inputs_tell_how_they_were_normalised(data: Any, which: int) -> None:
    own = Normalisation.of(data)
    true = [own, *common_normalisations(data.shape[0])][which]
    for image in (0, 3, 7):
        pixels = data.images([image]).double()
        fit = fit_normalisation(normalise(pixels, true.mean, true.std), own)
        seen = fit.pixels(normalise(pixels, true.mean, true.std))
        assert (seen - pixels).abs().max() < 0.005, (fit, true)


def test_noisy_inputs_of_the_assumed_normalisation_stay_with_it() -> None:
    draw = generator(0, "noise")
    for data in (digits, photos):
        own = Normalisation.of(data)
        pixels = data.images(range(8)).double()
        for strength in (0.02, 0.05, 0.1):
            noisy = pixels + strength * torch.randn(pixels.shape, generator=draw).double()
            assert fit_normalisation(normalise(noisy, own.mean, own.std), own) == own


def test_noisy_raw_inputs_fit_the_raw_box() -> None:
    own = Normalisation.of(photos)
    pixels = photos.images(range(8)).double()
    noisy = pixels + 0.03 * torch.randn(pixels.shape, generator=generator(0, "noise")).double()
    assert fit_normalisation(noisy, own).name == "raw [0, 1]"


def test_inputs_that_fit_nothing_common_are_stretched_to_their_own_range() -> None:
    own = Normalisation.of(photos)
    pixels = photos.images(range(4)).double()
    fit = fit_normalisation(normalise(pixels, (-7.0,) * 3, (0.031,) * 3), own)
    assert fit.name == "their own range"
    seen = fit.pixels(normalise(pixels, (-7.0,) * 3, (0.031,) * 3))
    assert (seen.clamp(0, 1) - pixels).abs().mean() < 0.1


def test_inputs_that_are_not_finite_tell_nothing() -> None:
    own = Normalisation.of(photos)
    assert fit_normalisation(torch.full((1, 3, 4, 4), torch.nan), own) == own
    assert fit_normalisation(torch.empty(0, 3, 4, 4), own) == own
