"""Attacks come without their solvers: those are imported when an image change must be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOLVERS = ("scipy", "skimage", "sklearn", "keyhole.attacks.jigsaw")


@pytest.mark.parametrize("module", ["keyhole.attacks.base", "keyhole.attacks"])
def test_no_solver_is_imported_with_attacks(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {SOLVERS!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
