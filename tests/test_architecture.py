"""The house: one room for each station, and each room imports only from rooms before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts import ROOT
from source_code import LIBRARY, STUDIES, imported, imported_at_once, packages_on_import, parsed

ROOMS = (
    *("data", "models", "defenses", "obfuscation", "federation", "threat"),
    *("attacks", "metrics", "auditing", "scale", "frontier", "report", "testing", "cli"),
)
TEXT = {".py", ".toml", ".j2"}
WHOLE_SYSTEM = {"torture", "foreign_flower", "examples"}
"""Folders of tests that are about no single package."""
FACADES = {"__init__.py", "__main__.py"}
HEAVY = {"flwr", "opacus", "peft", "ray"}
FILES = sorted(LIBRARY.rglob("*.py"))
ALL_FILES = [*FILES, *sorted(STUDIES.rglob("*.py"))]


def room_of(parts: tuple[str, ...]) -> str | None:
    """The room that a dotted path below ``keyhole`` lies in; None for the small shared modules."""
    first = parts[0] if parts else ""
    return first if first in ROOMS else None


def rooms_entered(tree: ast.AST) -> set[str]:
    paths = [path[1:] for path in imported(tree) if path[0] == "keyhole"]
    return {room for path in paths if (room := room_of(path)) is not None}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(LIBRARY).as_posix())
def test_a_file_imports_only_from_rooms_before_its_own(file: Path) -> None:
    place = file.relative_to(LIBRARY).with_suffix("").parts
    if len(place) == 1 and file.name in FACADES:
        return
    entered = rooms_entered(parsed(file))
    own = room_of(place)
    if own is None:
        assert not entered, "a small shared module belongs to all rooms and enters none"
    else:
        allowed = ROOMS[: ROOMS.index(own) + 1]
        assert entered <= set(allowed)


@pytest.mark.parametrize("file", ALL_FILES, ids=lambda f: f.relative_to(LIBRARY.parent).as_posix())
def test_heavy_extras_are_not_imported_with_the_package(file: Path) -> None:
    if file.parent == LIBRARY / "federation" / "flower":
        return
    assert not packages_on_import(parsed(file)) & HEAVY


@pytest.mark.parametrize("file", [f for f in LIBRARY.rglob("*") if f.suffix in TEXT], ids=str)
def test_the_library_knows_nothing_of_the_studies(file: Path) -> None:
    """Neither by an import nor by a name that is looked up later."""
    assert "keyhole_studies" not in file.read_text(encoding="utf-8")


def test_what_an_attack_is_names_no_solver() -> None:
    """A defense says what may be assumed of it; which solver uses that is each attack's affair."""
    seen, waiting = set[str](), ["base"]
    while waiting:
        name = waiting.pop()
        file = LIBRARY / "attacks" / f"{name}.py"
        paths = [p[2] for p in imported_at_once(parsed(file)) if p[:2] == ("keyhole", "attacks")]
        waiting += [path for path in paths if path not in seen]
        seen |= {name, *paths}
    assert seen == {"base", "checkpointer", "returned_images"}


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert not [file for file in ALL_FILES if {*file.parts, file.stem} & drawers]


def test_every_folder_is_a_room_or_inside_one() -> None:
    folders = {f.relative_to(LIBRARY).parts[0] for f in FILES if f.parent != LIBRARY}
    assert folders <= set(ROOMS)


def folders_below(root: Path, pattern: str) -> set[Path]:
    return {file.parent.relative_to(root) for file in root.rglob(pattern)}


def test_every_package_has_a_folder_of_tests() -> None:
    tested = folders_below(ROOT / "tests", "test_*.py")
    assert folders_below(LIBRARY, "*.py") <= tested


def test_every_folder_of_tests_is_about_a_folder_of_code() -> None:
    library = folders_below(LIBRARY, "*.py")
    studies = {"studies" / folder for folder in folders_below(STUDIES, "*.py")}
    tested = folders_below(ROOT / "tests", "test_*.py")
    whole_system = {Path(name) for name in WHOLE_SYSTEM}
    assert tested <= library | studies | whole_system | {Path("tools"), Path("benchmarks")}


def test_every_shipped_file_of_weights_has_its_tool() -> None:
    shipped = [*LIBRARY.rglob("*.safetensors"), *(ROOT / "results").rglob("*.safetensors")]
    text = (ROOT / "tools" / "README.md").read_text(encoding="utf-8")
    scripts = dict(re.findall(r"^\| `(.+?)` \| `(.+?)` \|", text, re.M))
    assert {file.relative_to(ROOT).as_posix() for file in shipped} == set(scripts)
    assert all((ROOT / "tools" / script).is_file() for script in scripts.values())


def test_every_tool_has_its_tests() -> None:
    tools = {file.stem for file in (ROOT / "tools").glob("*.py")}
    tested = {file.stem.removeprefix("test_") for file in (ROOT / "tests/tools").glob("test_*.py")}
    assert tools <= tested


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from keyhole.attacks.base import Attack", {"attacks"}),
        ("from keyhole import threat, errors", {"threat"}),
        ("import keyhole.auditing.plan", {"auditing"}),
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
