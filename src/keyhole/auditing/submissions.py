"""Results that others made, as measurements; one that is not valid is left out, with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.atomic import read_json
from keyhole.auditing.json_schema import result_schema
from keyhole.auditing.measurement import Measurement, measure_findings
from keyhole.auditing.results import AuditResult
from keyhole.errors import DataMissing, KeyholeError, RunFolderError

CELL_KEY = "piece"
"""A key that cells of studies have, which the shipped table covers, and no result of an audit."""


@dataclass(frozen=True)
class Submissions:
    """What a folder of results holds.

    Args:
        measurements: What its valid results say, in the order of their files.
        valid: How many files were valid.
        left_out: One line for each file that was not, with the reason.
    """

    measurements: tuple[Measurement, ...]
    valid: int
    left_out: tuple[str, ...]


def read_submissions(places: Iterable[Path], *, known: Iterable[str] = ()) -> Submissions:
    """Reads every JSON file in some folders, and single files.

    Args:
        places: Folders, or single files.
        known: Results whose measurements are there already, by the ends of their paths.

    Raises:
        RunFolderError: A single file is not valid; in a folder, such a file is left out.
    """
    measured: list[Measurement] = []
    left_out: list[str] = []
    wanted = list(places)
    named = {place for place in wanted if not place.is_dir()}
    valid, covered = 0, tuple(f"/{each}" for each in known)
    for path in find_files(wanted):
        if f"/{path.as_posix()}".endswith(covered):
            continue
        try:
            found = read_json(path)
            if isinstance(found, dict) and CELL_KEY in found and path not in named:
                continue
            measured += read_submission(found, path)
        except KeyholeError as error:
            line = describe_refusal(path, error)
            if path in named:
                raise RunFolderError(line) from None
            left_out.append(line)
        else:
            valid += 1
    return Submissions(tuple(measured), valid, tuple(left_out))


def find_files(places: Iterable[Path]) -> list[Path]:
    """The JSON files of some folders, in the order of their paths."""
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise DataMissing(f"{place} does not exist: name a folder of results, or a file")
        found += sorted(place.rglob("*.json")) if place.is_dir() else [place]
    return list(dict.fromkeys(found))


def read_submission(found: Any, path: Path) -> list[Measurement]:
    """The measurements of one result; raises where it is not valid, or nothing was scored.

    Args:
        found: What the file holds.
        path: The file.
    """
    required: Sequence[str] = result_schema()["required"]
    missing = [key for key in required if not isinstance(found, dict) or key not in found]
    if missing:
        raise RunFolderError(f"{path} is no result of an audit: it has no {missing[0]}")
    result = AuditResult.from_json(found, source=str(path))
    measured = measure_findings(result.findings, date=result.date, source=path.as_posix())
    if not measured:
        raise RunFolderError(f"{path} says of no image whether it was read")
    return measured


def describe_refusal(path: Path, error: KeyholeError) -> str:
    """One line that names the file and says why it is left out."""
    return str(error) if str(path) in str(error) else f"{path}: {error}"
