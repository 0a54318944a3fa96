"""An audit says whether the defense acted: in findings, verdicts, on the terminal, at the gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic.dataclasses import dataclass

from captures import audited
from keyhole.auditing import AuditResult, audit
from keyhole.auditing.gate import judge_gate
from keyhole.auditing.gate_conditions import read_conditions
from keyhole.data import load
from keyhole.defenses import Acted, ClientSide, Dp, Dropout, Gaussian, Pruning
from keyhole.update import Update

Keyhole = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True, kw_only=True)
class WeakNoise(Gaussian):
    """A mod whose noise is a thousand times too small."""

    name: ClassVar[str] = "weak-noise"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        return Gaussian(sigma=self.sigma / 1000, clip=self.clip).on_update(update, side)


def run(*defenses: Any, **values: Any) -> AuditResult:
    return audit(
        **{
            "model": "mlp",
            "data": load("digits"),
            "attacks": ["linear"],
            "defenses": list(defenses),
            "victims": 3,
            **values,
        }
    )


def test_findings_and_verdicts_tell_it_client_by_client() -> None:
    result = run("none", Gaussian(sigma=0.01), WeakNoise(sigma=0.01), Pruning(ratio=0), Dropout())
    none, good, weak, idle, dropout = result.verdicts
    assert none.acted is None
    assert [v.acted.status for v in (good, weak, idle, dropout) if v.acted is not None] == [
        Acted.ACTED,
        Acted.WEAK,
        Acted.IDLE,
        Acted.ACTED,
    ]
    assert weak.acted is not None
    assert weak.acted.words == (
        "the defense did less than it declares in 3 of 3 clients: noise of about 1e-05, "
        "0.01 declared, too little in every tensor"
    )
    assert len(weak.acted.clients) == 3
    finding = next(f for f in result.findings if f.defense["name"].endswith("weak-noise"))
    assert finding.acted == weak.acted


def test_they_survive_a_run_folder_and_a_file(tmp_path: Path) -> None:
    result = run(WeakNoise(sigma=0.01), out=tmp_path / "run")
    for place in (tmp_path / "run", result.save(tmp_path / "one.json")):
        again = AuditResult.load(place)
        assert again.verdicts[0].acted == result.verdicts[0].acted
        assert again.findings == result.findings


def test_older_findings_without_it_still_open() -> None:
    values = run(Gaussian(sigma=0.01)).to_json()
    for finding in values["findings"]:
        del finding["acted"]
    result = AuditResult.from_json(values)
    assert result.verdicts[0].acted is None
    (failure,) = judge_gate(result, read_conditions(["defense-idle"])).failures
    assert (failure.rule, failure.words) == (
        "not-tested",
        "whether the defense acted was not checked",
    )


def test_the_gate_fails_on_it_and_passes_without_a_defense() -> None:
    result = run("none", Gaussian(sigma=0.01), WeakNoise(sigma=0.01), Pruning(ratio=0))
    gate = judge_gate(result, read_conditions(["defense-idle"]))
    assert [failure.rule for failure in gate.failures] == ["defense-idle"] * 2
    assert "weak-noise" in gate.failures[0].defense
    assert gate.failures[1].words.startswith("the defense did nothing in 3 of 3 clients")


def test_each_client_of_a_secure_sum_is_checked_by_itself() -> None:
    result = run(Gaussian(sigma=0.01), victims=2, aggregate=3)
    acted = result.verdicts[0].acted
    assert acted is not None
    assert (acted.status, len(acted.clients)) == (Acted.ACTED, 6)


def test_local_steps_repeats_and_a_malicious_server_do_not_confuse_it() -> None:
    for values in (
        {"steps": 3, "lr": 0.05},
        {"repeats": 3},
        {"attacks": ["imprint"], "batch_size": 4},
    ):
        good, weak = run(Gaussian(sigma=0.01), WeakNoise(sigma=0.01), **values).verdicts
        assert good.acted is not None
        assert good.acted.status is Acted.ACTED, values
        assert weak.acted is not None
        assert weak.acted.status is Acted.WEAK, values


def test_the_terminal_and_the_page_show_it(keyhole: Keyhole, tmp_path: Path) -> None:
    base = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")
    code, out, _ = keyhole(*base, "--defense", "pruning(ratio=0)", "--fail-on", "defense-idle")
    assert code == 3
    shown = " ".join(out.split())
    assert "the defense did nothing: the update is bit for bit what it would be without" in shown
    (page,) = (tmp_path / "runs").glob("*/report.html")
    text = page.read_text()
    assert "defense idle" in text
    assert "the defense did nothing" in text
    code, out, _ = keyhole(*base, "--defense", "pruning", "--fail-on", "defense-idle", "--json")
    found = json.loads(out)
    assert (code, found["gate"]["passed"]) == (0, True)
    assert found["verdicts"][0]["acted"]["clients"][0]["checks"][0]["trace"] == "zeros"


@pytest.mark.parametrize(
    ("true", "claimed", "status"),
    [
        ("gaussian(sigma=0.01)", "gaussian(sigma=0.01)", Acted.ACTED),
        ("gaussian(sigma=0.00001)", "gaussian(sigma=0.01)", Acted.WEAK),
        ("none", "gaussian(sigma=0.01)", Acted.WEAK),
        ("dp(sigma=0.01)", "dp(sigma=10)", Acted.WEAK),
        ("pruning", "pruning", Acted.ACTED),
        ("none", "pruning", Acted.WEAK),
        ("quantise", "quantise", Acted.ACTED),
        ("none", "quantise", Acted.WEAK),
        ("signsgd", "signsgd", Acted.ACTED),
        ("half(kind='bfloat16')", "half(kind='bfloat16')", Acted.ACTED),
        ("none", "half(kind='bfloat16')", Acted.WEAK),
        ("none", "dropout", Acted.UNKNOWN),
    ],
)
def test_what_captured_clients_claim_is_checked(
    keyhole: Keyhole, true: str, claimed: str, status: Acted
) -> None:
    options = ("--rounds", "1", "--clients", "2", "--images", "4", "--steps", "1", "--json")
    base = ("--model", "mlp", "--data", "digits", "--batch-size", "4", "--capture", "seen")
    assert keyhole("train", *base, *options, "--defense", true)[0] == 0
    result = audited(Path("seen"), model="mlp", defenses=(claimed,), attacks=("linear",))
    (verdict,) = result.verdicts
    assert verdict.acted is not None
    assert verdict.acted.status is status, verdict.acted.words


def test_captured_noise_by_a_budget_is_not_judged_if_the_training_is_guessed(
    keyhole: Keyhole,
) -> None:
    options = ("--rounds", "1", "--clients", "2", "--images", "64", "--epochs", "3", "--json")
    base = ("--model", "mlp", "--data", "digits", "--batch-size", "16", "--capture", "seen")
    assert keyhole("train", *base, *options, "--defense", "none")[0] == 0
    result = audited(Path("seen"), model="mlp", defenses=(str(Dp()),), attacks=("linear",))
    (verdict,) = result.verdicts
    assert verdict.acted is not None
    assert verdict.acted.status is Acted.UNKNOWN
    assert verdict.acted.words.endswith("how the client trained is not known exactly")
