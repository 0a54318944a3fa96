"""Imports on demand, so that ``keyhole --help`` and most errors need not load torch.

A package lists its names once, as imports that only type checkers run::

    if TYPE_CHECKING:
        from keyhole.auditing.plan import Plan
    else:
        __getattr__, __dir__ = import_on_demand(__name__)

From then on ``keyhole.auditing.Plan`` imports ``keyhole.auditing.plan`` when it is first used.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def import_on_demand(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__`` (PEP 562).

    Args:
        package: The package's ``__name__``. Its source says where each name comes from.
    """
    modules = dict(imports_for_type_checkers(source_of(package)))
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        found = namespace[name] = getattr(importlib.import_module(modules[name]), name)
        return found

    def names() -> list[str]:
        return sorted({*namespace, *modules})

    return get, names


def import_address(address: str) -> Any:
    """Imports the object at ``package.module:name``.

    >>> import_address("math:pi")
    3.141592653589793
    """
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)


def import_on_call(address: str) -> Callable[..., Any]:
    """Returns a function that imports the one at ``package.module:name`` when it is called.

    >>> import_on_call("math:sqrt")(9)
    3.0
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return import_address(address)(*args, **kwargs)

    return call


def source_of(package: str) -> str:
    """The text of a package's ``__init__.py``."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} cannot be found: install it from a wheel")
    if hasattr(spec.loader, "get_source"):
        text = spec.loader.get_source(package)
    else:  # pytest's loader, where asserts are rewritten
        text = Path(spec.origin or "").read_text(encoding="utf-8")
    if not text:
        raise ImportError(f"the source of {package} is missing: install it from a wheel")
    return str(text)


def imports_for_type_checkers(source: str) -> Iterator[tuple[str, str]]:
    """Each name that is imported under ``if TYPE_CHECKING:``, and the module that has it.

    >>> list(imports_for_type_checkers("if TYPE_CHECKING:\\n    from a.b import c, d"))
    [('c', 'a.b'), ('d', 'a.b')]
    """
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            lines = [line for line in node.body if isinstance(line, ast.ImportFrom)]
            yield from ((alias.name, str(line.module)) for line in lines for alias in line.names)
