"""The self-contained page: no network, light and dark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from torch import Tensor

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense, label_metric
from keyhole.auditing.results import AuditResult
from keyhole.auditing.scoring import READ_SSIM
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import Verdict, rank_severity
from keyhole.report import view
from keyhole.report.drawing import LARGE
from keyhole.report.figures import data_uri, loss_plot, sweep_plot
from keyhole.report.shell import fill_template

SHOWN = 3
"""Pictures a row, at most; the run folder holds more."""


def render(result: AuditResult, *, title: str | None = None) -> str:
    """The page as text.

    Args:
        result: What the audit found.
        title: The page's title; None: that of the plan.
    """
    return fill_template(
        "page.html.j2",
        label_metric=label_metric,
        number=view.number,
        interval=view.interval,
        label_attack=label_attack,
        describe_knowledge=view.describe_knowledge,
        title=result.title if title is None else title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        sections=[_section(section, result.store) for section in result.sections],
        headline=view.headline(result.verdicts),
        chips=view.CHIPS,
        skipped=view.skipped_lines(result.skipped),
        notes=result.notes,
        versions=result.findings[0].versions if result.findings else {},
        device=result.findings[0].recipe.get("device", "") if result.findings else "",
        read_ssim=READ_SSIM,
    )


def write(result: AuditResult, *, title: str | None = None) -> str:
    """Writes ``report.html`` into the run folder; returns its path.

    Args:
        result: What the audit found; it must have a run folder.
        title: The page's title; None: that of the plan.
    """
    assert result.store is not None
    return str(result.store.write_text("report.html", render(result, title=title)))


def _section(section: Section, store: Store | None) -> dict[str, Any]:
    rows = [_row(finding, store) for finding in section.findings]
    by_key = {(r["finding"].attack, r["finding"].attacker, r["defense"]): r for r in rows}
    return {
        "about": section,
        "rows": rows,
        "heat": {
            name: [data_uri(picture) for picture in column]
            for name, column in (
                view.heat_sheet_of(section, store) if store is not None else {}
            ).items()
        },
        "notes": list(dict.fromkeys(note for f in section.findings for note in f.notes)),
        "verdicts": [
            {"about": v, "defense": label_defense(v.defense), "row": _evidence(v, by_key)}
            for v in section.verdicts
        ],
        "plots": [
            {
                "caption": f"{defense} at growing {parameter}",
                "svg": sweep_plot(section, lines),
            }
            for (defense, parameter), lines in view.sweeps(section).items()
        ],
    }


def _row(finding: Finding, store: Store | None) -> dict[str, Any]:
    pictures = store.pictures(finding.key) if store is not None else {}
    found = view.pairs(pictures)
    return {
        "films": [_film(film) for film in view.films(pictures)[:SHOWN]],
        "curve": loss_plot(finding.loss_curves) if finding.loss_curves else "",
        "finding": finding,
        "defense": label_defense(finding.defense),
        "pictures": [
            _picture(finding, i * view.batch_size_of(finding), truth, seen)
            for i, (truth, seen) in enumerate(found[:SHOWN])
        ],
    }


def _picture(finding: Finding, place: int, truth: Tensor | None, seen: Tensor) -> dict[str, Any]:
    """What the page needs of one image; without the truth, how sure the attacker is of it."""
    scores = {
        name: finding.metrics[name].per_image[place]
        for name in ("ssim", "psnr")
        if name in finding.metrics
    }
    confidence = view.confidence_at(finding, place)
    return {
        "truth": None if truth is None else data_uri(truth),
        "seen": data_uri(seen),
        "ssim": scores.get("ssim", confidence or 0.0),
        "psnr": scores.get("psnr"),
        "confidence": confidence,
        "small": min(seen.shape[-2:]) < LARGE,
    }


def _film(film: view.Film) -> list[dict[str, Any]]:
    """One victim's image as it appeared: what the page needs of each frame."""
    return [
        {"at": at, "image": data_uri(frame), "small": min(frame.shape[-2:]) < LARGE}
        for at, frame in film
    ]


def _evidence(verdict: Verdict, rows: dict[tuple[str, str, str], dict[str, Any]]) -> Any:
    """The row that a verdict rests on: the worst attacker's, else the clearest try."""
    defense = label_defense(verdict.defense)
    mine = [r for (_, _, d), r in rows.items() if d == defense and r["pictures"]]
    if verdict.status == "broken":
        return max(mine, key=lambda r: rank_severity(r["finding"]), default=None)
    return max(mine, key=lambda r: max(p["ssim"] for p in r["pictures"]), default=None)
