"""Variance-guided block shuffling: Table I and Figures 1, 3, 5, 6 and 7 of the paper."""

from keyhole_studies.audits import AuditExperiment
from keyhole_studies.cells import read_study
from keyhole_studies.csvar.experiments import AccuracyExperiment, MembershipExperiment
from keyhole_studies.csvar.figures import draw_figures
from keyhole_studies.csvar.generation import GanExperiment
from keyhole_studies.csvar.tables import format_tables

STUDY = read_study(
    __name__,
    {
        "accuracy": AccuracyExperiment,
        "membership": MembershipExperiment,
        "gan": GanExperiment,
        "audit": AuditExperiment,
    },
    format_tables=format_tables,
    draw_figures=draw_figures,
)
