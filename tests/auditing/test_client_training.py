"""Simulated clients with optimisers, epochs, batches, and weights after some rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from captures import audited, change_json, manifest
from keyhole.auditing import Stage, audit
from keyhole.auditing.attack_setting import build_settings
from keyhole.auditing.observed_client import observe_client
from keyhole.auditing.resolve import resolve_stage
from keyhole.auditing.run import show_to_attacker
from keyhole.auditing.step_orders import MAX_ORDERS, choose_trials, count_orders
from keyhole.errors import KeyholeError
from keyhole.optimisers import Sgd
from keyhole.settings import make_settings

MOMENTUM = "sgd(momentum=0.9, nesterov=true, weight_decay=1e-4)"


def stage(**values: Any) -> Stage:
    return make_settings(Stage, {"data": "digits", "attacks": ("ig",), "victims": 1, **values})


def test_a_stage_is_recorded_as_before_where_nothing_new_is_asked_for() -> None:
    plain = stage().to_json()
    assert not {"epochs", "optimiser", "local_batch_size", "warm_up"} & plain.keys()
    assert stage(optimiser="adam").to_json()["optimiser"] == "adam"
    assert stage(warm_up=3).to_json()["warm_up"] == 3


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"optimiser": "adam"}, "pass --lr"),
        ({"local_batch_size": 1, "batch_size": 2}, "pass --lr"),
        ({"epochs": 2}, "pass --lr"),
        ({"epochs": 2, "steps": 2, "lr": 0.1}, "give one of them"),
        ({"optimiser": "lion", "lr": 0.1}, "unknown optimiser 'lion'"),
        ({"optimiser": "sgd(momentum=2)", "lr": 0.1}, "momentum"),
        ({"warm_up": -1}, "warm-up"),
        ({"warm_up": 1, "victims": 1790}, "too few for 10 clients"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(values: dict[str, Any], word: str) -> None:
    with pytest.raises(KeyholeError, match=word) as said:
        resolve_stage(stage(**values), seed=0)
    assert "\n" not in str(said.value)


def test_clients_train_and_attackers_know_how() -> None:
    asked = stage(batch_size=5, epochs=2, local_batch_size=2, lr=0.05, optimiser=MOMENTUM)
    (setting,) = build_settings(resolve_stage(asked, seed=0))
    client = observe_client(setting, 0)
    seen = show_to_attacker(client, setting, setting.runs[0])
    update, knowledge = seen.update, seen.knowledge
    assert (update.steps, update.lr, update.batch_size, update.examples) == (4, 0.05, 2, 5)
    assert knowledge.optimiser == Sgd(momentum=0.9, nesterov=True, weight_decay=1e-4)
    assert knowledge.orders > MAX_ORDERS
    assert knowledge.trained is None
    assert any("one large step" in note for note in setting.notes)
    training = setting.resolved.training
    assert (training.epochs, training.batch_size, training.optimiser) == (2, 2, MOMENTUM)


def test_few_orders_are_all_tried_and_many_are_not() -> None:
    few = resolve_stage(stage(batch_size=3, epochs=1, local_batch_size=1, lr=0.05), seed=0)
    assert few.orders == few.attacks[0].trials == 6  # type: ignore[attr-defined]
    assert count_orders(8, 2, 4) == 2520
    assert choose_trials(2, 2520) == 2
    whole = resolve_stage(stage(batch_size=3, epochs=4, lr=0.05), seed=0)
    assert (whole.orders, whole.stage.steps) == (1, 4)


def test_frozen_layers_are_simulated_as_frozen() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)
    )
    model[1].requires_grad_(False)
    asked = stage(lr=0.05, steps=3)
    (setting,) = build_settings(resolve_stage(asked, seed=0, model=model))
    client = observe_client(setting, 0)
    assert set(client.observation.update.change) == {"3.weight", "3.bias"}
    known = show_to_attacker(client, setting, setting.runs[0]).knowledge
    assert known.trained == {"3.weight", "3.bias"}


def test_rounds_before_the_attack_change_the_weights_and_are_repeated_exactly() -> None:
    asked = stage(warm_up=1, lr=0.05, model="lenet")
    fresh = resolve_stage(stage(model="lenet"), seed=0)
    one, two = (resolve_stage(asked, seed=0) for _ in range(2))
    assert one.fingerprint == two.fingerprint != fresh.fingerprint
    assert any("trained for 1 round first, by 10 clients" in note for note in one.notes)
    taken = {i for batch in one.victims for i in batch}
    assert taken == {i for batch in fresh.victims for i in batch}


def test_rounds_under_the_defense_differ_from_those_without() -> None:
    noisy = {"defenses": ("gaussian(sigma=0.1)",), "model": "lenet", "warm_up": 1}
    plain, defended = (
        resolve_stage(stage(**noisy, warm_up_defended=yes), seed=0) for yes in (False, True)
    )
    assert not any("trained for" in note for note in defended.notes)
    (setting,) = build_settings(defended)
    (other,) = build_settings(plain)
    assert any("1 round first" in note and "under gaussian" in note for note in setting.notes)
    mine, theirs = setting.model.state_dict(), other.model.state_dict()
    assert any(not torch.equal(mine[name], theirs[name]) for name in mine)


def test_adam_hides_nothing_in_one_step() -> None:
    result = audit(data="digits", attacks=["linear"], victims=2, lr=0.01, optimiser="adam")
    assert min(result.findings[0].metrics["psnr"].per_image) > 30
    assert "of adam" in result.findings[0].recipe["clients_did"]


def test_a_captured_run_of_an_unknown_optimiser_is_attacked_all_the_same(seen: Path) -> None:
    change_json(
        manifest(seen), lambda m: m["config"].update(optimiser="lion", **{"local-steps": 3})
    )
    result = audited(seen, attacks=("ig",), iterations=2)
    (note,) = [n for n in result.findings[0].notes if "lion" in n]
    assert (
        note
        == "clients trained by lion; attacks take their updates for one large step of plain SGD"
    )


def test_a_captured_optimiser_is_unrolled(seen: Path) -> None:
    change_json(
        manifest(seen),
        lambda m: m["config"].update(optimiser="sgd", momentum=0.5, **{"local-steps": 3}),
    )
    result = audited(seen, attacks=("ig",), iterations=2)
    assert not [n for n in result.findings[0].notes if "one large step" in n]
    assert result.findings[0].recipe["optimiser"] == "sgd(momentum=0.5)"
