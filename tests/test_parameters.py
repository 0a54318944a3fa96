from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass as checked

from keyhole.errors import BadValue, DoesNotFit, UnknownName
from keyhole.parameters import (
    construct,
    default_parameters,
    find_disabled,
    make_recordable,
    parameter_names,
    read_parameters,
    unusual_parameters,
)


@checked(frozen=True, kw_only=True)
class Validated:
    depth: int = 3
    width: float | None = 1.0


@dataclass(frozen=True)
class Plain:
    depth: int
    width: float | None = 1.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    cache: dict[str, int] = field(default_factory=dict, init=False)


class Written:
    def __init__(self, depth: int, width: float | None = 1.0, *rest: int, **more: int) -> None:
        if depth < 0:
            raise ValueError(f"depth {depth} is negative")
        self.depth, self.width = depth, width


def function(depth: int = 3, window: torch.Tensor | None = None) -> Written:
    return Written(depth)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (Validated(), ["depth", "width"]),
        (Plain(2), ["depth", "width", "sizes"]),
        (Written(2), ["depth", "width"]),
    ],
    ids=["pydantic", "dataclass", "class"],
)
def test_an_object_tells_what_its_constructor_took(made: Any, names: list[str]) -> None:
    assert parameter_names(type(made)) == names
    assert list(read_parameters(made)) == names
    again = type(made)(**read_parameters(made))
    assert read_parameters(again) == read_parameters(made)


def test_a_class_that_hides_its_parameters_is_told_how_to_keep_them() -> None:
    class Hiding:
        def __init__(self, p: float = 0.5) -> None:
            self._p = p

    with pytest.raises(BadValue, match=r"Hiding does not keep its parameter 'p': set self\.p"):
        read_parameters(Hiding())


def test_defaults_are_known_without_making_an_object() -> None:
    assert default_parameters(Validated) == {"depth": 3, "width": 1.0}
    assert default_parameters(Plain) == {"width": 1.0, "sizes": [1, 2]}
    assert default_parameters(Written) == {"width": 1.0}
    assert default_parameters(function) == {"depth": 3, "window": None}


def test_only_what_differs_from_the_defaults_is_unusual() -> None:
    assert unusual_parameters(Validated(depth=4)) == {"depth": 4}
    assert unusual_parameters(Plain(2, sizes=[1, 2])) == {"depth": 2}
    assert unusual_parameters(Written(2, None)) == {"depth": 2, "width": None}
    assert find_disabled(Written(2, None)) == {"width"}


def test_arrays_as_parameters_are_compared_without_an_error() -> None:
    @dataclass(frozen=True, eq=False)
    class Weighted:
        weights: Any = field(default_factory=lambda: torch.ones(3))

    assert set(unusual_parameters(Weighted(torch.zeros(3)))) == {"weights"}


def test_what_json_cannot_hold_is_recorded_as_a_short_text() -> None:
    found = make_recordable({"a": 1, "b": [1, (2.5, "x")], "c": float("nan"), "d": torch.ones(2)})
    assert found == {"a": 1, "b": [1, (2.5, "x")], "c": "nan", "d": "tensor([1., 1.])"}


@pytest.mark.parametrize("maker", [Validated, Plain, Written, function])
def test_values_are_converted_as_annotations_say(maker: Any) -> None:
    assert construct(maker, {"depth": 2}, "thing x").depth == 2
    with pytest.raises(BadValue, match=r"^thing x: depth: .*integer.*, got 'deep'$"):
        construct(maker, {"depth": "deep"}, "thing x")
    with pytest.raises(UnknownName, match=r"parameter of thing x 'dept': did you mean depth\?"):
        construct(maker, {"dept": 1}, "thing x")


def test_a_whole_number_becomes_the_float_that_a_plain_class_asks_for() -> None:
    assert isinstance(construct(Plain, {"depth": 1, "width": 2}, "thing x").width, float)


def test_what_a_constructor_refuses_is_one_line() -> None:
    with pytest.raises(BadValue, match=r"^thing x: depth -1 is negative$"):
        construct(Written, {"depth": -1}, "thing x")
    with pytest.raises(BadValue, match=r"^thing x: .*missing 1 required .*'depth'$"):
        construct(Written, {}, "thing x")


def test_an_error_that_is_already_one_line_stays_as_it_is() -> None:
    def refuse(depth: int) -> None:
        raise DoesNotFit("too deep")

    with pytest.raises(DoesNotFit, match=r"^too deep$"):
        construct(refuse, {"depth": 1}, "thing x")


def test_annotations_that_nobody_can_check_do_not_matter() -> None:
    def loose(depth: NoSuchName) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return depth

    assert construct(loose, {"depth": "any"}, "thing x") == "any"
    assert construct(function, {"window": None}, "thing x").depth == 3
    with pytest.raises(BadValue, match="window"):
        construct(function, {"window": 3}, "thing x")
