"""What an audit found, as one object: opened from a folder, and written as tables."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keyhole.atomic import read_json, write_json
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.captured_inference import CapturedMembership
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import validate
from keyhole.auditing.json_schema import SCHEMA_VERSION
from keyhole.auditing.latex import latex_tables
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.membership_store import read_membership_result
from keyhole.auditing.run_folder import is_membership_run
from keyhole.auditing.sections import Section, split_into_sections
from keyhole.auditing.store import Store
from keyhole.auditing.store_folder import SUMMARY
from keyhole.auditing.sweep_tables import ParameterTable, tabulate_sweep
from keyhole.auditing.tables import Row, finding_rows, image_rows
from keyhole.auditing.tabular import TabularResult
from keyhole.auditing.verdict import Verdict, judge_findings
from keyhole.errors import RunFolderError, one_line

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class AuditResult(TabularResult):
    """Everything an audit found.

    Args:
        findings: One for each attacker against each defense, in the order of the plan.
        verdicts: One for each defense on each model and data set.
        skipped: Attacks that could not be tried, and why.
        store: The run folder; None where the audit kept nothing.
        notes: What could not be used of captured material, one line each.
        date: The day on which it was found, ``2026-01-31``; empty in older results.
        membership: Who was in the images of captured clients; None: not asked.
    """

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skipped, ...]
    store: Store | None
    notes: tuple[str, ...] = ()
    date: str = ""
    membership: CapturedMembership | None = None

    @classmethod
    def load(cls, path: str | Path) -> AuditResult:
        """Opens an earlier audit; of an interrupted one, what it has found so far.

        The attacks, defenses, models and metrics in it need not be installed.

        Args:
            path: The run folder, or a file that :meth:`save` wrote.

        Raises:
            RunFolderError: It is no audit, or was not written by one.
        """
        place = Path(path)
        if place.is_file():
            return cls.from_json(read_json(place), source=str(place))
        store = Store.existing(place)
        summary = store.summary()
        check_version(summary, store.root)
        skipped, notes = read_skipped_and_notes(summary, str(store.root / SUMMARY))
        findings = store.findings()
        verdicts = judge_findings(findings, skipped)
        date = read_date(summary, str(store.root / SUMMARY))
        membership = read_membership(summary, str(store.root / SUMMARY))
        return cls(tuple(findings), tuple(verdicts), skipped, store, notes, date, membership)

    @classmethod
    def from_json(cls, values: Any, *, source: str = "a result") -> AuditResult:
        """Reads what :meth:`to_json` gave; the verdicts are taken from the findings.

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
        verdicts = judge_findings(findings, skipped)
        date, membership = read_date(values, source), read_membership(values, source)
        return cls(tuple(findings), tuple(verdicts), skipped, None, notes, date, membership)

    @property
    def run(self) -> str | None:
        """The run folder."""
        return None if self.store is None else str(self.store.root)

    @property
    def title(self) -> str:
        """The title of the plan."""
        plan = None if self.store is None else self.store.plan()
        return str((plan or {}).get("title", "Audit"))

    @property
    def swept(self) -> tuple[ParameterTable, ...]:
        """One table for each parameter that the plan lists values of."""
        plan = None if self.store is None else self.store.plan()
        names = (plan or {}).get("swept")
        listed = [str(name) for name in names] if isinstance(names, list) else []
        return tuple(tabulate_sweep(self.findings, listed))

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
            **({"date": self.date} if self.date else {}),
            **({"membership": self.membership.to_json()} if self.membership else {}),
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
        """One row for each finding, or for each image of each finding.

        The columns of a finding are model, data, defense, attack, attacker, server (honest or
        altered), victims and images; the verdict on the setting, and that on a malicious server
        where one was tried; mean, low, high and worst of every metric; seconds, seed, and the rest
        of the recipe. Rows of images have one column per metric.
        """
        if per_image:
            return image_rows(self.findings)
        return finding_rows(self.findings, self.verdicts)

    def _build_latex(self) -> str:
        return latex_tables(self.sections)


def load_result(folder: str | Path) -> AuditResult | MembershipResult:
    """Opens what an audit or a membership experiment found.

    Args:
        folder: Its run folder.

    Raises:
        RunFolderError: There is no such run, or Keyhole did not write it.
    """
    place = Path(folder)
    return read_membership_result(place) if is_membership_run(place) else AuditResult.load(place)


def read_skipped_and_notes(
    values: Mapping[str, Any], source: str
) -> tuple[tuple[Skipped, ...], tuple[str, ...]]:
    """These two parts of a result in JSON; ``source`` says in an error where it came from."""
    try:
        skipped = tuple(
            validate(Skipped, each) for each in validate(list, values.get("skipped", []))
        )
        return skipped, validate(tuple[str, ...], values.get("notes", []))
    except ValueError as error:
        raise RunFolderError(
            f"{source} is not as an audit writes it ({one_line(error)}): run the same audit again"
        ) from None


def read_date(values: Mapping[str, Any], source: str) -> str:
    """The day of a result in JSON; ``source`` says in an error where it came from."""
    date = values.get("date", "")
    if date and not (isinstance(date, str) and DAY.fullmatch(date) and is_day(date)):
        raise RunFolderError(f"{source} has the date {date!r}: write it as 2026-01-31")
    return str(date)


def is_day(text: str) -> bool:
    """Whether the calendar has this day.

    >>> is_day("2026-01-31"), is_day("2026-02-31")
    (True, False)
    """
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def read_membership(values: Mapping[str, Any], source: str) -> CapturedMembership | None:
    """Who was in captured clients' images, in JSON; None where it was not asked."""
    found = values.get("membership")
    try:
        return None if found is None else CapturedMembership.from_json(found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            f"{source}: its membership is not as an audit writes it ({one_line(error)}): run the "
            "same audit again"
        ) from None


def check_version(values: dict[str, Any], source: object) -> None:
    """Refuses what a later version of Keyhole wrote, because it may mean something else."""
    found = values.get("schema_version", SCHEMA_VERSION)
    if not isinstance(found, int) or found > SCHEMA_VERSION:
        raise RunFolderError(
            f"{source} has schema_version {found!r}, this keyhole reads up to {SCHEMA_VERSION}: "
            "install a newer one"
        )
