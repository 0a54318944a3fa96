"""The masked jigsaw puzzle: Tables 1, 2, 3, 5, 7, 8 and Figures 2, 3, 4, 6, 7 of the paper."""

from keyhole_studies.cells import read_study
from keyhole_studies.mjp.april import AprilExperiment
from keyhole_studies.mjp.attention import AttentionExperiment
from keyhole_studies.mjp.experiments import PrivacyExperiment, TrainingExperiment
from keyhole_studies.mjp.figures import draw_figures
from keyhole_studies.mjp.tables import format_tables

STUDY = read_study(
    __name__,
    {
        "training": TrainingExperiment,
        "april": AprilExperiment,
        "attention": AttentionExperiment,
        "privacy": PrivacyExperiment,
    },
    format_tables=format_tables,
    draw_figures=draw_figures,
)
