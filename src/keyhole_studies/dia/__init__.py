"""Dropout against gradient inversion: Figures 2, 6 and 7 of Scheliga et al. 2023 (DIA)."""

from keyhole_studies.audits import AuditExperiment
from keyhole_studies.cells import read_study
from keyhole_studies.tip.front import UtilityExperiment
from keyhole_studies.trained_audits import TrainedAudit

STUDY = read_study(
    __name__,
    {"audit": AuditExperiment, "trained": TrainedAudit, "accuracy": UtilityExperiment},
)
