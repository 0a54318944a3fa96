"""Studies: one file a paper, its tables run anew and shown beside the paper's figures."""

from keyhole.studies import csvar, dia, mjp, tip, tip_theorem
from keyhole.studies.base import Piece, Study

STUDIES: dict[str, Study] = {
    study.name: study for study in (dia.STUDY, mjp.STUDY, csvar.STUDY, tip.STUDY, tip_theorem.STUDY)
}

__all__ = ["STUDIES", "Piece", "Study"]
