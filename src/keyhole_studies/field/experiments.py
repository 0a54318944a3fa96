"""One cell of the field: an audit by one kind of server, or a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keyhole.auditing import run_plan
from keyhole.errors import DoesNotFit
from keyhole_studies.audits import AuditExperiment, condense
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.tip.front import UtilityExperiment

UNFIT = "does_not_fit"
"""The key under which a result says why a defense does not fit a network."""


@dataclass(frozen=True)
class FieldAudit(AuditExperiment):
    """What attackers with one kind of server read of one network under one defense.

    Args:
        family: The defense's line in ``cells.toml``.
        strength: ``off``, ``weak``, ``medium`` or ``strong``.
        network: The network's table in ``cells.toml``.
        server: ``honest`` or ``malicious``.
    """

    family: str
    strength: str
    network: str
    server: str

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        try:
            result = run_plan(
                self.make_plan(study, context),
                out=context.runs / self.name,
                data_dir=context.data_dir,
                device=context.device,
                progress=context.progress,
                victims_at_once=context.victims_at_once,
            )
        except DoesNotFit as error:
            return {"piece": self.name, UNFIT: str(error)}
        acted = result.verdicts[0].acted
        return {
            **condense(self, result),
            "defense": self.stage.defenses[0],
            "acted": None if acted is None else {"status": acted.status, "words": acted.words},
        }

    def covers(self, known: dict[str, Any], context: StudyContext) -> bool:
        """Whether there are enough victims; what does not fit needs none."""
        return UNFIT in known or super().covers(known, context)


@dataclass(frozen=True)
class FieldAccuracy(UtilityExperiment):
    """The accuracy of one network after federated training under one defense.

    Args:
        family: The defense's line in ``cells.toml``.
        strength: ``off``, ``weak``, ``medium`` or ``strong``.
        network: The network's table in ``cells.toml``.
    """

    family: str
    strength: str
    network: str

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        try:
            return super().measure(study, context)
        except DoesNotFit as error:
            return {"piece": self.name, UNFIT: str(error)}

    def covers(self, known: dict[str, Any], context: StudyContext) -> bool:
        """Whether it is the same training; what does not fit needs none."""
        return UNFIT in known or super().covers(known, context)
