"""A leaderboard: defenses by the worst share read, for each regime and each kind of server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from keyhole.atomic import write_text
from keyhole.auditing.measurement import UNDEFENDED, Measurement, Regime, merge_measurements
from keyhole.auditing.verdict import HONEST, MALICIOUS
from keyhole.report.shell import fill_template
from keyhole.version import __version__

PAGE = "index.html"


@dataclass(frozen=True)
class BoardLine:
    """One defense in one regime.

    Args:
        rank: Its place among those that an adaptive attacker met; empty for all others.
        about: What was measured.
        share: The worst share read.
        interval: Its exact 95% interval.
    """

    rank: str
    about: Measurement
    share: str
    interval: str


@dataclass(frozen=True)
class Board:
    """The defenses of one regime, before one kind of server.

    Args:
        regime: The regime.
        server: ``honest`` or ``malicious``.
        judged: Defenses that an adaptive attacker met, and no defense; least read first.
        unjudged: Defenses that no one who knows them attacked.
    """

    regime: Regime
    server: str
    judged: tuple[BoardLine, ...]
    unjudged: tuple[BoardLine, ...]

    @property
    def anchor(self) -> str:
        """The name by which the page's list of contents links to it."""
        text = f"{self.regime.model} {self.regime.data} {self.regime.facts} {self.server}"
        return "".join(char if char.isalnum() else "-" for char in text.lower())


def build_boards(measurements: Sequence[Measurement]) -> list[Board]:
    """One board for each regime and server, the regimes with most defenses first.

    Args:
        measurements: What was measured; of several results on one setting the worst counts.
    """
    groups: dict[tuple[Regime, str], list[Measurement]] = {}
    for each in merge_measurements(measurements):
        groups.setdefault((each.regime, each.server), []).append(each)
    order = sorted(
        groups.items(),
        key=lambda item: (-count_of(groups, item[0][0]), item[0][0], item[0][1] != HONEST),
    )
    return [build_board(regime, server, found) for (regime, server), found in order]


def count_of(groups: dict[tuple[Regime, str], list[Measurement]], regime: Regime) -> int:
    """How many defenses were measured in a regime, before the server that met most of them."""
    return max(len(groups.get((regime, server), ())) for server in (HONEST, MALICIOUS))


def build_board(regime: Regime, server: str, found: Sequence[Measurement]) -> Board:
    """The board of one regime: ranks count only defenses that an adaptive attacker met.

    Defenses of which the same share was read have the same rank.
    """
    ordered = sorted(found, key=lambda m: (m.share, -m.images, m.label))
    ranked = [m for m in ordered if m.met_adaptive and m.defense["name"] != UNDEFENDED]
    rank = {m.label: 1 + sum(other.share < m.share for other in ranked) for m in ranked}
    lines = [make_line(m, str(rank.get(m.label, ""))) for m in ordered]
    return Board(
        regime,
        server,
        tuple(line for line in lines if not line.about.unjudged),
        tuple(line for line in lines if line.about.unjudged),
    )


def make_line(about: Measurement, rank: str) -> BoardLine:
    low, high = about.interval
    return BoardLine(rank, about, f"{about.share:.0%}", f"{low:.0%} – {high:.0%}")


def render_leaderboard(measurements: Sequence[Measurement], left_out: Sequence[str] = ()) -> str:
    """Renders the page as text.

    Args:
        measurements: What was measured.
        left_out: One line for each result that is not valid.
    """
    boards = build_boards(measurements)
    unjudged = [line.about.label for board in boards for line in board.unjudged]
    return fill_template(
        "leaderboard.html.j2",
        title="Leaderboard of defenses",
        made=datetime.now(UTC).date().isoformat(),
        version=__version__,
        boards=boards,
        models=list(dict.fromkeys((b.regime.model, b.regime.data) for b in boards)),
        settings=sum(len(b.judged) + len(b.unjudged) for b in boards),
        unjudged=list(dict.fromkeys(unjudged)),
        left_out=left_out,
    )


def write_leaderboard(
    measurements: Sequence[Measurement], folder: Path, *, left_out: Sequence[str] = ()
) -> Path:
    """Writes the page into a folder.

    Args:
        measurements: What was measured.
        folder: The folder.
        left_out: One line for each result that is not valid.
    """
    return write_text(folder / PAGE, render_leaderboard(measurements, left_out))
