"""What is public is what ``__all__`` says."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import keyhole
from keyhole.lazy import imports_for_type_checkers
from source_code import LIBRARY, parsed

PACKAGES = sorted(LIBRARY.rglob("__init__.py"))


def module_of(file: Path) -> str:
    """The dotted name of a package, by its ``__init__.py``."""
    return ".".join(file.parent.relative_to(LIBRARY.parent).parts)


def binds_names(tree: ast.Module) -> bool:
    """Whether more than a docstring stands in a file."""
    return any(not isinstance(node, ast.Expr) for node in tree.body)


@pytest.mark.parametrize("file", PACKAGES, ids=module_of)
def test_a_package_that_has_names_says_which_are_public(file: Path) -> None:
    if not binds_names(parsed(file)):
        return
    package = importlib.import_module(module_of(file))
    public = package.__all__
    assert len(public) == len(set(public))
    assert [name for name in public if not hasattr(package, name)] == []
    assert [name for name in public if name.startswith("_") and name != "__version__"] == []


def test_the_top_level_has_no_other_names() -> None:
    source = (LIBRARY / "__init__.py").read_text(encoding="utf-8")
    offered = {name for name, _ in imports_for_type_checkers(source)}
    assert offered | {"__version__"} == set(keyhole.__all__)


def test_public_parts_are_reached_from_the_top_level() -> None:
    rooms = {name for name in keyhole.__all__ if (LIBRARY / name / "__init__.py").exists()}
    assert {"attacks", "auditing", "data", "defenses", "federation", "metrics", "models"} <= rooms
