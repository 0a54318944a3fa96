"""Renders the self-contained page of an audit: no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from keyhole.auditing.labels import label_attack, label_defense, label_metric
from keyhole.auditing.results import AuditResult
from keyhole.auditing.scoring import READ_SSIM
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.frontier.advice import advise
from keyhole.frontier.result import FrontierResult
from keyhole.report import view
from keyhole.report.attackers_view import list_attackers
from keyhole.report.figures import plot_sweep
from keyhole.report.glossary import GLOSSARY, TERMS
from keyhole.report.lights import light_section
from keyhole.report.page_rows import (
    PageRow,
    add_pictures,
    find_evidence,
    read_rows,
    show_picture,
    split_by_server,
)
from keyhole.report.regime_view import describe_maps
from keyhole.report.shell import fill_template
from keyhole.report.shown_pictures import PictureBudget
from keyhole.report.sweep_view import INTERVALS, describe_tables

PAGE = "report.html"


def render(
    result: AuditResult, *, title: str | None = None, frontier: FrontierResult | None = None
) -> str:
    """Renders the page as text.

    Args:
        result: What the audit found.
        title: The page's title; None: that of the plan.
        frontier: The frontier by which to say what to do; None: that in the run folder, if any.
    """
    budget = PictureBudget()
    sections = _describe_sections(result.sections, result.store, budget)
    return fill_template(
        "page.html.j2",
        label_metric=label_metric,
        format_value=view.format_value,
        format_interval=view.format_interval,
        label_attack=label_attack,
        describe_knowledge=view.describe_knowledge,
        title=result.title if title is None else title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        swept=describe_tables(result.swept),
        intervals=INTERVALS,
        sections=sections,
        attackers=list_attackers(result.findings),
        headline=view.summarise_verdicts(result.verdicts),
        chips=view.CHIPS,
        skipped=view.list_skipped(result.skipped),
        notes=result.notes,
        membership=result.membership,
        versions=result.findings[0].versions if result.findings else {},
        device=result.findings[0].recipe.get("device", "") if result.findings else "",
        read_ssim=READ_SSIM,
        advice=advise(result, frontier),
        left_out=budget.left_out,
        glossary=GLOSSARY,
        terms=TERMS,
    )


def write(
    result: AuditResult, *, title: str | None = None, frontier: FrontierResult | None = None
) -> str:
    """Writes ``report.html`` into the run folder; returns its path.

    Args:
        result: What the audit found; it must have a run folder.
        title: The page's title; None: that of the plan.
        frontier: The frontier by which to say what to do; None: that in the run folder, if any.
    """
    assert result.store is not None
    page = render(result, title=title, frontier=frontier)
    return str(result.store.write_text(PAGE, page))


def _describe_sections(
    sections: Sequence[Section], store: Store | None, budget: PictureBudget
) -> list[dict[str, Any]]:
    """What the page shows of each section; evidence of verdicts has the first claim to room."""
    rows = [read_rows(section, store) for section in sections]
    described = [
        _describe_section(section, each, store, budget)
        for section, each in zip(sections, rows, strict=True)
    ]
    add_pictures([row for each in rows for row in each], budget)
    return described


def _describe_section(
    section: Section, rows: list[PageRow], store: Store | None, budget: PictureBudget
) -> dict[str, Any]:
    return {
        "about": section,
        "rows": rows,
        "lights": light_section(section),
        "heat": {
            name: [each for picture in column for each in budget.show(picture) or () if each]
            for name, column in (
                view.read_heat_maps(section, store) if store is not None else {}
            ).items()
        },
        "maps": describe_maps(section),
        "notes": list(dict.fromkeys(note for f in section.findings for note in f.notes)),
        "verdicts": [
            {
                "about": v,
                "defense": label_defense(v.defense),
                "lines": [
                    {"about": line, **_show_evidence(find_evidence(line.status, evidence), budget)}
                    for line, evidence in zip(v.lines, split_by_server(v, rows), strict=True)
                ],
            }
            for v in section.verdicts
        ],
        "plots": [
            {
                "caption": f"{defense} at growing {parameter}",
                "svg": plot_sweep(section, lines),
            }
            for (defense, parameter), lines in view.find_sweeps(section).items()
        ],
    }


def _show_evidence(row: PageRow | None, budget: PictureBudget) -> dict[str, Any]:
    """The clearest picture of the row that a verdict rests on."""
    if row is None or not row.shown:
        return {"row": None, "shot": None}
    return {"row": row, "shot": show_picture(row.shown[0], budget)}
