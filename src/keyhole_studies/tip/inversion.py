"""Table 1: what IG and GIFD read through each defense, and what attackers read who know it."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.defenses import DEFENSES
from keyhole_studies.audits import AuditExperiment


@dataclass(frozen=True)
class InversionExperiment(AuditExperiment):
    """An audit of one setting of one defense.

    Args:
        data_name: What the paper calls the data set.
        setting: A short name of the defense with its parameters: the head of a column.
        label: What stands beside the setting's mark in a figure.
        utility: The experiment that measures the accuracy left under this setting; empty: none.
    """

    data_name: str
    setting: str
    label: str = ""
    utility: str = ""

    @property
    def family(self) -> str:
        """The defense's name, without its parameters."""
        return DEFENSES.parse(self.stage.defenses[0]).name
