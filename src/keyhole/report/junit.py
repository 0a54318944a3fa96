"""A gate's decision as JUnit XML: one test case for each setting of the audit."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from keyhole.atomic import write_text
from keyhole.auditing.gate import Gate, Setting, name_setting
from keyhole.auditing.labels import label_defense
from keyhole.auditing.results import AuditResult
from keyhole.terminal import escape_controls


def render_junit(gate: Gate, result: AuditResult) -> str:
    """The XML as GitLab, Jenkins and the usual actions for GitHub read it.

    Args:
        gate: What the gate decided.
        result: The audit, for the seconds that its attacks took.
    """
    seconds = measure_seconds(result)
    failed = {failure.setting for failure in gate.failures}
    counts = {
        "name": "keyhole",
        "tests": str(len(gate.settings)),
        "failures": str(len(failed)),
        "errors": "0",
        "time": f"{sum(seconds.values()):.3f}",
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {**counts, "skipped": "0"})
    for setting in gate.settings:
        model, data, _ = setting
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": escape_controls(f"keyhole.{model}.{data}" if model else "keyhole"),
                "name": escape_controls(name_setting(setting)),
                "time": f"{seconds.get(setting, 0.0):.3f}",
            },
        )
        failures = gate.failures_of(setting)
        if failures:
            lines = [escape_controls(failure.line) for failure in failures]
            about = {"message": lines[0], "type": failures[0].rule}
            ElementTree.SubElement(case, "failure", about).text = "\n".join(lines)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def measure_seconds(result: AuditResult) -> dict[Setting, float]:
    """How long the attacks on each setting took."""
    seconds: dict[Setting, float] = {}
    for finding in result.findings:
        setting = finding.model, finding.data, label_defense(finding.defense)
        seconds[setting] = seconds.get(setting, 0.0) + finding.seconds
    return seconds


def write_junit(gate: Gate, result: AuditResult, path: Path) -> Path:
    """Writes the XML to a file.

    Args:
        gate: What the gate decided.
        result: The audit.
        path: The file.
    """
    return write_text(path, render_junit(gate, result))
