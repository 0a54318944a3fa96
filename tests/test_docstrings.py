"""Every parameter of the public API is explained in an ``Args:`` section."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from source_code import LIBRARY

PACKAGES = [
    ".".join(file.parent.relative_to(LIBRARY.parent).parts)
    for file in sorted(LIBRARY.rglob("__init__.py"))
]


def explained_in(docstring: str | None) -> set[str]:
    """The parameters that the ``Args:`` section of a docstring names."""
    section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", inspect.cleandoc(docstring or ""), re.M)
    return set(re.findall(r"^ {4}\*{0,2}(\w+):", section[1], re.M)) if section else set()


def parameters_of(function: Callable[..., Any]) -> list[str]:
    names = inspect.signature(function).parameters
    return [name for name in names if name not in {"self", "cls"} and not name.startswith("_")]


def plain_function(member: object) -> Callable[..., Any] | None:
    """A method, a class method or a static method as a function; None for anything else."""
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    return member if inspect.isfunction(member) else None


def unexplained_by_class(owner: type) -> Iterator[str]:
    """Parameters of a class and of its methods; an override may leave them to what it overrides."""
    if not issubclass(owner, enum.Enum | Exception):
        documented = set[str]().union(
            *(
                explained_in(base.__doc__) | explained_in(base.__init__.__doc__)
                for base in owner.mro()
            )
        )
        missing = [name for name in parameters_of(owner) if name not in documented]
        yield from (f"{owner.__name__}: {name}" for name in missing)
    for name, member in vars(owner).items():
        function = plain_function(member)
        if function is None or name.startswith("_"):
            continue
        overridden = [vars(base)[name] for base in owner.mro() if name in vars(base)]
        documented = set[str]().union(
            *(explained_in(f.__doc__) for f in map(plain_function, overridden) if f is not None)
        )
        missing = [p for p in parameters_of(function) if p not in documented]
        yield from (f"{owner.__name__}.{name}: {p}" for p in missing)


def unexplained(member: object) -> list[str]:
    """What a public function or class leaves unexplained."""
    if inspect.isclass(member):
        return list(unexplained_by_class(member))
    if inspect.isfunction(member):
        missing = [p for p in parameters_of(member) if p not in explained_in(member.__doc__)]
        return [f"{member.__name__}: {name}" for name in missing]
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_parameter_is_explained(package: str) -> None:
    module = importlib.import_module(package)
    members = [getattr(module, name) for name in getattr(module, "__all__", [])]
    ours = [m for m in members if getattr(m, "__module__", "").startswith("keyhole.")]
    assert [line for member in ours for line in unexplained(member)] == []


def documented_example(image: int, *, size: int) -> None:
    """An example.

    Args:
        image: Its number, which
            is explained in two lines.
    """


class Base:
    def act(self, what: int) -> None:
        """Acts.

        Args:
            what: It does.
        """


class Override(Base):
    """A class.

    Args:
        first: The first.
    """

    def __init__(self, first: int, second: int) -> None:
        self.numbers = first, second

    def act(self, what: int, how: int = 0) -> None: ...


def test_the_check_sees_what_is_missing() -> None:
    assert unexplained(documented_example) == ["documented_example: size"]
    assert unexplained(Override) == ["Override: second", "Override.act: how"]
