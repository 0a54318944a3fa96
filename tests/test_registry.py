from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from torch import nn

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.defenses import DEFENSES
from keyhole.errors import BadValue, UnknownName, one_line
from keyhole.federation import PARTITIONS
from keyhole.models import MODELS
from keyhole.parameters import find_disabled, read_parameters
from keyhole.registry import Registry
from keyhole.spelling import parse_call, spell, split_names, unknown_name


@checked(frozen=True, kw_only=True)
class Lock:
    name: ClassVar[str] = "lock"
    pins: Annotated[int, Field(ge=1)] = 5
    maker: str | None = None


@checked(frozen=True, kw_only=True)
class Timer:
    name: ClassVar[str] = "timer"
    patience: int | None = 4
    limit: int | None = None


@checked(frozen=True, kw_only=True)
class Latch:
    name: ClassVar[str] = "latch"


@pytest.fixture
def doors() -> Registry[Any]:
    return Registry("door", {"lock": Lock, "latch": Latch})


def test_a_name_alone_makes_the_member_with_its_defaults(doors: Registry[Any]) -> None:
    assert doors.parse("lock") == Lock()
    assert doors.parse(" latch ") == Latch()


def test_parameters_are_read_as_literals(doors: Registry[Any]) -> None:
    assert doors.parse("lock(pins=7, maker='Chubb')") == Lock(pins=7, maker="Chubb")


def test_a_misspelt_name_is_met_with_the_nearest_ones(doors: Registry[Any]) -> None:
    with pytest.raises(UnknownName, match=r"unknown door 'lokc': did you mean lock\?.*latch"):
        doors.parse("lokc")


def test_a_misspelt_parameter_is_met_with_the_nearest_one(doors: Registry[Any]) -> None:
    with pytest.raises(UnknownName, match=r"parameter of door lock 'pin': did you mean pins\?"):
        doors.parse("lock(pin=3)")


def test_a_parameter_for_one_that_takes_none_is_refused(doors: Registry[Any]) -> None:
    with pytest.raises(UnknownName, match=r"parameter of door latch 'pins'"):
        doors.parse("latch(pins=3)")


@pytest.mark.parametrize("value", ["0", "'many'", "[1]"])
def test_a_bad_value_is_told_in_one_line(doors: Registry[Any], value: str) -> None:
    with pytest.raises(BadValue, match=r"door lock: pins: .*got") as raised:
        doors.parse(f"lock(pins={value})")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["lock(", "lock(pins", "lock(3)", "lock(pins=open('x'))", "lock(pins=3) + 1"]
)
def test_what_is_not_a_call_with_literals_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="cannot read"):
        parse_call(text)


@pytest.mark.parametrize(
    "text",
    [
        "lock(pins={[]:1})",
        "lock(pins={{}})",
        f"lock(pins={'-' * 3000}1)",
        f"lock(pins={'-' * 100_000}1)",
        f"lock(pins={'(' * 150}1)",
        f"lock(pins={'[' * 300}1{']' * 300})",
        f"lock(pins={'9' * 3900})",
        "lock(pins=1e309)",
        "lock(pins=-1e309)",
        "lock(pins=[1, (2, 1e309)])",
        "lock(pins={'a': 1e309})",
        "lock(pins=1e309j)",
        f"lock(pins={'9' * 41})",
        "lock(pins=1, pins=2)",
        "lock(**{'pins': 1})",
        "lock(pins=1)(maker='a')",
        "lock(pins='\0')",
        "lock(pins=1\0)",
        "lock(pins=3)\n\n+",
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_what_would_break_the_parser_is_told_in_one_short_line(
    doors: Registry[Any], text: str
) -> None:
    with pytest.raises(BadValue) as raised:
        doors.parse(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_long_name_is_cut_where_it_is_repeated(doors: Registry[Any]) -> None:
    with pytest.raises(UnknownName) as raised:
        doors.parse("x" * 1_000_000)
    assert len(str(raised.value)) < 300
    with pytest.raises(BadValue) as bad:
        doors.parse(f"lock(pins={'[7,' + '8,' * 1000 + ']'})")
    assert len(str(bad.value)) < 300


def test_no_code_is_run_while_parsing() -> None:
    with pytest.raises(BadValue):
        parse_call("lock(pins=__import__('os').getpid())")


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(str.isidentifier).map("p_".__add__),
        st.one_of(
            st.integers(),
            st.booleans(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=12),
            st.lists(st.integers(), max_size=3),
        ),
    )
)
def test_what_is_spelt_parses_back(values: dict[str, Any]) -> None:
    assert parse_call(spell("lock", values)) == ("lock", values)


NAMES = st.sampled_from(["none", "lock(pins=3, maker='a')", "a(b=[1, 2])"])


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_lists_split_at_outer_commas_only(names: list[str]) -> None:
    assert split_names(",".join(names)) == names


@pytest.mark.parametrize("text", ["", " ", ",", " ,, "])
def test_a_list_without_names_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="names nothing"):
        split_names(text)


def test_empty_parts_of_a_list_are_left_out() -> None:
    assert split_names(" a,, b ,") == ["a", "b"]


def test_a_long_list_of_names_is_cut() -> None:
    text = str(unknown_name("model", "zzz", [f"m{i:03}" for i in range(100)]))
    assert "..." in text
    assert "m099" not in text


def test_only_dataclass_instances_have_parameters() -> None:
    @dataclass
    class Plain:
        a: int = 1

    assert read_parameters(Plain()) == {"a": 1}
    assert read_parameters(Plain) == {}
    assert read_parameters(object()) == {}


def test_registries_keep_the_order_of_their_members(doors: Registry[Any]) -> None:
    assert doors.names() == ["lock", "latch"]
    assert list(doors) == [Lock, Latch]
    assert doors["latch"] is Latch


def test_an_error_without_text_is_told_by_its_type() -> None:
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("  first\nsecond")) == "first"
    assert len(one_line(ValueError("x" * 10_000))) < 500


@pytest.mark.parametrize(
    ("timer", "off", "text"),
    [
        (Timer(), set(), "timer(patience=4)"),
        (Timer(patience=None), {"patience"}, "timer(patience=None)"),
        (Timer(patience=None, limit=3), {"patience"}, "timer(patience=None, limit=3)"),
        (Timer(limit=None), set(), "timer(patience=4)"),
    ],
)
def test_what_was_switched_off_is_spelt_and_parses_back(
    timer: Timer, off: set[str], text: str
) -> None:
    assert find_disabled(timer) == off
    assert spell("timer", read_parameters(timer), off=find_disabled(timer)) == text
    assert Registry("clock", {"timer": Timer}).parse(text) == timer


def test_what_has_no_parameters_has_none_switched_off() -> None:
    assert find_disabled(object()) == set()
    assert find_disabled(Latch()) == set()
    assert spell("latch", {}) == "latch"
    assert spell("timer", {"patience": None}) == "timer"


def test_a_name_is_checked_without_importing_its_part() -> None:
    parts: Registry[Any] = Registry("part", {"gone": "nowhere:Gone"}, base="nowhere:Base")
    parts.check_name("gone(size=3)")
    parts.check_name("my_parts:Mine")
    with pytest.raises(UnknownName, match=r"unknown part 'gune': did you mean gone\?"):
        parts.check_name("gune")
    with pytest.raises(BadValue, match="cannot read"):
        parts.check_name("gone(3")


@pytest.mark.parametrize(
    "registry", [ATTACKS, DEFENSES, MEMBERSHIP, PARTITIONS], ids=lambda registry: registry.kind
)
def test_each_address_leads_to_the_part_of_that_name(registry: Registry[Any]) -> None:
    assert [member.name for member in registry] == registry.names()
    assert all(registry[name].name == name for name in registry.names())


@pytest.mark.parametrize("name", MODELS)
def test_each_model_is_made_by_what_its_address_names(name: str) -> None:
    assert isinstance(MODELS[name].make(classes=3, channels=3, image_size=(32, 32)), nn.Module)
