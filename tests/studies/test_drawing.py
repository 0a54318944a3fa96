"""Figures: names beside their marks."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from keyhole_studies.drawing import distance_to, name_marks

pytest.importorskip("matplotlib")

CROWD = [(f"mark {n}", (n / 100, n % 2 / 100), "black") for n in range(9)]
APART = [("left", (0.0, 0.0), "red"), ("right", (1.0, 1.0), "blue"), ("", (0.5, 0.5), "grey")]


def named(names: list[tuple[str, tuple[float, float], str]]) -> Any:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(4, 3)).subplots()
    axes.plot([x for _, (x, _), _ in names], [y for _, (_, y), _ in names], "o")
    axes.margins(0.2)
    if names is CROWD:
        axes.set_xlim(-2, 2)
        axes.set_ylim(-2, 2)
    name_marks(axes, names)
    return axes


def test_marks_apart_have_all_their_names() -> None:
    assert [note.get_text() for note in named(APART).texts] == ["left", "right"]


def test_no_name_is_written_over_the_legend() -> None:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(4, 3)).subplots()
    axes.plot([0.0, 1.0], [0.0, 1.0], "o", label="a family with a long name")
    axes.margins(0.2)
    legend = axes.legend(loc="lower left")
    name_marks(axes, [("covered", (0.0, 0.0), "red"), ("free", (1.0, 1.0), "red")])
    assert "free" in [note.get_text() for note in axes.texts]
    assert not any(
        note.get_window_extent().overlaps(legend.get_window_extent()) for note in axes.texts
    )


def test_names_neither_overlap_nor_leave_the_panel() -> None:
    """Of a crowd some have no room, and are left out."""
    axes = named(CROWD)
    boxes = [note.get_window_extent() for note in axes.texts]
    assert 0 < len(boxes) < len(CROWD)
    marks = {name: axes.transData.transform(place) for name, place, _ in CROWD}
    for note, box in zip(axes.texts, boxes, strict=True):
        apart = {name: distance_to(box, mark) for name, mark in marks.items()}
        assert apart[note.get_text()] == min(apart.values())
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    frame = axes.get_window_extent()
    assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)
