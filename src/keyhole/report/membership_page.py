"""The page of a membership experiment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from keyhole.atomic import write_text
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.membership_store import REPORT
from keyhole.report import membership_view as view
from keyhole.report.figures import plot_rocs
from keyhole.report.shell import fill_template


def render(result: MembershipResult) -> str:
    """Renders the page as text."""
    return fill_template(
        "membership.html.j2",
        title=f"Membership: {result.plan.model} on {result.plan.data}",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headline=view.summarise_trials(result.trials),
        facts=view.describe_experiment(result),
        trials=[
            {
                "about": trial,
                "name": view.label_trial(trial),
                "identified": view.identifies_members(trial),
                "words": view.describe_trial(trial),
                "plot": plot_rocs(trial, result.others),
            }
            for trial in result.trials
        ],
        limits=[rate.limit for rate in view.rates_of(result)],
        notes=[*result.notes, *view.explain_stars(result)],
        result=result,
    )


def write(result: MembershipResult) -> str:
    """Writes ``report.html`` into the run folder; returns its path."""
    assert result.run is not None
    return str(write_text(Path(result.run) / REPORT, render(result)))
