"""``keyhole merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli.gate import FailOn, Junit, Sarif, exit_if_failed, read_gate
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import Fresh, Json, Wide
from keyhole.interrupts import INTERRUPTS


def merge(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The run folders of shards.")
    ],
    out: Annotated[Path, typer.Option(help="Run folder of the whole.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge what there is, though shards are missing.")
    ] = False,
    fail_on: FailOn = None,
    junit: Junit = None,
    sarif: Sarif = None,
    fresh: Fresh = False,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Put the shards of one audit together, as if it had been run in one go."""
    asked = read_gate(fail_on, junit, sarif, out)
    with INTERRUPTS.leaving_at_once():
        from keyhole.report import write
        from keyhole.scale.merge import merge_runs
    asked.open_baselines()
    with show_progress() as bar:
        bar.show("findings are read")
        result = merge_runs(runs, out, fresh=fresh, partial=partial)
        bar.show("the page is written")
        page = write(result)
    gate = asked.judge(result)
    print_run(result, page, wide=wide, as_json=as_json, gate=gate)
    exit_if_failed(gate)
