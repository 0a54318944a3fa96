"""The shipped JSON Schema against real results of every kind."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captures import audited
from keyhole.auditing import (
    SCHEMA_VERSION,
    AuditResult,
    CapturedMembership,
    Plan,
    Stage,
    result_schema,
    run_plan,
)
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.captured_inference import CapturedInference
from keyhole.auditing.finding import Finding
from keyhole.auditing.gate import GateFailure
from keyhole.auditing.verdict import MaliciousVerdict, Verdict
from keyhole.frontier.advice import Advice, AdvisedSetting
from keyhole.metrics import Metric, Summary

jsonschema = pytest.importorskip("jsonschema")

PARTS = {
    "finding": Finding,
    "verdict": Verdict,
    "malicious_verdict": MaliciousVerdict,
    "skipped": Skipped,
    "summary": Summary,
    "metric": Metric,
    "gate_failure": GateFailure,
    "advice": Advice,
    "advised_setting": AdvisedSetting,
    "captured_membership": CapturedMembership,
    "captured_inference": CapturedInference,
}


@pytest.fixture(scope="module")
def validator() -> Any:
    kind = jsonschema.Draft202012Validator
    kind.check_schema(result_schema())
    return kind(result_schema())


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    """A result with everything but captured clients: broken, not broken, not tested, skipped."""
    stages = (
        Stage(
            data="digits", defenses=("none", "gaussian(sigma=10)"), attacks=("linear",), victims=2
        ),
        Stage(data="digits", attacks=("labels",), victims=1),
        Stage(data="faces", defenses=("dropout",), attacks=("dia",), victims=1, iterations=60),
        Stage(model="lenet", data="digits", attacks=("linear",), victims=1),
        Stage(
            model="lenet",
            data="digits",
            attacks=("labels",),
            defenses=("dp",),
            victims=1,
            steps=2,
            lr=0.01,
        ),
        Stage(
            data="digits",
            defenses=("gaussian(sigma=1e-06)",),
            attacks=("linear", "imprint"),
            victims=1,
            batch_size=2,
        ),
        Stage(data="digits", defenses=("gaussian(sigma=20)",), attacks=("imprint",), victims=1),
    )
    return run_plan(Plan(stage=stages)).to_json()


def test_the_schema_fits_results_of_every_kind(validator: Any, judged: dict[str, Any]) -> None:
    validator.validate(judged)
    assert judged["schema_version"] == SCHEMA_VERSION
    assert {v["status"] for v in judged["verdicts"]} == {"broken", "not broken", "not tested"}
    assert judged["skipped"]
    assert any(f["loss_curves"] for f in judged["findings"])
    assert any(f["telemetry"] for f in judged["findings"])
    both, alone = (v["malicious"] for v in judged["verdicts"][4:6])
    assert (both["status"], both["alone"]) == ("broken", False)
    assert (alone["status"], alone["alone"]) == ("not broken", True)


def test_the_schema_fits_results_from_before_servers_were_judged_apart(
    validator: Any, judged: dict[str, Any]
) -> None:
    old = copy.deepcopy(judged)
    for verdict in old["verdicts"]:
        del verdict["malicious"]
    for finding in old["findings"]:
        del finding["noticed"]
    validator.validate(old)
    unchecked = copy.deepcopy(judged)
    for finding in unchecked["findings"]:
        finding["noticed"] = None
    assert AuditResult.from_json(old).to_json() == AuditResult.from_json(unchecked).to_json()


def test_the_schema_fits_captured_clients(validator: Any, seen: Path) -> None:
    scored = audited(seen).to_json()
    validator.validate(scored)
    (seen / "truth.json").unlink()
    blind = audited(seen).to_json()
    validator.validate(blind)
    assert {v["status"] for v in blind["verdicts"]} == {"not scored"}


def test_what_the_command_line_prints_fits(
    validator: Any, keyhole: Callable[..., tuple[int, str, str]]
) -> None:
    small = ("--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")
    printed = keyhole("audit", *small, "--out", "run", "--json")[1]
    validator.validate(json.loads(printed))
    validator.validate(json.loads(keyhole("report", "run", "--json")[1]))
    validator.validate(json.loads(Path("run/summary.json").read_text()))


@pytest.mark.parametrize("part", PARTS)
def test_the_schema_names_every_field(part: str) -> None:
    fields = {f.name for f in dataclasses.fields(PARTS[part])}
    described = result_schema()["$defs"][part]
    assert set(described["properties"]) == fields
    assert set(described["required"]) <= fields


def put(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts ``value`` at a place such as ``findings.0.metrics.read.mean``; REMOVED takes it away."""

    def apply(found: Any) -> None:
        *above, last = place.split(".")
        for step in above:
            found = found[int(step) if isinstance(found, list) else step]
        if value is REMOVED:
            del found[last]
        else:
            found[last] = value

    return apply


REMOVED = object()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("schema_version", 2),
        ("schema_version", REMOVED),
        ("findings", REMOVED),
        ("run", 3),
        ("notes", [3]),
        ("findings.0.attacker", "kind"),
        ("findings.0.victims", 0),
        ("findings.0.victims", 1.5),
        ("findings.0.metrics.read", {"mean": 1.0}),
        ("findings.0.metrics.read.per_image", [0.5, 1.0]),
        ("findings.0.metrics.read.mean", 1.5),
        ("findings.0.metrics.ssim", REMOVED),
        ("findings.0.metrics.psnr.per_image", []),
        ("findings.0.metrics.luck", {}),
        ("findings.0.recipe.image_size", [8]),
        ("findings.0.recipe.lr", 0),
        ("findings.0.defense.parameters", REMOVED),
        ("findings.0.loss_curves", [[[1]]]),
        ("findings.0.custom_metrics", {"luck": {"name": "luck"}}),
        ("findings.0.key", "../x"),
        ("verdicts.0.status", "safe"),
        ("verdicts.0.by", None),
        ("verdicts.0.read", 0),
        ("verdicts.1.read", 0.5),
        ("verdicts.1.by", "linear (naive)"),
        ("verdicts.2.read", 0.0),
        ("skipped.0.why", REMOVED),
        ("findings.0.noticed", "yes"),
        ("verdicts.0.malicious", "imprint"),
        ("verdicts.4.malicious.status", "safe"),
        ("verdicts.4.malicious.changed", None),
        ("verdicts.4.malicious.by", None),
        ("verdicts.4.malicious.read", 0),
        ("verdicts.4.malicious.noticed", 1),
        ("verdicts.5.malicious.read", 0.5),
        ("verdicts.5.malicious.by", "imprint (naive)"),
        ("date", "yesterday"),
        ("what_to_do", [{"model": "mlp"}]),
        ("gate", {"passed": True, "conditions": [], "failures": []}),
        ("gate", {"passed": False, "conditions": ["broken"], "failures": []}),
    ],
)
def test_the_schema_refuses_what_no_audit_writes(
    validator: Any, judged: dict[str, Any], place: str, value: Any
) -> None:
    spoilt = copy.deepcopy(judged)
    put(place, value)(spoilt)
    assert not validator.is_valid(spoilt)
