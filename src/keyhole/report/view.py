"""Computes what a report shows, for the page and for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import (
    BROKEN,
    HONEST,
    MALICIOUS,
    NOT_BROKEN,
    NOT_SCORED,
    NOT_TESTED,
    Verdict,
)
from keyhole.metrics import METRICS, Metric, Summary
from keyhole.metrics.proportion import proportion_interval
from keyhole.report.words import count_noun


def summarise_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Says in a sentence in how many settings images were read, by each kind of server.

    Settings that were not tested or not scored are counted in sentences of their own.
    """
    honest, malicious = (
        Counter(v.by_server[server].status for v in verdicts if server in v.by_server)
        for server in (HONEST, MALICIOUS)
    )
    if not malicious:
        return count_statuses(list(honest.elements()))
    if not honest[BROKEN] + honest[NOT_BROKEN] + malicious[BROKEN] + malicious[NOT_BROKEN]:
        return count_statuses([*honest.elements(), *malicious.elements()])
    judged = [
        (who, count[BROKEN], count[BROKEN] + count[NOT_BROKEN])
        for who, count in (
            ("an honest server", honest),
            ("a malicious server, which changes the model,", malicious),
        )
        if count[BROKEN] + count[NOT_BROKEN]
    ]
    readings = [
        f"{who} {'read private images' if first else 'did so'} in {broken} of "
        f"{count_noun(settings, 'setting')}"
        for first, (who, broken, settings) in zip((True, False), judged, strict=False)
    ]
    words = "; ".join(readings)
    promise = "" if any(broken for _, broken, _ in judged) else ". That is no promise of safety"
    return f"{words[0].upper()}{words[1:]}{promise}."


def count_statuses(statuses: Sequence[str]) -> str:
    """Says in a sentence or two how many settings were broken by one kind of server."""
    count = Counter(statuses)
    broken, judged = count[BROKEN], count[BROKEN] + count[NOT_BROKEN]
    read = "at least one private image was read out of what a client shared"
    if not judged:
        words = ["No setting could be judged."]
    elif not broken:
        subject = "The setting was" if judged == 1 else f"None of the {judged} settings was"
        negated = " not" if judged == 1 else ""
        words = [f"{subject}{negated} broken by the attacks tried, which is no promise of safety."]
    elif judged == 1:
        words = [f"The setting was broken: {read}."]
    elif broken == judged:
        words = [f"All {judged} settings were broken: in each of them {read}."]
    elif broken == 1:
        words = [f"1 of {judged} settings was broken: {read}."]
    else:
        words = [f"{broken} of {judged} settings were broken: in each of them {read}."]
    if count[NOT_SCORED]:
        words.append(f"{count[NOT_SCORED]} could not be scored: the original images are not known.")
    if count[NOT_TESTED]:
        were = "was" if count[NOT_TESTED] == 1 else "were"
        words.append(f"{count[NOT_TESTED]} {were} not tested: no attack on images was run there.")
    return " ".join(words)


CHIPS = {BROKEN: "broken", NOT_BROKEN: "not", NOT_SCORED: "unsure", NOT_TESTED: "unsure"}
"""The CSS class of each status."""


def format_value(metric: str, value: float) -> str:
    """Formats a value of one of Keyhole's own metrics.

    >>> [format_value(*each) for each in (("psnr", 26.349), ("reid", 0.5), ("mse", 3.2e-13))]
    ['26.3', '50%', '3e-13']
    """
    return METRICS[metric].format(value)


def format_interval(metric: Metric, summary: Summary) -> str:
    """Formats the mean's 95% interval; empty if all images agree.

    Of a share of images it is the exact one, which says something where no image was read, too.

    >>> ssim, ends = METRICS["ssim"], ((0.1, 0.2), (-0.2, -0.1))
    >>> [format_interval(ssim, Summary(0, low, high, 0, ())) for low, high in ends]
    ['0.100–0.200', '-0.200 – -0.100']
    >>> format_interval(METRICS["read"], Summary(0, 0, 0, 0, (0.0,) * 8))
    '0%–37%'
    """
    images = summary.per_image
    ends = (summary.low, summary.high)
    if metric.percent and images and set(images) <= {0.0, 1.0}:
        ends = proportion_interval(images.count(1.0), len(images))
    low, high = map(metric.format, ends)
    dash = " – " if high.startswith("-") else "–"
    return "" if low == high else f"{low}{dash}{high}"


def describe_knowledge(finding: Finding) -> str:
    """Says what this attacker knew."""
    words = []
    if finding.knowledge["defense"] is not None:
        words.append("knew the defense")
    if finding.knowledge.get("intercepted"):
        words.append("saw the images on their way")
    if finding.knowledge["labels"]:
        words.append("was given the labels")
    if finding.knowledge.get("masks"):
        words.append("was given the dropout masks")
    if not finding.honest:
        words.append(f"altered the model: {finding.knowledge['altered_model']}")
    return ", ".join(words) or "knew model and update only"


def caption_picture(finding: Finding, number: int) -> str:
    """Returns PSNR and SSIM of a picture, or else the attacker's confidence, or else "".

    ``number`` counts the kept pictures, of which each client has one.
    """
    place = number * batch_size_of(finding)
    if "psnr" in finding.metrics and "ssim" in finding.metrics:
        psnr, ssim = (finding.metrics[name].per_image[place] for name in ("psnr", "ssim"))
        return f"{METRICS['psnr'].format(psnr)} dB · SSIM {METRICS['ssim'].format(ssim)}"
    confidence = confidence_at(finding, place)
    return "" if confidence is None else f"confidence {confidence:.0%}"


def confidence_at(finding: Finding, place: int) -> float | None:
    """Returns the attacker's confidence in one image; None unless it gives one for every image."""
    complete = len(finding.confidence) == finding.victims * batch_size_of(finding)
    return finding.confidence[place] if complete else None


def batch_size_of(finding: Finding) -> int:
    """Returns the images of a client's batch, of which only the first is kept as a picture."""
    return int(finding.recipe["batch_size"])


def list_skipped(skipped: Sequence[Skipped]) -> list[str]:
    """Returns one line for each attack on a model that did not apply."""
    return list(dict.fromkeys(f"{s.attack} on {s.model}: {s.why}" for s in skipped))


@dataclass(frozen=True)
class Sweep:
    """One attacker against one defense at several values of one parameter."""

    defense: str
    parameter: str
    attack: str
    attacker: str
    values: tuple[float, ...]
    scores: tuple[Finding, ...]


def find_sweeps(section: Section) -> dict[tuple[str, str], list[Sweep]]:
    """Finds defenses that were tried at three or more values of one parameter, all else equal."""
    found: dict[tuple[str, str], list[Sweep]] = {}
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for f in section.findings:
        if "psnr" not in f.metrics:
            continue
        for name, value in f.defense["parameters"].items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            others = {k: v for k, v in f.defense["parameters"].items() if k != name}
            kind = (f"{f.defense['name']} {others}", name, f.attack, f.attacker)
            groups.setdefault(kind, []).append(f)
    for (_, name, attack, attacker), members in groups.items():
        members = sorted(members, key=lambda f: float(f.defense["parameters"][name]))
        values = tuple(float(f.defense["parameters"][name]) for f in members)
        if len(set(values)) < 3:
            continue
        defense = str(members[0].defense["name"])
        sweep = Sweep(defense, name, attack, attacker, values, tuple(members))
        found.setdefault((defense, name), []).append(sweep)
    return found


def find_undefended(section: Section, attack: str) -> Finding | None:
    """Finds the result of the same attack without a defense."""
    return next(
        (f for f in section.findings if f.attack == attack and f.defense["name"] == "none"), None
    )


def pair_pictures(pictures: Mapping[str, Tensor]) -> list[tuple[Tensor | None, Tensor]]:
    """Pairs each original, if it is known, with what was seen of it, uint8 ``[C, H, W]`` each."""
    if "seen" not in pictures:
        return []
    seen = list(pictures["seen"])
    truth = list(pictures["truth"]) if "truth" in pictures else [None] * len(seen)
    return list(zip(truth, seen, strict=True))


def arrange_heat_maps(pictures: Mapping[str, dict[str, Tensor]]) -> dict[str, list[Tensor]]:
    """Arranges overlays in columns by defense, the images first; none without such a defense.

    ``pictures`` are those kept of any row under each defense; uint8 ``[C, H, W]`` each.
    """
    found = {name: list(kept["heat"]) for name, kept in pictures.items() if "heat" in kept}
    if not set(found) - {"none"}:
        return {}
    plain = next((kept["plain"] for kept in pictures.values() if "plain" in kept), None)
    if plain is None:
        return {}
    return {"image": list(plain), **found}


def read_heat_maps(section: Section, store: Store) -> dict[str, list[Tensor]]:
    """Reads what the clients' networks look at, without a defense and under each of them."""
    first = {label_defense(f.defense): f.key for f in reversed(section.findings)}
    order = dict.fromkeys(label_defense(f.defense) for f in section.findings)
    return arrange_heat_maps({name: store.pictures(first[name]) for name in order})


Film = list[tuple[int, Tensor]]
"""Iterations, and the image after each, uint8 ``[C, H, W]``."""

FRAMES = 7
"""The most frames of a film that a page shows."""


def choose_films(pictures: dict[str, Tensor]) -> list[Film]:
    """Returns some frames of each victim's film, the last among them."""
    found = []
    for number in range(len(pictures.get("seen", ()))):
        if f"film.{number}" in pictures:
            at = pictures[f"film.{number}.at"].tolist()
            film = list(zip(at, pictures[f"film.{number}"], strict=True))
            found.append(film if len(film) <= FRAMES else [film[0], *film[-FRAMES + 1 :]])
    return found
