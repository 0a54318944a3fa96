"""Advice in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from keyhole.auditing.labels import label_defense
from keyhole.auditing.sections import Section
from keyhole.auditing.verdict import BROKEN
from keyhole.frontier.plan import UNDEFENDED
from keyhole.frontier.result import FrontierResult
from keyhole.frontier.words import PROMISE
from keyhole.threat import Attacker

if TYPE_CHECKING:
    from keyhole.frontier.advice import Advice, AdvisedSetting

SHOWN = 4
"""Settings that held, and settings that were broken, which a report names."""


def describe_advice(
    advice: Advice, section: Section, frontier: FrontierResult | None
) -> Iterator[str]:
    """What this audit broke, what was measured elsewhere, what was not, and what to run."""
    yield from describe_audit(section)
    lost = {label_defense(v.defense) for v in section.verdicts if v.status == BROKEN}
    found = [each for each in advice.settings if each.held and each.defense != UNDEFENDED]
    held = [each for each in found if each.defense not in lost]
    broken = [each for each in advice.settings if not each.held and each.defense != UNDEFENDED]
    fallen = [each.defense for each in found if each.defense in lost]
    if fallen:
        yield f"Held elsewhere, but broken in this audit: {', '.join(fallen)}."
    if advice.source == "frontier":
        assert frontier is not None
        yield from describe_from_frontier(advice, held, frontier)
    else:
        if frontier is not None:
            plan = frontier.plan
            yield f"The frontier given is about {plan.model} on {plan.data}, so it was not used."
        if advice.source == "measured":
            yield f"Measured before in this regime ({advice.where}), without accuracy:"
            yield from (describe_setting(each) for each in held[:SHOWN])
    if broken:
        named = ", ".join(f"{each.defense} ({each.read:.0%})" for each in broken[:SHOWN])
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        yield f"Broken there, with the share read: {named}{more}."
    if advice.source == "nothing":
        yield "No result that comes with Keyhole measured a defense in this regime."
    elif advice.not_measured:
        where = "by it" if advice.source == "frontier" else "in this regime"
        yield f"Not measured {where}: {', '.join(advice.not_measured)}."
    if advice.source != "frontier":
        yield f"To weigh settings by accuracy and by what is read, run: {advice.command}"
    if held:
        yield PROMISE


def describe_audit(section: Section) -> Iterator[str]:
    """What the audit itself says not to rely on."""
    broken = dict.fromkeys(label_defense(v.defense) for v in section.verdicts if v.status == BROKEN)
    if UNDEFENDED in broken:
        yield "Do not share updates without a defense: broken in this audit."
    if relied := [name for name in broken if name != UNDEFENDED]:
        yield f"Do not rely on {', '.join(relied)}: broken in this audit."
    malicious = [v.malicious for v in section.verdicts if v.malicious is not None]
    read = [each for each in malicious if each.status == BROKEN]
    if not read:
        return
    if all(each.noticed for each in read):
        yield (
            "Let clients check the model that they receive (keyhole guard --incoming): it would "
            "have noticed what the malicious server changed."
        )
    else:
        yield "A malicious server read images by changes that a client may not notice."


def describe_from_frontier(
    advice: Advice, held: list[AdvisedSetting], frontier: FrontierResult
) -> Iterator[str]:
    """What a frontier says: the mildest settings that held, or that none did."""
    plan = frontier.plan
    seeds, count = len(plan.seeds), plan.victim_images
    images = f"attacked: {count} image{'' if count == 1 else 's'} a client, {plan.victim_steps} "
    images += f"step{'' if plan.victim_steps == 1 else 's'} of lr {plan.lr:g}"
    images += f"; {plan.bound}" if plan.bound else ""
    where = f" in {advice.where}" if advice.where else ""
    how = f"{plan.rounds} rounds, {seeds} seed{'' if seeds == 1 else 's'}; {images}"
    if not held:
        yield f"No setting held in the frontier{where} ({how}): try stronger or other ones."
        return
    mildest = {each.label for each in frontier.mildest}
    yield f"By the frontier{where} ({how}), the mildest settings that no attacker broke:"
    yield from (describe_setting(each) for each in held if each.defense in mildest)


def describe_setting(setting: AdvisedSetting) -> str:
    """One setting that held: what it costs, and what was shown.

    The upper end of the interval says how little is known of so few images.
    """
    price = ""
    if setting.points is not None:
        change = "less" if setting.points >= 0 else "more"
        price = f"{abs(setting.points):.1f} points of accuracy {change} than without a defense"
        price += "; " if setting.seconds is None else f", {setting.seconds:+.2f} s a round; "
    adaptive = any(who.endswith(f"({Attacker.ADAPTIVE.value})") for who in setting.attackers)
    known = "" if adaptive else "; no attacker who knows the defense was tried"
    return (
        f"{setting.defense}: {price}0 of {setting.images} images read (95%: at most "
        f"{setting.high:.0%}) by {', '.join(setting.attackers)}{known}."
    )
