"""What a report shows, worked out before any page or table is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from keyhole.attacks import ATTACKS
from keyhole.audit.finding import Finding
from keyhole.audit.run import AuditResult
from keyhole.audit.scene import Skipped
from keyhole.audit.verdict import BROKEN, NOT_BROKEN, NOT_SCORED, NOT_TESTED, Verdict
from keyhole.defenses import DEFENSES
from keyhole.metrics import METRICS, Metric, Summary
from keyhole.registry import parameters, spell

DIGITS = {"mse": 4, "psnr": 1, "ssim": 3, "lpips": 3, "fft2d": 4, "mmd": 1, "mask": 3}
MISSING = object()
"""Of a parameter that a defense or an attack no longer has."""
SHARES = {"reid", "read", "labels"}


@dataclass(frozen=True)
class Section:
    """One model on one data set: its verdicts and all rows, in the order of the audit."""

    model: str
    data: str
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that any row of this section has."""
        present = {name for f in self.findings for name in f.metrics}
        return [metric for name, metric in METRICS.items() if name in present]

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        return next((f.baselines for f in self.findings if f.baselines), {})

    @property
    def facts(self) -> str:
        """Who was attacked, in one line."""
        if not self.findings:
            return "no attack could be used"
        recipe = self.findings[0].recipe
        counts = sorted({f.victims for f in self.findings})
        clients = " and ".join(str(n) for n in counts)
        batch = recipe["batch_size"]
        images = "one image" if batch == 1 else f"{batch} images"
        size = "x".join(str(n) for n in recipe["image_size"])
        start = "given weights" if recipe["weights"] else f"random weights (seed {recipe['seed']})"
        if recipe.get("captured"):
            start = f"captured weights of round {recipe['rounds']}"
        shared = what_is_shared(recipe)
        if counts == [1]:
            return f"one client of {images}, {size} px; {start}; it shares {shared}"
        return f"{clients} clients of {images} each, {size} px; {start}; each shares {shared}"


def what_is_shared(recipe: Mapping[str, Any]) -> str:
    """What clients did and sent; of captured ones also what attacks take that for."""
    if recipe["lr"] is None:
        return "the gradient of one step"
    steps = "1 step" if recipe["steps"] == 1 else f"{recipe['steps']} steps"
    taken = f"{steps} of sgd, lr {recipe['lr']:g}"
    did = recipe.get("clients_did")
    if not did:
        return f"weights after {taken}"
    if did.startswith(f"{taken} ("):
        return f"weights after {did}"
    return f"weights after {did}; attacks take that for {taken}"


def sections(result: AuditResult) -> list[Section]:
    """The result by model and data set."""
    found = [(f.model, f.data) for f in result.findings]
    order = dict.fromkeys([*found, *((v.model, v.data) for v in result.verdicts)])
    return [
        Section(
            model,
            data,
            tuple(f for f in result.findings if (f.model, f.data) == (model, data)),
            tuple(v for v in result.verdicts if (v.model, v.data) == (model, data)),
        )
        for model, data in order
    ]


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


def defense_name(defense: dict[str, Any]) -> str:
    """A defense as it would be asked for, its numbers in any case.

    >>> defense_name({"name": "pruning", "parameters": {"ratio": 0.9, "scope": "tensor"}})
    'pruning(ratio=0.9)'
    """
    usual = parameters(DEFENSES[defense["name"]]())
    member = DEFENSES[defense["name"]]
    chosen = {
        k: v
        for k, v in defense["parameters"].items()
        if v != usual.get(k, MISSING)
        or (not isinstance(v, str) and k in (member.headline or usual))
    }
    return spell(defense["name"], chosen)


def attack_name(finding: Finding) -> str:
    """An attack with those of its parameters that are not the usual ones."""
    usual = parameters(ATTACKS[finding.attack]())
    chosen = {k: v for k, v in finding.attack_parameters.items() if v != usual.get(k, MISSING)}
    return spell(finding.attack, chosen)


def number(metric: str, value: float) -> str:
    """A value as a reader wants it.

    >>> number("psnr", 26.349), number("reid", 0.5), number("mse", 3.2e-13)
    ('26.3', '50%', '3e-13')
    """
    if metric in SHARES:
        return f"{value:.0%}"
    if 0 < abs(value) < 0.5 * 10 ** -DIGITS[metric]:
        return f"{value:.0e}"
    return f"{value:.{DIGITS[metric]}f}"


def interval(metric: str, summary: Summary) -> str:
    """The mean's 95% interval; nothing where all images agree.

    >>> [interval("ssim", Summary(0, low, high, 0, ())) for low, high in ((0.1, 0.2), (-0.2, -0.1))]
    ['0.100–0.200', '-0.200 – -0.100']
    """
    low, high = number(metric, summary.low), number(metric, summary.high)
    dash = " – " if high.startswith("-") else "–"
    return "" if low == high else f"{low}{dash}{high}"


def knows(finding: Finding) -> str:
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
