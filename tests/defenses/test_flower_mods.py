"""Flower's own mods as defenses: what they send is what their formulas say."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from keyhole.defenses import Acted, ClientSide, FlowerClipping, FlowerLocalDp, check_defense
from keyhole.defenses.flower_mods import run_mod
from keyhole.errors import BadUpdate, DoesNotFit
from keyhole.seeds import generator
from keyhole.update import Update


def drawn(scale: float = 1.0) -> Update:
    draws = generator(0)
    change = {
        "w": scale * torch.randn(40, 50, generator=draws),
        "b": scale * torch.randn(50, generator=draws),
        "one": torch.tensor(0.5),
        "count": torch.tensor(3),
    }
    return Update(change, steps=2, lr=0.1)


def norm(update: Update) -> float:
    """As Flower measures it: counts of batches are part of it."""
    return math.sqrt(sum(float(v.double().square().sum()) for v in update.change.values()))


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_long_update_is_scaled_and_a_short_one_is_not(kind: str) -> None:
    client = ClientSide(weights=drawn().change)
    long, short = drawn(), drawn(1e-4)
    sent = FlowerClipping(kind=kind, clipping_norm=5.0).on_update(long, client)
    scale = 5.0 / norm(long)
    for name in ("w", "b"):
        torch.testing.assert_close(sent.change[name], long.change[name] * scale)
    assert sent.change["one"] == 0.5  # numbers of their own pass through
    assert sent.change["count"] == 3
    assert client.telemetry.get("norm_bit") == (1 if kind == "adaptive" else None)
    sent = FlowerClipping(kind=kind, clipping_norm=5.0).on_update(short, client)
    assert all(torch.equal(sent.change[n], v) for n, v in short.change.items())
    assert client.telemetry.get("norm_bit") == (0 if kind == "adaptive" else None)


def test_local_dp_adds_the_noise_of_its_formula() -> None:
    client = ClientSide(generator(1), weights=drawn().change)
    defense = FlowerLocalDp(clipping_norm=2.0, sensitivity=0.5, epsilon=3.0, delta=1e-4)
    sigma = 0.5 * math.sqrt(2 * math.log(1.25e4)) / 3
    assert defense.sigma == pytest.approx(sigma)
    sent = defense.on_update(drawn(), client)
    noise = sent.change["w"] - drawn().change["w"] * (2.0 / norm(drawn()))
    assert float(noise.std()) == pytest.approx(sigma, rel=0.06)
    model = nn.Linear(50, 40)
    update = Update({"weight": torch.ones(40, 50)}, steps=2, lr=0.1)
    assert defense.noise_model(update, model)["weight"].sigma == pytest.approx(sigma / 0.2)


def test_the_client_s_generator_decides_and_numpys_own_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()
    sent = [
        FlowerLocalDp().on_update(drawn(), ClientSide(generator(seed), weights=drawn().change))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(sent[0].change["w"], sent[1].change["w"])
    assert not torch.equal(sent[0].change["w"], sent[2].change["w"])
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_types_stay(kind: torch.dtype) -> None:
    update = Update({"w": torch.randn(20, generator=generator(0)).to(kind)})
    assert FlowerLocalDp().on_update(update).change["w"].dtype == kind


def test_a_sensitivity_below_the_norm_is_told() -> None:
    """A default of this kind gave noise of 4.8e-5 at a clipping norm of 1."""
    caveats = FlowerLocalDp(sensitivity=1e-4, epsilon=0.5).caveats(nn.Linear(2, 2))
    assert any("epsilon = 5e+03" in caveat for caveat in caveats)
    assert FlowerLocalDp(epsilon=0.5).caveats(nn.Linear(2, 2)) == []


@pytest.mark.parametrize("sensitivity", [1.0, 1e-3, 0.0])
def test_noise_below_what_the_budget_needs_is_found(sensitivity: float) -> None:
    """The real mod, whose clipping norm is 1, with a sensitivity that is not."""
    model = nn.Linear(50, 40)
    plain = Update({"weight": drawn().change["w"], "bias": drawn().change["w"][:, 0].clone()})
    defense = FlowerLocalDp(epsilon=5.0, sensitivity=sensitivity)
    sent = defense.on_update(plain, ClientSide(generator(1), model=model))
    for reference in (plain, None):
        found = check_defense(defense, sent, model, reference=reference)
        assert found is not None
        assert found.status is (Acted.ACTED if sensitivity == 1 else Acted.WEAK), found.words
        noise = found.checks[0]
        assert noise.expected == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 5)
        if reference is not None:
            assert noise.found == pytest.approx(noise.expected * sensitivity, rel=0.1, abs=1e-6)


def test_a_mod_that_fails_sends_nothing() -> None:
    with pytest.raises(BadUpdate, match="zero everywhere"):
        FlowerClipping().on_update(Update({"w": torch.zeros(3)}))
    mods = pytest.importorskip("flwr.clientapp.mod")
    with pytest.raises(BadUpdate, match="clipping_norm"):
        run_mod(mods.fixedclipping_mod, Update({"w": torch.ones(3)}), generator(0), {})


def test_without_flower_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.clientapp", None)
    for defense in (FlowerLocalDp(), FlowerClipping()):
        with pytest.raises(DoesNotFit, match=r"pip install 'keyhole\[flower\]'"):
            defense.validate(nn.Linear(2, 2))
