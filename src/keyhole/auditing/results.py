"""What an audit found, as one object: opened from a folder, and written as tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.atomic import read_json, write_json
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.auditing.json_schema import SCHEMA_VERSION
from keyhole.auditing.latex import latex_tables
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.membership_store import read_result
from keyhole.auditing.run_folder import is_membership_run
from keyhole.auditing.sections import Section, split_into_sections
from keyhole.auditing.store import Store, read_skipped_and_notes
from keyhole.auditing.tables import (
    Row,
    finding_rows,
    image_rows,
    to_csv,
    to_frame,
    write_if_asked,
)
from keyhole.auditing.verdict import Verdict, verdicts
from keyhole.errors import RunFolderError

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class AuditResult:
    """Everything an audit found.

    Args:
        findings: One for each attacker against each defense, in the order of the plan.
        verdicts: One for each defense on each model and data set.
        skipped: Attacks that could not be tried, and why.
        store: The run folder; None where the audit kept nothing.
        notes: What of the material could not be used, one line each.
    """

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skipped, ...]
    store: Store | None
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | Path) -> AuditResult:
        """Opens an earlier audit; of one that was interrupted, what is there.

        None of the attacks, defenses, models and metrics in it need be installed.

        Args:
            path: The run folder, or a file that :meth:`save` wrote.

        Raises:
            RunFolderError: It is no audit, or it is not as an audit writes it.
        """
        place = Path(path)
        if place.is_file():
            return cls.from_json(read_json(place), source=str(place))
        store = Store.existing(place)
        check_version(store.summary(), store.root)
        skipped, notes = store.skipped_and_notes()
        findings = store.findings()
        return cls(tuple(findings), tuple(verdicts(findings, skipped)), skipped, store, notes)

    @classmethod
    def from_json(cls, values: Any, *, source: str = "a result") -> AuditResult:
        """Reads what :meth:`to_json` gave; verdicts are judged anew.

        Args:
            values: The JSON object.
            source: Where it came from, for errors.
        """
        if not isinstance(values, dict) or not isinstance(values.get("findings"), list):
            raise RunFolderError(f"{source} is no result of an audit: it has no findings")
        check_version(values, source)
        findings = [
            Finding.from_json(each, source=f"finding {number} of {source}")
            for number, each in enumerate(values["findings"])
        ]
        skipped, notes = read_skipped_and_notes(values, source)
        return cls(tuple(findings), tuple(verdicts(findings, skipped)), skipped, None, notes)

    @property
    def run(self) -> str | None:
        """The run folder."""
        return None if self.store is None else str(self.store.root)

    @property
    def title(self) -> str:
        """What the plan is called."""
        plan = None if self.store is None else self.store.plan()
        return str((plan or {}).get("title", "Audit"))

    @property
    def sections(self) -> tuple[Section, ...]:
        """Findings and verdicts by model and data set."""
        return split_into_sections(self.findings, self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values; :func:`keyhole.auditing.result_schema` describes it."""
        values = {
            "schema_version": SCHEMA_VERSION,
            "findings": [f.to_json() for f in self.findings],
            "verdicts": [v.to_json() for v in self.verdicts],
            "run": self.run,
            "skipped": [asdict(s) for s in self.skipped],
            "notes": list(self.notes),
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        return plain

    def save(self, path: str | Path) -> Path:
        """Writes :meth:`to_json` to one file, which :meth:`load` opens; pictures stay behind.

        Args:
            path: The file.
        """
        return write_json(Path(path), self.to_json())

    def to_rows(self, *, per_image: bool = False) -> list[Row]:
        """One row for each finding, or for each image of each finding; see :meth:`to_frame`.

        Args:
            per_image: One row for each image.
        """
        if per_image:
            return image_rows(self.findings)
        return finding_rows(self.findings, self.verdicts)

    def to_frame(self, *, per_image: bool = False) -> DataFrame:
        """A pandas data frame with one row for each finding.

        Its columns are model, data, defense, attack, attacker, server (honest or altered), victims
        and images; the verdict on the setting; mean, low, high and worst of every metric; seconds,
        seed, and the rest of the recipe.

        Args:
            per_image: One row for each image of each finding instead, with one column per metric.

        Raises:
            DoesNotFit: pandas is not installed.
        """
        return to_frame(self.to_rows(per_image=per_image))

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False) -> str:
        """The rows of :meth:`to_frame` as CSV; needs no pandas.

        Args:
            path: The file to write; None: only the text is returned.
            per_image: One row for each image instead of each finding.
        """
        return write_if_asked(path, to_csv(self.to_rows(per_image=per_image)))

    def to_latex(self, path: str | Path | None = None) -> str:
        """LaTeX tables of the means and their intervals, one for each model and data set.

        Args:
            path: The file to write; None: only the text is returned.
        """
        return write_if_asked(path, latex_tables(self.sections))


def load_result(folder: str | Path) -> AuditResult | MembershipResult:
    """Opens what an audit or a membership experiment found.

    Args:
        folder: Its run folder.

    Raises:
        RunFolderError: There is no such run, or it is not as Keyhole writes it.
    """
    place = Path(folder)
    return read_result(place) if is_membership_run(place) else AuditResult.load(place)


def check_version(values: dict[str, Any], source: object) -> None:
    """Refuses what a later version of Keyhole wrote, in which words may mean something else."""
    found = values.get("schema_version", SCHEMA_VERSION)
    if not isinstance(found, int) or found > SCHEMA_VERSION:
        raise RunFolderError(
            f"{source} has schema_version {found!r}, this keyhole reads up to {SCHEMA_VERSION}: "
            "install a newer one"
        )
