"""Conditions as they are written after ``--fail-on``."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.auditing.gate_conditions import Rule, read_condition, read_conditions
from keyhole.errors import BadValue


@pytest.mark.parametrize(
    ("text", "rule", "server", "limit", "inclusive"),
    [
        ("broken", Rule.BROKEN, None, 0, False),
        (" honest:broken ", Rule.BROKEN, "honest", 0, False),
        ("read>0.05", Rule.READ, None, 0.05, False),
        ("read >= .5", Rule.READ, None, 0.5, True),
        ("read>=1", Rule.READ, None, 1, True),
        ("malicious:read>0", Rule.READ, "malicious", 0, False),
    ],
)
def test_what_a_condition_says(
    text: str, rule: Rule, server: str | None, limit: float, inclusive: bool
) -> None:
    read = read_condition(text)
    assert (read.rule, read.server, read.limit, read.inclusive) == (rule, server, limit, inclusive)
    assert read.text == text.strip()


def test_a_limit_is_met_above_it_or_at_it() -> None:
    above, at = read_condition("read>0.5"), read_condition("read>=0.5")
    assert [above.is_met(r) for r in (0.4, 0.5, 0.6)] == [False, False, True]
    assert [at.is_met(r) for r in (0.4, 0.5, 0.6)] == [False, True, True]


def test_a_baseline_is_a_path() -> None:
    assert read_condition("worse-than: runs/base line").baseline == Path("runs/base line")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read ''"),
        ("brokn", "cannot read 'brokn': write broken"),
        ("read<0.05", "cannot read"),
        ("server:broken", "cannot read"),
        ("read>5%", "a share of images between 0 and 1"),
        ("read>5", "a share of images between 0 and 1"),
        ("read>nan", "a share of images between 0 and 1"),
        ("read>1", "can never be met"),
        ("read>=0", "is always met"),
        ("worse-than:", "names no run"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadValue) as error:
        read_condition(text)
    assert words in str(error.value)


def test_a_condition_given_twice_counts_once() -> None:
    assert len(read_conditions(["broken", "read>0.1", "broken"])) == 2
