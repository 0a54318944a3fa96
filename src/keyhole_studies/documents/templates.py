"""Templates of tables: text in which Jinja expressions stand for figures of results.

    {% set found = result("mjp/privacy-deit-g10") %}
    | `patch-lstsq` | {{ row(found, "patch-lstsq").ssim | score }} |

``result`` reads a file of the folder of results, which ``has`` looks for; ``row`` reads one attack
of an audit, ``finding`` one finding of ``--json``, and ``cells`` counts a study's cells. A file, an
attack or a value that is not there is an error: nothing is left empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound
from jinja2.sandbox import SandboxedEnvironment

from keyhole.errors import BadValue, one_line
from keyhole_studies import load_study
from keyhole_studies.audits import find_row
from keyhole_studies.result_files import read_result
from keyhole_studies.summary import count_cells, read_cells

SUFFIX = ".md.j2"


class Templates:
    """The templates of a folder, and expressions, filled in from a folder of results.

    Args:
        folder: Where the templates are, ``NAME.md.j2``.
        results: The folder of results.
    """

    def __init__(self, folder: Path, results: Path) -> None:
        self.folder = folder
        self._environment = SandboxedEnvironment(
            loader=FileSystemLoader(folder),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # Markdown, not HTML
        )
        self._environment.filters.update(FILTERS)
        read = make_reader(results)
        self._environment.globals.update(
            result=read,
            has=lambda name: read_result(results, name) is not None,
            row=summarise_row,
            finding=lambda name, key: find_finding(read(name), key),
            cells=lambda study: count_cells(read_cells(load_study(study), results / study)),
        )

    def names(self) -> list[str]:
        """The names of all templates."""
        return sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}"))

    def fill(self, name: str) -> str:
        """The text of a template, without empty lines around it."""
        try:
            return self._environment.get_template(name + SUFFIX).render().strip("\n")
        except TemplateNotFound:
            raise BadValue(f"{self.folder} has no template {name}{SUFFIX}") from None
        except (TemplateError, TypeError, KeyError, IndexError) as error:
            raise BadValue(f"template {name}{SUFFIX}: {one_line(error)}") from None

    def evaluate(self, expression: str) -> str:
        """The text of one expression."""
        try:
            return self._environment.from_string("{{ " + expression + " }}").render()
        except (TemplateError, TypeError, KeyError, IndexError) as error:
            raise BadValue(f"expression {expression!r}: {one_line(error)}") from None


def make_reader(results: Path) -> Callable[[str], dict[str, Any]]:
    """What reads ``STUDY/NAME`` from a folder of results, each file once."""

    @cache
    def read(name: str) -> dict[str, Any]:
        found = read_result(results, name)
        if found is None:
            raise BadValue(f"{results / name}.json does not exist, and a table quotes it")
        return found

    return read


def summarise_row(
    result: Mapping[str, Any], attack: str, *, adaptive: bool = False
) -> dict[str, Any]:
    """The means of an attack's metrics, and its iterations.

    Args:
        result: An audit's result.
        attack: The attack, with or without ``-read``.
        adaptive: Whether by the attacker who knows the defense.
    """
    row = result["rows"].get(attack)
    if row is None or (row["attacker"] == "adaptive") != adaptive:
        row = find_row(result, attack, adaptive=adaptive)
    if row is None:
        raise BadValue(f"{result['piece']}.json has no row of {attack}, adaptive: {adaptive}")
    means = {name: metric["mean"] for name, metric in row["metrics"].items()}
    return {**means, "iterations": row["iterations"], "seconds": row["seconds"]}


def find_finding(result: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The finding of an audit's ``--json`` whose key begins so.

    Args:
        result: What the audit printed.
        key: The beginning of the finding's key.
    """
    found = [f for f in result["findings"] if f["key"].startswith(key)]
    if len(found) != 1:
        raise BadValue(f"{len(found)} findings have a key that begins with {key!r}, not one")
    first: dict[str, Any] = found[0]
    return first


def quantile(values: Sequence[float], share: float) -> float:
    """
    >>> quantile([1.0, 2.0, 4.0], 0.5)
    2.0
    """
    return float(np.quantile(values, share))


def format_fixed(value: float, digits: int = 1) -> str:
    """A number with so many digits after its point, as ``keyhole study --show`` rounds it.

    >>> format_fixed(24.87), format_fixed(0.25, 3)
    ('24.9', '0.250')
    """
    return f"{value:.{digits}f}"


def format_score(value: float, digits: int = 3) -> str:
    """A value of at most about 1, without the zero before its point.

    >>> format_score(0.4331), format_score(1.0), format_score(-0.25, 2)
    ('.433', '1.000', '-.25')
    """
    text = format_fixed(value, digits)
    sign = "-" if text.startswith("-") else ""
    return sign + text.removeprefix(sign).removeprefix("0")


def format_percent(value: float, digits: int = 0) -> str:
    """A share as a number of percent, without the sign.

    >>> format_percent(0.375), format_percent(0.527, 1)
    ('38', '52.7')
    """
    return format_fixed(100 * value, digits)


def format_count(value: float) -> str:
    """
    >>> format_count(1000.0)
    '1,000'
    """
    return f"{value:,.0f}"


def format_significant(value: float, digits: int = 3) -> str:
    """
    >>> format_significant(0.0525, 2), format_significant(2.32), format_significant(0.152)
    ('0.052', '2.32', '0.152')
    """
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    return format_fixed(value, max(0, digits - before))


FILTERS: dict[str, Callable[..., Any]] = {
    "fixed": format_fixed,
    "score": format_score,
    "percent": format_percent,
    "count": format_count,
    "significant": format_significant,
    "quantile": quantile,
}
