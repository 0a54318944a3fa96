from __future__ import annotations

from typing import Any

import pytest
import torch

from keyhole.data import Normalisation, load
from keyhole.data.image_set import normalise
from keyhole.data.normalisation import (
    as_facts,
    best_fit,
    common,
    read_deviations,
    read_means,
)
from keyhole.errors import BadValue
from keyhole.seeds import generator

digits, photos = load("digits"), load("photos", image_size=16)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("0.5", (0.5,)),
        (0.5, (0.5,)),
        (1, (1.0,)),
        ("0.1, 0.2,0.3", (0.1, 0.2, 0.3)),
        ([1, 2], (1, 2)),
    ],
)
def test_one_number_or_one_per_channel_is_read(given: Any, read: tuple[float, ...]) -> None:
    assert read_means(given) == read_deviations(given) == read


@pytest.mark.parametrize(
    "bad",
    ["", ",", "a", "nan", "inf", [], None, True, "0.1,", [[1]], {"a": 1}, "1e999", [0.1] * 99, 1e9],
)
def test_what_is_no_number_is_refused_in_one_line(bad: Any) -> None:
    for read, name in ((read_means, "mean"), (read_deviations, "std")):
        with pytest.raises(BadValue, match=f"^{name}: give one number") as raised:
            read(bad)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("bad", [0, "0.5,0", -0.1, "0.2,-0.2,0.2", 1e-9])
def test_a_std_is_above_zero(bad: Any) -> None:
    with pytest.raises(BadValue, match=r"^std: give one number above 0"):
        read_deviations(bad)


def test_mean_and_std_are_given_together() -> None:
    with pytest.raises(BadValue, match="mean is given without std: give both"):
        load("digits", mean=0.5)
    with pytest.raises(BadValue, match="std is given without mean"):
        as_facts(None, 0.5)


def test_as_facts_they_read_back_to_the_bit() -> None:
    mean, std = (0.1 + 0.2, 1 / 3, 0.4465), (1 / 7, 0.25, 1 / 255)
    facts = as_facts(mean, std)
    assert (read_means(facts["mean"]), read_deviations(facts["std"])) == (mean, std)
    assert as_facts(None, None) == {}


@pytest.mark.parametrize("data", [digits, photos], ids=lambda d: d.name)
@pytest.mark.parametrize("which", range(6))
def test_exact_inputs_tell_how_they_were_normalised(data: Any, which: int) -> None:
    own = Normalisation.of(data)
    true = [own, *common(data.shape[0])][which]
    for image in (0, 3, 7):
        pixels = data.images([image]).double()
        fit = best_fit(normalise(pixels, true.mean, true.std), own)
        seen = fit.pixels(normalise(pixels, true.mean, true.std))
        assert (seen - pixels).abs().max() < 0.005, (fit, true)


def test_noisy_inputs_of_the_assumed_normalisation_stay_with_it() -> None:
    draw = generator(0, "noise")
    for data in (digits, photos):
        own = Normalisation.of(data)
        pixels = data.images(range(8)).double()
        for strength in (0.02, 0.05, 0.1):
            noisy = pixels + strength * torch.randn(pixels.shape, generator=draw).double()
            assert best_fit(normalise(noisy, own.mean, own.std), own) == own


def test_noisy_raw_inputs_fit_the_raw_box() -> None:
    own = Normalisation.of(photos)
    pixels = photos.images(range(8)).double()
    noisy = pixels + 0.03 * torch.randn(pixels.shape, generator=generator(0, "noise")).double()
    assert best_fit(noisy, own).name == "raw [0, 1]"


def test_inputs_that_fit_nothing_common_are_stretched_to_their_own_range() -> None:
    own = Normalisation.of(photos)
    pixels = photos.images(range(4)).double()
    fit = best_fit(normalise(pixels, (-7.0,) * 3, (0.031,) * 3), own)
    assert fit.name == "their own range"
    seen = fit.pixels(normalise(pixels, (-7.0,) * 3, (0.031,) * 3))
    assert (seen.clamp(0, 1) - pixels).abs().mean() < 0.1


def test_inputs_that_are_not_finite_tell_nothing() -> None:
    own = Normalisation.of(photos)
    assert best_fit(torch.full((1, 3, 4, 4), torch.nan), own) == own
    assert best_fit(torch.empty(0, 3, 4, 4), own) == own
