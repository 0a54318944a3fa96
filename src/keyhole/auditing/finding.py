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

from keyhole.auditing.defense_acted import DefenseActed, checks_to_json
from keyhole.auditing.finding_check import (
    DefenseFacts,
    KnowledgeFacts,
    RecipeFacts,
    check_attacker,
    check_key,
    check_metrics,
    validate,
)
from keyhole.errors import RunFolderError, one_line
from keyhole.metrics import METRICS, Metric, Summary
from keyhole.version import __version__

RECORDED = ("torch", "torchvision", "timm", "numpy")
"""Packages whose versions a finding holds."""
READABLE = ("model", "data", "defense", "attack", "attacker")
"""Parts of an identity that a key spells out."""


@dataclass(frozen=True)
class Finding:
    """What one attacker saw of the clients under one defense: one row of the audit.

    Args:
        key: The name of its files in the run folder.
        model: The model's name.
        data: What reports call the images.
        defense: ``name`` and ``parameters`` of the clients' defense.
        attacker: ``naive``, ``paper`` or ``adaptive``.
        attack: The attack's name.
        attack_parameters: All parameters of the attack.
        knowledge: What the attacker knew, as :meth:`Knowledge.summary` gives it.
        victims: How many clients were attacked.
        seconds: How long the attack took on all of them.
        metrics: By name, one value per image (labels: one per client) and their summary.
        unavailable: Metrics that could not be measured, and why.
        baselines: Mean scores of attackers who saw nothing, by baseline and metric.
        confidence: How sure the attack is of each image that it returned, in [0, 1].
        diagnostics: What the attack reports about its work, averaged over clients.
        loss_curves: Iteration and loss of the first victims, if the attack iterates.
        notes: What a reader should know about how it was computed.
        telemetry: What the defense reports about its work, averaged over clients.
        recipe: What is needed to repeat it, besides the names.
        versions: Versions of Keyhole, Python and the packages that computed it.
        reads_images: Whether the attack looks for images, not for labels alone.
        attack_label: The attack with the parameters that are not its defaults; empty in older run
            folders.
        custom_metrics: Descriptions of ``metrics`` that Keyhole does not ship, so that they need
            not be installed to read the finding.
        noticed: Whether a client that checks the model it receives would have noticed what a
            malicious server changed; None: not checked.
        acted: Whether the defense acted as it declares; None: there is none, or nobody checked.
    """

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
    notes: tuple[str, ...] = ()
    telemetry: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    reads_images: bool = True
    attack_label: str = ""
    custom_metrics: dict[str, Metric] = field(default_factory=dict)
    noticed: bool | None = None
    acted: DefenseActed | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON holds it; its part of the schema is ``$defs/finding``."""
        plain = dict(self.__dict__)
        plain["metrics"] = {name: s.to_json() for name, s in self.metrics.items()}
        plain["custom_metrics"] = {name: asdict(m) for name, m in self.custom_metrics.items()}
        plain["acted"] = acted_to_json(self.acted)
        return plain

    def describe_metric(self, name: str) -> Metric:
        """The description of one of its metrics, which need not be installed.

        Args:
            name: The metric's name.
        """
        return METRICS[name] if name in METRICS else self.custom_metrics[name]

    @classmethod
    def from_json(cls, values: Any, *, source: str = "a finding") -> Finding:
        """Reads what :meth:`to_json` gave.

        Args:
            values: The JSON object.
            source: Where it came from, for errors.

        Raises:
            RunFolderError: An audit could not have written it.
        """
        try:
            return validate_finding(values)
        except ValueError as error:
            raise RunFolderError(
                f"{source} is not as an audit writes it ({one_line(error)}): remove it and run the "
                "same audit again"
            ) from None

    @property
    def honest(self) -> bool:
        """Whether the server kept to the protocol."""
        return self.knowledge.get("altered_model") is None


def acted_to_json(acted: DefenseActed | None) -> dict[str, Any] | None:
    """What a finding says of its defense, as JSON holds it."""
    if acted is None:
        return None
    clients = checks_to_json(acted.clients)
    return {"status": acted.status.value, "words": acted.words, "clients": clients}


def validate_finding(values: Any) -> Finding:
    """A finding from JSON; raises ValueError if its types, names or values cannot be right."""
    if isinstance(values, dict) and "reads_images" not in values:  # older run folders
        values = {**values, "reads_images": values.get("attack") != "labels"}
    finding = validate(Finding, values)
    check_key(finding.key)
    check_attacker(finding.attacker)
    validate(DefenseFacts, finding.defense)
    validate(KnowledgeFacts, finding.knowledge)
    validate(RecipeFacts, finding.recipe)
    if finding.victims < 1 or finding.seconds < 0:
        raise ValueError("victims and seconds cannot be so few")
    check_metrics(finding.metrics, finding.victims, finding.custom_metrics)
    return finding


def build_key(identity: dict[str, Any]) -> str:
    """A file name for what ``identity`` describes: readable, and unlike any other's.

    >>> build_key({"model": "timm:deit", "attack": "linear", "seed": 0})[:-8]
    'timm-deit-linear-'
    """
    words = "-".join(str(v) for k, v in identity.items() if k in READABLE)
    slug = re.sub(r"[^a-zA-Z0-9.]+", "-", words).strip("-").lower()[:80]
    text = json.dumps(identity, sort_keys=True, default=str)
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def read_versions() -> dict[str, str]:
    """Versions of what computes a finding."""
    versions = {"keyhole": __version__, "python": platform.python_version()}
    for package in RECORDED:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
