"""The annex of a run for a data protection impact assessment, as a page to print."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from keyhole.atomic import write_text
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.results import AuditResult
from keyhole.auditing.run_folder import ANNEX
from keyhole.auditing.verdict import NOT_BROKEN
from keyhole.report.annex_documents import COVERED, MISSING, PARTLY, list_documents
from keyhole.report.annex_evidence import Evidence, gather_evidence
from keyhole.report.glossary import GLOSSARY, TERMS
from keyhole.report.lights import light_section
from keyhole.report.shell import fill_template
from keyhole.report.view import CHIPS

MARKS = {COVERED: "not", PARTLY: "unsure", MISSING: "missing"}
"""The CSS class of each status of a row."""


def render_annex(result: AuditResult | MembershipResult) -> str:
    """Renders the page as text.

    Args:
        result: What was found.
    """
    evidence = gather_evidence(result)
    sections = result.sections if isinstance(result, AuditResult) else ()
    return fill_template(
        "annex.html.j2",
        title=f"Annex: {evidence.title}",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headline=evidence.headline,
        evidence=evidence,
        run=result.run,
        sections=[{"about": each, "lights": light_section(each)} for each in sections],
        documents=list_documents(evidence),
        shows=list_shown(evidence),
        chips=CHIPS,
        marks=MARKS,
        glossary=GLOSSARY,
        terms=TERMS,
    )


def write_annex(result: AuditResult | MembershipResult) -> Path:
    """Writes ``annex.html`` into the run folder.

    Args:
        result: What was found; it must have a run folder.
    """
    assert result.run is not None
    return write_text(Path(result.run) / ANNEX, render_annex(result))


def list_shown(evidence: Evidence) -> list[str]:
    """What a run shows, in sentences; what none can show stands in the template."""
    found = []
    if evidence.read_any:
        found.append(
            "Images were read: the pictures lie in the run folder beside the originals. In these "
            "settings nobody can say that updates keep images private."
        )
    if any(each.status == NOT_BROKEN for each in evidence.settings):
        found.append(
            "In some settings the attacks tried read nothing. The intervals say how much may be "
            "readable all the same, on other images of the same kind, to the same attacks."
        )
    if evidence.membership:
        found.append("How well attackers tell the images of the training from others.")
    if evidence.adaptive:
        found.append(evidence.adaptive)
    if evidence.acted:
        found.append(evidence.acted)
    return found or ["Nothing was measured in this run."]
