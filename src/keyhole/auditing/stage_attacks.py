"""Which attacks a stage tries, with which settings, and who uses each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from keyhole.attacks import (
    ATTACKS,
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    DropoutInversion,
    Gifd,
    InvertingGradients,
    Matching,
)
from keyhole.auditing.plan import AUTO, Stage
from keyhole.auditing.step_orders import choose_trials
from keyhole.defenses import Capability, Defense
from keyhole.errors import BadValue
from keyhole.plugins import address_of
from keyhole.registry import part_name
from keyhole.threat import Attacker


def choose_attacks(stage: Stage) -> list[Attack]:
    """The attacks that a stage names; for `auto`, the closed forms for an honest server."""
    if AUTO not in stage.attacks:
        return [ATTACKS.parse(text) for text in stage.attacks]
    if stage.attacks != (AUTO,):
        raise BadValue("attacks: 'auto' stands alone; name the attacks, or leave it at auto")
    return [member() for member in CLOSED_FORM if member.altered_model is None]


def choose_fallback_attacks(defense: Defense, shape: tuple[int, int, int]) -> list[Attack]:
    """What `auto` adds where no closed form reads images of this shape.

    IG, GIFD if its generator draws such images, the attacks that the defense was published with,
    DIA if clients hide masks, and those that need to know the defense.
    """
    prior = [Gifd()] if Gifd().generates(shape) else []
    published = [ATTACKS.parse(name) for name in defense.paper_attacks]
    hidden = [DropoutInversion()] if defense.hides_masks else []
    adaptive = find_adaptive_attacks(defense)
    candidates = [InvertingGradients(), *prior, *published, *hidden, *adaptive]
    return [attack for attack in drop_duplicates(candidates) if attack.reads_update]


def find_adaptive_attacks(defense: Defense) -> list[Attack]:
    """The iterative attacks that only work with knowledge of the defense, and have it here."""
    return [member() for member in ITERATIVE if member.only_adaptive and member().knows(defense)]


def configure_attack(
    attack: Attack, stage: Stage, *, labels_known: bool = True, orders: int = 1
) -> Attack:
    """An iterative attack with the settings of its stage; any other attack as it is.

    The stage may ask for the paper's settings and limit the iterations. Unknown labels are
    inferred, and each of the ``orders`` of a client's images gets a trial if there are few.
    """
    if not isinstance(attack, Matching):
        return attack
    settings: dict[str, Any] = dict(attack.published) if stage.parity == "paper" else {}
    if stage.iterations is not None:
        settings["iterations"] = stage.iterations
    configured = replace(attack, **settings)
    if not labels_known and configured.labels == "given":
        configured = replace(configured, labels="inferred")
    return replace(configured, trials=choose_trials(configured.trials, orders))


def choose_attackers(attack: Attack, defense: Defense) -> list[Attacker]:
    """Who uses this attack against this defense.

    An attacker who repeats a paper knows how clients train, dropout included, and nothing else
    that a defense declares.

    Args:
        attack: The attack, as it was set.
        defense: What the clients run.
    """
    usable = attack.matching_capabilities(defense)
    if usable and attack.only_adaptive:
        return [Attacker.ADAPTIVE]
    names = {part_name(attack), address_of(type(attack))}
    if names & set(defense.paper_attacks):
        first, more = Attacker.PAPER, usable - {Capability.HIDDEN_MASKS}
    else:
        first, more = Attacker.NAIVE, usable
    return [first, Attacker.ADAPTIVE] if more else [first]


def drop_duplicates(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Each attack or defense once, by how it is spelled."""
    return tuple({str(part): part for part in parts}.values())
