"""The page of a membership experiment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keyhole.atomic import write_text
from keyhole.audit.membership import MembershipResult, Trial
from keyhole.audit.membership_store import REPORT
from keyhole.report import membership_view as view
from keyhole.report.figures import COLOURS, INK, as_svg
from keyhole.report.shell import fill_template


def render(result: MembershipResult) -> str:
    """The page as text."""
    return fill_template(
        "membership.html.j2",
        title=f"Membership: {result.plan.model} on {result.plan.data}",
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headline=view.headline(result.trials),
        facts=view.facts(result),
        trials=[
            {
                "about": trial,
                "name": view.named(trial),
                "told": view.is_told(trial),
                "words": view.words(trial),
                "plot": roc_plot(trial, result.others),
            }
            for trial in result.trials
        ],
        limits=[rate.limit for rate in view.rates_of(result)],
        notes=[*result.notes, *view.coarse(result)],
        result=result,
    )


def write(result: MembershipResult) -> str:
    """Writes ``report.html`` into the run folder; returns its path."""
    assert result.run is not None
    return str(write_text(Path(result.run) / REPORT, render(result)))


def roc_plot(trial: Trial, others: int) -> str:
    """Members found against false alarms, a line per attacker: an SVG.

    The second panel shows the same on logarithmic axes, down to a single false alarm.
    """
    attacks = list(dict.fromkeys(each.attack.split("(")[0] for each in trial.inferences))

    def draw(figure: Any) -> None:
        for axes, scale in zip(figure.subplots(1, 2), ("linear", "log"), strict=True):
            least = 1 / others if scale == "log" else 0.0
            for each in trial.inferences:
                axes.plot(
                    *zip(*each.roc, strict=True),
                    color=COLOURS[attacks.index(each.attack.split("(")[0]) % len(COLOURS)],
                    linestyle="-" if each.attacker == "naive" else "--",
                    linewidth=1.4,
                    label=f"{each.attack} ({each.attacker})",
                )
            axes.plot([least, 1], [least, 1], color=INK, linestyle=":", label="guessing")
            axes.set(xscale=scale, yscale=scale, xlim=(least, 1), ylim=(least, 1))
            axes.set_xlabel("false alarms, share of the others")
            axes.spines[["top", "right"]].set_visible(False)
            if scale == "linear":
                axes.set_ylabel("members found, share")
        lines, names = axes.get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)

    return as_svg(draw, size=(8.4, 3.7))
