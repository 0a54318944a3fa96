"""Theorem 1 of the TIP paper, put to the test where its assumptions hold."""

from keyhole.studies.base import Study
from keyhole.studies.tip_theorem.pieces import all_pieces
from keyhole.studies.tip_theorem.tables import draw, tables

STUDY = Study(
    name="tip-theorem",
    title="Convergence under TIP",
    paper="Wang and Su 2025 (TIP)",
    pieces=all_pieces(),
    tables=tables,
    draw=draw,
)
