from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyhole import plugins, registry
from keyhole.errors import BadValue, UnknownName
from keyhole.plugins import import_part
from keyhole.registry import Registry, label_of, part_name, spell_part


class Door:
    name: ClassVar[str]


@dataclass(frozen=True)
class Gate(Door):
    name: ClassVar[str] = "gate"
    width: float = 1.0


@dataclass(frozen=True)
class Hatch(Door):
    name: ClassVar[str] = "hatch"


MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from test_plugins_doors import Door

@dataclass(frozen=True)
class Portal(Door):
    height: int = 2
    name: ClassVar[str] = "portal"

class Arch(Door):
    name: ClassVar[str] = "gate"
    def __init__(self, stones, keystone=True):
        self.stones, self.keystone = stones, keystone
    class Inner(Door):
        pass

READY = Portal(height=9)
class Wall: pass
def make(height=1): return Portal(height=height)
def lie(): return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module ``strange_parts`` of doors in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    monkeypatch.setitem(sys.modules, "test_plugins_doors", sys.modules[__name__])
    (tmp_path / "strange_parts.py").write_text(MODULE)
    (tmp_path / "broken_parts.py").write_text("raise RuntimeError('not\\ntoday')")
    yield tmp_path
    for name in ("strange_parts", "broken_parts"):
        sys.modules.pop(name, None)


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes packages declare entry points of the group ``test.doors``."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [e for e in found if e.group == group]
    )
    plugins.find_entry_points.cache_clear()

    def add(name: str, value: str) -> None:
        found.append(EntryPoint(name, value, "test.doors"))

    yield add
    plugins.find_entry_points.cache_clear()


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Registry[Door]:
    monkeypatch.setattr(registry, "REGISTRIES", [])
    return Registry("door", {"gate": Gate, "hatch": Hatch}, base=Door, group="test.doors")


def test_a_part_is_found_by_its_place(folder: Path, doors: Registry[Door]) -> None:
    made: Any = doors.parse("strange_parts:Portal(height=5)")
    assert (type(made).__name__, made.height) == ("Portal", 5)
    assert spell_part(made) == "strange_parts:Portal(height=5)"
    assert doors.parse(spell_part(made)) == made


def test_a_ready_object_and_a_function_will_do(folder: Path, doors: Registry[Door]) -> None:
    ready: Any = doors.parse("strange_parts:READY")
    made: Any = doors.parse("strange_parts:make(height=9)")
    assert ready == made
    assert doors.parse(str(spell_part(ready))) == ready
    with pytest.raises(BadValue, match="is an object and takes no parameters"):
        doors.parse("strange_parts:READY(height=1)")


def test_a_plain_class_is_spelt_by_what_it_keeps(folder: Path, doors: Registry[Door]) -> None:
    made = doors.parse("strange_parts:Arch(stones=7)")
    assert spell_part(made) == "strange_parts:Arch(stones=7, keystone=True)"
    assert label_of(made) == "strange_parts:Arch(stones=7)"
    with pytest.raises(BadValue, match=r"door strange_parts:Arch: .*'stones'"):
        doors.parse("strange_parts:Arch")


def test_a_class_within_a_class_is_found(folder: Path, doors: Registry[Door]) -> None:
    made = doors.parse("strange_parts:Arch.Inner")
    assert spell_part(made) == "strange_parts:Arch.Inner"


@pytest.mark.parametrize("name", ["Wall", "lie", "Portal.name"])
def test_what_is_of_another_kind_is_refused(folder: Path, doors: Registry[Door], name: str) -> None:
    with pytest.raises(
        BadValue, match=rf"strange_parts:{name} is not a door: it must extend .*Door"
    ):
        doors.parse(f"strange_parts:{name}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere_to_be_found:Door", "cannot import 'nowhere_to_be_found' (No module named"),
        ("broken_parts:Door", "cannot import 'broken_parts' (not): a door of your own is named"),
        ("strange_parts:Missing", "strange_parts has nothing to call by the name 'Missing'"),
        ("strange_parts:", "strange_parts has nothing to call by the name ''"),
        (":Door", "':Door' is no door: write package.module:Name"),
        ("..os:path", "is no door: write package.module:Name"),
        ("strange_parts:Door:name", "nothing to call by the name 'Door:name'"),
        ("os/path:join", "is no door: write package.module:Name"),
    ],
)
def test_what_cannot_be_found_is_told_in_one_line(
    folder: Path, doors: Registry[Door], text: str, words: str
) -> None:
    with pytest.raises(UnknownName) as raised:
        doors.parse(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_strangers_text_cannot_name_code(folder: Path, doors: Registry[Door]) -> None:
    assert doors.parse_builtin("gate(width=2)") == Gate(2.0)
    with pytest.raises(UnknownName, match="unknown door 'broken_parts:Door'"):
        doors.parse_builtin("broken_parts:Door")
    assert "broken_parts" not in sys.modules


def test_a_registry_without_a_base_is_closed(folder: Path) -> None:
    with pytest.raises(UnknownName, match="unknown door"):
        Registry("door", {"gate": Gate}).parse("strange_parts:Portal")


def test_a_package_adds_a_name(
    folder: Path, declare: Callable[..., None], doors: Registry[Door]
) -> None:
    declare("big-door", "strange_parts:Portal")
    assert doors.parse("gate") == Gate()
    assert "strange_parts" not in sys.modules
    sys.path.insert(0, str(folder))
    made = doors.parse("big-door(height=4)")
    assert spell_part(made) == "big-door(height=4)"
    assert part_name(made) == "big-door"
    assert doors.parse(spell_part(made)) == made
    assert doors.names() == ["gate", "hatch"]
    with pytest.raises(UnknownName, match=r"'big-dor': did you mean big-door\?.*gate, hatch"):
        doors.parse("big-dor")


def test_a_broken_package_costs_one_line_and_not_the_others(
    folder: Path,
    declare: Callable[..., None],
    doors: Registry[Door],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sys.path.insert(0, str(folder))
    declare("broken", "broken_parts:Door")
    declare("wall", "strange_parts:Wall")
    declare("portal", "strange_parts:Portal")
    with caplog.at_level(logging.WARNING, logger="keyhole"):
        assert [plugin.name for plugin, _ in doors.load_installed()] == ["portal"]
        assert [plugin.name for plugin, _ in doors.load_installed()] == ["portal"]
    broken, wall = caplog.messages
    assert (
        "door 'broken' of the package broken_parts cannot be loaded (RuntimeError: not)" in broken
    )
    assert "wall is not a door" in wall
    assert "strange_parts" in wall
    with pytest.raises(UnknownName, match="of the package broken_parts cannot be loaded"):
        doors.parse("broken")
    assert spell_part(doors.parse("portal")) == "portal(height=2)"


def test_keyholes_own_name_wins_with_a_note(
    folder: Path,
    declare: Callable[..., None],
    doors: Registry[Door],
    caplog: pytest.LogCaptureFixture,
) -> None:
    sys.path.insert(0, str(folder))
    declare("gate", "strange_parts:Portal")
    declare("twice", "strange_parts:Portal")
    declare("twice", "strange_parts:Arch")
    with caplog.at_level(logging.WARNING, logger="keyhole"):
        assert doors.parse("gate") == Gate()
        assert [plugin.name for plugin, _ in doors.load_installed()] == ["twice"]
        assert [plugin.name for plugin, _ in doors.load_installed()] == ["twice"]
    assert len(caplog.messages) == 2
    assert "door 'gate'" in caplog.messages[0]
    assert "Keyhole has one of that name: ask for it by strange_parts:Portal" in caplog.messages[0]
    assert "ask for it by strange_parts:Arch" in caplog.messages[1]


def test_a_declared_name_that_is_taken_does_not_count(folder: Path, doors: Registry[Door]) -> None:
    assert part_name(doors.parse("strange_parts:Portal")) == "portal"
    assert part_name(doors.parse("strange_parts:Arch(stones=1)")) == "strange_parts:Arch"
    assert part_name(Gate()) == "gate"


def test_objects_and_texts_are_resolved_alike(doors: Registry[Door]) -> None:
    assert doors.resolve("gate(width=3)") == doors.resolve(Gate(3.0))
    with pytest.raises(BadValue, match=r"door Gate is a class: pass Gate\(\.\.\.\)"):
        doors.resolve(Gate)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="builtins:int is not a door"):
        doors.resolve(3)  # type: ignore[arg-type]


def test_the_current_folder_is_looked_in_first(folder: Path) -> None:
    assert import_part("strange_parts:READY.height", "door") == 9
