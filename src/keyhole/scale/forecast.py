"""What a plan still has to do: its pieces, which are done, and the time and memory of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from keyhole.scale.audit_run import AuditPiece
from keyhole.scale.piece_store import PieceStore
from keyhole.scale.probe import Pace, kind_of

DONE, BEGUN, TO_DO = "done", "begun", "to do"


@dataclass(frozen=True)
class PieceForecast:
    """One piece of a plan.

    Args:
        piece: The piece.
        status: ``done``, ``begun`` or ``to do``.
        seconds: What it took, or will take as far as is known.
        peak_mb: Memory of the process that did it, or will do it, in megabytes.
        source: Where these come from: ``measured``, ``pieces like it``, ``probe``; empty: nobody
            knows.
    """

    piece: AuditPiece
    status: str
    seconds: float | None = None
    peak_mb: float | None = None
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """The piece as JSON holds it."""
        about = self.piece
        return {
            "number": about.number,
            "key": about.piece.key,
            "title": about.piece.title,
            "values": about.values,
            "status": self.status,
            "seconds": self.seconds,
            "peak_mb": self.peak_mb,
            "source": self.source,
        }


def find_status(piece: AuditPiece, store: PieceStore) -> str:
    """Whether a piece is done, begun, or to do."""
    if store.is_finished(piece.piece):
        return DONE
    return BEGUN if store.has_begun(piece.piece) else TO_DO


def find_unmeasured(pieces: Sequence[AuditPiece], store: PieceStore) -> list[AuditPiece]:
    """The pieces to do of whose kind and size none has been done.

    Args:
        pieces: All pieces of the plan.
        store: Where finished pieces are.
    """
    known = set(read_costs(pieces, store))
    return [
        each
        for each in pieces
        if find_status(each, store) != DONE and describe_size(each) not in known
    ]


def forecast_pieces(
    pieces: Sequence[AuditPiece], store: PieceStore, paces: Mapping[str, Pace]
) -> list[PieceForecast]:
    """What each piece took or will take.

    Args:
        pieces: All pieces of the plan.
        store: Where finished pieces are.
        paces: What was measured, by kind; see :func:`keyhole.scale.probe.measure_all`.
    """
    costs = read_costs(pieces, store)
    found = []
    for each in pieces:
        status, like = find_status(each, store), costs.get(describe_size(each))
        pace = paces.get(kind_of(each.stage))
        if status == DONE:
            cost = store.read(each.piece).get("cost", {})
            known = (cost.get("seconds"), cost.get("peak_mb"), "measured")
        elif like is not None:
            known = (*like, "pieces like it")
        elif pace is not None:
            known = (pace.estimate(each.stage), pace.peak_mb, "probe")
        else:
            known = (None, None, "")
        found.append(PieceForecast(each, status, *known))
    return found


def describe_size(piece: AuditPiece) -> str:
    """Pieces of the same description take about the same time."""
    stage = piece.stage
    return repr((kind_of(stage), stage.victims, stage.iterations))


def read_costs(pieces: Sequence[AuditPiece], store: PieceStore) -> dict[str, tuple[float, float]]:
    """Mean seconds and largest memory of the finished pieces of each size."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in pieces:
        if store.is_finished(each.piece):
            cost = store.read(each.piece).get("cost", {})
            if "seconds" in cost and "peak_mb" in cost:
                found.setdefault(describe_size(each), []).append((cost["seconds"], cost["peak_mb"]))
    return {
        size: (fmean(s for s, _ in costs), max(m for _, m in costs))
        for size, costs in found.items()
    }
