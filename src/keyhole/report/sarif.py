"""A gate's failures as SARIF 2.1.0, which code hosts show beside a change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keyhole.atomic import write_json
from keyhole.auditing.gate import Gate, GateFailure, name_setting
from keyhole.auditing.gate_conditions import Rule
from keyhole.auditing.results import AuditResult
from keyhole.auditing.store_folder import SUMMARY
from keyhole.terminal import escape_controls
from keyhole.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RULES = {
    Rule.BROKEN: "An attacker read an image of a client.",
    Rule.READ: "An attacker read a larger share of the images than is allowed.",
    Rule.WORSE: "An attacker read more than in the baseline.",
    Rule.IDLE: "A defense did nothing, or less than it declares.",
    Rule.UNTESTED: "Nothing was measured here, so that no condition can be checked.",
}


def render_sarif(gate: Gate, result: AuditResult, plan: Path | None = None) -> dict[str, Any]:
    """The log as JSON values: one result for each failure.

    Args:
        gate: What the gate decided.
        result: The audit.
        plan: The file of the plan, at which the failures are shown; None: at the run's summary.
    """
    place = plan or Path(result.run or "keyhole") / SUMMARY
    driver = {
        "name": "Keyhole",
        "version": __version__,
        "rules": [
            {"id": rule.value, "shortDescription": {"text": text}} for rule, text in RULES.items()
        ],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [{"executionSuccessful": True}],
                "results": [describe_failure(failure, place) for failure in gate.failures],
                "properties": {"conditions": list(gate.conditions), "passed": gate.passed},
            }
        ],
    }


def describe_failure(failure: GateFailure, place: Path) -> dict[str, Any]:
    """One result: the rule, the message, where it is shown, and what tells it from others."""
    identity = json.dumps([failure.condition, failure.rule, *failure.setting, failure.server])
    numbers = {"server": failure.server, "attacker": failure.attacker, "read": failure.read}
    return {
        "ruleId": failure.rule,
        "ruleIndex": list(RULES).index(Rule(failure.rule)),
        "level": "error",
        "message": {"text": escape_controls(failure.line)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": spell_uri(place)},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [
                    {"fullyQualifiedName": escape_controls(name_setting(failure.setting))}
                ],
            }
        ],
        "partialFingerprints": {"keyhole/v1": hashlib.sha256(identity.encode()).hexdigest()},
        "properties": {**numbers, "limit": failure.limit, "condition": failure.condition},
    }


def spell_uri(path: Path) -> str:
    """A path as a URI, relative to the working folder where it lies below it.

    >>> spell_uri(Path("runs/my run/summary.json"))
    'runs/my%20run/summary.json'
    """
    here = Path.cwd()
    whole = (here / path).resolve()
    if whole.is_relative_to(here.resolve()):
        return quote(whole.relative_to(here.resolve()).as_posix())
    return whole.as_uri()


def write_sarif(gate: Gate, result: AuditResult, path: Path, plan: Path | None = None) -> Path:
    """Writes the log to a file.

    Args:
        gate: What the gate decided.
        result: The audit.
        path: The file.
        plan: The file of the plan; None: there is none.
    """
    return write_json(path, render_sarif(gate, result, plan))
