"""The field's table, as text for a terminal and as Markdown for the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from keyhole_studies.base import Study
from keyhole_studies.field.points import ATTACKERS, SERVERS, Point, collect_points
from keyhole_studies.result_files import read_results
from keyhole_studies.tables import format_table

HEAD = (
    "network",
    "defense",
    "accuracy",
    *(f"{server}, {attacker}" for server in SERVERS for attacker in ATTACKERS),
)


def format_tables(study: Study, folder: Path) -> Iterator[str]:
    """The table as lines of text, then what does not fit."""
    points = read_points(study, folder)
    yield "PSNR in dB and share of images read, by each attacker's best attack"
    yield from format_table(study.title, HEAD, list(make_rows(study, points)), left=2)
    for point in points:
        if point.unfit:
            yield f"  {point.defense} does not fit {point.network}: {point.unfit}"


def read_points(study: Study, folder: Path) -> list[Point]:
    """All that a folder of results holds of the study."""
    results = read_results(folder, [experiment.name for experiment in study.experiments])
    return collect_points(study, results)


def make_rows(study: Study, points: list[Point]) -> Iterator[list[str]]:
    """One row for each setting that fits its network."""
    for point in points:
        if point.unfit and not point.readings:
            continue
        network = study.labels["network"][point.network]
        readings = [format_reading(point, s, a) for s in SERVERS for a in ATTACKERS]
        yield [network, point.defense, format_share(point.accuracy), *readings]


def format_reading(point: Point, server: str, attacker: str) -> str:
    """PSNR and share read; a dash where no such attacker was tried."""
    found = point.readings.get((server, attacker))
    return "–" if found is None else f"{found.psnr:.1f}, {found.read:.0%}"


def format_share(share: float | None) -> str:
    """
    >>> format_share(0.314), format_share(None)
    ('31.4%', '–')
    """
    return "–" if share is None else f"{share:.1%}"


def format_markdown(study: Study, points: list[Point]) -> Iterator[str]:
    """The table in Markdown: one row for each setting that fits its network."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for row in make_rows(study, points):
        cells = [row[0], f"`{row[1]}`", *row[2:]]
        yield f"| {' | '.join(cells)} |"
