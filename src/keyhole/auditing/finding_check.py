"""Checks a finding that was read from a file: types, names, ranges, and whether they agree.

Verdicts are made of findings, and nothing that an audit could not have written may reach them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from keyhole.metrics import METRICS, Metric, Summary
from keyhole.metrics.metric import MOST_DIGITS, ROUNDING
from keyhole.spelling import shorten
from keyhole.threat import Attacker

T = TypeVar("T")

KEY = re.compile(r"[A-Za-z0-9.][A-Za-z0-9.-]*")
"""A finding's key names its files: no key leads out of the run folder."""
SHARES_OF_IMAGES = ("reid", "read")
"""Metrics that are 0 or 1 for each image."""
PER_CLIENT = ("labels",)
ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Validators by type, built when they are first needed."""
Count = Annotated[int, Field(ge=1, lt=2**53)]


class DefenseFacts(BaseModel):
    """What a finding says about the defense."""

    model_config = ConfigDict(extra="forbid")
    name: str
    parameters: dict[str, Any]


class KnowledgeFacts(BaseModel):
    """What a report needs of the attacker's knowledge."""

    labels: bool
    defense: str | None
    server: str
    altered_model: str | None = None
    masks: bool = False
    intercepted: bool = False


class RecipeFacts(BaseModel):
    """What a report needs of the recipe."""

    batch_size: Count
    aggregate: Count = 1
    image_size: tuple[Count, Count]
    steps: Count
    lr: Annotated[float, Field(gt=0)] | None
    weights: str | None
    seed: int
    gallery: Count
    scored: bool = True
    captured: str | None = None
    rounds: str | None = None
    left_out: tuple[str, ...] = ()
    device: str = ""


def validate(kind: type[T], values: object) -> T:
    """Turns values from JSON into a ``kind``; raises ValueError if they have other types.

    Nothing is converted: ``"1"`` is no number, and an unknown key no part of a dataclass.
    """
    try:
        if kind not in ADAPTERS:
            ADAPTERS[kind] = TypeAdapter(kind)
        valid: T = ADAPTERS[kind].validate_json(json.dumps(values), strict=True)
        return valid
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"{part}." for part in first["loc"][:4]).rstrip(".")
        where = f"{place}: " if place else ""
        got = shorten(first["input"])
        raise ValueError(f"{where}{first['msg'].lower()}, got {got}") from None


def check_key(key: str) -> None:
    if not KEY.fullmatch(key):
        raise ValueError(f"key: {shorten(key)} cannot name a file of a run folder")


def check_attacker(attacker: str) -> None:
    known = [kind.value for kind in Attacker]
    if attacker not in known:
        raise ValueError(f"attacker: {shorten(attacker)} is none of {', '.join(known)}")


def check_metrics(
    metrics: Mapping[str, Summary], victims: int, custom: Mapping[str, Metric]
) -> None:
    """Raises ValueError if a metric is unknown, out of range, or does not fit its values.

    ``custom`` describes metrics that need not be installed; it cannot redefine one that is.
    """
    for name, metric in custom.items():
        if metric.name != name or not 0 <= metric.digits <= MOST_DIGITS:
            raise ValueError(f"custom_metrics.{name}: its name or its digits cannot be right")
    described = {**custom, **METRICS}
    for name, summary in metrics.items():
        if name not in described:
            raise ValueError(f"metrics: {shorten(name)} is not a metric")
        check_summary(described[name], summary)
    counts = {len(s.per_image) for name, s in metrics.items() if name not in PER_CLIENT}
    if len(counts) > 1:
        raise ValueError("metrics: some have more images than others")
    for name in set(PER_CLIENT) & metrics.keys():
        if len(metrics[name].per_image) != victims:
            raise ValueError(f"metrics.{name}: it needs one value per client")
    if "read" in metrics and not {"ssim", "psnr", "reid"} <= metrics.keys():
        raise ValueError("metrics: read comes with ssim, psnr and reid")


def check_summary(metric: Metric, summary: Summary) -> None:
    """Raises ValueError if a summary is not that of its values, or they are out of range."""
    values = summary.per_image
    if not values:
        raise ValueError(f"metrics.{metric.name}: it has no values")
    least, most = min(values), max(values)
    highest = metric.high if metric.high is not None else metric.cap
    slack = ROUNDING * max(1.0, abs(least), abs(most))
    if least < metric.low - slack or (highest is not None and most > highest + slack):
        raise ValueError(f"metrics.{metric.name}: a value is out of range")
    if metric.name in SHARES_OF_IMAGES and not set(values) <= {0.0, 1.0}:
        raise ValueError(f"metrics.{metric.name}: each value is 0 or 1")
    worst = most if metric.leaks_high else least
    pairs = {"mean": (summary.mean, fmean(values)), "worst": (summary.worst, worst)}
    for name, (stated, computed) in pairs.items():
        if not math.isclose(stated, computed, rel_tol=ROUNDING, abs_tol=slack):
            raise ValueError(f"metrics.{metric.name}.{name}: {stated:g} is not {computed:g}")
    if not least - slack <= summary.low <= summary.high + slack <= most + 2 * slack:
        raise ValueError(f"metrics.{metric.name}: its interval lies outside its values")
