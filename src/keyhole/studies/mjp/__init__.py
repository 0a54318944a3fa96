"""The masked jigsaw puzzle: Tables 1, 2, 3, 5, 7 and 8 and Figures 2, 3, 6 and 7 of the paper."""

from keyhole.studies.base import Study
from keyhole.studies.mjp.figures import draw
from keyhole.studies.mjp.pieces import all_pieces
from keyhole.studies.mjp.tables import tables

STUDY = Study(
    name="mjp",
    title="The masked jigsaw puzzle",
    paper="Ren et al. 2023 (MJP)",
    pieces=all_pieces(),
    tables=tables,
    draw=draw,
)
