"""How Sphinx builds the site: ``make docs`` writes ``docs/_build/html/index.html``."""

import json
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

import write_reference  # noqa: E402  (found by the path above)

from keyhole.version import __version__  # noqa: E402

project = "Keyhole"
author = "The Keyhole developers"
copyright = author  # noqa: A001  (Sphinx wants this name)
version = release = __version__

extensions = [
    "myst_nb",  # Markdown and notebooks
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tools/run_notebooks.py runs them, and their output is kept
nb_output_stderr = "remove"
smartquotes = False  # `--json` stays two hyphens
highlight_language = "none"  # a block that names no language holds commands

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"Keyhole {__version__}"

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
PAGES = {
    "examples/flower/README.md": "howto/my_flower_app.md",
    "examples/ci/README.md": "howto/ci.md",
    "examples/cluster/README.md": "howto/cluster_files.md",
    "examples/README.md": "howto/examples.md",
}
"""Files of the repository that pages of the site include."""


def lead_within_site(text: str, folder: Path) -> str:
    """Links of a text to files of the repository, as they work in the site.

    A link to a page, or to a file that a page includes, leads to the page; one to any other file
    becomes its words and path.
    """

    def replaced(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        file = (folder / target).resolve()
        if not file.exists() or not file.is_relative_to(ROOT):
            return link[0]
        path = file.relative_to(ROOT).as_posix()
        page = PAGES.get(path) or path.removeprefix("docs/")
        if path not in PAGES and not (path.startswith("docs/") and path.endswith(".md")):
            return f"{words} (`{path}`)"
        return f"[{words}](/{page}{anchor or ''})"

    return LINK.sub(replaced, text)


def change_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Makes the links of a page work in the site."""
    folder = (DOCS / page).parent
    if not (DOCS / f"{page}.ipynb").exists():
        source[0] = lead_within_site(source[0], folder)
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = lead_within_site("".join(cell["source"]), folder)
    source[0] = json.dumps(notebook)


def change_included(app: Sphinx, path: Path, page: str, source: list[str]) -> None:
    """Makes the links of a file that a page includes work in the site."""
    source[0] = lead_within_site(source[0], (DOCS / path).resolve().parent)


def write_tables(app: Sphinx) -> None:
    """Writes what ``reference/cli.md`` and ``reference/plan.md`` include."""
    write_reference.main([str(DOCS / "_build" / "reference")])


LACKING = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
}
"""What the theme leaves out: a heading's level, and a way for keyboards into code that scrolls."""


def make_accessible(app: Sphinx, error: Exception | None) -> None:
    """Adds to the built pages what they lack."""
    for file in Path(app.outdir).rglob("*.html") if error is None else ():
        text = file.read_text(encoding="utf-8")
        for lacking, whole in LACKING.items():
            text = text.replace(lacking, whole)
        file.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Adds what this site does besides."""
    app.connect("builder-inited", write_tables)
    app.connect("source-read", change_page)
    app.connect("include-read", change_included)
    app.connect("build-finished", make_accessible)
