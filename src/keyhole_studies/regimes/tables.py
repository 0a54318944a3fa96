"""The maps as text: one table for each network and server, and what cannot be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from keyhole_studies.base import Study
from keyhole_studies.regimes.points import Key, Point, read_points
from keyhole_studies.tables import format_table

NOT_RUN, UNFIT = "–", "unfit"
"""What a cell shows that has not been run, or that cannot be."""


def format_tables(study: Study, folder: Path) -> Iterator[str]:
    """Share of images read, and membership AUC: batches across, weights and local training down."""
    points = read_points(study, folder)
    batches = list(study.labels["batch"])
    yield "share of images read by the best attack, and AUC of the best membership attack"
    for network, label in study.labels["network"].items():
        for server, who in study.labels["server"].items():
            rows = list(make_rows(study, points, network, server))
            if any(cell not in ("", NOT_RUN) for row in rows for cell in row[2:]):
                head = ["weights", "clients do", *(f"batch {size}" for size in batches)]
                yield from format_table(f"{label}, {who}", head, rows, left=2)
    yield from describe_unfit(points)


def make_rows(
    study: Study, points: Mapping[Key, Point], network: str, server: str
) -> Iterator[list[str]]:
    """One row for each kind of weights and local training."""
    labels = study.labels
    for (start, weights), (done, local) in product(
        labels["weights"].items(), labels["local"].items()
    ):
        keys = [(network, start, int(size), done, server) for size in labels["batch"]]
        yield [weights, local, *(format_point(points.get(key)) for key in keys)]


def format_point(point: Point | None) -> str:
    """
    >>> format_point(None), format_point(Point(("mlp", "70", 8, "step", "honest"), 6, 32, auc=0.7))
    ('–', '19%, .70')
    """
    if point is None:
        return NOT_RUN
    if point.unfit:
        return UNFIT
    guess = "" if point.auc is None else f", {format_auc(point.auc)}"
    return f"{point.share:.0%}{guess}"


def format_auc(area: float) -> str:
    """
    >>> format_auc(0.731), format_auc(1.0)
    ('.73', '1.00')
    """
    return f"{area:.2f}".removeprefix("0")


def describe_unfit(points: Mapping[Key, Point]) -> Iterator[str]:
    """Why regimes cannot be measured, each reason once with its network and weights."""
    why = {(p.key[0], p.key[1], p.unfit): None for p in points.values() if p.unfit}
    for network, weights, reason in why:
        yield f"  {network}, weights {weights}: {reason}"
