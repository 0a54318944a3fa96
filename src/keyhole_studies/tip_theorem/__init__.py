"""Theorem 1 of the TIP paper, put to the test where its assumptions hold."""

from keyhole_studies.cells import read_study
from keyhole_studies.tip_theorem.experiments import TheoremExperiment
from keyhole_studies.tip_theorem.figures import draw_figures
from keyhole_studies.tip_theorem.tables import format_tables

STUDY = read_study(
    __name__,
    {"theorem": TheoremExperiment},
    format_tables=format_tables,
    draw_figures=draw_figures,
)
