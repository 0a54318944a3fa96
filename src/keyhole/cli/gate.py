"""The gate's options: ``--fail-on``, ``--junit``, ``--sarif``, and the exit code of a failure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole.auditing.gate_conditions import Condition, read_conditions
from keyhole.errors import BadValue
from keyhole.terminal import say_unwrapped

if TYPE_CHECKING:
    from keyhole.auditing.gate import Gate
    from keyhole.auditing.results import AuditResult

GATE_FAILED = 3
"""The exit code of a gate that failed."""

FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="CONDITION",
        help="Exit with 3 if so: broken, 'read>0.05', defense-idle, worse-than:RUN. Repeatable.",
    ),
]
Junit = Annotated[Path | None, typer.Option(help="Write the gate's decision as JUnit XML.")]
Sarif = Annotated[Path | None, typer.Option(help="Write the gate's failures as SARIF 2.1.0.")]


@dataclass(frozen=True)
class GateRequest:
    """What the user asked of the gate.

    Args:
        conditions: The conditions; empty: there is no gate.
        junit: Where the JUnit file goes.
        sarif: Where the SARIF file goes.
        baselines: The runs that ``worse-than`` names, once they are opened.
    """

    conditions: tuple[Condition, ...]
    junit: Path | None = None
    sarif: Path | None = None
    baselines: dict[Path, AuditResult] = field(default_factory=dict)

    def open_baselines(self) -> None:
        """Opens the baselines before the audit starts, so that a damaged one is refused in time."""
        from keyhole.auditing.results import AuditResult

        for condition in self.conditions:
            if condition.baseline is not None:
                self.baselines[condition.baseline] = AuditResult.load(condition.baseline)

    def judge(self, result: AuditResult, plan: Path | None = None) -> Gate | None:
        """Judges a result and writes the files; None if there is no gate."""
        if not self.conditions:
            return None
        from keyhole.auditing.gate import judge_gate
        from keyhole.report.junit import write_junit
        from keyhole.report.sarif import write_sarif

        gate = judge_gate(result, self.conditions, self.baselines)
        if self.junit is not None:
            write_junit(gate, result, self.junit)
        if self.sarif is not None:
            write_sarif(gate, result, self.sarif, plan)
        return gate


def read_gate(
    fail_on: Sequence[str] | None, junit: Path | None, sarif: Path | None, run: Path
) -> GateRequest:
    """Reads the gate's options and refuses bad ones; needs no torch."""
    conditions = read_conditions(fail_on or ())
    for option, path in (("junit", junit), ("sarif", sarif)):
        if path is not None and not conditions:
            raise BadValue(f"--{option} writes what a gate decided: add --fail-on broken")
        if path is not None:
            check_can_be_written(path, option)
    for condition in conditions:
        if condition.baseline is not None:
            check_baseline(condition.baseline, run)
    return GateRequest(conditions, junit, sarif)


def check_can_be_written(path: Path, option: str) -> None:
    """Refuses a file that cannot be written, before the audit whose result it would hold."""
    if path.is_dir():
        raise BadValue(f"--{option}: {path} is a folder: name a file")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise BadValue(f"--{option}: {path} cannot be written: {nearest} takes no new files")


def check_baseline(baseline: Path, run: Path) -> None:
    """Refuses a baseline that is no audit, or is the run itself."""
    from keyhole.auditing.run_folder import check_is_run

    if baseline.resolve() == run.resolve():
        raise BadValue(f"fail-on: {baseline} is this run itself: name another run as the baseline")
    check_is_run(baseline)
    check_is_audit(baseline)


def check_is_audit(run: Path) -> None:
    """Refuses a membership run."""
    from keyhole.auditing.run_folder import is_membership_run

    if is_membership_run(run):
        raise BadValue(f"fail-on: {run} is a membership run, a gate judges audits")


def print_gate(gate: Gate) -> None:
    """Prints what the gate decided, one line for each failure."""
    for failure in gate.failures:
        say_unwrapped(f"Gate:     {failure.line}")
    settings = f"{len(gate.settings)} setting{'' if len(gate.settings) == 1 else 's'}"
    failed = len({failure.setting for failure in gate.failures})
    words = f"passed in {settings}" if gate.passed else f"failed in {failed} of {settings}"
    say_unwrapped(f"Gate:     {words}: {', '.join(gate.conditions)}")


def exit_if_failed(gate: Gate | None) -> None:
    """Ends the command with the gate's exit code, if it failed."""
    if gate is not None and not gate.passed:
        raise typer.Exit(GATE_FAILED)
