"""The self-contained page: no network, light and dark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from torch import Tensor

from keyhole.audit.finding import Finding
from keyhole.audit.run import AuditResult
from keyhole.audit.scoring import READ_SSIM
from keyhole.audit.store import Store
from keyhole.audit.verdict import Verdict, how_bad
from keyhole.metrics import METRICS
from keyhole.report import view
from keyhole.report.figures import LARGE, data_uri, loss_plot, sweep_plot
from keyhole.report.shell import fill_template

SHOWN = 3
"""Pictures a row, at most; the run folder holds more."""


def render(result: AuditResult, *, title: str) -> str:
    """The page as text."""
    return fill_template(
        "page.html.j2",
        METRICS=METRICS,
        number=view.number,
        interval=view.interval,
        attack_name=view.attack_name,
        knows=view.knows,
        title=title,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        sections=[_section(section, result.store) for section in view.sections(result)],
        headline=view.headline(result.verdicts),
        chips=view.CHIPS,
        skipped=view.skipped_lines(result.skipped),
        notes=result.notes,
        versions=result.findings[0].versions if result.findings else {},
        device=result.findings[0].recipe.get("device", "") if result.findings else "",
        read_ssim=READ_SSIM,
    )


def write(result: AuditResult, *, title: str) -> str:
    """Writes ``report.html`` into the run folder; returns its path."""
    assert result.store is not None
    return str(result.store.write_text("report.html", render(result, title=title)))


def _section(section: view.Section, store: Store | None) -> dict[str, Any]:
    rows = [_row(finding, store) for finding in section.findings]
    by_key = {(r["finding"].attack, r["finding"].attacker, r["defense"]): r for r in rows}
    return {
        "about": section,
        "rows": rows,
        "heat": _heat(section, store),
        "notes": list(dict.fromkeys(note for f in section.findings for note in f.notes)),
        "verdicts": [
            {"about": v, "defense": view.defense_name(v.defense), "row": _evidence(v, by_key)}
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


def _heat(section: view.Section, store: Store | None) -> dict[str, list[str]]:
    """What the clients' networks look at without a defense and under each: a column a name."""
    if store is None:
        return {}
    first = {view.defense_name(f.defense): f.key for f in reversed(section.findings)}
    order = dict.fromkeys(view.defense_name(f.defense) for f in section.findings)
    columns = view.heat_sheet({name: store.pictures(first[name]) for name in order})
    return {name: [data_uri(picture) for picture in column] for name, column in columns.items()}


def _row(finding: Finding, store: Store | None) -> dict[str, Any]:
    pictures = store.pictures(finding.key) if store is not None else {}
    found = view.pairs(pictures)
    return {
        "films": [_film(film) for film in view.films(pictures)[:SHOWN]],
        "curve": loss_plot(finding.loss_curves) if finding.loss_curves else "",
        "finding": finding,
        "defense": view.defense_name(finding.defense),
        "pictures": [
            _picture(finding, i * _batch(finding), truth, seen)
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
    whole = len(finding.confidence) == finding.victims * _batch(finding)
    sure = finding.confidence[place] if whole else 0.0
    return {
        "truth": None if truth is None else data_uri(truth),
        "seen": data_uri(seen),
        "ssim": scores.get("ssim", sure),
        "psnr": scores.get("psnr"),
        "confidence": sure if whole else None,
        "small": min(seen.shape[-2:]) < LARGE,
    }


def _film(film: view.Film) -> list[dict[str, Any]]:
    """One victim's image as it appeared: what the page needs of each frame."""
    return [
        {"at": at, "image": data_uri(frame), "small": min(frame.shape[-2:]) < LARGE}
        for at, frame in film
    ]


def _batch(finding: Finding) -> int:
    """Only the first image of each client's batch is kept as a picture."""
    return int(finding.recipe["batch_size"])


def _evidence(verdict: Verdict, rows: dict[tuple[str, str, str], dict[str, Any]]) -> Any:
    """The row that a verdict rests on: the worst attacker's, else the clearest try."""
    defense = view.defense_name(verdict.defense)
    mine = [r for (_, _, d), r in rows.items() if d == defense and r["pictures"]]
    if verdict.status == "broken":
        return max(mine, key=lambda r: how_bad(r["finding"]), default=None)
    return max(mine, key=lambda r: max(p["ssim"] for p in r["pictures"]), default=None)
