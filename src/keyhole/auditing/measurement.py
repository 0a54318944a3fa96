"""What results say of a defense in one regime: the worst share read, by whom, of how many images.

A regime is what decides how much leaks besides the defense: model, data, weights, batch, local
training and what is sent. Settings of different regimes, and of different servers, are never ranked
together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from pydantic import ConfigDict

from keyhole.auditing.audit_regime import PLAIN, read_local_work
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import validate
from keyhole.auditing.labels import label_defense
from keyhole.auditing.listed_values import name_plain_data
from keyhole.auditing.verdict import HONEST, MALICIOUS
from keyhole.auditing.verdict_words import name_attacker
from keyhole.metrics.proportion import proportion_interval
from keyhole.threat import Attacker

RANDOM, GIVEN, CAPTURED = "random weights", "given weights", "captured weights"
UNDEFENDED = "none"
WHOLE, USUAL_MODE = "all", "train"
"""What clients train, and in which mode, if a recipe does not say otherwise."""


@dataclass(frozen=True, order=True)
class Regime:
    """What decides how much leaks, besides the defense.

    Args:
        model: The model's name.
        data: What reports call the images.
        image_size: Height and width in pixels.
        weights: ``random weights``, ``given weights``, ``captured weights``, or weights after so
            many epochs or rounds.
        batch_size: Images behind one update that the server gets.
        clients: Clients behind it, as under secure aggregation.
        steps: Local steps.
        shares: ``gradient`` or ``weights``.
        repeats: Updates that each client sends for the same images.
        moving: Whether each of these is from other weights than the one before.
        step_images: Images of a local step; 0: all that the client has.
        optimiser: How clients turn gradients into steps.
        share: What clients train and send; empty: the whole model.
        mode: ``eval`` or ``frozen-norm``, if clients do not train in the usual mode.
    """

    model: str
    data: str
    image_size: tuple[int, int]
    weights: str
    batch_size: int
    clients: int
    steps: int
    shares: str
    repeats: int = 1
    moving: bool = False
    step_images: int = 0
    optimiser: str = PLAIN
    share: str = ""
    mode: str = ""

    @property
    def facts(self) -> str:
        """All but model and data, in one line."""
        size = "x".join(str(side) for side in self.image_size)
        images = "one image" if self.batch_size == 1 else f"{self.batch_size} images"
        parts = [f"{size} px", self.weights, f"{images} per update"]
        if self.clients > 1:
            parts.append(f"secure sums of {self.clients} clients")
        parts.append(self.sent)
        if self.repeats > 1:
            how = " from moving weights" if self.moving else ""
            parts.append(f"{self.repeats} updates of the same images{how}")
        if self.share:
            parts.append(f"only {self.share} is trained")
        if self.mode:
            parts.append(f"clients in mode {self.mode}")
        return ", ".join(parts)

    @property
    def sent(self) -> str:
        """What a client computes and sends."""
        if self.shares == "gradient":
            return "the gradient of one step"
        words = f"weights after {self.steps} step{'' if self.steps == 1 else 's'}"
        if self.step_images:
            words += f" of {self.step_images} image{'' if self.step_images == 1 else 's'}"
        return words if self.optimiser == PLAIN else f"{words} by {self.optimiser}"


@dataclass(frozen=True)
class Measurement:
    """What all attackers with one kind of server reached against a defense in one regime.

    Args:
        regime: The regime.
        defense: ``name`` and ``parameters`` of the defense.
        server: ``honest`` or ``malicious``.
        read: How many images the worst attacker read.
        images: How many images it attacked.
        by: The worst attacker; None if nobody read anything.
        attackers: All attackers on images, each with who used it.
        date: The day of the worst result, ``2026-01-31``; empty if nobody wrote it down.
        version: The version of Keyhole that computed it.
        source: Where the worst result is.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    regime: Regime
    defense: dict[str, Any]
    server: str
    read: int
    images: int
    by: str | None
    attackers: tuple[str, ...]
    date: str = ""
    version: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """The defense as reports name it."""
        return label_defense(self.defense)

    @property
    def share(self) -> float:
        """The share of images that the worst attacker read."""
        return self.read / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of the share."""
        return proportion_interval(self.read, self.images)

    @property
    def held(self) -> bool:
        """Whether nobody read an image; never a promise."""
        return self.read == 0

    @property
    def met_adaptive(self) -> bool:
        """Whether one who knows the defense attacked it."""
        return any(who.endswith(f"({Attacker.ADAPTIVE.value})") for who in self.attackers)

    @property
    def unjudged(self) -> bool:
        """Whether it is a defense that no one who knows it attacked."""
        return self.defense["name"] != UNDEFENDED and not self.met_adaptive

    def to_json(self) -> dict[str, Any]:
        """The measurement as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Measurement:
        """Reads what :meth:`to_json` gave.

        Args:
            values: The JSON object.

        Raises:
            ValueError: It is no measurement.
        """
        found = validate(cls, values)
        if not 0 <= found.read <= found.images or found.images < 1:
            raise ValueError(f"{found.read} of {found.images} images cannot have been read")
        return found


def measure_findings(
    findings: Sequence[Finding], *, date: str = "", source: str = ""
) -> list[Measurement]:
    """The findings as measurements: one for each regime, defense and server.

    Args:
        findings: Findings of one result.
        date: The day of the result, ``2026-01-31``.
        source: Where it is.
    """
    return merge_measurements(
        measure_finding(each, date=date, source=source)
        for each in findings
        if "read" in each.metrics
    )


def measure_finding(finding: Finding, *, date: str, source: str) -> Measurement:
    """One attacker's finding as a measurement."""
    values = finding.metrics["read"].per_image
    read, who = round(sum(values)), name_attacker(finding)
    return Measurement(
        regime=read_regime(finding.model, name_plain_data(finding), finding.recipe),
        defense=finding.defense,
        server=HONEST if finding.honest else MALICIOUS,
        read=read,
        images=len(values),
        by=who if read else None,
        attackers=(who,),
        date=date,
        version=str(finding.versions.get("keyhole", "")),
        source=source,
    )


def read_regime(model: str, data: str, recipe: Mapping[str, Any]) -> Regime:
    """Returns the regime that a finding's recipe describes.

    Args:
        model: The model's name.
        data: The data's name.
        recipe: The finding's recipe.
    """
    height, width = recipe["image_size"]
    clients, repeats = int(recipe.get("aggregate", 1)), int(recipe.get("repeats", 1))
    images = int(recipe["batch_size"])
    work = read_local_work({**recipe, "batch_size": images // clients})
    share, mode = recipe.get("share"), recipe.get("client_mode")
    return Regime(
        model=model,
        data=data,
        image_size=(height, width),
        weights=describe_weights(recipe),
        batch_size=images,
        clients=clients,
        steps=work.steps,
        shares="gradient" if recipe["lr"] is None else "weights",
        repeats=repeats,
        moving=bool(recipe.get("moving")) and repeats > 1,
        step_images=work.batch if work.batch < images // clients else 0,
        optimiser=work.optimiser,
        share="" if share in (None, WHOLE) else str(share),
        mode="" if mode in (None, USUAL_MODE) else str(mode),
    )


def describe_weights(recipe: Mapping[str, Any]) -> str:
    """Where a finding's weights came from.

    >>> describe_weights({"weights": None, "warm_up": 3, "warm_up_defended": True})
    'weights after 3 rounds under the defense'
    """
    if recipe.get("captured"):
        return CAPTURED
    if recipe.get("checkpoint_epoch"):
        return f"weights after {recipe['checkpoint_epoch']} epochs"
    start = GIVEN if recipe.get("weights") else RANDOM
    rounds = int(recipe.get("warm_up") or 0)
    if not rounds:
        return start
    under = " under the defense" if recipe.get("warm_up_defended") else ""
    before = f"{start} and " if start == GIVEN else "weights after "
    return f"{before}{rounds} round{'' if rounds == 1 else 's'}{under}"


def merge_measurements(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for each regime, defense and server: the worst, and everybody who tried.

    Args:
        measurements: Measurements in any order.
    """
    merged: dict[str, Measurement] = {}
    for each in measurements:
        identity = [asdict(each.regime), each.defense, each.server]
        key = json.dumps(identity, sort_keys=True, default=str)
        before = merged.get(key)
        if before is None:
            merged[key] = each
            continue
        worst = max(before, each, key=lambda m: (m.share, m.images))
        attackers = tuple(dict.fromkeys([*before.attackers, *each.attackers]))
        merged[key] = replace(worst, attackers=attackers)
    return list(merged.values())
