"""Computes what reports show of a frontier, for the page and for the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.auditing.verdict import BROKEN, NOT_BROKEN, NOT_TESTED
from keyhole.frontier.outcome import Interval, SettingOutcome
from keyhole.frontier.result import FrontierResult

FRONT, NEAR, BEHIND = "on the front", "near the front", "behind it"


@dataclass(frozen=True)
class SettingLine:
    """One setting as tables show it.

    Args:
        number: Its number in the plot.
        setting: What was measured.
        status: As a verdict has it.
        accuracy: Accuracy with its interval.
        points: Points of accuracy against no defense, with their interval; empty for no defense.
        read: The largest share read, with its interval.
        by: Who read it, and when; empty if nobody read anything.
        seconds: Seconds of training in a round.
        place: ``on the front``, ``near the front`` or ``behind it``.
    """

    number: int
    setting: SettingOutcome
    status: str
    accuracy: tuple[str, str]
    points: tuple[str, str]
    read: tuple[str, str]
    by: str
    seconds: str
    place: str

    @property
    def label(self) -> str:
        """The defense."""
        return self.setting.label


def list_settings(result: FrontierResult) -> list[SettingLine]:
    """The settings, no defense first, then the mildest held ones, then by accuracy."""
    plain = result.undefended
    order = sorted(
        result.settings,
        key=lambda each: (each is not plain, -each.accuracy.value, each.label),
    )
    return [describe_setting(number, each, result) for number, each in enumerate(order, start=1)]


def describe_setting(number: int, setting: SettingOutcome, result: FrontierResult) -> SettingLine:
    """One setting as tables show it."""
    plain, worst, read = result.undefended, setting.worst, setting.read
    points = ("", "")
    if plain is not None and setting is not plain:
        lost = setting.cost(plain).points
        points = format_interval(Interval(-lost.value, -lost.high, -lost.low), "{:+.1f}")
    near = FRONT if setting in result.front else NEAR if setting in result.near_front else BEHIND
    return SettingLine(
        number,
        setting,
        status_of(setting),
        format_interval(setting.accuracy, "{:.1%}"),
        points,
        ("–", "") if read is None else format_interval(read, "{:.0%}"),
        "" if worst is None or not worst.read else f"{worst.attacker}, {worst.moment}",
        f"{setting.seconds_per_round:.2f}",
        near if setting.judged else "",
    )


def status_of(setting: SettingOutcome) -> str:
    """The setting's status in the words of a verdict."""
    if not setting.judged:
        return NOT_TESTED
    return NOT_BROKEN if setting.held else BROKEN


def format_interval(interval: Interval, form: str) -> tuple[str, str]:
    """A value and its interval; the interval is empty where there is none.

    >>> format_interval(Interval(0.5, 0.25, 0.75), "{:.0%}")
    ('50%', '25% – 75%')
    >>> format_interval(Interval(0.5, 0.5, 0.5), "{:.0%}")
    ('50%', '')
    """
    ends = (interval.value, interval.low, interval.high)
    value, low, high = (drop_sign_of_zero(form.format(each)) for each in ends)
    return value, "" if interval.low == interval.high else f"{low} – {high}"


def drop_sign_of_zero(text: str) -> str:
    """A number without the minus of a zero.

    >>> [drop_sign_of_zero(each) for each in ("-0.0", "-0.1", "-0%")]
    ['0.0', '-0.1', '0%']
    """
    return text if any(digit in text for digit in "123456789") else text.lstrip("+-")


def describe_facts(result: FrontierResult) -> str:
    """How clients trained and who was attacked, in one line."""
    plan = result.plan
    seeds = len(plan.seeds)
    runs = "one seed" if seeds == 1 else f"{seeds} seeds"
    images = plan.victims * plan.victim_images * seeds
    each = "one image" if plan.victim_images == 1 else f"{plan.victim_images} images"
    rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds} rounds"
    bound = f"; {plan.bound}" if plan.bound else ""
    return (
        f"{plan.clients} clients, {rounds}, lr {plan.lr:g}, {runs}; attacked with the first and "
        f"with the last weights: {images} images, {each} a client{bound}"
    )
