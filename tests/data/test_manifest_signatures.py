from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.data.manifest_signatures import ManifestChanges, find_changes, sign_header, sign_line
from keyhole.obfuscation.key import SiteKey

SIGN = SiteKey(bytes(range(32))).sign
OTHER = SiteKey(bytes(range(1, 33))).sign


def record(count: int, *, complete: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [sign_line({"source": f"{n}.png"}, n, SIGN) for n in range(1, count + 1)]
    return sign_header({"complete": complete}, lines, SIGN), lines


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_record_as_it_was_written_is_believed(count: int, complete: bool) -> None:
    head, lines = record(count, complete=complete)
    assert find_changes(head, lines, SIGN) == ([True] * count, ManifestChanges())
    assert ManifestChanges().describe() == ""


def test_another_key_believes_nothing() -> None:
    head, lines = record(2)
    believed, changes = find_changes(head, lines, OTHER)
    assert believed == [False, False]
    assert changes.describe() == "2 lines changed, its first line changed"


@given(st.data())
def test_no_line_can_be_changed_dropped_moved_or_repeated_unnoticed(data: st.DataObject) -> None:
    head, lines = record(6)
    spoilt = copy.deepcopy(lines)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(spoilt) - 1))
        match data.draw(st.sampled_from(["drop", "repeat", "swap", "change"])):
            case "drop":
                del spoilt[place]
            case "repeat":
                spoilt.insert(data.draw(st.integers(0, len(spoilt))), spoilt[place])
            case "swap":
                other = data.draw(st.integers(0, len(spoilt) - 1))
                spoilt[place], spoilt[other] = spoilt[other], spoilt[place]
            case "change":
                name = data.draw(st.sampled_from(sorted(spoilt[place])))
                spoilt[place] = {**spoilt[place], name: data.draw(st.sampled_from([None, 0, "x"]))}
    believed, changes = find_changes(head, spoilt, SIGN)
    assert bool(changes) == (spoilt != lines)
    assert [line in lines for line in spoilt] == believed


def test_of_a_record_that_goes_on_only_the_end_can_be_cut() -> None:
    head, lines = record(5, complete=False)
    assert not find_changes(head, lines[:3], SIGN)[1]
    assert find_changes(head, [*lines[:1], *lines[2:]], SIGN)[1] == ManifestChanges(missing=1)
