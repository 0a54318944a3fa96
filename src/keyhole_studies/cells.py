"""Reads a study from the ``cells.toml`` of its package.

    name = "dia"                       # the study: its name, what it is about, and the paper
    title = "Dropout against gradient inversion"
    paper = "Scheliga et al. 2023 (DIA)"

    [shared.mlp]                       # fields that several cells have in common
    kind = "audit"
    stage.model = "mlp"

    [shared.p25]
    stage.defenses = ["dropout(p=0.25)"]

    [cells]                            # one line per experiment, in the order in which they run
    mlp-p25 = { like = ["mlp", "p25"], paper.ig.ssim = 0.79 }

A cell has the fields of all shared tables that ``like`` names and its own; later ones replace
earlier ones, tables are joined. ``kind`` says which class of experiment the fields belong to. A
cell's name identifies it, and names the file of its result; nothing is read out of it.

``[labels.WHAT]`` holds words for tables and figures, ``[published.TABLE]`` rows of the paper's
tables that stand beside the results of several experiments.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from keyhole.errors import BadValue, one_line
from keyhole.settings import Seed, make_settings
from keyhole.spelling import shorten, unknown_name
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import Experiment, Study

Fields = Mapping[str, Any]
Kinds = Mapping[str, type[Experiment]]

AUDITS: Kinds = {"audit": AuditExperiment}


class CellFile(BaseModel):
    """The tables of a ``cells.toml``; ``waits`` is why its cells have no result yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    paper: str
    seed: Seed = 0
    waits: str = ""
    shared: dict[str, dict[str, Any]] = {}
    cells: dict[str, dict[str, Any]]
    labels: dict[str, dict[str, str]] = {}
    published: dict[str, dict[str, tuple[float, ...]]] = {}


def read_study(
    package: str,
    kinds: Kinds = AUDITS,
    *,
    format_tables: Callable[[Study, Path], Iterator[str]] | None = None,
    draw_figures: Callable[[Study, Path, Path], list[Path]] | None = None,
) -> Study:
    """The study that a package's ``cells.toml`` describes.

    Args:
        package: The package, by its dotted name.
        kinds: The class of experiment for each ``kind`` that its cells may have.
        format_tables: How results are shown; None: one line per attack.
        draw_figures: How figures are drawn; None: there are none.
    """
    text = resources.files(package).joinpath("cells.toml").read_text(encoding="utf-8")
    return parse_study(text, kinds, format_tables=format_tables, draw_figures=draw_figures)


def parse_study(
    text: str,
    kinds: Kinds = AUDITS,
    *,
    format_tables: Callable[[Study, Path], Iterator[str]] | None = None,
    draw_figures: Callable[[Study, Path, Path], list[Path]] | None = None,
) -> Study:
    """The study that a text in TOML describes; see :func:`read_study`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadValue(f"a study's cells cannot be read as TOML ({one_line(error)})") from None
    file = make_settings(CellFile, tables, where=" of a study's cells")
    return Study(
        name=file.name,
        title=file.title,
        paper=file.paper,
        experiments=tuple(make_experiment(file, name, kinds) for name in file.cells),
        seed=file.seed,
        labels=file.labels,
        published=file.published,
        format_tables=format_tables,
        draw_figures=draw_figures,
    )


def make_experiment(file: CellFile, name: str, kinds: Kinds) -> Experiment:
    """The experiment of one cell; what is wrong with it is said in one line."""
    where = f"cell {name} of study {file.name}"
    fields = {"waits": file.waits, **collect_fields(file, name)}
    kind = fields.pop("kind", None)
    if kind not in kinds:
        raise unknown_name(f"kind of {where}", str(kind), kinds)
    try:
        return TypeAdapter(kinds[kind]).validate_python({"name": name, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        got = f", got {shorten(first['input'])}"
        raise BadValue(f"{where}: {place}: {first['msg'].lower()}{got}") from None


def collect_fields(file: CellFile, name: str) -> Fields:
    """A cell's own fields joined with those of the shared tables that it names."""
    own = dict(file.cells[name])
    like = own.pop("like", [])
    for shared in like:
        if shared not in file.shared:
            raise unknown_name(f"shared table of cell {name}", str(shared), file.shared)
    return reduce(join_tables, [*(file.shared[shared] for shared in like), own], {})


def join_tables(fields: Fields, more: Fields) -> dict[str, Any]:
    """``fields`` with those of ``more``, tables joined key by key.

    >>> join_tables({"stage": {"model": "mlp", "steps": 1}}, {"stage": {"steps": 4}, "figure": "2"})
    {'stage': {'model': 'mlp', 'steps': 4}, 'figure': '2'}
    """
    joined = dict(fields)
    for key, value in more.items():
        before = joined.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        joined[key] = join_tables(before, value) if both else value  # type: ignore[arg-type]
    return joined
