"""What tables and pages call a defense, an attack or a metric, installed or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyhole.attacks import ATTACKS
from keyhole.auditing.finding import Finding
from keyhole.defenses import DEFENSES
from keyhole.metrics import METRICS
from keyhole.parameters import default_parameters
from keyhole.registry import Registry
from keyhole.spelling import spell

MISSING = object()
"""Stands for a parameter that a defense or an attack no longer has."""


def label_defense(defense: Mapping[str, Any]) -> str:
    """A defense as a user would name it: its numbers, and what differs from the defaults.

    Args:
        defense: Its name and its parameters, as a result writes them.

    >>> label_defense({"name": "pruning", "parameters": {"ratio": 0.9, "scope": "tensor"}})
    'pruning(ratio=0.9)'
    >>> label_defense({"name": "not_here:Fog", "parameters": {"kind": "thick"}})
    "not_here:Fog(kind='thick')"
    """
    name = defense["name"]
    defaults = read_defaults(DEFENSES, name)
    headline = DEFENSES[name].headline if defaults else ()
    chosen = {
        k: v
        for k, v in defense["parameters"].items()
        if v != defaults.get(k, MISSING) or (not isinstance(v, str) and k in (headline or defaults))
    }
    return spell(name, chosen)


def label_attack(finding: Finding) -> str:
    """An attack with those of its parameters that are not the defaults.

    Older findings do not say which these are; it is then known for Keyhole's own attacks only.
    """
    if finding.attack_label.partition("(")[0] == finding.attack:
        return finding.attack_label
    defaults = read_defaults(ATTACKS, finding.attack)
    chosen = {k: v for k, v in finding.attack_parameters.items() if v != defaults.get(k, MISSING)}
    return spell(finding.attack, chosen)


def label_metric(name: str) -> str:
    """What tables call a metric; its name if it is not installed."""
    return METRICS[name].label if name in METRICS else name


def read_defaults(registry: Registry[Any], name: str) -> dict[str, Any]:
    """The default parameters of one of Keyhole's own parts; empty for any other.

    A name out of a run folder never makes Keyhole import the code that it names.
    """
    return default_parameters(registry[name]) if name in registry.names() else {}
