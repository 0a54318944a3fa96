"""NVIDIA FLARE's filters: percentile-privacy and svt."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from keyhole.defenses import ClientSide, Defense, PercentilePrivacy, Svt
from keyhole.defenses.percentile_privacy import find_percentile
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update


def drawn(scale: float = 0.01, steps: int = 1) -> Update:
    draws = generator(0)
    change = {
        "w": scale * torch.randn(60, 70, generator=draws),
        "b": 0.1 * scale * torch.randn(50, generator=draws),
        "one": torch.tensor(5.0),
        "count": torch.tensor(3),
    }
    return Update(change, steps=steps, lr=0.5)


@pytest.mark.parametrize("steps", [1, 4])
def test_percentiles_and_limits_are_those_of_the_formula(steps: int) -> None:
    whole, client = drawn(steps=steps), ClientSide(weights=drawn().change)
    sent = PercentilePrivacy(percentile=30, gamma=0.01).on_update(whole, client)
    floats = [v for v in whole.change.values() if v.is_floating_point()]
    values = np.concatenate([v.double().flatten().numpy() for v in floats]) / steps
    cutoff = np.percentile(np.abs(values), 30)
    for name in ("w", "b"):
        step = whole.change[name].double() / steps
        expected = torch.where(step.abs() < cutoff, 0.0, step.clamp(-0.01, 0.01)) * steps
        torch.testing.assert_close(sent.change[name].double(), expected, rtol=1e-6, atol=0)
    assert sent.change["one"] == 5
    assert sent.change["count"] == 3
    assert client.telemetry["cutoff"] == pytest.approx(cutoff * steps)
    assert client.telemetry["zeros"] == sum(int((sent.change[n] == 0).sum()) for n in ("w", "b"))


@pytest.mark.parametrize("percentile", [0, 13.7, 50, 99.99, 100])
def test_percentiles_are_numpys(percentile: float) -> None:
    values = torch.randn(1001, generator=generator(1), dtype=torch.double)
    expected = np.percentile(values.abs().numpy(), percentile)
    assert find_percentile(Update({"w": values}), percentile) == pytest.approx(expected, rel=1e-12)
    assert find_percentile(Update({}), percentile) == 0


@pytest.mark.parametrize(
    "defense",
    [
        PercentilePrivacy(),
        PercentilePrivacy(percentile=60, gamma=0.001),
        PercentilePrivacy(percentile=99, gamma=0.001),
        PercentilePrivacy(percentile=0, gamma=0.005),
        PercentilePrivacy(percentile=40, gamma=None),
        Svt(fraction=0.5),
        Svt(fraction=0.5, gamma=0.01, noise_var=10.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_truth_lies_between_the_bounds(defense: Defense, steps: int) -> None:
    whole = drawn(steps=steps)
    sent = defense.on_update(whole, ClientSide(generator(2), weights=whole.change))
    values = defense.possible_values(sent)
    assert set(values) == {"w", "b"}
    for name, interval in values.items():
        truth = whole.gradient()[name]
        assert bool(((interval.low <= truth) & (truth <= interval.high)).all()), name
    assert bool(values["w"].low.isfinite().any())


def test_svt_sends_what_its_formulas_say() -> None:
    whole, client = drawn(), ClientSide(generator(3), weights=drawn().change)
    sent = Svt(fraction=0.2, gamma=0.01, noise_var=1000.0, replace=False).on_update(whole, client)
    count = math.ceil(0.2 * 4250)
    arrays = [sent.change["w"].flatten(), sent.change["b"]]
    assert sum(int((v != 0).sum()) for v in arrays) == client.telemetry["sent"] == count
    assert max(float(v.abs().max()) for v in arrays) <= 0.01 * (1 + 1e-6)
    shown = sent.change["w"] != 0
    near = (sent.change["w"] - whole.change["w"].clamp(-0.01, 0.01))[shown].abs()
    assert float(near.mean()) < 4e-5  # the noise's scale is 2e-5
    assert sent.change["one"] == 5


def test_drawing_with_replacement_loses_a_third() -> None:
    client = ClientSide(generator(3), weights=drawn().change)
    Svt(fraction=0.5).on_update(drawn(), client)
    assert float(client.telemetry["sent"]) / math.ceil(0.5 * 4250) == pytest.approx(0.632, abs=0.2)
    assert client.telemetry["sent"] < math.ceil(0.5 * 4250)


def test_svt_says_what_it_really_spends() -> None:
    assert Svt(epsilon=0.1).spent(1000) == pytest.approx(0.1 + 0.1 * 200 ** (2 / 3) + 10)
    model = build("lenet", classes=10, channels=1, image_size=(8, 8), seed=0)
    assert "not 0.1" in Svt().caveats(model)[0]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (PercentilePrivacy, {"percentile": 101}),
        (PercentilePrivacy, {"gamma": 0}),
        (Svt, {"fraction": 0}),
        (Svt, {"noise_var": 0}),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    kind: type[Defense], values: dict[str, float]
) -> None:
    with pytest.raises(ValidationError):
        kind(**values)
