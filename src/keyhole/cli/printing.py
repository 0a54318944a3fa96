"""Prints the result of an audit or of a membership experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.terminal import say_json, say_unwrapped

if TYPE_CHECKING:
    from keyhole.auditing.membership_result import MembershipResult
    from keyhole.auditing.results import AuditResult


def print_run(
    result: AuditResult | MembershipResult, page: str, *, wide: bool, as_json: bool
) -> None:
    """Prints a result, and where its findings and its page are, for people or for machines."""
    from keyhole.auditing.results import AuditResult
    from keyhole.report import membership_console, print_result

    if as_json:
        say_json(result.to_json())
        return
    if isinstance(result, AuditResult):
        print_result(result, wide=wide)
    else:
        membership_console.print_result(result, wide=wide)
    say_unwrapped(f"Findings: {result.run}")
    say_unwrapped(f"Report:   {page}")
