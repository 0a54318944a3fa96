"""The annex: what a run says to three documents, what it does not, and the page to print."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import find_violations, launch_browser, needs_chromium, open_file
from keyhole.auditing import AuditResult, MembershipPlan, infer_membership
from keyhole.auditing.defense_acted import DefenseActed
from keyhole.auditing.finding import Finding
from keyhole.auditing.verdict import judge_findings
from keyhole.defenses import Acted
from keyhole.report import write_annex
from keyhole.report.annex import render_annex
from keyhole.report.annex_documents import COVERED, MISSING, PARTLY, list_documents
from keyhole.report.annex_evidence import gather_evidence
from scripts import ROOT
from synthetic_runs import make_finding

NONE: tuple[str, dict[str, Any]] = ("none", {})
NOISE: tuple[str, dict[str, Any]] = ("gaussian", {"sigma": 0.1})
DP: tuple[str, dict[str, Any]] = ("dp", {"epsilon": 5.0})


def make_result(*findings: Finding) -> AuditResult:
    return AuditResult(findings, tuple(judge_findings(findings)), (), None)


def statuses(result: Any, key: str) -> list[str]:
    (document,) = [d for d in list_documents(gather_evidence(result)) if d.key == key]
    return [row.status for row in document.rows]


@pytest.fixture(scope="module")
def broken() -> AuditResult:
    """Read without a defense, not read under noise, of which a malicious server read some."""
    return make_result(
        make_finding(NONE, "linear", "naive", read=1.0),
        make_finding(NOISE, "linear", "naive"),
        make_finding(NOISE, "linear", "adaptive"),
        make_finding(NOISE, "imprint", "adaptive", read=0.5, malicious=True),
    )


def test_what_was_found_stands_in_sentences(broken: AuditResult) -> None:
    evidence = gather_evidence(broken)
    assert evidence.reconstruction == (
        "Reconstruction from updates was tested: an honest server read images in 1 of 2 settings "
        "and a malicious server read images in 1 of 1 setting."
    )
    assert evidence.adaptive.endswith("tried in 1 of 1 defended setting.")
    assert "linear and imprint" in evidence.means
    assert "0.12 s for each client on cpu" in evidence.means
    rows = {(each.defense, each.server): (each.read, each.interval) for each in evidence.settings}
    assert rows == {
        ("none", "honest"): ("8 of 8", "63% – 100%"),
        ("gaussian(sigma=0.1)", "honest"): ("0 of 8", "0% – 37%"),
        ("gaussian(sigma=0.1)", "malicious"): ("4 of 8", "16% – 84%"),
    }


def test_a_row_is_covered_only_by_what_was_measured(broken: AuditResult) -> None:
    assert statuses(broken, "edpb") == [PARTLY, MISSING, PARTLY, PARTLY, COVERED, PARTLY]
    assert statuses(broken, "nist") == [MISSING, PARTLY, PARTLY, MISSING, MISSING]
    assert statuses(broken, "aisvs") == [PARTLY, MISSING, MISSING, MISSING]


def test_labels_alone_are_no_test_of_reconstruction() -> None:
    finding = make_finding(NONE, "labels", "naive", metrics=False, reads_images=False)
    result = make_result(finding)
    evidence = gather_evidence(result)
    assert (evidence.reconstruction, evidence.means) == ("", "")
    assert statuses(result, "edpb") == [MISSING, MISSING, MISSING, MISSING, MISSING, PARTLY]
    page = render_annex(result)
    assert "Nothing: no attack of this run looks for images in updates." in page
    assert "Nothing was measured in this run." in page


def test_a_claimed_budget_is_named_and_a_nominal_noise_is_none() -> None:
    claimed = make_finding(DP, "linear", "adaptive", telemetry={"epsilon": 5.0, "delta": 1e-5})
    evidence = gather_evidence(make_result(claimed))
    assert evidence.claims == ("dp(epsilon=5.0) claims epsilon 5, delta 1e-05",)
    assert statuses(make_result(claimed), "nist")[0] == PARTLY
    assert statuses(make_result(claimed), "aisvs")[2] == PARTLY
    assert "Noise alone is no guarantee" in render_annex(
        make_result(make_finding(NOISE, "linear", "adaptive"))
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [(Acted.ACTED, "no sign that the defense did less"), (Acted.IDLE, "gaussian(sigma=0.1) did")],
)
def test_whether_the_defense_acted_is_told(status: Acted, words: str) -> None:
    finding = make_finding(NOISE, "linear", "adaptive")
    result = make_result(dataclasses.replace(finding, acted=DefenseActed(status, "x")))
    assert words in gather_evidence(result).acted
    assert statuses(result, "nist")[3] == PARTLY


def test_a_secure_sum_is_not_called_a_clients_own_update() -> None:
    finding = make_finding(NONE, "linear", "naive")
    assert (
        "each client's own update, with 1 image behind"
        in gather_evidence(make_result(finding)).server
    )
    summed = dataclasses.replace(finding, recipe={**finding.recipe, "aggregate": 4})
    assert "secure sums of 4 clients" in gather_evidence(make_result(summed)).server


def test_a_membership_run_speaks_of_members_alone(tmp_path: Path) -> None:
    plan = MembershipPlan(model="mlp", members=20, public=40, epochs=1, attacks=("loss",))
    result = infer_membership(plan, out=tmp_path)
    assert statuses(result, "edpb") == [MISSING, PARTLY, MISSING, PARTLY, MISSING, PARTLY]
    assert statuses(result, "aisvs") == [MISSING, MISSING, MISSING, COVERED]
    page = write_annex(result).read_text(encoding="utf-8")
    assert "Attacks tried: loss (naive)." in page
    assert "Not tested here: reconstruction from updates" in page


def test_the_page_says_what_it_is_not_and_loads_nothing(broken: AuditResult) -> None:
    page = render_annex(broken)
    assert "This is no legal advice." in page
    for never in ("compliant", "complies", "certif", "guarantees"):
        assert never not in page.partition("<main>")[2].replace("Privacy Guarantees", "")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(a.startswith("#") for a in addresses)
    assert {a[1:] for a in addresses} <= set(re.findall(r'id="([^"]+)"', page))


def test_foreign_names_are_text() -> None:
    finding = dataclasses.replace(make_finding(NONE, "linear", "naive"), model="<script>x</script>")
    page = render_annex(make_result(finding))
    assert "<script>x" not in page
    assert "&lt;script&gt;x" in page


def test_the_command_writes_it_and_a_new_audit_may_take_its_place(
    keyhole: Callable[..., tuple[int, str, str]],
) -> None:
    commands = re.findall(r"^keyhole (.+)$", (ROOT / "docs/howto/annex.md").read_text(), re.M)
    for command in commands:
        code, out, _ = keyhole(*command.split())
        assert code == 0
    assert "Annex:    runs/assessed/annex.html" in out
    page = Path("runs/assessed/annex.html").read_text(encoding="utf-8")
    assert "EDPB Opinion 28/2024" in page
    assert keyhole(*commands[0].split(), "--seed", "1", "--fresh")[0] == 0
    assert not Path("runs/assessed/annex.html").exists()


def test_the_page_on_the_annex_has_python_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs/howto/annex.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert "runs/small/annex.html" in capsys.readouterr().out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_browser() as chromium:
        yield chromium


@needs_chromium
@pytest.mark.parametrize("width", [420, 1300])
def test_the_page_is_open_to_all_and_fits(
    browser: Any, broken: AuditResult, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "annex.html"
    file.write_text(render_annex(broken), encoding="utf-8")
    page = open_file(browser, file, bypass_csp=True, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == []
    assert page.problems == []
    page.close()


@needs_chromium
def test_nothing_is_cut_off_on_paper(browser: Any, broken: AuditResult, tmp_path: Path) -> None:
    file = tmp_path / "annex.html"
    file.write_text(render_annex(broken), encoding="utf-8")
    page = open_file(browser, file, viewport={"width": 703, "height": 1009})
    page.emulate_media(media="print")
    cut = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(e => {
          const box = e.getBoundingClientRect(), cell = e.closest("td, th");
          const edge = cell ? cell.getBoundingClientRect().right : 703;
          return e.checkVisibility() && (box.left < -1 || box.right > edge + 1);
        }).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""
    )
    assert cut == []
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))) <= 5
    page.close()
