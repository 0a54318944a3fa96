"""What holds for every attack: it refuses with a reason, and what it returns can be used."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attack_cases import (
    CASES,
    DEFENDED,
    EVERY,
    OF_UPDATES,
    check_usable,
    know,
    model,
    quick,
    victim_of,
    with_update,
)
from keyhole.attacks import (
    ATTACKS,
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    Matching,
)
from keyhole.data import ImageSet, load
from keyhole.defenses import (
    DEFENSES,
    Capability,
    Dropout,
    Gaussian,
    Pruning,
)
from keyhole.errors import BadUpdate, DoesNotFit, KeyholeError
from keyhole.threat import Observation


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits")


def test_the_table_has_a_row_for_every_attack() -> None:
    assert set(CASES) == set(ATTACKS.names())


@pytest.mark.parametrize(
    ("name", "refused", "reason"),
    [(name, m, reason) for name, case in CASES.items() for m, reason in case.refuses.items()],
)
def test_an_attack_that_does_not_apply_says_why(
    observe: Callable[..., Any], digits: ImageSet, name: str, refused: str, reason: str
) -> None:
    attack = ATTACKS.parse(name)
    observation = observe(model(refused), digits, [1, 2]).observation
    assert any(reason in why for why in attack.incompatibilities(observation))
    with pytest.raises(DoesNotFit, match=f"attack '{name}' does not apply") as raised:
        attack(observation)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


CLOSED = pytest.mark.parametrize(
    "attack", [attack() for attack in CLOSED_FORM], ids=lambda a: a.name
)
ITERATING = pytest.mark.parametrize(
    "attack", [quick(attack.name) for attack in ITERATIVE], ids=lambda a: a.name
)


@ITERATING
@pytest.mark.parametrize("defense", [Dropout(p=0.5), Gaussian(sigma=100.0)], ids=str)
def test_what_an_iterative_attack_returns_is_finite(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, defense: Any
) -> None:
    observation = victim_of(attack, observe, digits, [3], defense).observation
    assert attack.incompatibilities(observation) == []
    check_usable(attack(observation), 1)


@ITERATING
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e20])
def test_an_iterative_attack_bears_updates_of_any_size(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, factor: float
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    check_usable(attack(with_update(seen, seen.update.map(lambda _, t: t * factor))), 1)


@CLOSED
@DEFENDED
@pytest.mark.parametrize("aware", [True, False])
def test_what_an_attack_returns_is_finite(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, defense: Any, aware: bool
) -> None:
    victim = victim_of(attack, observe, digits, [3], defense)
    observation = victim.observation if aware else victim.unaware
    if attack.only_adaptive and not aware:
        assert any("it needs to know" in why for why in attack.incompatibilities(observation))
        return
    assert attack.incompatibilities(observation) == []
    check_usable(attack(observation), 1)


@CLOSED
@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e-20, 1e20])
@pytest.mark.parametrize("known", [None, Gaussian(), Pruning()], ids=str)
def test_updates_of_any_size_are_borne(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, factor: float, known: Any
) -> None:
    victim = victim_of(attack, observe, digits, [3])
    knowledge = victim.observation.knowledge
    if known is not None and CASES[attack.name].against is None:
        knowledge = dataclasses.replace(knowledge, defense=known)
    scaled = victim.observation.update.map(lambda name, tensor: tensor * factor)
    check_usable(attack(Observation(victim.observation.model, scaled, knowledge)), 1)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_updates_of_any_precision_are_borne(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, dtype: torch.dtype
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    check_usable(attack(with_update(seen, seen.update.map(lambda name, t: t.to(dtype)))), 1)


@OF_UPDATES
def test_nothing_is_seen_with_confidence_in_an_empty_update(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    found = attack(with_update(seen, seen.update.map(lambda name, t: torch.zeros_like(t))))
    assert found.confidence is None or (found.confidence < 0.5).all()


@EVERY
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_refused(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack, bad: float
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation

    def spoil(name: str, tensor: Tensor) -> Tensor:
        spoilt = tensor.clone()
        spoilt.view(-1)[0] = bad
        return spoilt

    with pytest.raises(BadUpdate, match="NaN or infinite"):
        attack(with_update(seen, seen.update.map(spoil)))


@OF_UPDATES
def test_an_update_without_the_layer_that_is_read_is_refused(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    layer = CASES[attack.name].reads
    change = {n: t for n, t in seen.update.change.items() if not n.startswith(layer)}
    assert len(change) < len(seen.update.change)
    with pytest.raises(KeyholeError):
        attack(with_update(seen, dataclasses.replace(seen.update, change=change)))


@EVERY
def test_an_attack_leaves_what_it_observed_alone(
    observe: Callable[..., Any],
    digits: ImageSet,
    attack: Attack,
    same_rng: Callable[[], bool],
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    weights = copy.deepcopy(seen.model.state_dict())
    change = copy.deepcopy(dict(seen.update.change))
    first, second = attack(seen), attack(seen)
    for one, two in ((first.images, second.images), (first.labels, second.labels)):
        assert (one is None and two is None) or torch.equal(one, two)
    assert all(torch.equal(weights[n], t) for n, t in seen.model.state_dict().items())
    assert all(torch.equal(change[n], t) for n, t in seen.update.change.items())
    assert not seen.model.training
    assert not any(p.requires_grad for p in seen.model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in seen.model.modules())
    assert torch.is_grad_enabled()
    assert same_rng()


@EVERY
def test_many_clients_are_attacked_in_order(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack
) -> None:
    seen = [victim_of(attack, observe, digits, [i]).observation for i in (3, 5)]
    together = list(attack.on_many(seen))
    rounded = isinstance(attack, Matching)  # batches of other sizes round otherwise
    for alone, found in zip((attack(o) for o in seen), together, strict=True):
        for one, two in ((alone.images, found.images), (alone.labels, found.labels)):
            if one is None or two is None:
                assert one is two
            elif rounded:  # first steps follow signs, so that single values may differ by more
                assert (one - two).abs().double().mean() < 1e-3
            else:
                assert torch.equal(one, two)
    assert list(attack.on_many([])) == []


@EVERY
def test_models_in_double_precision_are_attacked(
    observe: Callable[..., Any], digits: ImageSet, attack: Attack
) -> None:
    seen = victim_of(attack, observe, digits, [3]).observation
    double = Observation(
        copy.deepcopy(seen.model).double(),
        seen.update.map(lambda name, tensor: tensor.double()),
        seen.knowledge,
    )
    check_usable(attack(double), 1)


@EVERY
def test_an_attack_is_a_frozen_record_that_spells_itself(attack: Attack) -> None:
    assert ATTACKS.parse(str(attack)) == attack
    for field in dataclasses.fields(attack):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(attack, field.name, None)


@EVERY
def test_an_attack_says_what_it_is(attack: Attack, digits: ImageSet) -> None:
    assert attack.summary
    assert attack.paper
    assert attack.needs
    assert attack.uses <= set(Capability)
    assert not attack.only_adaptive or any(attack.knows(defense()) for defense in DEFENSES)
    honest, public = model(CASES[attack.name].fits), know(digits)
    sent = attack.personalise(attack.alter(honest, public), 1, public)
    changed = sent is not honest
    assert changed == (attack.altered_model is not None)
