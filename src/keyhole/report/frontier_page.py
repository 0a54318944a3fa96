"""The page of a frontier: what to do, the plot, all settings, what was not tried."""

from __future__ import annotations

from pathlib import Path

from keyhole.atomic import write_text
from keyhole.frontier.result import FrontierResult
from keyhole.frontier.words import PROMISE, describe_evidence, describe_frontier, summarise
from keyhole.report import frontier_view as view
from keyhole.report.frontier_drawing import plot_front
from keyhole.report.shell import fill_template
from keyhole.report.view import CHIPS

PAGE = "frontier.html"


def render_frontier(result: FrontierResult) -> str:
    """Renders the page as text.

    Args:
        result: The frontier.
    """
    lines = view.list_settings(result)
    of = {line.label: line for line in lines}
    return fill_template(
        "frontier.html.j2",
        title=f"Frontier: {result.plan.model} on {result.plan.data}",
        made=result.date,
        headline=summarise(result),
        facts=view.describe_facts(result),
        lines=lines,
        mildest=[
            {"line": of[each.label], "evidence": describe_evidence(each)} for each in result.mildest
        ],
        plot=plot_front(lines),
        words=describe_frontier(result),
        promise=PROMISE,
        chips=CHIPS,
        front=view.FRONT,
        versions=result.versions,
    )


def write_frontier(result: FrontierResult, folder: Path) -> Path:
    """Writes the page into a folder.

    Args:
        result: The frontier.
        folder: The folder.
    """
    return write_text(folder / PAGE, render_frontier(result))
