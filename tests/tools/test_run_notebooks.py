"""The notebooks of the site run, and say what their kept output says."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from scripts import ROOT, load_script

pytest.importorskip("nbformat", reason="nbformat is missing: pip install 'keyhole[docs]'")
import nbformat

FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def printed(notebook: Any) -> list[str]:
    """What each cell printed, with numbers left out: they may differ in their last digits."""
    texts = [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return [re.sub(r"[-+]?\d[\d.,]*(e-?\d+)?", "#", text) for text in texts]


def count_pictures(notebook: Any) -> int:
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_the_five_notebooks_are_in_the_menu() -> None:
    menu = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(NAMES) == 5
    assert sorted(re.findall(r"<(\w+)>$", menu, re.M)) == NAMES
    assert all(f"]({name}.ipynb)" in menu for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_its_output_and_little_else(name: str) -> None:
    notebook = read(name)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    for cell in cells:
        assert cell.execution_count is None
        assert all(output.output_type != "error" for output in cell.outputs)
        assert all("\x1b" not in output.get("text", "") for output in cell.outputs)


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_notebook_lead_somewhere(name: str) -> None:
    words = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", words):
        assert target.startswith("http") or (FOLDER / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_run_anew_says_the_same(name: str) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if name == "flower_run" and importlib.util.find_spec("flwr") is None:
        pytest.skip("needs pip install 'keyhole[flower]'")
    script = load_script("tools/run_notebooks.py")
    now = script.run_notebook(FOLDER / f"{name}.ipynb")
    assert printed(now) == printed(read(name))
    assert count_pictures(now) == count_pictures(read(name)) > 0 or name in (
        "own_attack_and_defense",
        "flower_run",
    )


def test_what_a_slow_kernel_prints_in_pieces_is_kept_as_one_output() -> None:
    script = load_script("tools/run_notebooks.py")
    cell = nbformat.v4.new_code_cell("show()")
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="one\n"),
        nbformat.v4.new_output("stream", name="stderr", text="a warning\n"),
        nbformat.v4.new_output("stream", name="stdout", text="two\n"),
        nbformat.v4.new_output("display_data", {"text/plain": "a picture"}),
        nbformat.v4.new_output("stream", name="stdout", text="three\n"),
    ]
    script.clean_cell(cell)
    assert [output.get("text") for output in cell.outputs] == ["one\ntwo\n", None, "three\n"]
