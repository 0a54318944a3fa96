"""Ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keyhole.studies.base import AuditPiece, Piece, Setting, Study, read_result

COLUMNS = {"ssim": "SSIM", "psnr": "PSNR", "lpips": "LPIPS", "mmd": "MMD", "mask": "mask"}
DIGITS = {"ssim": 3, "psnr": 1, "lpips": 3, "mmd": 1, "mask": 3}


def rows(study: Study, results: Path) -> list[dict[str, Any]]:
    """One row an attack and piece that was run or that the paper reports."""
    found = []
    for piece in study.pieces:
        result = read_result(results, piece)
        if not isinstance(piece, AuditPiece):
            found += [] if result is None else [other_row(piece, result)]
            continue
        ours = {} if result is None else result["rows"]
        for attack in dict.fromkeys([*ours, *piece.paper]):
            row = ours.get(attack)
            if row is None and result is None:
                continue
            found.append(_row(piece, attack, row, result))
    return found


def other_row(piece: Piece, result: dict[str, Any]) -> dict[str, Any]:
    """A piece that is no audit."""
    return {"piece": piece.name, "figure": piece.figure, "ours": result, "paper": dict(piece.paper)}


def _row(
    piece: Piece, attack: str, row: dict[str, Any] | None, result: dict[str, Any] | None
) -> dict[str, Any]:
    metrics = {} if row is None else {n: m["mean"] for n, m in row["metrics"].items()}
    return {
        "piece": piece.name,
        "figure": piece.figure,
        "attack": attack,
        "ours": {name: metrics[name] for name in COLUMNS if name in metrics},
        "paper": dict(piece.paper.get(attack, {})),
        "images": None if result is None else result["images"],
        "iterations": None if row is None else row["iterations"],
        "seconds": None if row is None else row["seconds"],
        "device": None if result is None else result["device"],
    }


def lines(study: Study, results: Path) -> Iterator[str]:
    """The rows for a terminal."""
    if study.tables is not None:
        yield from study.tables(study, results)
        return
    yield f"{study.paper}: mean over images, ours beside the paper's"
    names = ("piece", "attack", "images", "paper", *COLUMNS.values(), "steps")
    yield _line(*names)
    before = ""
    for row in rows(study, results):
        first = row["piece"] != before
        before = row["piece"]
        paper = row["paper"].get("ssim")
        yield _line(
            row["piece"] if first else "",
            row["attack"],
            str(row["images"] or "") if first else "",
            "" if paper is None else f"{paper:.2f}",
            *(_number(name, row["ours"]) for name in COLUMNS),
            "" if not row["iterations"] else f"{row['iterations']:.0f}",
        )


def _line(piece: str, attack: str, *cells: str) -> str:
    return f"{piece:<22} {attack:<12}" + "".join(f"{cell:>8}" for cell in cells)


def _number(name: str, values: dict[str, float]) -> str:
    return f"{values[name]:.{DIGITS[name]}f}" if name in values else ""


def listing(pieces: Sequence[Piece], results: Path, setting: Setting) -> list[dict[str, Any]]:
    """Pieces, which of them have a result, and which of those are done: as large as asked for."""
    found = []
    for piece in pieces:
        known = read_result(results, piece)
        found.append(
            {
                "piece": piece.name,
                "figure": piece.figure,
                "begun": known is not None,
                "done": known is not None and piece.covers(known, setting),
                **piece.about(),
            }
        )
    return found
