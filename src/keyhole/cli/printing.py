"""Prints the result of an audit or of a membership experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.cli.gate import print_gate
from keyhole.terminal import say_json, say_unwrapped

if TYPE_CHECKING:
    from keyhole.auditing.gate import Gate
    from keyhole.auditing.membership_result import MembershipResult
    from keyhole.auditing.results import AuditResult
    from keyhole.frontier.result import FrontierResult


def print_run(
    result: AuditResult | MembershipResult,
    page: str,
    *,
    wide: bool,
    as_json: bool,
    gate: Gate | None = None,
    frontier: FrontierResult | None = None,
) -> None:
    """Prints a result, where its findings and its page are, and what a gate decided.

    For people, or for machines.
    """
    from keyhole.auditing.results import AuditResult
    from keyhole.frontier.advice import advise
    from keyhole.report import membership_console, print_result

    if as_json:
        decided: dict[str, Any] = {} if gate is None else {"gate": gate.to_json()}
        if isinstance(result, AuditResult):
            decided["what_to_do"] = [each.to_json() for each in advise(result, frontier)]
        tables = result.swept if isinstance(result, AuditResult) else ()
        swept = {"swept": [table.to_json() for table in tables]} if tables else {}
        say_json({**result.to_json(), **swept, **decided})
        return
    if isinstance(result, AuditResult):
        print_result(result, wide=wide, frontier=frontier)
    else:
        membership_console.print_result(result, wide=wide)
    say_unwrapped(f"Findings: {result.run}")
    say_unwrapped(f"Report:   {page}")
    if gate is not None:
        print_gate(gate)
