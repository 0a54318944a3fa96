"""What holds for every attack: it refuses with a reason, and what it returns can be used."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import (
    ATTACKS,
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    Matching,
    Reconstruction,
)
from keyhole.data import ImageSet, load
from keyhole.defenses import (
    DEFENSES,
    Capability,
    ClientSide,
    Csvar,
    Defense,
    Dropout,
    Gaussian,
    Mjp,
    NoDefense,
    Pruning,
)
from keyhole.errors import BadUpdate, DoesNotFit, KeyholeError
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Observation
from keyhole.update import Update


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def narrow_end() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Softmax(1), nn.ZeroPad1d((0, 5)))


def mlp_dropping() -> nn.Module:
    """Drops of its own accord, whatever the defense."""
    return Dropout(p=0.25).on_model(build("mlp", classes=10, channels=1, image_size=8))


@cache
def model(name: str) -> nn.Module:
    own = {
        "convolutions": convolutions,
        "narrow-end": narrow_end,
        "mlp-dropping": mlp_dropping,
    }
    torch.manual_seed(0)
    return own[name]() if name in own else build(name, classes=10, channels=1, image_size=8)


@dataclass(frozen=True)
class Case:
    """A model that the attack reads, the layer it cannot do without, and models it refuses.

    ``against`` is the defense that it must know of to apply at all.
    """

    fits: str
    reads: str
    refuses: dict[str, str]
    against: Defense | None = None


ANY_MODEL = Case("mlp", "", {})
"""Matching takes whatever can be differentiated."""

PUZZLES = Case(
    "vit-small",
    "pos_embed",
    {
        "vit-small": "it needs to know that clients train with MJP",
        "mlp": "its first layer '1' sees the whole image at once, not patches",
    },
    against=Mjp(gamma=0.5),
)

CASES = {
    "dlg": ANY_MODEL,
    "idlg": Case("vit-small", "", {"convolutions": "it needs a linear last layer"}),
    "ig": ANY_MODEL,
    "ig-uploaded": ANY_MODEL,
    "gifd": ANY_MODEL,
    "wiig": Case("mlp-dropping", "", {"mlp": "the client drops nothing"}),
    "dia": ANY_MODEL,
    "dia-read": Case(
        "mlp-dropping",
        "",
        {
            "mlp": "no mask can be read from the update",
            "vit-small": "no mask can be read from the update",
        },
    ),
    "april-iterative": Case(
        "vit-small",
        "pos_embed",
        {"mlp": "its first layer '1' sees the whole image at once, not patches"},
    ),
    "gradvit": Case(
        "vit-small",
        "",
        {"lenet": "its first layer '0' is a 5x5 convolution whose windows overlap"},
    ),
    "gradinversion": Case("lenet", "", {"convolutions": "it needs a linear last layer"}),
    "linear": Case(
        "mlp",
        "1.",
        {
            "lenet": "its first layer '0' is a 5x5 convolution whose windows overlap",
            "vit-small": "'patch_embed' sees 4 patches one by one",
            "convolutions": "its first layer '0' is a 3x3 convolution",
        },
    ),
    "patch-lstsq": Case(
        "vit-small",
        "pos_embed",
        {
            "mlp": "its first layer '1' sees the whole image at once, not patches",
            "resnet18": "its first layer 'conv1' is a 3x3 convolution whose windows overlap",
        },
    ),
    "april": Case(
        "vit-small",
        "blocks.0.attn.qkv.",
        {
            "vit-small": "the model's first block must be stripped",
            "mlp": "it has no `blocks` as timm's ViTs have",
            "lenet": "it has no `blocks` as timm's ViTs have",
        },
    ),
    "intercept": Case("mlp", "", {"lenet": "no image was seen on its way"}),
    "intercept-undo": Case(
        "mlp", "", {"lenet": "it needs to know the defense on the images"}, against=Csvar()
    ),
    "mjp-span": PUZZLES,
    "mjp-ig": PUZZLES,
    "labels": Case(
        "vit-small",
        "head.",
        {
            "convolutions": "it needs a linear last layer, whose output is the logits",
            "narrow-end": "it needs a linear last layer, whose output is the logits",
        },
    ),
}


def quick(name: str) -> Attack:
    """The attack as it comes, but for a few iterations where it would take thousands."""
    attack = ATTACKS[name]()
    return dataclasses.replace(attack, iterations=3) if isinstance(attack, Matching) else attack


EVERY = pytest.mark.parametrize(
    "attack", [quick(name) for name in ATTACKS.names()], ids=ATTACKS.names()
)
OF_UPDATES = pytest.mark.parametrize(
    "attack",
    [quick(name) for name in ATTACKS.names() if ATTACKS[name].reads_update],
    ids=lambda attack: attack.name,
)
DEFENDED = pytest.mark.parametrize(
    "defense",
    [
        NoDefense(),
        Dropout(p=0.5),
        Gaussian(sigma=1e-3),
        Gaussian(sigma=100.0),
        Pruning(ratio=0.9),
        Pruning(ratio=0.999),
        Pruning(ratio=0.99, scope="update"),
        Pruning(ratio=0.9999, scope="update"),
    ],
    ids=str,
)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits")


def victim_of(
    attack: Attack,
    observe: Callable[..., Any],
    data: ImageSet,
    indices: list[int],
    defense: Defense | None = None,
) -> Any:
    """A client that the attack applies to, under ``defense`` as well as the one it is against."""
    case = CASES[attack.name]
    victim = observe(attack.alter(model(case.fits)), data, indices, case.against or defense)
    if case.against is not None and defense is not None:
        seen = victim.observation
        side = ClientSide(generator=generator(0, "second defense"))
        twice = with_update(seen, defense.on_update(seen.update, side))
        victim = dataclasses.replace(victim, observation=twice)
    return victim.telling(*attack.given)


def with_update(observation: Observation, update: Update) -> Observation:
    return dataclasses.replace(observation, update=update)


def check_usable(found: Reconstruction, batch: int) -> None:
    assert found.images is not None or found.labels is not None or "images" in found.diagnostics
    if found.images is not None:
        assert found.images.shape[1:] == (1, 8, 8)
        assert 1 <= len(found.images) <= batch
        assert found.images.isfinite().all()
        assert not found.images.requires_grad
        assert found.confidence is not None
        assert found.confidence.shape == (len(found.images),)
        assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    if found.labels is not None:
        assert found.labels.shape == (batch,)
        assert ((found.labels >= 0) & (found.labels < 10)).all()


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
    apart = 1e-3 if isinstance(attack, Matching) else 0.0  # batches of other sizes round otherwise
    for alone, found in zip((attack(o) for o in seen), together, strict=True):
        for one, two in ((alone.images, found.images), (alone.labels, found.labels)):
            assert (one is None and two is None) or torch.allclose(one, two, rtol=0, atol=apart)
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
def test_an_attack_says_what_it_is(attack: Attack) -> None:
    assert attack.summary
    assert attack.paper
    assert attack.needs
    assert attack.uses <= set(Capability)
    assert not attack.only_adaptive or any(attack.knows(defense()) for defense in DEFENSES)
    changed = attack.alter(model(CASES[attack.name].fits)) is not model(CASES[attack.name].fits)
    assert changed == (attack.altered_model is not None)
