"""Studies: the tables and figures of papers, measured again, beside the papers' own figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from keyhole.spelling import unknown_name

if TYPE_CHECKING:
    from keyhole_studies.base import Study

STUDIES = {
    "dia": "keyhole_studies.dia",
    "mjp": "keyhole_studies.mjp",
    "csvar": "keyhole_studies.csvar",
    "tip": "keyhole_studies.tip",
    "tip-theorem": "keyhole_studies.tip_theorem",
    "field": "keyhole_studies.field",
    "regimes": "keyhole_studies.regimes",
}
"""The package of each study, by the study's name. A package is imported when it is asked for."""

__all__ = ["STUDIES", "load_study"]


def load_study(name: str) -> Study:
    """Imports a study.

    Args:
        name: One of :data:`STUDIES`.
    """
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    study: Study = import_module(STUDIES[name]).STUDY
    return study
