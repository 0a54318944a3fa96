"""Draws a frontier: accuracy against the largest share of images read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keyhole.frontier.outcome import SettingOutcome
from keyhole.report.drawing import COLOURS, escape_mathtext, text_colour
from keyhole.report.figures import render_svg
from keyhole.report.frontier_view import FRONT, SettingLine

SIZE = (4.8, 3.9)
"""Width and height in inches: small enough to be read on a phone."""
MARKS = ("o", "s", "p", "D", "h", "8", "H")
ROOM = 0.06
"""Room beside the smallest and the largest share, which most settings have."""
CLOSE = 0.07
"""Settings whose accuracies differ by less than this part of the axis are drawn side by side."""


def plot_front(lines: Sequence[SettingLine]) -> str:
    """Plots every judged setting with its intervals, and the front, as SVG."""
    return render_svg(lambda figure: draw_front(figure, lines), size=SIZE)


def draw_front(figure: Any, lines: Sequence[SettingLine]) -> None:
    """Draws one mark per setting, with its number in the table."""
    axes = figure.subplots()
    judged = [line for line in lines if line.setting.judged]
    names = list(dict.fromkeys(line.setting.defense["name"] for line in judged))
    low, high = find_limits([line.setting for line in judged])
    draw_steps(axes, [line.setting for line in judged if line.place == FRONT], high)
    for line, aside in zip(judged, spread(judged, high - low), strict=True):
        draw_setting(axes, line, names.index(line.setting.defense["name"]), aside)
    for place, name in enumerate(names):
        axes.plot(
            [],
            [],
            MARKS[place % len(MARKS)],
            color=COLOURS[place % len(COLOURS)],
            markersize=8,
            label=escape_mathtext(str(name)),
        )
    axes.set_xlim(-2 * ROOM, 1 + 2 * ROOM)
    axes.set_ylim(low, high)
    axes.set_xlabel("largest share of images read (private is left)")
    axes.set_ylabel("accuracy")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, at: f"{share:.0%}")
    axes.locator_params(steps=(1, 2, 5, 10))  # ticks that whole percents can name
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def draw_setting(axes: Any, line: SettingLine, place: int, aside: float) -> None:
    """Draws one setting: its mark, its intervals and its number."""
    setting, colour = line.setting, COLOURS[place % len(COLOURS)]
    assert setting.read is not None
    across, up = setting.read.value + aside, setting.accuracy.value
    axes.errorbar(
        [across],
        [up],
        xerr=[
            [max(0.0, across - setting.read.low)],
            [max(0.0, setting.read.high - across)],
        ],
        yerr=[[up - setting.accuracy.low], [setting.accuracy.high - up]],
        color=colour,
        marker=MARKS[place % len(MARKS)],
        markersize=12,
        elinewidth=1,
    )
    axes.text(
        across, up, str(line.number), color="white", fontsize=8, ha="center", va="center_baseline"
    )


def draw_steps(axes: Any, front: Sequence[SettingOutcome], top: float) -> None:
    """Draws the front as steps: what is below and to the right of it is beaten."""
    points = sorted((s.read.value, s.accuracy.value) for s in front if s.read is not None)
    if not points:
        return
    across = [points[0][0], *(x for x, _ in points), 1 + 2 * ROOM]
    up = [-1.0, *(y for _, y in points), points[-1][1]]
    axes.plot(across, up, drawstyle="steps-post", color=text_colour(), linestyle=":", linewidth=1)


def spread(lines: Sequence[SettingLine], height: float) -> list[float]:
    """How far each mark moves aside so that marks in the same place can all be seen."""
    moved, placed = [], list[tuple[float, float]]()
    for line in lines:
        read, accuracy = line.setting.read, line.setting.accuracy.value
        assert read is not None
        near = sum(
            abs(read.value - x) < ROOM and abs(accuracy - y) < CLOSE * height for x, y in placed
        )
        placed.append((read.value, accuracy))
        moved.append(near * ROOM * (-1 if read.value > 0.5 else 1))
    return moved


def find_limits(settings: Sequence[SettingOutcome]) -> tuple[float, float]:
    """The accuracies that the plot shows: all intervals that are not absurdly wide."""
    means = [each.accuracy.value for each in settings] or [0.0, 1.0]
    ends = [end for each in settings for end in (each.accuracy.low, each.accuracy.high)]
    reach = max(0.02, max(means) - min(means))
    low, high = max(0.0, min(means) - reach), min(1.0, max(means) + reach)
    inside = [end for end in ends if low <= end <= high] + means
    room = 0.08 * max(0.02, max(inside) - min(inside))
    return min(inside) - room, max(inside) + 2 * room
