"""Names with lists of values become one name for each combination."""

import pytest

from keyhole.errors import BadValue
from keyhole.spelling import expand_lists, parse_call


def test_lists_are_combined_in_the_order_they_were_written() -> None:
    names = expand_lists("gaussian(sigma=[1e-5, 1e-4], clip=[1, None])")
    assert [parse_call(name)[1] for name in names] == [
        {"sigma": 1e-5, "clip": 1},
        {"sigma": 1e-5, "clip": None},
        {"sigma": 1e-4, "clip": 1},
        {"sigma": 1e-4, "clip": None},
    ]


@pytest.mark.parametrize("text", ["none", "dropout(p=.50)", "tip(bands=(1, 2))"])
def test_a_name_without_a_list_stays_as_it_was_written(text: str) -> None:
    assert expand_lists(f" {text} ") == [text]


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(BadValue, match=r"sigma of .* is an empty list"):
        expand_lists("gaussian(sigma=[])")


def test_defenses_in_a_row_are_expanded_part_by_part() -> None:
    text = "topk(k=[0.5, 0.1]) + flower-clipping(clipping_norm=[1.0, 2.0])"
    names = expand_lists(text)
    assert len(names) == 4
    assert names[1] == "topk(k=0.5) + flower-clipping(clipping_norm=2.0)"
    assert expand_lists(" topk(k=0.50)+half ") == ["topk(k=0.50)+half"]
    assert expand_lists("my+folder/weights") == ["my+folder/weights"]
