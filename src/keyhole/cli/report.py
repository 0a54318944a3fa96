"""``keyhole report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.auditing.run_folder import check_is_run
from keyhole.cli.frontier_option import keep_frontier, open_frontier
from keyhole.cli.gate import (
    FailOn,
    Junit,
    Sarif,
    check_is_audit,
    exit_if_failed,
    read_gate,
)
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import Frontier, Json, Wide
from keyhole.interrupts import INTERRUPTS
from keyhole.spelling import split_names
from keyhole.terminal import say_unwrapped


def report(
    run: Annotated[Path, typer.Argument(help="The folder of an audit or a membership run.")],
    csv: Annotated[
        Path | None, typer.Option(help="Write a CSV file, one row for each finding.")
    ] = None,
    per_image: Annotated[
        bool, typer.Option("--per-image", help="In the CSV file: one row for each image.")
    ] = False,
    latex: Annotated[Path | None, typer.Option(help="Write LaTeX tables (booktabs).")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write pictures and plots into this folder.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Of the figures: png, pdf, svg, or several.")
    ] = "png,pdf,svg",
    annex: Annotated[
        bool,
        typer.Option(
            "--annex",
            help="Write annex.html into the run folder: what was found beside what EDPB Opinion "
            "28/2024, NIST SP 800-226 and OWASP AISVS C11 ask, for a data protection impact "
            "assessment. No legal advice.",
        ),
    ] = False,
    frontier: Frontier = None,
    fail_on: FailOn = None,
    junit: Junit = None,
    sarif: Sarif = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show an earlier run again; write its page, an annex, tables and figures.

    What made the run need not be installed.
    """
    kinds = split_names(formats, option="--format")
    check_is_run(run)
    asked = read_gate(fail_on, junit, sarif, run)
    if asked.conditions:
        check_is_audit(run)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.results import AuditResult, load_result
        from keyhole.report import membership_page, write, write_annex, write_figures
    asked.open_baselines()
    known = open_frontier(frontier)
    files: list[Path] = []
    with show_progress() as bar:
        bar.show("findings are read")
        result = load_result(run)
        bar.show("the page is written")
        if isinstance(result, AuditResult):
            keep_frontier(known, run)
            page = write(result, frontier=known)
        else:
            page = membership_page.write(result)
        sheet = write_annex(result) if annex else None
        if csv is not None:
            result.to_csv(csv, per_image=per_image)
        if latex is not None:
            result.to_latex(latex)
        if figures is not None:
            bar.show("figures are drawn")
            files = write_figures(result, figures, kinds)
    gate = asked.judge(result) if isinstance(result, AuditResult) else None
    print_run(result, page, wide=wide, as_json=as_json, gate=gate, frontier=known)
    written = {"Annex": sheet, "CSV": csv, "LaTeX": latex, f"{len(files)} figures": figures}
    if not as_json:
        for name, path in written.items():
            if path is not None:
                say_unwrapped(f"{name + ':':<9} {path}")
    exit_if_failed(gate)
