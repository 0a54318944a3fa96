"""Results of experiments on disk: one JSON file for each, named after the experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keyhole.atomic import write_json
from keyhole.errors import RunFolderError

SHIPPED = Path(__file__).parent / "results"
"""The results that ship with the package: the repository's ``results/``."""

Results = dict[str, dict[str, Any]]
"""Results by the names of their experiments."""


def result_path(results: Path, name: str) -> Path:
    """The file in the folder ``results`` that holds an experiment's result."""
    return results / f"{name}.json"


def read_result(results: Path, name: str) -> dict[str, Any] | None:
    """An experiment's earlier result; None where it has not been run."""
    path = result_path(results, name)
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        raise RunFolderError(
            f"{path} cannot be read: remove it and run the experiment again"
        ) from None
    return found


def read_results(results: Path, names: Iterable[str]) -> Results:
    """The results that a folder holds, in the order of ``names``."""
    read = ((name, read_result(results, name)) for name in names)
    return {name: result for name, result in read if result is not None}


def write_result(results: Path, name: str, value: dict[str, Any]) -> None:
    """Writes a result so that the file is there as a whole or not at all."""
    write_json(result_path(results, name), value, indent=None)


def find_results(study: str, names: Iterable[str]) -> Path:
    """Where a study's results are: ``results/STUDY`` here if it has any, else those that ship."""
    here = Path("results") / study
    return here if any(result_path(here, name).is_file() for name in names) else SHIPPED / study
