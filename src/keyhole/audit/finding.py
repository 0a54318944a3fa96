"""A finding: what one attacker saw of one defense, with all that is needed to repeat it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from keyhole.metrics import Summary
from keyhole.version import __version__

RECORDED = ("torch", "torchvision", "timm", "numpy")


@dataclass(frozen=True)
class Finding:
    """One row of the audit. ``metrics`` hold one value an image (labels: one a client)."""

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

    def to_json(self) -> dict[str, Any]:
        plain = {k: v for k, v in self.__dict__.items() if k != "metrics"}
        plain["metrics"] = {name: s.to_json() for name, s in self.metrics.items()}
        return plain

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        summaries = {
            name: Summary(**{**s, "per_image": tuple(s["per_image"])})
            for name, s in values["metrics"].items()
        }
        listed = {
            "confidence": tuple(values["confidence"]),
            "notes": tuple(values.get("notes", ())),
            "loss_curves": tuple(
                tuple((int(i), float(loss)) for i, loss in curve)
                for curve in values.get("loss_curves", ())
            ),
        }
        return cls(**{**values, "metrics": summaries, **listed})

    @property
    def honest(self) -> bool:
        """Whether the server kept to the protocol."""
        return self.knowledge.get("altered_model") is None


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
