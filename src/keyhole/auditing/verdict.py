"""The verdict on a defense: the worst attacker wins, and nothing is ever called safe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.defenses import DEFENSES
from keyhole.errors import KeyholeError
from keyhole.spelling import spell
from keyhole.threat import Attacker

BROKEN, NOT_BROKEN = "broken", "not broken"
NOT_SCORED, NOT_TESTED = "not scored", "not tested"

CONVINCED = 0.5
"""Confidence from which on an attacker counts as convinced."""
ABOVE_CHANCE = 3
"""Re-identification is told from this multiple of guessing on."""
UNDEFENDED = "so this says that these attacks are weak here, not that the images are safe"


@dataclass(frozen=True)
class Verdict:
    """What became of one defense on one model and data set.

    ``status`` is about images: ``broken`` if any attacker read at least one of them, ``not tested``
    where no attack that reads images was run, ``not scored`` where nobody knows the truth. Labels
    are reported beside it.
    """

    defense: dict[str, Any]
    model: str
    data: str
    status: str
    by: str | None
    tried: tuple[str, ...]
    read: float | None
    """Share of the victims' images that the worst attacker read; None: nobody can say."""
    server: str | None
    """Whether the worst attacker's server was honest but curious, or malicious."""
    labels: float | None
    """Share of labels inferred, where that was tried."""
    missing: tuple[str, ...]
    """Kinds of attacker that this defense has not met here."""
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verdicts(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> list[Verdict]:
    """One verdict for each defense on each model and data set, in the findings' order.

    Settings of which there is no finding, because every attack was ``skipped``, come last.
    """
    groups: dict[str, list[Finding]] = {}
    met: dict[str, dict[str, Any]] = {}
    for finding in findings:
        key = setting_key(finding.model, finding.data, finding.defense)
        groups.setdefault(key, []).append(finding)
        met[spell(finding.defense["name"], finding.defense["parameters"])] = finding.defense
    refused: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.data:  # older run folders do not say it
            defense = met.get(each.defense) or defense_of(each)
            refused.setdefault(setting_key(each.model, each.data, defense), []).append(each)
    judged = [judge(group, refused.get(key, ())) for key, group in groups.items()]
    return judged + [untested(group) for key, group in refused.items() if key not in groups]


def setting_key(model: str, data: str, defense: dict[str, Any]) -> str:
    """What tells the setting of one verdict from the others."""
    return json.dumps([model, data, defense], sort_keys=True, default=str)


def defense_of(skipped: Skipped) -> dict[str, Any]:
    """Name and parameters; of a user's own defense the whole text is the name."""
    try:
        spec = DEFENSES.parse_builtin(skipped.defense).spec
    except KeyholeError:
        return {"name": skipped.defense, "parameters": {}}
    return {"name": spec.name, "parameters": spec.parameters}


def judge(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> Verdict:
    """The verdict on one defense from all that was tried against it."""
    first = findings[0]
    images = [f for f in findings if "read" in f.metrics]
    worst = max(images, key=how_bad, default=None)
    share = worst.metrics["read"].mean if worst is not None else 0.0
    labels = [f.metrics["labels"].mean for f in findings if "labels" in f.metrics]
    tried = names_of(findings)
    scored = bool(first.recipe.get("scored", True))
    broken = worst is not None and share > 0
    by = f"{worst.attack} ({worst.attacker})" if broken and worst is not None else None
    met = {f.attacker for f in (images if scored else findings)}
    if not any(f.reads_images for f in findings):
        status, words = NOT_TESTED, _untested_words(findings, tried, skipped)
    elif not scored:
        status, words = NOT_SCORED, _blind_words(findings)
    else:
        status = BROKEN if broken else NOT_BROKEN
        words = _words(worst, share, names_of(f for f in findings if f.reads_images), images)
    return Verdict(
        defense=first.defense,
        model=first.model,
        data=first.data,
        status=status,
        by=by,
        tried=tried,
        read=share if status in (BROKEN, NOT_BROKEN) else None,
        server=worst.knowledge["server"] if broken and worst is not None else None,
        labels=max(labels, default=None),
        missing=()
        if first.defense["name"] == "none"
        else tuple(kind.value for kind in Attacker if kind.value not in met),
        words=words,
    )


def names_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Each attack once, with who used it."""
    return tuple(dict.fromkeys(f"{f.attack} ({f.attacker})" for f in findings))


def untested(skipped: Sequence[Skipped]) -> Verdict:
    """The verdict on a setting in which no attack could be run."""
    first = skipped[0]
    why = "; ".join(dict.fromkeys(f"{s.attack}: {s.why}" for s in skipped))
    return Verdict(
        defense=defense_of(first),
        model=first.model,
        data=first.data,
        status=NOT_TESTED,
        by=None,
        tried=(),
        read=None,
        server=None,
        labels=None,
        missing=(),
        words=f"not tested: no attack could be used ({why})",
    )


def how_bad(finding: Finding) -> tuple[float, bool, int, float]:
    """Most images read; then with the least: an honest server, no knowledge; then the clearest."""
    needs = [kind.value for kind in Attacker].index(finding.attacker)
    return finding.metrics["read"].mean, finding.honest, -needs, finding.metrics["ssim"].mean


def _but(images: Sequence[Finding]) -> str:
    """What is left to see where no image was read: reconstructions that still give it away."""
    best = max(images, key=lambda f: f.metrics["reid"].mean, default=None)
    if best is None:
        return ""
    share, gallery = best.metrics["reid"].mean, best.recipe["gallery"]
    if share <= ABOVE_CHANCE / gallery:
        return ""
    count = len(best.metrics["reid"].per_image)
    return (
        f"; yet what {best.attack} ({best.attacker}) saw points to the right image among {gallery} "
        f"in {round(share * count)} of {count} cases"
    )


def _weak(images: Sequence[Finding]) -> str:
    """What "not broken" says where there was no defense to break: something of the attacks."""
    if not any(f.defense["name"] == "none" for f in images):
        return ""
    captured = any(f.recipe.get("captured") for f in images)
    return f"; no defense {'is known of' if captured else 'was in place'}, {UNDEFENDED}"


def _blind_words(findings: Sequence[Finding]) -> str:
    """What can be said without the truth: how sure the attackers are of what they show."""
    sure = [f for f in findings if f.confidence]
    if not sure:
        return "not scored, nobody knows the truth; no attack returned images"
    best = max(sure, key=lambda f: fmean(f.confidence))
    count = sum(c >= CONVINCED for c in best.confidence)
    return (
        f"not scored, nobody knows the truth; {best.attack} ({best.attacker}) shows "
        f"{len(best.confidence)} image(s) and is convinced of {count} (confidence "
        f"{fmean(best.confidence):.2f} on average)"
    )


def _untested_words(
    findings: Sequence[Finding], tried: Sequence[str], skipped: Sequence[Skipped]
) -> str:
    """That no attack on images was run, why, and how to ask for one."""
    left_out = dict.fromkeys(why for f in findings for why in f.recipe.get("left_out", ()))
    unfit = dict.fromkeys(s.attack for s in skipped)
    if left_out:
        why = "; ".join(left_out)
    elif unfit:
        why = f"{', '.join(unfit)} could not be used here; name another with --attack"
    else:
        why = "name one with --attack, or leave --attack out"
    return f"not tested: only {', '.join(tried)} was run, which does not look for images; {why}"


def _words(
    worst: Finding | None, share: float, tried: tuple[str, ...], images: Sequence[Finding]
) -> str:
    if worst is None or share == 0:
        return f"not broken by the attacks tried: {', '.join(tried)}{_but(images)}{_weak(images)}"
    count = len(worst.metrics["read"].per_image)
    seen = round(share * count)
    server = "" if worst.honest else ", by a server that alters the model"
    server = ", from the images on their way" if worst.knowledge.get("intercepted") else server
    return f"broken by {worst.attack} ({worst.attacker}): {seen} of {count} images read{server}"
