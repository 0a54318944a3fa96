"""What a report shows, worked out before any page or table is drawn."""

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
from keyhole.auditing.verdict import BROKEN, NOT_BROKEN, NOT_SCORED, NOT_TESTED, Verdict
from keyhole.metrics import METRICS, Metric, Summary


def headline(verdicts: Sequence[Verdict]) -> str:
    """What became of all settings, in a sentence or two.

    Only those that were tested and scored can be broken or not; the others are counted apart.
    """
    count = Counter(v.status for v in verdicts)
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
        words.append(f"{count[NOT_SCORED]} could not be scored, for want of the truth.")
    if count[NOT_TESTED]:
        were = "was" if count[NOT_TESTED] == 1 else "were"
        words.append(f"{count[NOT_TESTED]} {were} not tested: no attack on images was run there.")
    return " ".join(words)


CHIPS = {BROKEN: "broken", NOT_BROKEN: "not", NOT_SCORED: "unsure", NOT_TESTED: "unsure"}
"""The page's class for each status."""


def number(metric: str, value: float) -> str:
    """A value of one of Keyhole's own metrics, rounded for a reader.

    >>> number("psnr", 26.349), number("reid", 0.5), number("mse", 3.2e-13)
    ('26.3', '50%', '3e-13')
    """
    return METRICS[metric].format(value)


def interval(metric: Metric, summary: Summary) -> str:
    """The mean's 95% interval; nothing where all images agree.

    >>> ssim, ends = METRICS["ssim"], ((0.1, 0.2), (-0.2, -0.1))
    >>> [interval(ssim, Summary(0, low, high, 0, ())) for low, high in ends]
    ['0.100–0.200', '-0.200 – -0.100']
    """
    low, high = metric.format(summary.low), metric.format(summary.high)
    dash = " – " if high.startswith("-") else "–"
    return "" if low == high else f"{low}{dash}{high}"


def describe_knowledge(finding: Finding) -> str:
    """What this attacker knew, in words."""
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
    """PSNR and SSIM of a kept picture, or else how sure the attacker is of it; "" of neither.

    ``number`` counts the kept pictures, of which each client has one.
    """
    place = number * batch_size_of(finding)
    if "psnr" in finding.metrics and "ssim" in finding.metrics:
        psnr, ssim = (finding.metrics[name].per_image[place] for name in ("psnr", "ssim"))
        return f"{METRICS['psnr'].format(psnr)} dB · SSIM {METRICS['ssim'].format(ssim)}"
    confidence = confidence_at(finding, place)
    return "" if confidence is None else f"confidence {confidence:.0%}"


def confidence_at(finding: Finding, place: int) -> float | None:
    """How sure the attacker is of one image; None where it does not say so of every image."""
    complete = len(finding.confidence) == finding.victims * batch_size_of(finding)
    return finding.confidence[place] if complete else None


def batch_size_of(finding: Finding) -> int:
    """Only the first image of each client's batch is kept as a picture."""
    return int(finding.recipe["batch_size"])


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """One line for each attack that did not apply, whatever the defense."""
    return list(dict.fromkeys(f"{s.attack} on {s.model}: {s.why}" for s in skipped))


@dataclass(frozen=True)
class Sweep:
    """One defense at several strengths before one attacker: values of one parameter and scores."""

    defense: str
    parameter: str
    attack: str
    attacker: str
    values: tuple[float, ...]
    scores: tuple[Finding, ...]


def sweeps(section: Section) -> dict[tuple[str, str], list[Sweep]]:
    """Defenses that were tried at three or more values of one parameter, all else equal."""
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


def undefended(section: Section, attack: str) -> Finding | None:
    """The same attack without a defense."""
    return next(
        (f for f in section.findings if f.attack == attack and f.defense["name"] == "none"), None
    )


def pairs(pictures: dict[str, Tensor]) -> list[tuple[Tensor | None, Tensor]]:
    """Original, if it is known, and what was seen of it, uint8 ``[C, H, W]`` each."""
    if "seen" not in pictures:
        return []
    seen = list(pictures["seen"])
    truth = list(pictures["truth"]) if "truth" in pictures else [None] * len(seen)
    return list(zip(truth, seen, strict=True))


def heat_sheet(pictures: Mapping[str, dict[str, Tensor]]) -> dict[str, list[Tensor]]:
    """Columns of overlays by defense, the images first; none where no defense was on updates.

    ``pictures`` are those kept of any row under each defense; uint8 ``[C, H, W]`` each.
    """
    found = {name: list(kept["heat"]) for name, kept in pictures.items() if "heat" in kept}
    if not set(found) - {"none"}:
        return {}
    plain = next((kept["plain"] for kept in pictures.values() if "plain" in kept), None)
    if plain is None:
        return {}
    return {"image": list(plain), **found}


def heat_sheet_of(section: Section, store: Store) -> dict[str, list[Tensor]]:
    """What the clients' networks look at without a defense and under each: columns by name."""
    first = {label_defense(f.defense): f.key for f in reversed(section.findings)}
    order = dict.fromkeys(label_defense(f.defense) for f in section.findings)
    return heat_sheet({name: store.pictures(first[name]) for name in order})


Film = list[tuple[int, Tensor]]
"""Iterations and the image as it was then, uint8 ``[C, H, W]``."""

FRAMES = 7
"""Frames of a film that a page shows, at most."""


def films(pictures: dict[str, Tensor]) -> list[Film]:
    """How each kept image appeared: some frames of each victim's film, the last among them."""
    found = []
    for number in range(len(pictures.get("seen", ()))):
        if f"film.{number}" in pictures:
            at = pictures[f"film.{number}.at"].tolist()
            film = list(zip(at, pictures[f"film.{number}"], strict=True))
            found.append(film if len(film) <= FRAMES else [film[0], *film[-FRAMES + 1 :]])
    return found
