"""Everyone who attacks a setting: closed forms first, iterative attacks where those do not do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keyhole.attacks import ATTACKS, CLOSED_FORM, Attack
from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.stage_attacks import choose_fallback_attacks, drop_duplicates
from keyhole.defenses import Defense
from keyhole.plugins import address_of

CHEAP = frozenset(address_of(member) for member in CLOSED_FORM)
"""Classes of attacks that solve for the images, in seconds."""


def choose_attacks(
    defense: Defense, shape: tuple[int, int, int], named: Sequence[str] = ()
) -> list[Attack]:
    """The attacks that a frontier runs against a defense.

    Without names: every closed form for an honest server, ``ig``, ``gifd`` for images of its
    generator's shape, the attacks that the defense was published with, and those that need to know
    the defense. An audit's ``auto`` leaves the iterative ones out where a closed form applies; here
    they run wherever the closed forms did not read every image.

    Args:
        defense: The clients' defense.
        shape: Channels, height and width of the images.
        named: Attacks that the user names; they take the place of all others.
    """
    if named:
        return [ATTACKS.parse(text) for text in named]
    closed = [member() for member in CLOSED_FORM if member.altered_model is None]
    found = [*closed, *choose_fallback_attacks(defense, shape)]
    return [attack for attack in drop_duplicates(found) if is_about(attack, defense)]


def is_about(attack: Attack, defense: Defense) -> bool:
    """Whether an attack has anything to do with this defense."""
    for_others = attack.only_adaptive and not attack.knows(defense)
    return not for_others and (attack.reads_update or defense.images_travel)


def split_by_cost(setting: AttackSetting) -> tuple[AttackSetting, AttackSetting]:
    """The setting with its closed forms alone, and with all other attackers."""
    cheap = tuple(run for run in setting.runs if address_of(type(run.attack)) in CHEAP)
    rest = tuple(run for run in setting.runs if run not in cheap)
    return replace(setting, runs=cheap), replace(setting, runs=rest)
