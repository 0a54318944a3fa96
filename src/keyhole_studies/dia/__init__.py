"""Dropout against gradient inversion: Figures 2, 6 and 7 of Scheliga et al. 2023 (DIA)."""

from keyhole_studies.cells import read_study

STUDY = read_study(__name__)
