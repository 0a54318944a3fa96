"""The gate's decision as JUnit XML and as SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.auditing.gate import Gate, judge_gate
from keyhole.auditing.gate_conditions import read_conditions
from keyhole.report.junit import write_junit
from keyhole.report.sarif import RULES, render_sarif, spell_uri, write_sarif
from sarif_schema import LOG

Judged = tuple[Gate, AuditResult]


@pytest.fixture(scope="module")
def judged() -> Judged:
    stage = Stage(data="digits", defenses=("none", "dropout"), attacks=("linear",), victims=1)
    result = run_plan(Plan(stage=(stage,)))
    gate = judge_gate(result, read_conditions(["read>0.5", "malicious:broken"]))
    return gate, result


def test_junit_has_a_case_for_each_setting_and_counts_those_that_failed(
    judged: Judged, tmp_path: Path
) -> None:
    gate, result = judged
    root = ElementTree.parse(write_junit(gate, result, tmp_path / "junit.xml")).getroot()
    (suite,) = root
    cases = suite.findall("testcase")
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    assert [case.get("name") for case in cases] == [
        "mlp on digits, none",
        "mlp on digits, dropout(p=0.25)",
    ]
    failures = [case.find("failure") for case in cases]
    assert all(f is not None and f.get("type") == "read" for f in failures)
    lines = (failures[0].text or "").splitlines()  # type: ignore[union-attr]
    assert len(lines) == 2
    assert "at most 50.0% allowed (read>0.5)" in lines[0]
    assert "not tested" in lines[1]
    total = sum(float(case.get("time") or "nan") for case in cases)
    assert total == pytest.approx(sum(f.seconds for f in result.findings), abs=0.01)


def test_control_characters_do_not_spoil_the_xml(judged: Judged, tmp_path: Path) -> None:
    _, result = judged
    values = result.to_json()
    for part in (*values["findings"], *values["verdicts"]):
        part["data"] = "a\x00b\x1b<&"
    hostile = AuditResult.from_json(values)
    gate = judge_gate(hostile, read_conditions(["broken"]))
    root = ElementTree.parse(write_junit(gate, hostile, tmp_path / "junit.xml")).getroot()
    assert "<&" in (root[0][0].get("name") or "")


def test_sarif_has_a_result_for_each_failure(judged: Judged, tmp_path: Path) -> None:
    gate, result = judged
    plan = tmp_path / "my plan.toml"
    log = json.loads(write_sarif(gate, result, tmp_path / "log.sarif", plan).read_text())
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [rule.value for rule in RULES]
    assert len(run["results"]) == len(gate.failures) == 4
    for found, failure in zip(run["results"], gate.failures, strict=True):
        assert rules[found["ruleIndex"]] == found["ruleId"] == failure.rule
        assert found["message"]["text"] == failure.line
        place = found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert place.endswith("/my%20plan.toml")
    prints = [found["partialFingerprints"]["keyhole/v1"] for found in run["results"]]
    assert len(set(prints)) == 4
    again = render_sarif(gate, result)["runs"][0]["results"]
    assert [found["partialFingerprints"]["keyhole/v1"] for found in again] == prints


@pytest.mark.parametrize("conditions", [["read>0.5", "malicious:broken"], ["read>=1"], []])
def test_the_log_is_valid_sarif(judged: Judged, conditions: list[str], tmp_path: Path) -> None:
    _, result = judged
    gate = judge_gate(result, read_conditions(conditions))
    log = json.loads(write_sarif(gate, result, tmp_path / "log.sarif").read_text())
    jsonschema.Draft202012Validator.check_schema(LOG)
    jsonschema.validate(log, LOG)
    for spoil in ("level", "ruleIdentifier"):
        wrong = json.loads(json.dumps(log))
        wrong["runs"][0]["results"] = [{"message": {"text": "a"}, spoil: "bad"}]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, LOG)


ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "disabled", "errors"},
    "testsuite": {
        "name",
        "tests",
        "failures",
        "errors",
        "time",
        "skipped",
        "timestamp",
        "hostname",
    },
    "testcase": {"name", "classname", "time", "assertions", "status"},
    "failure": {"type", "message"},
}
"""What the schema that Jenkins publishes allows on each element."""
INSIDE = {"testsuites": "testsuite", "testsuite": "testcase", "testcase": "failure"}


def test_the_junit_file_has_only_what_its_readers_know(judged: Judged, tmp_path: Path) -> None:
    root = ElementTree.parse(write_junit(*judged, tmp_path / "junit.xml")).getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.keys()) <= ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= {INSIDE.get(element.tag)}
        if element.tag in ("testsuite", "testcase"):
            assert element.get("name")
        for count in {"tests", "failures", "errors", "skipped"} & set(element.keys()):
            assert int(element.get(count, "")) >= 0


def test_a_place_below_the_working_folder_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spell_uri(tmp_path / "runs" / "a") == "runs/a"
    assert spell_uri(Path("/elsewhere/a")) == "file:///elsewhere/a"
