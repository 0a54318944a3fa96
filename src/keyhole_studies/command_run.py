"""``keyhole study``: what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyhole.atomic import check_writable
from keyhole.cli import PlaceRequest, show_progress
from keyhole.errors import BadValue
from keyhole.terminal import log, say_json, say_unwrapped
from keyhole_studies import STUDIES, load_study
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.documents import Templates, find_pages, write_pages
from keyhole_studies.result_files import SHIPPED, find_results
from keyhole_studies.show import (
    format_list,
    format_study,
    list_experiments,
    make_result_rows,
    require_results,
)
from keyhole_studies.summary import summarise


@dataclass(frozen=True)
class Request:
    """What the command line asks for; see the options of ``keyhole study``."""

    study: str
    experiments: tuple[str, ...]
    listed: bool
    shown: bool
    figures: Path | None
    results: Path | None
    within: float | None
    device: str
    data_dir: str | None
    runs: Path
    victims_at_once: int | None
    changes: Mapping[str, Any]
    as_json: bool
    place: PlaceRequest = field(default_factory=PlaceRequest)


def require_name(name: str | None) -> str:
    """Raises :class:`BadValue` where no study is named."""
    if name is None:
        raise BadValue(f"name a study: {', '.join(STUDIES)}")
    return name


def write_docs(name: str | None, results: Path) -> None:
    """Writes the tables of README and docs here anew from results, and says which pages changed.

    Args:
        name: Must be None: tables quote several studies.
        results: The folder of all studies' results.
    """
    if name is not None:
        raise BadValue("--write-docs writes the tables of all studies: leave the study's name out")
    root = Path()
    templates = Templates(root / "docs" / "tables", results)
    if not templates.names():
        raise BadValue(f"{templates.folder} holds no templates: run this in Keyhole's repository")
    pages = find_pages(root)
    changed = list(write_pages(pages, templates))
    for page in changed:
        log(f"written: {page}")
    log(f"{len(pages)} pages take figures from {results}; {len(changed)} changed")


def run_command(request: Request) -> None:
    """Lists, runs or shows a study's experiments."""
    study = load_study(request.study)
    folder = request.results or default_folder(study, shown=request.shown)
    chosen = study.choose(request.experiments)
    with show_progress() as bar:
        context = StudyContext(
            runs=request.runs,
            data_dir=request.data_dir,
            device=request.device,
            progress=bar,
            victims_at_once=request.victims_at_once,
            changes=request.changes,
        )
        if request.listed:
            print_list(study, list_experiments(chosen, folder, context), as_json=request.as_json)
            return
        if not request.shown:
            for done in run_experiments(study, chosen, context, folder, request):
                log(f"done: {done.name}")
    require_results(study, folder)
    if folder.parent == SHIPPED:
        log("note: these are the results that ship with keyhole; --results names other ones")
    if request.figures is not None:
        for path in draw_figures(study, folder, request.figures):
            log(f"drawn: {path}")
    print_results(study, folder, as_json=request.as_json)


def run_experiments(
    study: Study,
    chosen: Sequence[Experiment],
    context: StudyContext,
    results: Path,
    request: Request,
) -> Iterator[Experiment]:
    """Runs experiments one after another, or in pieces where that is asked for."""
    place = request.place
    if not place.asked:
        return study.run(chosen, context, results=results, within=request.within)
    if request.within is not None:
        raise BadValue("within: it is for experiments one after another: leave it or --on out")
    from keyhole_studies.pieces import run_in_pieces

    return run_in_pieces(
        study,
        chosen,
        context,
        results=results,
        store=place.open_store(request.runs),
        on=place.make_place(),
        machine=place.make_machine(request.device, request.data_dir),
    )


def default_folder(study: Study, *, shown: bool) -> Path:
    """``results/NAME`` to write to; to show, the results that ship where there are none."""
    if shown:
        return find_results(study.name, [experiment.name for experiment in study.experiments])
    return Path("results") / study.name


def print_list(study: Study, listed: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        say_json({"study": study.name, "pieces": listed})
        return
    for line in format_list(study, listed):
        say_unwrapped(line)


def print_results(study: Study, folder: Path, *, as_json: bool) -> None:
    if as_json:
        rows = make_result_rows(study, folder)
        say_json({"study": study.name, "rows": rows, "summary": summarise(study, folder)})
        return
    for line in format_study(study, folder):
        say_unwrapped(line)


def draw_figures(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws the study's figures into a folder and returns their paths."""
    if study.draw_figures is None:
        raise BadValue(f"study {study.name!r} has no figures to draw")
    check_writable(folder)
    return study.draw_figures(study, results, folder)
