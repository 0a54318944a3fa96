"""What a gate decides of real audits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.auditing.gate import Gate, judge_gate
from keyhole.auditing.gate_conditions import read_conditions

Audit = Callable[..., AuditResult]


@pytest.fixture(scope="module")
def audit_digits(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Audits of digits on the fully connected network, each in a folder of its own."""
    place = tmp_path_factory.mktemp("runs")
    known: dict[str, AuditResult] = {}

    def run(*defenses: str, attacks: tuple[str, ...] = ("linear",), **more: Any) -> AuditResult:
        stage = Stage(data="digits", defenses=defenses, attacks=attacks, victims=2, **more)
        plan = Plan(stage=(stage,))
        if plan.digest not in known:
            known[plan.digest] = run_plan(plan, out=place / plan.digest)
        return known[plan.digest]

    return run


def judged(result: AuditResult, *conditions: str) -> Gate:
    return judge_gate(result, read_conditions(conditions))


def baseline(result: AuditResult) -> str:
    assert result.run is not None
    return f"worse-than:{Path(result.run)}"


def test_each_setting_is_judged_by_itself(audit_digits: Audit) -> None:
    gate = judged(audit_digits("none", "gaussian(sigma=10)"), "broken")
    assert [setting[2] for setting in gate.settings] == ["none", "gaussian(sigma=10.0)"]
    (failure,) = gate.failures
    assert (failure.defense, failure.server, failure.attacker) == (
        "none",
        "honest",
        "linear (naive)",
    )
    assert (failure.rule, failure.read, failure.limit) == ("broken", 1.0, 0.0)
    assert gate.failures_of(gate.settings[0]) == (failure,)
    assert gate.failures_of(gate.settings[1]) == ()


def test_what_is_not_met_passes(audit_digits: Audit) -> None:
    gate = judged(audit_digits("gaussian(sigma=10)"), "broken", "read>=0.01", "honest:read>0")
    assert gate.passed
    assert gate.to_json() == {
        "passed": True,
        "conditions": ["broken", "read>=0.01", "honest:read>0"],
        "failures": [],
    }


def test_a_server_that_nobody_tried_fails_its_own_conditions_only(audit_digits: Audit) -> None:
    (failure,) = judged(audit_digits("gaussian(sigma=10)"), "malicious:broken", "broken").failures
    assert (failure.rule, failure.server, failure.read) == ("not-tested", "malicious", None)
    assert "no attack with a malicious server was run" in failure.words


def test_the_malicious_server_is_judged_too(audit_digits: Audit) -> None:
    result = audit_digits("none", attacks=("linear", "imprint"), batch_size=2)
    assert {f.server for f in judged(result, "broken").failures} >= {"malicious"}
    assert {f.server for f in judged(result, "malicious:broken").failures} == {"malicious"}


def test_what_nobody_tested_fails_every_condition(audit_digits: Audit) -> None:
    result = audit_digits("none", attacks=("labels",))
    for condition in ("broken", "read>0.9"):
        (failure,) = judged(result, condition).failures
        assert (failure.rule, failure.read) == ("not-tested", None)


def test_a_run_is_no_worse_than_itself(audit_digits: Audit) -> None:
    result = audit_digits("none", "gaussian(sigma=10)")
    assert judged(result, baseline(result)).passed


def test_more_read_than_in_the_baseline_fails(audit_digits: Audit) -> None:
    private = audit_digits("gaussian(sigma=10)")
    leaking = audit_digits("none")
    renamed = private.to_json()
    for part in (*renamed["findings"], *renamed["verdicts"]):
        part["defense"] = {"name": "none", "parameters": {}}
    before = AuditResult.from_json(renamed)
    place = Path("before")
    conditions = read_conditions([f"worse-than:{place}"])
    (failure,) = judge_gate(leaking, conditions, {place: before}).failures
    assert (failure.rule, failure.read, failure.limit) == ("worse-than", 1.0, 0.0)
    assert "read 100.0% of the images, 0.0% in the baseline" in failure.words
    assert judge_gate(before, conditions, {place: leaking}).passed


def test_what_was_left_out_since_the_baseline_fails(audit_digits: Audit) -> None:
    whole = audit_digits("none", "gaussian(sigma=10)")
    part = audit_digits("gaussian(sigma=10)")
    (failure,) = judged(part, baseline(whole)).failures
    assert (failure.rule, failure.defense) == ("not-tested", "none")
    (failure,) = judged(whole, baseline(part)).failures
    assert (failure.rule, failure.defense) == ("not-tested", "none")
    assert "audit the baseline anew" in failure.words
