"""Every altered model raises an alarm; honest ones raise none."""

from __future__ import annotations

import pytest

from altered_models import ARCHITECTURES, ATTACKS, alter, digits, make, weights_of
from keyhole.attacks import ATTACKS as REGISTERED
from keyhole.attacks import SingleOut
from keyhole.auditing import check_incoming
from keyhole.auditing.incoming import hash_weights

APPLIES_TO = {
    "imprint-weights": {"relu-mlp"},
    "trap-weights published": {"mlp", "relu-mlp"},
    "trap-weights calibrated": {"mlp", "relu-mlp"},
    "trap-weights short": {"mlp", "relu-mlp"},
    "fishing share": {"relu-mlp"},
    "april": {"vit-small", "adapters:vit-small"},
    "peft-imprint": {"adapters:vit-small"},
}
ONLY_WITH_THE_MODEL = {"april"}
SLOW = {"imprint one-shot": ("resnet18",), "imprint cumulative": ("resnet18",)}
"""Where another form of the same attack on the same network is tried in the fast suite."""


def test_no_attack_with_a_lying_server_is_forgotten_here() -> None:
    lying = {attack.name for attack in REGISTERED if attack.altered_model is not None}
    assert {attack.name for attack in ATTACKS.values()} == lying


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        pytest.param(attack, name, marks=[pytest.mark.slow] if name in SLOW.get(attack, ()) else [])
        for attack in ATTACKS
        for name in ARCHITECTURES
    ],
)
def test_an_altered_model_raises_an_alarm(attack: str, name: str) -> None:
    weights = alter(ATTACKS[attack], make(name))
    assert (weights is not None) == (name in APPLIES_TO.get(attack, ARCHITECTURES))
    if weights is None:
        return
    assert check_incoming(make(name, seed=1), weights).suspicious is True
    bare = check_incoming(None, weights)
    assert bare.suspicious is (None if attack in ONLY_WITH_THE_MODEL else True)


@pytest.mark.parametrize("name", [*ARCHITECTURES, "lenet-wide"])
def test_an_honest_fresh_model_raises_none(name: str) -> None:
    weights = weights_of(make(name))
    found = check_incoming(make(name, seed=1), weights, data=digits)
    assert (found.alarms, found.suspicious, found.not_checked) == ((), False, ())
    assert check_incoming(None, weights).alarms == ()


def test_the_target_of_a_secure_sum_sees_nothing_but_another_hash() -> None:
    """It gets the honest model; only the others' hash tells."""
    model = make("lenet")
    target = alter(SingleOut(target=0), model, client=0)
    other = alter(SingleOut(target=0), model, client=1)
    assert target is not None
    assert other is not None
    assert check_incoming(make("lenet", seed=1), target).suspicious is False
    found = check_incoming(make("lenet", seed=1), target, expected_hash=hash_weights(other))
    assert [alarm.name for alarm in found.alarms] == ["other model"]
