"""What a sweep found: for each parameter a table of its values, with means over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.listed_values import SEED, read_listed
from keyhole.auditing.verdict import HONEST, MALICIOUS, rank_severity
from keyhole.metrics import METRICS
from keyhole.spelling import spell

LEVEL = 0.95
DEFENSE = "defense"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95% interval.

    Args:
        mean: The mean.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SweepPoint:
    """What the worst attacker saw at one value of a parameter.

    Args:
        value: The value.
        setting: The other things that tell it from points of the same value, in words.
        server: ``honest`` or ``malicious``.
        seeds: How many seeds were run.
        images: How many images were attacked, of all seeds together.
        read: Share of the images that the worst attacker read.
        psnr: PSNR of what the worst attacker returned, in dB.
        ssim: SSIM of what the worst attacker returned.
        by: The worst attackers, one for each seed, each once.
    """

    value: Any
    setting: str
    server: str
    seeds: int
    images: int
    read: Mean
    psnr: Mean
    ssim: Mean
    by: tuple[str, ...]


@dataclass(frozen=True)
class ParameterTable:
    """A parameter that a plan lists values of.

    Args:
        parameter: Its name: ``gaussian.sigma``, ``batch_size``, ``model``; where only seeds are
            listed, ``defense``.
        points: Each value in each other setting, in the order of the plan.
    """

    parameter: str
    points: tuple[SweepPoint, ...]

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return all(
            isinstance(p.value, int | float) and not isinstance(p.value, bool) for p in self.points
        )

    def to_json(self) -> dict[str, Any]:
        """The table as JSON holds it."""
        return asdict(self)


def tabulate_sweep(findings: Sequence[Finding], swept: Sequence[str]) -> list[ParameterTable]:
    """One table for each parameter of a sweep; of seeds alone, one of the defenses.

    At each value the attacker counts who read the most images of a seed. Attackers with an honest
    server are not ranked with those who need a malicious one.

    Args:
        findings: What was found.
        swept: The parameters that the plan lists values of.
    """
    scored = [finding for finding in findings if "read" in finding.metrics]
    parameters = [name for name in swept if name != SEED] or ([DEFENSE] if swept else [])
    tables = [tabulate_parameter(scored, name, swept) for name in parameters]
    return [table for table in tables if table.points]


def tabulate_parameter(
    findings: Sequence[Finding], parameter: str, swept: Sequence[str]
) -> ParameterTable:
    """The table of one parameter, from the findings that have it."""
    groups: dict[str, list[Finding]] = {}
    keys: dict[str, tuple[Any, str, str]] = {}
    for finding in findings:
        has, value = read_value(finding, parameter)
        if has:
            server = HONEST if finding.honest else MALICIOUS
            found = (value, describe_others(finding, parameter, swept), server)
            key = json.dumps(found, default=str)
            groups.setdefault(key, []).append(finding)
            keys[key] = found
    return ParameterTable(
        parameter, tuple(build_point(*keys[key], group) for key, group in groups.items())
    )


def read_value(finding: Finding, parameter: str) -> tuple[bool, Any]:
    """Whether a finding has a parameter, and its value."""
    if parameter == DEFENSE:
        return True, label_defense(finding.defense)
    values = read_listed(finding)
    if parameter in values:
        return True, values[parameter]
    part, _, key = parameter.rpartition(".")
    for name, own in (
        (finding.defense["name"], finding.defense["parameters"]),
        (finding.attack, finding.attack_parameters),
    ):
        if part == name and key in own:
            return True, own[key]
    return False, None


def describe_others(finding: Finding, parameter: str, swept: Sequence[str]) -> str:
    """What else tells a point from others: model, data, defense, and other listed values."""
    values = read_listed(finding)
    defense = finding.defense
    if parameter == DEFENSE:
        words = []
    elif parameter.rpartition(".")[0] == defense["name"]:
        key = parameter.rpartition(".")[2]
        others = {k: v for k, v in defense["parameters"].items() if k != key}
        words = [label_defense({"name": defense["name"], "parameters": others})]
    else:
        words = [label_defense(defense)]
    if parameter != "model":
        words.append(finding.model)
    if parameter != "data":
        words.append(str(values.get("data", finding.data)))
    inner = {
        name: values[name]
        for name in swept
        if name in values and name not in (SEED, parameter, "model", "data")
    }
    attack = next((s for s in swept if s != parameter and s.startswith(f"{finding.attack}.")), None)
    if attack is not None:
        inner[attack] = read_value(finding, attack)[1]
    words += [spell("", {name: value}).strip("()") for name, value in inner.items()]
    return ", ".join(words)


def build_point(value: Any, setting: str, server: str, findings: Sequence[Finding]) -> SweepPoint:
    """One point from the findings of all its seeds and attackers."""
    by_seed: dict[int, list[Finding]] = {}
    for finding in findings:
        by_seed.setdefault(int(finding.recipe["seed"]), []).append(finding)
    worst = [max(group, key=rank_severity) for group in by_seed.values()]
    images = sum(len(finding.metrics["read"].per_image) for finding in worst)
    return SweepPoint(
        value=value,
        setting=setting,
        server=server,
        seeds=len(worst),
        images=images,
        read=widen_share(average_seeds(worst, "read"), images),
        psnr=average_seeds(worst, "psnr"),
        ssim=average_seeds(worst, "ssim"),
        by=tuple(dict.fromkeys(f"{f.attack} ({f.attacker})" for f in worst)),
    )


def average_seeds(findings: Sequence[Finding], metric: str) -> Mean:
    """The mean over seeds, ``m ± t s / sqrt(n)``; of one seed, its interval over images."""
    summaries = [finding.metrics[metric] for finding in findings]
    if len(summaries) == 1:
        return Mean(summaries[0].mean, summaries[0].low, summaries[0].high)
    from scipy.stats import t

    means = [summary.mean for summary in summaries]
    count = len(means)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(means) / math.sqrt(count)
    about = METRICS[metric]
    highest = min(v for v in (about.high, about.cap, math.inf) if v is not None)
    return Mean(
        fmean(means), max(about.low, fmean(means) - half), min(highest, fmean(means) + half)
    )


def widen_share(share: Mean, images: int) -> Mean:
    """A share's interval, no narrower than Wilson's for so many images, within 0 and 1.

    Seeds that all read nothing would otherwise seem to prove that nothing is ever read.

    >>> round(widen_share(Mean(0.0, 0.0, 0.0), 12).high, 3)
    0.242
    """
    z2 = 3.841458820694124  # the square of the normal quantile at 97.5%
    p = share.mean
    centre = (p + z2 / (2 * images)) / (1 + z2 / images)
    half = math.sqrt(z2 * (p * (1 - p) / images + z2 / (4 * images**2))) / (1 + z2 / images)
    low, high = min(share.low, centre - half), max(share.high, centre + half)
    return Mean(p, max(0.0, min(low, p)), min(1.0, max(high, p)))
