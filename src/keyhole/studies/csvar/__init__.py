"""Variance-guided block shuffling: Table I and Figures 1, 3, 5, 6 and 7 of the paper."""

from keyhole.studies.base import Study
from keyhole.studies.csvar.figures import draw
from keyhole.studies.csvar.pieces import all_pieces
from keyhole.studies.csvar.tables import tables

STUDY = Study(
    name="csvar",
    title="Variance-guided block shuffling",
    paper="Chen et al. 2025 (CSVAR)",
    pieces=all_pieces(),
    tables=tables,
    draw=draw,
)
