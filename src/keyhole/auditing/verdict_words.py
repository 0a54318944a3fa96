"""Verdicts in words: what the worst attacker read, or what "not broken" is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding

CONVINCED = 0.5
"""Confidence from which on an attacker counts as convinced."""
ABOVE_CHANCE = 3
"""Re-identification is mentioned from this multiple of guessing on."""
UNDEFENDED = "so this says that these attacks are weak here, not that the images are safe"


def name_attacker(finding: Finding) -> str:
    return f"{finding.attack} ({finding.attacker})"


def name_attackers(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Each attack once, with who used it."""
    return tuple(dict.fromkeys(name_attacker(finding) for finding in findings))


def describe_broken(worst: Finding) -> str:
    values = worst.metrics["read"].per_image
    how = ", from the images on their way" if worst.knowledge.get("intercepted") else ""
    read = round(worst.metrics["read"].mean * len(values))
    return f"broken by {name_attacker(worst)}: {read} of {len(values)} images read{how}"


def describe_not_broken(findings: Sequence[Finding], images: Sequence[Finding]) -> str:
    tried = ", ".join(name_attackers(f for f in findings if f.reads_images))
    caveats = f"{_describe_reidentified(images)}{_describe_undefended(images)}"
    return f"not broken by the attacks tried: {tried}{caveats}"


def find_reidentified(images: Iterable[Finding]) -> Finding | None:
    """Who points to the right image most often, if that is more than chance; else None.

    Args:
        images: What attackers on images found, with one kind of server.
    """
    best = max(images, key=lambda f: f.metrics["reid"].mean, default=None)
    if best is None or best.metrics["reid"].mean <= ABOVE_CHANCE / best.recipe["gallery"]:
        return None
    return best


def _describe_reidentified(images: Sequence[Finding]) -> str:
    """That reconstructions still point to the right image, although none was read."""
    best = find_reidentified(images)
    if best is None:
        return ""
    share, count = best.metrics["reid"].mean, len(best.metrics["reid"].per_image)
    return (
        f"; yet what {name_attacker(best)} saw points to the right image among "
        f"{best.recipe['gallery']} in {round(share * count)} of {count} cases"
    )


def _describe_undefended(images: Sequence[Finding]) -> str:
    """What "not broken" means without a defense: something about the attacks."""
    if not any(f.defense["name"] == "none" for f in images):
        return ""
    captured = any(f.recipe.get("captured") for f in images)
    return f"; no defense {'is known of' if captured else 'was in place'}, {UNDEFENDED}"


def describe_notice(noticed: bool | None) -> str:
    """Whether a client would have noticed that the model was changed; empty if not checked."""
    if noticed is None:
        return ""
    return f"; keyhole guard --incoming would {'' if noticed else 'not '}have noticed the change"


def describe_unscored(findings: Sequence[Finding]) -> str:
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


def describe_untested(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> str:
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
