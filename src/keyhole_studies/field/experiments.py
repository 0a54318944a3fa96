"""One cell of the field: an audit by one kind of server, or a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.attacks import ATTACKS
from keyhole.auditing import choose_attackers, run_plan
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit
from keyhole.spelling import parse_call
from keyhole_studies.audits import AuditExperiment, attack_of_row, condense
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.coverage import part
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
            nothing = {"rows": {}, "images": 0, "device": ""}
            return {"piece": self.name, UNFIT: str(error), **nothing}
        acted = result.verdicts[0].acted
        return {
            **condense(self, result),
            "defense": self.stage.defenses[0],
            "acted": None if acted is None else {"status": acted.status, "words": acted.words},
            "skipped": {each.attack: each.why for each in result.skipped},
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Too few victims, or an attacker of today; what does not fit needs none."""
        if UNFIT in known:
            return ""
        missing = [f"{attack} ({attacker})" for attack, attacker in self.find_missing(known)]
        gap = super().find_gap(known, context)
        return gap or (part(f"without {', '.join(missing)}") if missing else "")

    def tell(self, known: dict[str, Any]) -> str:
        """Mean PSNR by attack, or that there is none."""
        return "does not fit" if UNFIT in known else super().tell(known)

    def list_attacks(self, known: dict[str, Any]) -> Sequence[str]:
        """Those that apply to the network: a result says which do not."""
        skipped = {parse_call(attack)[0] for attack in known.get("skipped", {})}
        return [text for text in self.stage.attacks if parse_call(text)[0] not in skipped]

    def find_missing(self, known: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The attackers of today who use an attack of an earlier result, and are not in it.

        Args:
            known: The result: perhaps of a version in which the attack could not use yet what the
                defense declares.
        """
        defense = DEFENSES.parse(self.stage.defenses[0])
        have = {(attack_of_row(name), row["attacker"]) for name, row in known["rows"].items()}
        applied = {name for name, _ in have}  # others do not fit the network
        return [
            (attack.name, str(attacker))
            for attack in map(ATTACKS.parse, self.stage.attacks)
            for attacker in choose_attackers(attack, defense)
            if attack.name in applied and (attack.name, attacker) not in have
        ]


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

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training; what does not fit needs none."""
        return "" if UNFIT in known else super().find_gap(known, context)

    def count_measured(self, known: dict[str, Any]) -> str:
        """The test images, if it was trained."""
        return "" if UNFIT in known else super().count_measured(known)

    def tell(self, known: dict[str, Any]) -> str:
        """The accuracy, or that there is none."""
        return "does not fit" if UNFIT in known else super().tell(known)
