"""``assert_private``, in plain Python and as a pytest fixture."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from torch import nn

from keyhole.data import load
from keyhole.defenses import Gaussian
from keyhole.errors import BadValue
from keyhole.testing import assert_private

REWRITTEN = """
import pytest

pytest.register_assert_rewrite("keyhole")
pytest_plugins = ["keyhole.testing.pytest_plugin"]
"""
"""pytest then loads Keyhole by a loader of its own."""
LINEAR = {"attacks": ["linear"], "victims": 2}


def test_what_hides_the_images_passes_and_the_result_comes_back() -> None:
    result = assert_private("mlp", "digits", "gaussian(sigma=10)", **LINEAR)
    assert result.verdicts[0].read == 0


def test_what_gives_them_away_fails_with_attacker_share_and_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        assert_private("mlp", "digits", out=tmp_path / "run", **LINEAR)
    line, page = str(failure.value).splitlines()
    assert line == (
        "mlp on digits, none, honest server: linear (naive) read 100.0% of the images, "
        "at most 0.0% allowed (read>0)"
    )
    assert Path(page.removeprefix("report: ")).is_file()


def test_parts_may_be_objects() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert_private(net, load("digits"), Gaussian(sigma=10.0), max_read=0.5, **LINEAR)
    with pytest.raises(AssertionError, match="read 100"):
        assert_private(net, load("digits"), max_read=0.99, **LINEAR)


def test_what_nobody_tested_is_not_private() -> None:
    with pytest.raises(AssertionError, match="not tested"):
        assert_private("mlp", "digits", attacks=["labels"], victims=1)


@pytest.mark.parametrize("share", [-0.1, 1, float("nan")])
def test_a_share_that_says_nothing_is_refused(share: float) -> None:
    with pytest.raises(BadValue, match="max_read is"):
        assert_private("mlp", "digits", max_read=share, **LINEAR)


@pytest.mark.parametrize(
    "line",
    [
        'pytest_plugins = ["keyhole.testing.pytest_plugin"]',
        pytest.param(REWRITTEN, marks=pytest.mark.slow),
    ],
)
def test_the_fixture_works_in_a_suite_that_asks_for_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "conftest.py").write_text(line)
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent("""
        def test_private(assert_private):
            assert_private("mlp", "digits", "gaussian(sigma=10)", attacks=["linear"], victims=1)

        def test_leaks(assert_private):
            assert_private("mlp", "digits", attacks=["linear"], victims=1)
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "linear (naive) read 100.0% of the images" in done.stdout
    assert "report: " in done.stdout
