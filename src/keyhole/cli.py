"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from keyhole.audit import AuditResult, Plan, Stage, Store, read_plan, run_plan, tour
from keyhole.audit.plan import checked
from keyhole.audit.run import rebuild
from keyhole.errors import BadValue, KeyholeError
from keyhole.registry import split_names
from keyhole.report import print_result, write
from keyhole.report.catalogue import catalogue
from keyhole.studies import STUDIES, Study
from keyhole.studies.base import find_study, require_results
from keyhole.studies.show import lines as study_lines
from keyhole.studies.show import listing
from keyhole.studies.show import rows as study_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    help="How much of your clients' images can be seen through the updates they share?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Bar:
    """Shows an audit's progress, with the time that remains, on standard error."""

    def __init__(self, bar: RichProgress) -> None:
        self.bar = bar
        self.task = bar.add_task("preparing", total=None)
        self.attack = bar.add_task("iterations", total=None, visible=False)

    def begin(self, total: int) -> None:
        self.bar.update(self.task, total=total)

    def show(self, what: str) -> None:
        self.bar.update(self.task, description=what)
        self.bar.reset(self.attack, visible=False)

    def advance(self, units: int) -> None:
        self.bar.advance(self.task, units)

    def iterate(self, done: int, total: int, text: str) -> None:
        self.bar.update(
            self.attack, completed=done, total=total, description=f"  {text}", visible=True
        )


@contextmanager
def watched() -> Iterator[Bar]:
    """A progress bar that vanishes when the work is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with RichProgress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield Bar(bar)


@app.command()
def audit(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="A plan with [[stage]] tables.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Models, by name, separated by commas.")] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, by name or folder.")] = None,
    defense: Annotated[
        str | None, typer.Option(help="Defenses, e.g. 'none,gaussian(sigma=0.01)'.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="Attacks; default: all that apply to an honest server.")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="Clients attacked.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a client's batch.")] = None,
    image_size: Annotated[str | None, typer.Option(help="Pixels: 224, or 112x92.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="The model's weights, safetensors; default: random.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Local SGD steps; needs --lr.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate: clients share weights, not gradients.")
    ] = None,
    client_mode: Annotated[str | None, typer.Option(help="train, eval or frozen-norm.")] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of every iterative attack, at most.")
    ] = None,
    parity: Annotated[
        str | None, typer.Option(help="paper: iterative attacks exactly as published; far slower.")
    ] = None,
    victims_at_once: Annotated[
        str, typer.Option(help="Victims that share the device in iterative attacks; auto: all.")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(help="Seed of weights, victims and noise.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of data sets; default: KEYHOLE_DATA.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: under runs/.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace an earlier audit there.")] = False,
    as_json: Json = False,
) -> None:
    """Attack clients through what they share, and judge each defense by its worst attacker.

    Without arguments: the built-in tour, under a minute. The same command continues an
    interrupted audit.
    """
    choices = {
        "image_size": image_size,
        "weights": weights,
        "victims": victims,
        "batch_size": batch_size,
        "steps": steps,
        "lr": lr,
        "client_mode": client_mode,
        "iterations": iterations,
        "parity": parity,
        "defenses": tuple(split_names(defense)) if defense else None,
        "attacks": tuple(split_names(attack)) if attack else None,
    }
    plan = make_plan(plan_file, model, data, choices).with_all(seed=seed)
    folder = out or Path("runs") / f"audit-{plan.digest}"
    with watched() as bar:
        result = run_plan(
            plan,
            out=folder,
            data_dir=data_dir,
            device=device,
            fresh=fresh,
            progress=bar,
            victims_at_once=at_once(victims_at_once),
        )
        page = write(result, title=plan.title)
    tell(result, page, as_json=as_json)


def at_once(text: str) -> int | None:
    """How many victims share the device: a number, or None for as many as fit."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadValue(f"victims-at-once: it is auto or a positive number, got {text!r}")
    return int(text)


def make_plan(
    plan_file: Path | None, model: str | None, data: str | None, choices: dict[str, Any]
) -> Plan:
    """The plan that the options ask for: a file's, the tour, or every model on every data set."""
    given = {k: v for k, v in choices.items() if v is not None}
    if plan_file is not None:
        return read_plan(plan_file).with_all(**given)
    names_parts = model or data or "defenses" in given or "attacks" in given
    if not names_parts:
        return tour().with_all(**given)
    default = Stage()
    stages = tuple(
        checked(Stage, {"model": m, "data": d, **given})
        for m in split_names(model or default.model)
        for d in split_names(data or default.data)
    )
    return Plan(title="Audit", stage=stages)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of an audit.")],
    as_json: Json = False,
) -> None:
    """Show an earlier audit again and write its page anew."""
    store = Store.existing(run)
    result = rebuild(store)
    plan = store.plan() or {}
    tell(result, write(result, title=str(plan.get("title", "Audit"))), as_json=as_json)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List attacks, defenses, models, data sets and metrics: what each is and what it needs."""
    rooms = catalogue()
    if as_json:
        typer.echo(json.dumps(rooms, indent=1))
        return
    console = Console()
    for room, entries in rooms.items():
        console.print(f"\n{room}", style="bold")
        for entry in entries:
            console.print(f"  {entry['name']}", style="cyan", highlight=False)
            for key, value in entry.items():
                if key != "name" and value not in ("", None, {}, []):
                    console.print(f"      {key}: {value}", highlight=False, markup=False)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="The study: dia.")],
    pieces: Annotated[
        list[str] | None, typer.Argument(help="Pieces to run, 'vit-small*' for several.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the pieces, and which are done.")
    ] = False,
    shown: Annotated[
        bool, typer.Option("--show", help="Show ours beside the paper's, from the results.")
    ] = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder of results; default: results/NAME.")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="Clients attacked in each piece.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations, at most.")] = None,
    parity: Annotated[str | None, typer.Option(help="paper: attacks exactly as published.")] = None,
    victims_at_once: Annotated[str, typer.Option(help="Victims that share the device.")] = "auto",
    within: Annotated[
        float | None, typer.Option(help="Begin no piece after so many seconds.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of data sets; default: KEYHOLE_DATA.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the runs; default: runs/study-NAME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a paper's tables, piece by piece; pieces that have results are not run again."""
    found = find_study(name, STUDIES)
    folder = results or Path("results") / name
    chosen = found.chosen(pieces or [])
    if listed:
        tell_pieces(found, folder, as_json=as_json)
        return
    if not shown:
        with watched() as bar:
            for piece in found.run(
                chosen,
                results=folder,
                runs=runs or Path("runs") / f"study-{name}",
                data_dir=data_dir,
                device=device,
                progress=bar,
                within=within,
                victims_at_once=at_once(victims_at_once),
                victims=victims,
                iterations=iterations,
                parity=parity,
            ):
                print(f"done: {piece.name}", file=sys.stderr)
    require_results(folder, found)
    if as_json:
        typer.echo(json.dumps({"study": name, "rows": study_rows(found, folder)}))
    else:
        for line in study_lines(found, folder):
            typer.echo(line)


def tell_pieces(found: Study, folder: Path, *, as_json: bool) -> None:
    """Prints what a study is made of."""
    pieces = listing(found, folder)
    if as_json:
        typer.echo(json.dumps({"study": found.name, "pieces": pieces}))
        return
    console = Console()
    console.print(f"{found.title}: {found.paper}", highlight=False)
    for piece in pieces:
        mark = "done" if piece["done"] else "    "
        clients = f"{piece['clients']} clients of {piece['batch_size']}"
        attacks = ", ".join(piece["attacks"])
        line = f"  {mark}  {piece['piece']:<28} {clients:<20} {attacks}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def tell(result: AuditResult, page: str, *, as_json: bool) -> None:
    """Prints a result for people or for machines."""
    if as_json:
        typer.echo(json.dumps(result.to_json(), allow_nan=False))
        return
    console = Console()
    print_result(result, console)
    console.print(f"Findings: {result.run}", highlight=False, soft_wrap=True)
    console.print(f"Report:   {page}", highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: errors that the user can put right become one line and exit code 2."""
    try:
        app()
    except KeyholeError as error:
        print(f"keyhole: {error}", file=sys.stderr)
        sys.exit(2)
