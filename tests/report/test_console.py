import io
import json
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from keyhole import audit
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.results import AuditResult
from keyhole.metrics import Summary
from keyhole.report import print_result

AUDIT = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "3")
NOISY = (*AUDIT, "--defense", "gaussian(sigma=0.01)", "--out", "run")
INTERVAL = re.compile(r"\[\d+\.\d+–(\d+\.\d+\])?")
HEADINGS = ("PSNR ↑", "SSIM ↑", "Re-ID ↑", "Read ↑")
UNSURE = Summary(mean=0.25, low=-0.5, high=0.75, worst=0.25, per_image=(0.25,))


@pytest.mark.parametrize("command", [NOISY, ("report", "run")])
def test_intervals_are_shown_or_said_to_be_elsewhere(keyhole, monkeypatch, command):
    keyhole(*NOISY, "--json")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = keyhole(*command)
    assert code == 0
    assert not INTERVAL.search(out)
    assert "--wide shows their 95% intervals" in out
    wide = keyhole(*command, "--wide")[1]
    assert INTERVAL.search(wide)
    assert "--wide" not in wide
    assert max(len(line) for line in wide.splitlines()) <= 80
    assert all(heading in wide for heading in HEADINGS)
    monkeypatch.setenv("COLUMNS", "160")
    for roomy in (keyhole(*command)[1], keyhole(*command, "--wide")[1]):
        assert INTERVAL.search(roomy)
        assert "--wide" not in roomy


def test_the_intervals_on_the_terminal_are_those_of_the_json(keyhole, monkeypatch):
    (finding,) = json.loads(keyhole(*NOISY, "--json")[1])["findings"][:1]
    monkeypatch.setenv("COLUMNS", "80")
    out = keyhole("report", "run", "--wide")[1]
    psnr = finding["metrics"]["psnr"]
    assert f"[{psnr['low']:.1f}–" in out
    assert f"{psnr['high']:.1f}]" in out


@pytest.mark.parametrize("columns", [40, 60, 80, 90, 100])
@pytest.mark.parametrize("wide", [False, True])
def test_no_width_cuts_a_column(found: AuditResult, columns: int, wide: bool) -> None:
    """Where a terminal is too narrow for a table, its lines are longer than the terminal."""
    shown = io.StringIO()
    noisy = replace(found.findings[0], metrics=dict.fromkeys(found.findings[0].metrics, UNSURE))
    print_result(replace(found, findings=(noisy,)), Console(file=shown, width=columns), wide=wide)
    heading = next(line for line in shown.getvalue().splitlines() if "PSNR" in line)
    assert all(each in heading for each in HEADINGS)
    assert ("-0.50" in shown.getvalue()) == wide


def test_membership_shows_or_names_its_intervals(keyhole, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = ("membership", "--attack", "loss", "--members", "40", "--epochs", "1")
    out = keyhole(*command)[1]
    assert "--wide shows the AUCs' 95% intervals" in " ".join(out.split())
    wide = keyhole(*command, "--wide")[1]
    assert re.search(r"\[\d\.\d{3}-", wide)
    assert "--wide" not in wide
    assert "TPR@1.0% ↑" in wide
    assert max(len(line) for line in wide.splitlines()) <= 80


@pytest.fixture(scope="module")
def found() -> AuditResult:
    return audit(model="mlp", data="digits", attacks=["linear"], victims=1)


@given(
    name=st.text(st.characters(), max_size=20) | st.sampled_from(["[/x]", "[bold]", "\x1b[31m"]),
    width=st.integers(60, 120),
    wide=st.booleans(),
)
def test_no_name_note_or_reason_breaks_the_terminal(found, name, width, wide):
    findings = [
        replace(f, model=name, data=name, notes=(name,), unavailable={"lpips": name})
        for f in found.findings
    ]
    verdicts = [replace(v, model=name, data=name, words=name) for v in found.verdicts]
    skipped = Skipped(**dict.fromkeys(Skipped.__dataclass_fields__, name))
    result = AuditResult(tuple(findings), tuple(verdicts), (skipped,), None, (name,))
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    print_result(result, console, wide=wide)
    control = {c for c in out.getvalue() if unicodedata.category(c) in {"Cc", "Cf", "Cs"}}
    assert control <= {"\n"}
