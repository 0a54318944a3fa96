"""The house: one room for each station, and each room imports only from rooms before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import keyhole

SOURCE = Path(keyhole.__file__).parent
ROOMS = (
    *("data", "models", "defenses", "federation", "threat"),
    *("attacks", "metrics", "audit", "report", "studies", "cli"),
)
FACADES = {"__init__.py", "__main__.py"}
HEAVY = {"flwr", "opacus", "ray"}
FILES = sorted(SOURCE.rglob("*.py"))


def room_of(parts: tuple[str, ...]) -> str | None:
    """The room that a dotted path below ``keyhole`` lies in; None for the small shared modules."""
    first = parts[0] if parts else ""
    return first if first in ROOMS else None


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


def rooms_entered(tree: ast.AST) -> set[str]:
    paths = [path[1:] for path in imported(tree) if path[0] == "keyhole"]
    return {room for path in paths if (room := room_of(path)) is not None}


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


def packages_on_import(tree: ast.Module) -> set[str]:
    statements = run_on_import(tree.body)
    only = [s for s in statements if isinstance(s, ast.Import | ast.ImportFrom)]
    return {path[0] for path in imported(ast.Module(only, []))}


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(SOURCE).as_posix())
def test_a_file_imports_only_from_rooms_before_its_own(file: Path) -> None:
    place = file.relative_to(SOURCE).with_suffix("").parts
    if len(place) == 1 and file.name in FACADES:
        return
    entered = rooms_entered(parsed(file))
    own = room_of(place)
    if own is None:
        assert not entered, "a small shared module belongs to all rooms and enters none"
    else:
        allowed = ROOMS[: ROOMS.index(own) + 1]
        assert entered <= set(allowed)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(SOURCE).as_posix())
def test_heavy_extras_are_not_imported_with_the_package(file: Path) -> None:
    if file.parent == SOURCE / "federation" / "flower":
        return
    assert not packages_on_import(parsed(file)) & HEAVY


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    places = [p for p in SOURCE.rglob("*") if "__pycache__" not in p.parts]
    assert not [p for p in places if p.stem in drawers]


def test_every_folder_is_a_room_or_inside_one() -> None:
    folders = {f.relative_to(SOURCE).parts[0] for f in FILES if f.parent != SOURCE}
    assert folders <= set(ROOMS)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from keyhole.attacks.base import Attack", {"attacks"}),
        ("from keyhole import threat, errors", {"threat"}),
        ("import keyhole.audit.plan", {"audit"}),
        ("def f():\n    from keyhole.report import page", {"report"}),
        ("from keyhole.errors import BadValue\nimport torch", set()),
    ],
)
def test_the_check_sees_every_way_to_enter_a_room(code: str, expected: set[str]) -> None:
    assert rooms_entered(ast.parse(code)) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import ray.tune", {"ray"}),
        ("try:\n    import flwr\nexcept ImportError:\n    import opacus", {"flwr", "opacus"}),
        ("class A:\n    from ray import tune", {"ray"}),
        ("def f():\n    import flwr", set()),
    ],
)
def test_the_check_sees_what_runs_on_import(code: str, expected: set[str]) -> None:
    assert packages_on_import(ast.parse(code)) == expected
