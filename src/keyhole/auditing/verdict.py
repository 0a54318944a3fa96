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
"""Re-identification is mentioned from this multiple of guessing on."""
UNDEFENDED = "so this says that these attacks are weak here, not that the images are safe"


@dataclass(frozen=True)
class Verdict:
    """What became of one defense on one model and data set.

    Args:
        defense: ``name`` and ``parameters`` of the defense.
        model: The model's name.
        data: What reports call the images.
        status: ``broken`` if an attacker read at least one image, else ``not broken``; ``not
            tested`` if no attack that reads images was run, ``not scored`` without the truth.
        by: The worst attacker: attack and kind; None if no image was read.
        tried: All attackers that were run.
        read: Share of the victims' images that the worst attacker read; None: nobody can say.
        server: Whether the worst attacker's server was honest but curious, or malicious.
        labels: Share of labels inferred, if an attack tried that.
        missing: Kinds of attacker that this defense has not met here.
        words: The verdict as a sentence.
    """

    defense: dict[str, Any]
    model: str
    data: str
    status: str
    by: str | None
    tried: tuple[str, ...]
    read: float | None
    server: str | None
    labels: float | None
    missing: tuple[str, ...]
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge_findings(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> list[Verdict]:
    """One verdict for each defense on each model and data set, in the findings' order.

    Settings without a finding, because every attack was ``skipped``, come last.
    """
    tested: dict[str, list[Finding]] = {}
    defenses: dict[str, dict[str, Any]] = {}
    for finding in findings:
        key = setting_key(finding.model, finding.data, finding.defense)
        tested.setdefault(key, []).append(finding)
        defenses[spell(finding.defense["name"], finding.defense["parameters"])] = finding.defense
    refused: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.data:  # older run folders do not say it
            defense = defenses.get(each.defense) or parse_defense(each.defense)
            refused.setdefault(setting_key(each.model, each.data, defense), []).append(each)
    verdicts = [judge_setting(group, refused.get(key, ())) for key, group in tested.items()]
    return verdicts + [judge_untested(group) for key, group in refused.items() if key not in tested]


def setting_key(model: str, data: str, defense: dict[str, Any]) -> str:
    """What tells the setting of one verdict from the others."""
    return json.dumps([model, data, defense], sort_keys=True, default=str)


def parse_defense(text: str) -> dict[str, Any]:
    """Name and parameters; of a user's own defense the whole text is the name."""
    try:
        spec = DEFENSES.parse_builtin(text).spec
    except KeyholeError:
        return {"name": text, "parameters": {}}
    return {"name": spec.name, "parameters": spec.parameters}


def judge_setting(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> Verdict:
    """The verdict on one defense from all that was tried against it."""
    first = findings[0]
    images = [f for f in findings if "read" in f.metrics]
    worst = max(images, key=rank_severity, default=None)
    share = 0.0 if worst is None else worst.metrics["read"].mean
    worst = worst if share else None
    labels = [f.metrics["labels"].mean for f in findings if "labels" in f.metrics]
    scored = bool(first.recipe.get("scored", True))
    met = {f.attacker for f in (images if scored else findings)}
    if not any(f.reads_images for f in findings):
        status, words = NOT_TESTED, _describe_untested(findings, skipped)
    elif not scored:
        status, words = NOT_SCORED, _describe_unscored(findings)
    elif worst is not None:
        status, words = BROKEN, _describe_broken(worst)
    else:
        status, words = NOT_BROKEN, _describe_not_broken(findings, images)
    return Verdict(
        defense=first.defense,
        model=first.model,
        data=first.data,
        status=status,
        by=None if worst is None else name_attacker(worst),
        tried=name_attackers(findings),
        read=share if status in (BROKEN, NOT_BROKEN) else None,
        server=None if worst is None else worst.knowledge["server"],
        labels=max(labels, default=None),
        missing=()
        if first.defense["name"] == "none"
        else tuple(kind.value for kind in Attacker if kind.value not in met),
        words=words,
    )


def name_attacker(finding: Finding) -> str:
    return f"{finding.attack} ({finding.attacker})"


def name_attackers(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Each attack once, with who used it."""
    return tuple(dict.fromkeys(name_attacker(finding) for finding in findings))


def judge_untested(skipped: Sequence[Skipped]) -> Verdict:
    """The verdict on a setting in which no attack could be run."""
    first = skipped[0]
    why = "; ".join(dict.fromkeys(f"{s.attack}: {s.why}" for s in skipped))
    return Verdict(
        defense=parse_defense(first.defense),
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


def rank_severity(finding: Finding) -> tuple[float, bool, int, float]:
    """Most images read; then with the least: an honest server, no knowledge; then the clearest."""
    needs = [kind.value for kind in Attacker].index(finding.attacker)
    return finding.metrics["read"].mean, finding.honest, -needs, finding.metrics["ssim"].mean


def _describe_broken(worst: Finding) -> str:
    values = worst.metrics["read"].per_image
    how = "" if worst.honest else ", by a server that alters the model"
    how = ", from the images on their way" if worst.knowledge.get("intercepted") else how
    read = round(worst.metrics["read"].mean * len(values))
    return f"broken by {name_attacker(worst)}: {read} of {len(values)} images read{how}"


def _describe_not_broken(findings: Sequence[Finding], images: Sequence[Finding]) -> str:
    tried = ", ".join(name_attackers(f for f in findings if f.reads_images))
    caveats = f"{_describe_reidentified(images)}{_describe_undefended(images)}"
    return f"not broken by the attacks tried: {tried}{caveats}"


def _describe_reidentified(images: Sequence[Finding]) -> str:
    """That reconstructions still point to the right image, although none was read."""
    best = max(images, key=lambda f: f.metrics["reid"].mean, default=None)
    if best is None:
        return ""
    share, gallery = best.metrics["reid"].mean, best.recipe["gallery"]
    if share <= ABOVE_CHANCE / gallery:
        return ""
    count = len(best.metrics["reid"].per_image)
    return (
        f"; yet what {name_attacker(best)} saw points to the right image among {gallery} in "
        f"{round(share * count)} of {count} cases"
    )


def _describe_undefended(images: Sequence[Finding]) -> str:
    """What "not broken" means without a defense: something about the attacks."""
    if not any(f.defense["name"] == "none" for f in images):
        return ""
    captured = any(f.recipe.get("captured") for f in images)
    return f"; no defense {'is known of' if captured else 'was in place'}, {UNDEFENDED}"


def _describe_unscored(findings: Sequence[Finding]) -> str:
    """How sure the attackers are of what they show, which is all that can be said."""
    sure = [f for f in findings if f.confidence]
    if not sure:
        return "not scored, nobody knows the truth; no attack returned images"
    best = max(sure, key=lambda f: fmean(f.confidence))
    count = sum(c >= CONVINCED for c in best.confidence)
    return (
        f"not scored, nobody knows the truth; {name_attacker(best)} shows "
        f"{len(best.confidence)} image(s) and is convinced of {count} (confidence "
        f"{fmean(best.confidence):.2f} on average)"
    )


def _describe_untested(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> str:
    """That no attack on images was run, why, and how to ask for one."""
    tried = ", ".join(name_attackers(findings))
    left_out = dict.fromkeys(why for f in findings for why in f.recipe.get("left_out", ()))
    unfit = dict.fromkeys(s.attack for s in skipped)
    if left_out:
        why = "; ".join(left_out)
    elif unfit:
        why = f"{', '.join(unfit)} could not be used here; name another with --attack"
    else:
        why = "name one with --attack, or leave --attack out"
    return f"not tested: only {tried} was run, which does not look for images; {why}"
