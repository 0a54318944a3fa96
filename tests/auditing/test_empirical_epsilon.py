"""The audit of a privacy budget: honest mechanisms hold, broken ones are found."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import nn
from torch.nn import functional as F

from keyhole.auditing import EpsilonPlan, EpsilonResult, audit_epsilon
from keyhole.auditing.canaries import CanaryModel, choose_places
from keyhole.defenses import ClientSide, Defense, Dp, DpSgd, FlowerLocalDp, Pruning
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.update import Update

SMALL = "keyhole.models.shallow_convnet:shallow_convnet"
SEEDS = range(4)


def audited(defense: Defense, **values: Any) -> EpsilonResult:
    plan = EpsilonPlan(**{"model": SMALL, "canaries": 100, **values})
    return audit_epsilon(plan, defense=defense)


def test_a_canary_has_a_gradient_in_its_own_weight_alone() -> None:
    torch.manual_seed(0)
    inner = nn.Linear(3, 4)
    planted = CanaryModel(inner, torch.tensor([2, 13]), norm=7.0, classes=4)
    codes = torch.tensor([1.0, -1.0, 2.0]).view(-1, 1, 1, 1)
    for code, place, size in zip(codes, (2, 2, 13), (7.0, 7e-6, 7.0), strict=True):
        loss = F.cross_entropy(planted(code[None]), torch.tensor([0]))
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*inner.parameters()])])
        expected = torch.zeros(16)
        expected[place] = -size
        assert torch.allclose(flat, expected, rtol=1e-5, atol=0)


def test_every_tensor_has_its_share_of_canaries() -> None:
    model = build("lenet", classes=10, channels=1, image_size=8)
    places = choose_places(model, 80, seed=0)
    sizes = torch.tensor([p.numel() for p in model.parameters()])
    tensor = torch.bucketize(places, sizes.cumsum(0), right=True)
    assert torch.bincount(tensor).tolist() == [10] * 8
    assert len(set(places.tolist())) == 80
    assert not torch.equal(places, choose_places(model, 80, seed=1))


def test_places_repeat_only_where_weights_run_out() -> None:
    places = choose_places(nn.Linear(2, 2), 20, seed=0)
    assert len(places) == 20
    assert set(places.tolist()) == set(range(6))


@pytest.mark.parametrize(
    "defense", [Dp(epsilon=3.0), Dp(sigma=1.5, clip=1.0), DpSgd(noise=1.0)], ids=str
)
def test_an_honest_mechanism_is_refuted_in_at_most_a_twentieth_of_all_seeds(
    defense: Defense,
) -> None:
    if isinstance(defense, DpSgd):
        pytest.importorskip("opacus")
    found = [audited(defense, seed=seed) for seed in SEEDS]
    assert sum(each.status == "refuted" for each in found) <= 0.05 * len(found)
    assert all(each.claimed is not None for each in found)
    assert any(each.bound.epsilon > 0 for each in found)


@dataclass(frozen=True, kw_only=True)
class WeakDp(Dp):
    """Draws a thousandth of the noise that its budget asks for."""

    name: ClassVar[str] = "weak-dp"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        sigma = self.strength(update, self.require_model(side)) / 1000
        return Dp(clip=self.clip, sigma=sigma).on_update(update, side)


@dataclass(frozen=True, kw_only=True)
class WeakDpSgd(DpSgd):
    """Accounts for ``noise`` and draws a thousandth of it."""

    name: ClassVar[str] = "weak-dpsgd"

    def _privatise(self, samples: Any, side: ClientSide) -> Any:
        return DpSgd(noise=self.noise / 1000, clip=self.clip)._privatise(samples, side)


@pytest.mark.parametrize("defense", [WeakDp(epsilon=2.0), WeakDpSgd(noise=2.0)], ids=str)
def test_a_thousandth_of_the_noise_is_found(defense: Defense) -> None:
    if isinstance(defense, DpSgd):
        pytest.importorskip("opacus")
    for seed in SEEDS[:2]:
        found = audited(defense, seed=seed)
        assert found.status == "refuted"
        assert found.bound.correct >= 0.95 * found.bound.guesses
        assert found.claimed is not None
        assert found.claimed < found.bound.epsilon


def test_a_mod_whose_sensitivity_is_a_thousandth_is_found() -> None:
    """Flower's mod takes sensitivity and clipping norm apart, and its epsilon at its word."""
    pytest.importorskip("flwr")
    proper = audited(FlowerLocalDp(epsilon=2.0))
    assert (proper.status, proper.claimed, proper.delta) == ("not refuted", 2.0, 1e-5)
    wrong = audited(FlowerLocalDp(epsilon=2.0, sensitivity=1e-3))
    assert (wrong.status, wrong.claimed) == ("refuted", 2.0)
    assert wrong.bound.epsilon > 2.0


def test_a_batchs_noise_does_not_hide_one_image() -> None:
    """DP by batch divides its sensitivity by the batch's size; its clipping does not."""
    single, batch = audited(Dp(epsilon=2.0)), audited(Dp(epsilon=2.0), steps=2, lr=0.1)
    assert single.status == batch.status == "not refuted"
    assert batch.claimed == 2.0


def test_several_steps_cost_more() -> None:
    pytest.importorskip("opacus")
    one, four = (audited(DpSgd(noise=2.0), steps=n, lr=0.1, canaries=1000) for n in (1, 4))
    assert one.claimed is not None
    assert four.claimed is not None
    assert four.claimed > 1.5 * one.claimed
    assert four.bound.epsilon > one.bound.epsilon
    assert four.status != "refuted"


def test_a_claim_beyond_reach_is_no_success() -> None:
    pytest.importorskip("opacus")
    found = audited(DpSgd(noise=0.1), canaries=100)
    assert found.status == "out of reach"
    assert "could not be refuted by so few canaries" in found.words


def test_without_a_claim_there_is_a_bound_all_the_same() -> None:
    found = audited(Pruning(ratio=0.9))
    assert (found.status, found.claimed, found.delta) == ("no claim", None, 1e-5)
    assert found.bound.epsilon == found.provable


def test_the_result_is_plain_json() -> None:
    found = audited(Dp(sigma=0.0))
    assert found.claimed == math.inf
    values = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert values["claimed"] == "infinite"
    assert values["lower_bound"] == found.bound.epsilon
    assert values["plan"]["canaries"] == 100
    assert audited(Dp(sigma=0.0)).to_json() == found.to_json()


def test_the_images_and_the_model_go_on_as_before(same_rng: Any) -> None:
    before = audited(Dp(), canaries=40)
    assert same_rng()
    assert audited(Dp(), canaries=40).bound == before.bound
    assert audited(Dp(), canaries=40, seed=1).bound != before.bound or before.bound.epsilon == 0


def test_a_defense_that_does_not_fit_is_told() -> None:
    pytest.importorskip("opacus")
    with pytest.raises(DoesNotFit, match="BatchNorm"):
        audited(DpSgd(), model="resnet18", canaries=20)
