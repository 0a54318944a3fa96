"""``keyhole compare``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from keyhole.auditing.run_folder import check_is_run, is_membership_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import Json, Wide
from keyhole.errors import BadValue
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import say_json, say_unwrapped


def compare(
    runs: Annotated[list[Path], typer.Argument(help="The folders of two audits or more.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: beside the first run.")
    ] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Compare audits with the first of them, attacker by attacker and image by image.

    Says which verdicts changed, and writes one page with the runs side by side. What made the runs
    need not be installed.
    """
    if len(runs) < 2:
        raise BadValue(f"a comparison needs two runs or more: keyhole compare {runs[0]} OTHER")
    for run in runs:
        if is_membership_run(run):
            raise BadValue(f"{run} is a membership run: compare takes audits")
        check_is_run(run)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.comparison import compare_results
        from keyhole.auditing.results import AuditResult
        from keyhole.report.comparison_console import print_comparison
        from keyhole.report.comparison_page import write_comparison
    with show_progress() as bar:
        bar.show("findings are read")
        comparison = compare_results([AuditResult.load(run) for run in runs])
        bar.show("the page is written")
        page = write_comparison(comparison, out or choose_page(runs))
    if as_json:
        say_json({**comparison.to_json(), "page": page})
        return
    print_comparison(comparison, wide=wide)
    say_unwrapped(f"Page: {page}")


def choose_page(runs: Sequence[Path]) -> Path:
    """Returns the page's default path: beside the first run, named after all runs.

    >>> choose_page([Path("runs/a"), Path("runs/b c")]).as_posix()
    'runs/compare-a-b-c.html'
    """
    names = "-".join(run.resolve().name for run in runs)
    slug = re.sub(r"[^a-zA-Z0-9.]+", "-", names).strip("-.")[:100]
    return runs[0].parent / f"compare-{slug}.html"
