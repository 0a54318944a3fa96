"""Targeted interpretable perturbation: Tables 1 and 2, Figure 3, and who looks past the noise."""

from pathlib import Path

from keyhole_studies.base import Study
from keyhole_studies.cells import read_study
from keyhole_studies.tip.curve_pictures import draw_curves
from keyhole_studies.tip.curves import CurveExperiment
from keyhole_studies.tip.front import UtilityExperiment, draw_front
from keyhole_studies.tip.heatmaps import HeatMapExperiment
from keyhole_studies.tip.inversion import InversionExperiment
from keyhole_studies.tip.tables import format_tables
from keyhole_studies.trained_audits import TrainedAudit


def draw_figures(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws Figure 3, and privacy against accuracy; returns the pictures' paths."""
    return [*draw_curves(study, results, folder), *draw_front(study, results, folder)]


STUDY = read_study(
    __name__,
    {
        "inversion": InversionExperiment,
        "heat-maps": HeatMapExperiment,
        "curve": CurveExperiment,
        "utility": UtilityExperiment,
        "trained": TrainedAudit,
    },
    format_tables=format_tables,
    draw_figures=draw_figures,
)
