"""Runs notebooks of the site and keeps their output: ``python tools/run_notebooks.py [NAME ...]``.

Each runs in an empty folder of its own, with this environment's ``keyhole`` on the PATH. What it
printed and drew is written back into ``docs/notebooks/NAME.ipynb``; times and numbers of runs are
not, so that a run that shows the same changes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = 600
"""The longest that one cell may take."""


@contextmanager
def own_commands() -> Iterator[None]:
    """Puts this environment's programs first on the PATH, plainly and without colours."""
    before = dict(os.environ)
    own = str(Path(sys.executable).parent)
    os.environ |= {"PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    os.environ |= {"COLUMNS": "110", "PYTHONWARNINGS": "ignore", "TERM": "dumb"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """Runs a notebook from its first cell; raises what a cell raises.

    Args:
        path: The notebook; the file stays as it is.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder, own_commands():
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    for cell in notebook.cells:
        clean_cell(cell)
    return notebook


def clean_cell(cell: Any) -> None:
    """Removes what differs from run to run, and what was printed as progress.

    Args:
        cell: A cell of a notebook that was run; it is changed.
    """
    cell.metadata = {}
    if cell.cell_type != "code":
        return
    cell.execution_count = None
    cell.outputs = join_printed([o for o in cell.outputs if o.get("name") != "stderr"])
    for output in cell.outputs:
        if "execution_count" in output:
            output.execution_count = None
        if "text" in output:
            output.text = STYLES.sub("", output.text)


def join_printed(outputs: Sequence[Any]) -> list[Any]:
    """What a cell printed without a picture in between, as one output: a slow kernel sends pieces.

    Args:
        outputs: A cell's outputs; those that others are joined to are changed.
    """
    joined: list[Any] = []
    for output in outputs:
        printed = output.get("output_type") == "stream"
        if printed and joined and joined[-1].get("output_type") == "stream":
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("names", nargs="*", help="notebooks; default: all", metavar="NAME")
    names = parser.parse_args(arguments).names or sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        nbformat.write(run_notebook(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
