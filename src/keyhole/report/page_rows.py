"""The rows of an audit's page: findings with the pictures that the page has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_defense
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import BROKEN, HONEST, Verdict, rank_severity
from keyhole.report import view
from keyhole.report.figures import plot_losses
from keyhole.report.shown_pictures import (
    KeptPicture,
    PictureBudget,
    choose_shown,
    describe_choice,
    interleave,
    list_pictures,
)

FILMS = 3
"""The most films in a row; the run folder holds more."""


@dataclass(eq=False)
class PageRow:
    """One finding, and what the page shows of it.

    Args:
        finding: The finding.
        shown: The pictures that the page shows if it has room.
        choice: Says which pictures these are; empty where they are all.
        films: How some of the images appeared.
        pictures: The encoded pictures.
        frames: The encoded films.
        curve: The attacker's loss, as SVG.
    """

    finding: Finding
    shown: list[KeptPicture]
    choice: str
    films: list[view.Film]
    pictures: list[dict[str, Any]] = field(default_factory=list)
    frames: list[list[dict[str, Any]]] = field(default_factory=list)
    curve: str = ""

    @property
    def defense(self) -> str:
        """The defense as reports name it."""
        return label_defense(self.finding.defense)

    @property
    def severity(self) -> tuple[float, int, float]:
        """By this rows are served where room is short, the worst attackers first."""
        return rank_severity(self.finding) if "read" in self.finding.metrics else (0.0, 0, 0.0)


def read_rows(section: Section, store: Store | None) -> list[PageRow]:
    """One row for each finding of a section, without pictures yet."""
    return [read_row(finding, store) for finding in section.findings]


def read_row(finding: Finding, store: Store | None) -> PageRow:
    """Reads a finding's pictures, and lets go of those that a page does not show."""
    pictures = {} if store is None else store.pictures(finding.key)
    kept = list_pictures(finding, pictures)
    films = [
        [(at, frame.clone()) for at, frame in film] for film in view.choose_films(pictures)[:FILMS]
    ]
    shown = [
        replace(
            each,
            truth=None if each.truth is None else each.truth.clone(),
            seen=each.seen.clone(),
        )
        for each in choose_shown(kept)
    ]
    file = f"lie in pictures/{finding.key}.safetensors of the run folder."
    choice = describe_choice(kept, finding.victims, file) if kept else ""
    return PageRow(finding, shown, choice, films)


def add_pictures(rows: Sequence[PageRow], budget: PictureBudget) -> None:
    """Encodes the rows' pictures, the worst case of every row first; films come last.

    Args:
        rows: The rows of the whole page.
        budget: What room the page has left.
    """
    order = sorted(rows, key=lambda row: row.severity, reverse=True)
    for place, number in interleave([row.shown for row in order]):
        picture = show_picture(order[place].shown[number], budget)
        if picture is not None:
            order[place].pictures.append(picture)
    for place, number in interleave([row.films for row in order]):
        film = show_film(order[place].films[number], budget)
        if film is not None:
            order[place].frames.append(film)
    for row in order:
        if row.finding.loss_curves:
            row.curve = budget.draw(plot_losses(row.finding.loss_curves))


def show_picture(kept: KeptPicture, budget: PictureBudget) -> dict[str, Any] | None:
    """What the page shows of one image; without the truth, the attacker's confidence."""
    found = budget.show(kept.truth, kept.seen)
    if found is None:
        return None
    truth, seen = found
    assert seen is not None
    return {
        "truth": None if truth is None else truth["address"],
        "seen": seen["address"],
        "small": seen["small"],
        "client": kept.victim,
        "ssim": kept.clearness,
        "psnr": kept.psnr,
        "confidence": kept.confidence,
    }


def show_film(film: view.Film, budget: PictureBudget) -> list[dict[str, Any]] | None:
    """What the page shows of a victim's image as it appeared, frame by frame."""
    found = budget.show(*(frame for _, frame in film))
    if found is None:
        return None
    return [
        {"at": at, "image": each["address"], "small": each["small"]}
        for (at, _), each in zip(film, found, strict=True)
        if each is not None
    ]


def split_by_server(verdict: Verdict, rows: Sequence[PageRow]) -> list[list[PageRow]]:
    """Finds the rows with pictures of a verdict's setting, for each server that it judges."""
    defense = label_defense(verdict.defense)
    shown = [row for row in rows if row.defense == defense and row.shown]
    return [
        [row for row in shown if row.finding.honest == (server == HONEST)]
        for server in verdict.by_server
    ]


def find_evidence(status: str, rows: Sequence[PageRow]) -> PageRow | None:
    """Finds the row that a verdict rests on: the worst attacker's, or else the best attempt."""
    if status == BROKEN:
        return max(rows, key=lambda row: row.severity, default=None)
    return max(rows, key=lambda row: max(p.clearness for p in row.shown), default=None)
