"""The studies and the tools use Keyhole through its public API alone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from scripts import ROOT
from source_code import LIBRARY, STUDIES, imported, parsed

FILES = [*sorted(STUDIES.rglob("*.py")), *sorted((ROOT / "tools").glob("*.py"))]


def is_public(module: tuple[str, ...], name: str) -> bool:
    """Whether a package, or a small shared module, lists a name in its ``__all__``.

    A shared module without ``__all__`` is public as a whole.
    """
    place = LIBRARY.parent.joinpath(*module)
    shared = len(module) == 2 and place.with_suffix(".py").is_file()
    if not (shared or place.is_dir()):
        return False
    listed = getattr(importlib.import_module(".".join(module)), "__all__", None)
    return shared if listed is None else name in listed


def private_imports(tree: ast.AST) -> list[str]:
    """What a file imports from Keyhole that Keyhole does not offer."""
    paths = [path for path in imported(tree) if path[0] == "keyhole" and len(path) > 1]
    return [".".join(path) for path in paths if not is_public(path[:-1], path[-1])]


@pytest.mark.parametrize("file", FILES, ids=lambda file: "/".join(file.parts[-2:]))
def test_only_public_names_are_imported(file: Path) -> None:
    assert private_imports(parsed(file)) == []


@pytest.mark.parametrize(
    ("code", "private"),
    [
        ("from keyhole.auditing import Plan, Stage", []),
        ("from keyhole.errors import KeyholeError\nimport keyhole\nimport torch", []),
        ("from keyhole_studies.base import Study", []),
        ("from keyhole.auditing.plan import Plan", ["keyhole.auditing.plan.Plan"]),
        ("from keyhole.auditing import plan", ["keyhole.auditing.plan"]),
        ("import keyhole.auditing.plan", ["keyhole.auditing.plan"]),
        ("def f():\n    from keyhole.metrics import jet", ["keyhole.metrics.jet"]),
    ],
)
def test_the_check_sees_private_names(code: str, private: list[str]) -> None:
    assert private_imports(ast.parse(code)) == private
