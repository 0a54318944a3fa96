"""A finding: what one attacker saw of one defense, with all that is needed to repeat it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

from pydantic import ConfigDict

from keyhole.auditing.finding_check import (
    DefenseFacts,
    KnowledgeFacts,
    RecipeFacts,
    check_attacker,
    check_key,
    check_metrics,
    typed,
)
from keyhole.errors import RunFolderError, one_line
from keyhole.metrics import METRICS, Metric, Summary
from keyhole.version import __version__

RECORDED = ("torch", "torchvision", "timm", "numpy")


@dataclass(frozen=True)
class Finding:
    """One row of the audit. ``metrics`` hold one value an image (labels: one a client)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    key: str
    model: str
    data: str
    defense: dict[str, Any]
    attacker: str
    attack: str
    attack_parameters: dict[str, Any]
    knowledge: dict[str, Any]
    victims: int
    seconds: float
    metrics: dict[str, Summary]
    unavailable: dict[str, str] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    confidence: tuple[float, ...] = ()
    diagnostics: dict[str, float] = field(default_factory=dict)
    loss_curves: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Iteration and loss of the first victims, where the attack iterates."""
    notes: tuple[str, ...] = ()
    """What a reader should know of how it was computed."""
    telemetry: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    reads_images: bool = True
    """Whether the attack looks for images, not for labels alone."""
    attack_label: str = ""
    """The attack with those of its parameters that differ from their defaults; empty in older
    run folders."""
    custom_metrics: dict[str, Metric] = field(default_factory=dict)
    """Descriptions of those ``metrics`` that Keyhole does not ship, so that the finding can be
    read where they are not installed."""

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON holds it; its part of the schema is ``$defs/finding``."""
        plain = dict(self.__dict__)
        plain["metrics"] = {name: s.to_json() for name, s in self.metrics.items()}
        plain["custom_metrics"] = {name: asdict(m) for name, m in self.custom_metrics.items()}
        return plain

    def describe_metric(self, name: str) -> Metric:
        """What is to be known of one of its metrics, be it installed or not."""
        return METRICS[name] if name in METRICS else self.custom_metrics[name]

    @classmethod
    def from_json(cls, values: Any, *, source: str = "a finding") -> Finding:
        """What :meth:`to_json` gave; ``source`` says in an error where it came from.

        Raises :class:`RunFolderError` where an audit could not have written it.
        """
        try:
            return checked_finding(values)
        except ValueError as error:
            raise RunFolderError(
                f"{source} is not as an audit writes it ({one_line(error)}): remove it and run the "
                "same audit again"
            ) from None

    @property
    def honest(self) -> bool:
        """Whether the server kept to the protocol."""
        return self.knowledge.get("altered_model") is None


def checked_finding(values: Any) -> Finding:
    """A finding from JSON; raises ValueError where its types, names or values cannot be right."""
    if isinstance(values, dict) and "reads_images" not in values:  # older run folders
        values = {**values, "reads_images": values.get("attack") != "labels"}
    found = typed(Finding, values)
    check_key(found.key)
    check_attacker(found.attacker)
    typed(DefenseFacts, found.defense)
    typed(KnowledgeFacts, found.knowledge)
    typed(RecipeFacts, found.recipe)
    if found.victims < 1 or found.seconds < 0:
        raise ValueError("victims and seconds cannot be so few")
    check_metrics(found.metrics, found.victims, found.custom_metrics)
    return found


def key_of(identity: dict[str, Any]) -> str:
    """A file name for what ``identity`` describes: readable, and unlike any other's.

    >>> key_of({"model": "timm:deit", "attack": "linear", "seed": 0})[:-8]
    'timm-deit-linear-'
    """
    words = "-".join(str(v) for k, v in identity.items() if k in READABLE)
    slug = re.sub(r"[^a-zA-Z0-9.]+", "-", words).strip("-").lower()[:80]
    text = json.dumps(identity, sort_keys=True, default=str)
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


READABLE = ("model", "data", "defense", "attack", "attacker")


def versions() -> dict[str, str]:
    """Versions of what computed a finding."""
    found = {"keyhole": __version__, "python": platform.python_version()}
    for package in RECORDED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
