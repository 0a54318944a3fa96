"""The pytest plugin: a fixture ``assert_private`` that keeps the evidence of each audit.

A suite asks for it in its ``conftest.py``: ``pytest_plugins = ["keyhole.testing.pytest_plugin"]``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from keyhole.auditing import AuditResult


@pytest.fixture
def assert_private(tmp_path: Path) -> Callable[..., AuditResult]:
    """:func:`keyhole.testing.assert_private` with a run folder below ``tmp_path``.

    The message of a failure names the page that shows what the attacker saw.

    Args:
        tmp_path: pytest's own folder for the test.
    """
    from keyhole.testing.assertion import assert_private as check

    count = 0

    def run(*arguments: Any, **options: Any) -> AuditResult:
        nonlocal count
        count += 1
        return check(*arguments, **{"out": tmp_path / f"audit-{count}", **options})

    return run
