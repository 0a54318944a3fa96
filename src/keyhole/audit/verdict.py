"""The verdict on a defense: the worst attacker wins, and nothing is ever called safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from keyhole.audit.finding import Finding
from keyhole.threat import Attacker

CONVINCED = 0.5
"""Confidence from which on an attacker counts as convinced."""
ABOVE_CHANCE = 3
"""Re-identification is told from this multiple of guessing on."""


@dataclass(frozen=True)
class Verdict:
    """What became of one defense on one model and data set.

    ``status`` is about images: ``broken`` if any attacker read at least one of them, ``not scored``
    where nobody knows the truth. Labels are reported beside it.
    """

    defense: dict[str, Any]
    model: str
    data: str
    status: str
    by: str | None
    tried: tuple[str, ...]
    read: float
    """Share of the victims' images that the worst attacker read."""
    server: str | None
    """Whether the worst attacker's server was honest but curious, or malicious."""
    labels: float | None
    """Share of labels inferred, where that was tried."""
    missing: tuple[str, ...]
    """Kinds of attacker that this defense has not met here."""
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    """One verdict for each defense on each model and data set, in the findings' order."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(repr((finding.model, finding.data, finding.defense)), []).append(finding)
    return [judge(group) for group in groups.values()]


def judge(findings: Sequence[Finding]) -> Verdict:
    """The verdict on one defense from all that was tried against it."""
    first = findings[0]
    images = [f for f in findings if "read" in f.metrics]
    worst = max(images, key=how_bad, default=None)
    share = worst.metrics["read"].mean if worst is not None else 0.0
    labels = [f.metrics["labels"].mean for f in findings if "labels" in f.metrics]
    tried = tuple(dict.fromkeys(f"{f.attack} ({f.attacker})" for f in findings))
    scored = bool(first.recipe.get("scored", True))
    broken = worst is not None and share > 0
    by = f"{worst.attack} ({worst.attacker})" if broken and worst is not None else None
    met = {f.attacker for f in (images if scored else findings)}
    return Verdict(
        defense=first.defense,
        model=first.model,
        data=first.data,
        status="broken" if broken else "not broken" if scored else "not scored",
        by=by,
        tried=tried,
        read=share,
        server=worst.knowledge["server"] if broken and worst is not None else None,
        labels=max(labels, default=None),
        missing=()
        if first.defense["name"] == "none"
        else tuple(kind.value for kind in Attacker if kind.value not in met),
        words=_words(worst, share, tried, images) if scored else _blind_words(findings),
    )


def how_bad(finding: Finding) -> tuple[float, bool, int, float]:
    """Most images read; then with the least: an honest server, no knowledge; then the clearest."""
    needs = [kind.value for kind in Attacker].index(finding.attacker)
    return finding.metrics["read"].mean, finding.honest, -needs, finding.metrics["ssim"].mean


def _but(images: Sequence[Finding]) -> str:
    """What is left to see where no image was read: reconstructions that still give it away."""
    best = max(images, key=lambda f: f.metrics["reid"].mean)
    share, gallery = best.metrics["reid"].mean, best.recipe["gallery"]
    if share <= ABOVE_CHANCE / gallery:
        return ""
    count = len(best.metrics["reid"].per_image)
    return (
        f"; yet what {best.attack} ({best.attacker}) saw points to the right image among {gallery} "
        f"in {round(share * count)} of {count} cases"
    )


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


def _words(
    worst: Finding | None, share: float, tried: tuple[str, ...], images: Sequence[Finding]
) -> str:
    if worst is None or not images:
        return f"not broken by the attacks tried: {', '.join(tried)} (none of them reads images)"
    if share == 0:
        return f"not broken by the attacks tried: {', '.join(tried)}{_but(images)}"
    count = len(worst.metrics["read"].per_image)
    seen = round(share * count)
    server = "" if worst.honest else ", by a server that alters the model"
    server = ", from the images on their way" if worst.knowledge.get("intercepted") else server
    return f"broken by {worst.attack} ({worst.attacker}): {seen} of {count} images read{server}"
