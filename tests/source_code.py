"""What files of the two packages import, read without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import keyhole
import keyhole_studies

LIBRARY = Path(keyhole.__file__).parent
STUDIES = Path(keyhole_studies.__file__).parent


def imported(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Every module path a file imports, with the names taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            for alias in node.names:
                yield (*str(node.module).split("."), alias.name)


def run_on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: all but those inside functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from run_on_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from run_on_import(handler.body)


def imported_at_once(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """What a file imports when it is imported itself."""
    statements = run_on_import(tree.body)
    only = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
    return imported(ast.Module(only, []))


def packages_on_import(tree: ast.Module) -> set[str]:
    return {path[0] for path in imported_at_once(tree)}


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
