"""The executive summary: one light for each regime and each kind of server, with its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.sections import Section
from keyhole.auditing.verdict import (
    BROKEN,
    HONEST,
    MALICIOUS,
    NOT_BROKEN,
    NOT_SCORED,
    NOT_TESTED,
    MaliciousVerdict,
    Verdict,
)
from keyhole.auditing.verdict_words import find_reidentified
from keyhole.metrics.proportion import proportion_interval
from keyhole.report.words import count_noun, join_words
from keyhole.threat import Attacker

SERVERS = (HONEST, MALICIOUS)
UNDEFENDED = "none"
NAMED = 3
"""The most settings that a light names."""

UNTRIED = {
    HONEST: "Only attacks that change the model were run: nothing is known of an honest server.",
    MALICIOUS: "No attack of this audit changes the model: nothing is known of such a server.",
}
"""Why a server has no light."""


class Lamp(StrEnum):
    """Which lamp of a traffic light is lit."""

    RED = "red"
    AMBER = "amber"
    GREEN = "green"
    OFF = "off"


@dataclass(frozen=True)
class Light:
    """What a light shows of one kind of server in one regime.

    Args:
        server: ``honest`` or ``malicious``.
        lamp: Which lamp is lit.
        state: The light in two or three words, so that nobody needs its colour.
        words: Why, in sentences.
    """

    server: str
    lamp: Lamp
    state: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """One setting before one kind of server."""

    name: str
    outcome: Verdict | MaliciousVerdict
    findings: tuple[Finding, ...]

    @property
    def images(self) -> int:
        """How many images were attacked."""
        return max((len(f.metrics["read"].per_image) for f in self.findings), default=0)


def light_section(section: Section) -> list[Light]:
    """One light for each kind of server.

    Args:
        section: One regime with its verdicts.
    """
    return [light_server(section, server) for server in SERVERS]


def light_server(section: Section, server: str) -> Light:
    """The light of one kind of server: red where it read in every setting, amber where in some.

    Green asks that it read nothing although attackers who know each defense were there.
    """
    settings = list_judged(section, server)
    counts = Counter(each.outcome.status for each in settings)
    broken = [each for each in settings if each.outcome.status == BROKEN]
    held = [each for each in settings if each.outcome.status == NOT_BROKEN]
    unknown = tuple(describe_unknown(counts))
    if not settings:
        return Light(server, Lamp.OFF, "Not tried", (UNTRIED[server],))
    if not broken and not held:
        return Light(server, Lamp.OFF, "Not judged", unknown)
    if broken and held:
        state, words = "Depends on the defense", describe_mixed(broken, held)
        return Light(server, Lamp.AMBER, state, (*words, *list_doubts(held), *unknown))
    if broken:
        return Light(server, Lamp.RED, "Images were read", (describe_all_read(broken), *unknown))
    doubts = list_doubts(held)
    if doubts:
        return Light(server, Lamp.AMBER, "Not broken, with doubts", (*doubts, *unknown))
    return Light(server, Lamp.GREEN, "Not broken", (describe_held(held), *unknown))


def list_judged(section: Section, server: str) -> list[Judged]:
    """The settings in which something is known of this kind of server."""
    return [
        Judged(
            label_defense(verdict.defense),
            verdict.by_server[server],
            tuple(
                f
                for f in section.findings
                if f.defense == verdict.defense
                and f.honest == (server == HONEST)
                and "read" in f.metrics
            ),
        )
        for verdict in section.verdicts
        if server in verdict.by_server
    ]


def describe_unknown(counts: Counter[str]) -> list[str]:
    """What was not judged, and why."""
    found = []
    if counts[NOT_SCORED]:
        settings = count_noun(counts[NOT_SCORED], "setting")
        found.append(f"{settings} could not be scored: the original images are not known.")
    if counts[NOT_TESTED]:
        settings = count_noun(counts[NOT_TESTED], "setting")
        was = "was" if counts[NOT_TESTED] == 1 else "were"
        found.append(f"{settings} {was} not tested: no attack on images was run there.")
    return found


def describe_all_read(broken: Sequence[Judged]) -> str:
    """That there was no setting in which no image was read, and the worst of them."""
    worst = max(broken, key=lambda each: each.outcome.read or 0.0)
    several = "in both settings" if len(broken) == 2 else f"in all {len(broken)} settings"
    where = "in the one setting tried" if len(broken) == 1 else several
    return f"Private images were read {where}: {describe_share(worst)}."


def describe_share(judged: Judged) -> str:
    """How much was read of one setting, by whom."""
    read = round((judged.outcome.read or 0.0) * judged.images)
    under = "without a defense" if judged.name == UNDEFENDED else f"under {judged.name}"
    return f"{under}, {judged.outcome.by} read {read} of {judged.images}"


def describe_mixed(broken: Sequence[Judged], held: Sequence[Judged]) -> tuple[str, str]:
    """Which settings were broken, and which were not."""
    settings = count_noun(len(broken) + len(held), "setting")
    worst = max(broken, key=lambda each: each.outcome.read or 0.0)
    return (
        f"Private images were read in {len(broken)} of {settings}: {describe_share(worst)}.",
        f"Not broken by the attacks tried: {name_settings(held)}.",
    )


def describe_held(held: Sequence[Judged]) -> str:
    """That nothing was read although adaptive attackers tried, and how little that may say."""
    settings = "the one setting" if len(held) == 1 else f"any of {len(held)} settings"
    fewest = min(each.images for each in held)
    most = proportion_interval(0, fewest)[1] if fewest else 1.0
    return (
        f"No image was read in {settings}, also by attackers who know the defense. Of "
        f"{count_noun(fewest, 'image')} that leaves up to {most:.0%} that may be readable (95%); "
        "other attacks may read more."
    )


def list_doubts(held: Sequence[Judged]) -> list[str]:
    """Why "not broken" says less than it seems to."""
    undefended = [each for each in held if each.name == UNDEFENDED]
    unmet = [each for each in held if each not in undefended and not met_adaptive(each)]
    pointing = [each for each in held if find_reidentified(each.findings) is not None]
    idle = [each for each in held if has_failed(each)]
    found = []
    if undefended:
        captured = any(f.recipe.get("captured") for each in undefended for f in each.findings)
        known = "No defense is known of" if captured else "There was no defense"
        found.append(f"{known} and still nothing was read: these attacks are weak here.")
    if unmet:
        found.append(f"No attacker who knows the defense was tried on {name_settings(unmet)}.")
    if pointing:
        found.append(f"What was seen still points to the right image {name_places(pointing)}.")
    if idle:
        found.append(f"The defense did not act as it declares: {name_settings(idle)}.")
    return found


def met_adaptive(judged: Judged) -> bool:
    """Whether an attacker who knows the defense was tried."""
    return any(f.attacker == Attacker.ADAPTIVE for f in judged.findings)


def has_failed(judged: Judged) -> bool:
    """Whether the defense was seen to do less than it declares."""
    return any(f.acted is not None and f.acted.failed for f in judged.findings)


def name_places(settings: Sequence[Judged]) -> str:
    """Where something was seen: without a defense, or under some."""
    defended = [each for each in settings if each.name != UNDEFENDED]
    places = ["without a defense"] if len(defended) < len(settings) else []
    places += [f"under {name_settings(defended)}"] if defended else []
    return " and ".join(places)


def name_settings(settings: Sequence[Judged]) -> str:
    """The first few settings by name, and how many more there are."""
    names = ["no defense" if each.name == UNDEFENDED else each.name for each in settings]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return join_words([*names[:NAMED], *more])
