from __future__ import annotations

from typing import Any

import pytest

from keyhole.data import load
from keyhole.errors import BadValue
from keyhole.mean_and_std import normalisation_entries, parse_deviations, parse_means


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("0.5", (0.5,)),
        (0.5, (0.5,)),
        (1, (1.0,)),
        ("0.1, 0.2,0.3", (0.1, 0.2, 0.3)),
        ([1, 2], (1, 2)),
    ],
)
def test_one_number_or_one_per_channel_is_read(given: Any, read: tuple[float, ...]) -> None:
    assert parse_means(given) == parse_deviations(given) == read


@pytest.mark.parametrize(
    "bad",
    ["", ",", "a", "nan", "inf", [], None, True, "0.1,", [[1]], {"a": 1}, "1e999", [0.1] * 99, 1e9],
)
def test_what_is_no_number_is_refused_in_one_line(bad: Any) -> None:
    for read, name in ((parse_means, "mean"), (parse_deviations, "std")):
        with pytest.raises(BadValue, match=f"^{name}: give one number") as raised:
            read(bad)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("bad", [0, "0.5,0", -0.1, "0.2,-0.2,0.2", 1e-9])
def test_a_std_is_above_zero(bad: Any) -> None:
    with pytest.raises(BadValue, match=r"^std: give one number above 0"):
        parse_deviations(bad)


def test_mean_and_std_are_given_together() -> None:
    with pytest.raises(BadValue, match="mean is given without std: give both"):
        load("digits", mean=0.5)
    with pytest.raises(BadValue, match="std is given without mean"):
        normalisation_entries(None, 0.5)


def test_as_facts_they_read_back_to_the_bit() -> None:
    mean, std = (0.1 + 0.2, 1 / 3, 0.4465), (1 / 7, 0.25, 1 / 255)
    facts = normalisation_entries(mean, std)
    assert (parse_means(facts["mean"]), parse_deviations(facts["std"])) == (mean, std)
    assert normalisation_entries(None, None) == {}
