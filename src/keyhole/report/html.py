"""Renders the self-contained page of an audit: no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from torch import Tensor

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense, label_metric
from keyhole.auditing.results import AuditResult
from keyhole.auditing.scoring import READ_SSIM
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import BROKEN, HONEST, Verdict, rank_severity
from keyhole.frontier.advice import advise
from keyhole.frontier.result import FrontierResult
from keyhole.report import view
from keyhole.report.drawing import LARGE
from keyhole.report.figures import encode_picture, plot_losses, plot_sweep
from keyhole.report.regime_view import describe_maps
from keyhole.report.shell import fill_template
from keyhole.report.sweep_view import INTERVALS, describe_tables

Row = dict[str, Any]
"""What the page shows of one finding."""
SHOWN = 3
"""The most pictures in a row; the run folder holds more."""


def render(
    result: AuditResult, *, title: str | None = None, frontier: FrontierResult | None = None
) -> str:
    """Renders the page as text.

    Args:
        result: What the audit found.
        title: The page's title; None: that of the plan.
        frontier: The frontier by which to say what to do; None: that in the run folder, if any.
    """
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
        sections=[_describe_section(section, result.store) for section in result.sections],
        headline=view.summarise_verdicts(result.verdicts),
        chips=view.CHIPS,
        skipped=view.list_skipped(result.skipped),
        notes=result.notes,
        membership=result.membership,
        versions=result.findings[0].versions if result.findings else {},
        device=result.findings[0].recipe.get("device", "") if result.findings else "",
        read_ssim=READ_SSIM,
        advice=advise(result, frontier),
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
    return str(result.store.write_text("report.html", page))


def _describe_section(section: Section, store: Store | None) -> dict[str, Any]:
    rows = [_describe_row(finding, store) for finding in section.findings]
    return {
        "about": section,
        "rows": rows,
        "heat": {
            name: [encode_picture(picture) for picture in column]
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
                    {"about": line, "row": _find_evidence(line.status, evidence)}
                    for line, evidence in zip(v.lines, _split_by_server(v, rows), strict=True)
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


def _describe_row(finding: Finding, store: Store | None) -> Row:
    pictures = store.pictures(finding.key) if store is not None else {}
    found = view.pair_pictures(pictures)
    return {
        "films": [_describe_film(film) for film in view.choose_films(pictures)[:SHOWN]],
        "curve": plot_losses(finding.loss_curves) if finding.loss_curves else "",
        "finding": finding,
        "defense": label_defense(finding.defense),
        "pictures": [
            _describe_picture(finding, i * view.batch_size_of(finding), truth, seen)
            for i, (truth, seen) in enumerate(found[:SHOWN])
        ],
    }


def _describe_picture(
    finding: Finding, place: int, truth: Tensor | None, seen: Tensor
) -> dict[str, Any]:
    """Collects what the page shows of one image; without the truth, the attacker's confidence."""
    scores = {
        name: finding.metrics[name].per_image[place]
        for name in ("ssim", "psnr")
        if name in finding.metrics
    }
    confidence = view.confidence_at(finding, place)
    return {
        "truth": None if truth is None else encode_picture(truth),
        "seen": encode_picture(seen),
        "ssim": scores.get("ssim", confidence or 0.0),
        "psnr": scores.get("psnr"),
        "confidence": confidence,
        "small": min(seen.shape[-2:]) < LARGE,
    }


def _describe_film(film: view.Film) -> list[dict[str, Any]]:
    """Collects what the page shows of a victim's image as it appeared, frame by frame."""
    return [
        {"at": at, "image": encode_picture(frame), "small": min(frame.shape[-2:]) < LARGE}
        for at, frame in film
    ]


def _split_by_server(verdict: Verdict, rows: Sequence[Row]) -> list[list[Row]]:
    """Finds the rows with pictures of a verdict's setting, for each server that it judges."""
    defense = label_defense(verdict.defense)
    shown = [row for row in rows if row["defense"] == defense and row["pictures"]]
    return [
        [row for row in shown if row["finding"].honest == (server == HONEST)]
        for server in verdict.by_server
    ]


def _find_evidence(status: str, rows: Sequence[Row]) -> Row | None:
    """Finds the row that a verdict rests on: the worst attacker's, or else the best attempt."""
    if status == BROKEN:
        return max(rows, key=lambda row: rank_severity(row["finding"]), default=None)
    return max(rows, key=lambda row: max(p["ssim"] for p in row["pictures"]), default=None)
