"""The field's table, as text for a terminal and as Markdown for the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from keyhole_studies.base import Study
from keyhole_studies.field.points import ATTACKERS, SERVERS, Gap, Point, collect_points
from keyhole_studies.result_files import read_results
from keyhole_studies.tables import format_table

HEAD = (
    "network",
    "defense",
    "accuracy",
    *(f"{server}, {attacker}" for server in SERVERS for attacker in ATTACKERS),
)


LEGEND = {
    Gap.NOT_RUN: "the cell has not been run yet",
    Gap.NO_ATTACKER: (
        "no attack is of this kind here. The defense's paper names none that this server can run, "
        "or it names this network's own attack, which counts as the paper's and leaves no naive "
        "one; or no attack can use what the defense declares"
    ),
    Gap.NO_FIT: (
        "the defense, or every such attack, does not fit the network: the list below says why"
    ),
}
"""What the words in a cell without a figure mean."""


def format_tables(study: Study, folder: Path) -> Iterator[str]:
    """The table as lines of text, then what does not fit."""
    points = read_points(study, folder)
    yield "PSNR in dB and share of images read, by each attacker's best attack"
    yield from format_table(study.title, HEAD, list(make_rows(study, points)), left=2)
    for gap, words in LEGEND.items():
        yield f"  {gap}: {words}"
    for point in points:
        for reason in dict.fromkeys(point.unfit.values()):
            yield f"  {point.defense} does not fit {point.network}: {reason}"


def read_points(study: Study, folder: Path) -> list[Point]:
    """All that a folder of results holds of the study."""
    results = read_results(folder, [experiment.name for experiment in study.experiments])
    return collect_points(study, results)


def make_rows(study: Study, points: list[Point]) -> Iterator[list[str]]:
    """One row for each setting of which something was measured."""
    for point in points:
        if point.is_measured:
            network = study.labels["network"][point.network]
            readings = [format_reading(point, s, a) for s in SERVERS for a in ATTACKERS]
            yield [network, point.defense, format_accuracy(point), *readings]


def format_reading(point: Point, server: str, attacker: str) -> str:
    """PSNR and share read, or why there is none."""
    found = point.readings.get((server, attacker))
    if found is None:
        return str(point.find_gap(server, attacker))
    return f"{found.psnr:.1f}, {found.read:.0%}"


def format_accuracy(point: Point) -> str:
    """The accuracy after training, or why there is none."""
    if point.accuracy is None:
        return str(Gap.NO_FIT if "accuracy" in point.unfit else Gap.NOT_RUN)
    return f"{point.accuracy:.1%}"


def format_markdown(study: Study, points: list[Point]) -> Iterator[str]:
    """The table in Markdown: one row for each setting that fits its network."""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    for row in make_rows(study, points):
        cells = [row[0], f"`{row[1]}`", *row[2:]]
        yield f"| {' | '.join(cells)} |"
