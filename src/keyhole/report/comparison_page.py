"""The page of a comparison: runs side by side, self-contained like every other page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import write_text
from keyhole.auditing.comparison import Comparison, RunComparison, describe_run
from keyhole.auditing.differences import MIN_IMAGES
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.report import comparison_view as view
from keyhole.report.drawing import LARGE
from keyhole.report.figures import encode_picture
from keyhole.report.shell import fill_template
from keyhole.report.view import CHIPS


def render_comparison(comparison: Comparison) -> str:
    """Renders the page as text.

    Args:
        comparison: What was compared.
    """
    runs = [
        {"letter": view.run_letter(number), **describe_run(run)}
        for number, run in enumerate(comparison.runs)
    ]
    return fill_template(
        "comparison.html.j2",
        title=" and ".join(run["run"] or run["title"] for run in runs),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        runs=runs,
        comparisons=[
            _describe_comparison(compared, view.run_letter(number))
            for number, compared in enumerate(comparison.comparisons, start=1)
        ],
        rows=[
            row
            for finding in view.find_shared(comparison)
            if (row := _describe_pictures(comparison, finding))["images"]
        ],
        chips=CHIPS,
        fewest=MIN_IMAGES,
        label_defense=label_defense,
        label_pair=view.label_pair,
        format_change=view.format_change,
        format_interval=view.format_interval,
    )


def write_comparison(comparison: Comparison, path: str | Path) -> str:
    """Writes the page; returns its path.

    Args:
        comparison: What was compared.
        path: The file; in a folder that exists, ``compare.html``.
    """
    place = Path(path)
    return str(write_text(place / PAGE if place.is_dir() else place, render_comparison(comparison)))


PAGE = "compare.html"


def _describe_comparison(compared: RunComparison, name: str) -> dict[str, Any]:
    """Collects what the page shows of one run against the first."""
    return {
        "letter": name,
        "headline": view.summarise_comparison(compared),
        "sections": view.split_comparison(compared),
        "notes": [*compared.notes, *view.explain_pairs(compared.findings)],
        "only": {
            run: [view.describe_finding(f) for f in findings]
            for run, findings in (("A", compared.only_first), (name, compared.only_second))
            if findings
        },
    }


def _describe_pictures(comparison: Comparison, finding: Finding) -> dict[str, Any]:
    """Collects some images of one finding as every run saw them."""
    return {
        "defense": label_defense(finding.defense),
        "attack": view.label_across(comparison, finding),
        "about": finding,
        "images": [
            [("original", _describe_picture(image.original))]
            + [
                (f"{view.run_letter(number)} saw", _describe_picture(seen))
                for number, seen in enumerate(image.seen)
            ]
            for image in view.find_side_by_side(comparison, finding)
        ],
    }


def _describe_picture(picture: Tensor | None) -> dict[str, Any] | None:
    """Encodes a picture for the page."""
    if picture is None:
        return None
    return {"address": encode_picture(picture), "small": min(picture.shape[-2:]) < LARGE}
