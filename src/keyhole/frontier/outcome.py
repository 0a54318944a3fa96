"""One setting over all seeds: its accuracy, its cost, and the worst share of images read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from keyhole.auditing.labels import label_defense
from keyhole.frontier.seed_outcome import Reading, SeedOutcome, pool_readings
from keyhole.metrics.proportion import mean_interval, proportion_interval
from keyhole.threat import Attacker


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval.

    Args:
        value: The value.
        low: The lower end.
        high: The upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Cost:
    """What a setting costs against no defense, with the same seeds.

    Args:
        points: Points of accuracy lost, in percent; negative where it gained.
        seconds: Further seconds of training per round.
        agreed: Whether every seed took longer, or every seed less long; else other work on the
            machine decided.
    """

    points: Interval
    seconds: float
    agreed: bool = True


@dataclass(frozen=True)
class SettingOutcome:
    """What was measured of one setting.

    Args:
        seeds: What was measured with each seed, one or more.
        searched: The search that tried this setting; empty if the plan names it.
    """

    seeds: tuple[SeedOutcome, ...]
    searched: str = ""

    @property
    def defense(self) -> dict[str, Any]:
        """Name and parameters of the defense."""
        return self.seeds[0].defense

    @property
    def label(self) -> str:
        """The defense as reports name it."""
        return label_defense(self.defense)

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """What each attacker read at each moment, over all seeds; the worst first."""
        pooled = pool_readings(self.seeds).values()
        return tuple(sorted(pooled, key=lambda r: (-r.read / r.images, -r.images)))

    @property
    def worst(self) -> Reading | None:
        """The attacker and the moment with the largest share read; None if nobody was tried."""
        return self.readings[0] if self.readings else None

    @cached_property
    def read(self) -> Interval | None:
        """The largest share read; its interval is that of images drawn at random."""
        if self.worst is None:
            return None
        low, high = proportion_interval(self.worst.read, self.worst.images)
        return Interval(self.worst.read / self.worst.images, low, high)

    @property
    def held(self) -> bool:
        """Whether somebody was tried and nobody read an image; never a promise."""
        return self.worst is not None and self.worst.read == 0

    @property
    def judged(self) -> bool:
        """Whether any attack on images was run."""
        return self.worst is not None

    @cached_property
    def accuracy(self) -> Interval:
        """Mean accuracy over seeds; its interval is Student's."""
        mean, low, high = mean_interval([each.accuracy for each in self.seeds])
        return Interval(mean, max(0.0, low), min(1.0, high))

    @property
    def seconds_per_round(self) -> float:
        """Seconds of training in a round, of the fastest seed: the one that was disturbed least.

        It is the time on the clock; what else ran on the machine slows a seed down.
        """
        return min(seed.seconds / seed.rounds for seed in self.seeds)

    @property
    def attackers(self) -> tuple[str, ...]:
        """Everybody who attacked the setting, at any moment and with any seed."""
        return tuple(dict.fromkeys(r.attacker for s in self.seeds for r in s.readings))

    @property
    def met_adaptive(self) -> bool:
        """Whether one who knows the defense attacked it."""
        return any(who.endswith(f"({Attacker.ADAPTIVE.value})") for who in self.attackers)

    @property
    def skipped(self) -> Mapping[str, str]:
        """Attacks that do not apply, and why."""
        return {name: why for seed in self.seeds for name, why in seed.skipped.items()}

    def cost(self, undefended: SettingOutcome) -> Cost:
        """What the setting costs against no defense; seeds that both have are compared in pairs.

        Args:
            undefended: The outcome without a defense.
        """
        plain = {each.seed: each for each in undefended.seeds}
        pairs = [(plain[each.seed], each) for each in self.seeds if each.seed in plain]
        lost = [100 * (before.accuracy - each.accuracy) for before, each in pairs]
        slower = {
            each.seconds / each.rounds > before.seconds / before.rounds for before, each in pairs
        }
        points = mean_interval(lost) if lost else (float("nan"),) * 3
        seconds = self.seconds_per_round - undefended.seconds_per_round
        return Cost(Interval(*points), seconds, agreed=len(slower) < 2)


def beats(one: SettingOutcome, other: SettingOutcome) -> bool:
    """Whether ``one`` is at least as accurate and as private, and better in one of the two."""
    if one.read is None or other.read is None:
        return False
    ours, theirs = (one.accuracy.value, -one.read.value), (other.accuracy.value, -other.read.value)
    return ours[0] >= theirs[0] and ours[1] >= theirs[1] and ours != theirs


def surely_beats(one: SettingOutcome, other: SettingOutcome) -> bool:
    """Whether ``one`` beats ``other``, in one of the two by more than both intervals."""
    if one.read is None or other.read is None or not beats(one, other):
        return False
    return one.accuracy.low > other.accuracy.high or one.read.high < other.read.low


def find_front(outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """The settings that no other beats, the most accurate first."""
    judged = [each for each in outcomes if each.judged]
    front = [each for each in judged if not any(beats(other, each) for other in judged)]
    return sorted(front, key=lambda each: -each.accuracy.value)


def find_near_front(outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """Settings behind the front by no more than their intervals, in both."""
    front = find_front(outcomes)
    return [
        each
        for each in outcomes
        if each.judged and each not in front and not any(surely_beats(f, each) for f in front)
    ]
