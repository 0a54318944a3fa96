"""Settings over seeds: pooled readings, costs in pairs, and the front."""

from __future__ import annotations

import dataclasses

import pytest

from frontiers import IMAGES, make_frontier, make_outcome
from keyhole.frontier.outcome import beats, find_front, find_near_front, surely_beats
from keyhole.metrics.proportion import proportion_interval


def test_images_of_all_seeds_count_for_the_worst_attacker() -> None:
    outcome = make_outcome("topk", (0.9, 0.8, 0.7), 6, k=0.1)
    assert outcome.worst is not None
    assert (outcome.worst.attacker, outcome.worst.read) == ("ig (adaptive)", 6)
    assert outcome.worst.images == 3 * IMAGES
    assert outcome.read is not None
    assert outcome.read.value == pytest.approx(0.25)
    assert (outcome.read.low, outcome.read.high) == proportion_interval(6, 24)
    assert not outcome.held


def test_a_setting_that_nobody_attacked_neither_held_nor_stands_on_the_front() -> None:
    blank = make_outcome("dropout", (0.99,), 0, attackers=())
    assert not blank.held
    assert not blank.judged
    assert blank not in find_front([blank, make_outcome("none", (0.5,), 8)])


def test_costs_are_compared_seed_by_seed() -> None:
    plain = make_outcome("none", (0.9, 0.5), 8)
    defended = make_outcome("topk", (0.88, 0.48), 0, seconds=6.0, k=0.1)
    cost = defended.cost(plain)
    assert cost.points.value == pytest.approx(2.0)
    assert cost.points.high - cost.points.low == pytest.approx(0.0, abs=1e-9)
    assert cost.seconds == pytest.approx(2.0)


def test_the_front_leaves_out_what_is_beaten_and_keeps_what_trades() -> None:
    result = make_frontier()
    labels = [each.label for each in result.front]
    assert labels == ["none", "topk(k=0.1)", "gaussian(sigma=0.1)"]


def test_what_the_intervals_cannot_tell_from_the_front_stands_near_it() -> None:
    best = make_outcome("gaussian", (0.90, 0.91, 0.92), 0, sigma=1.0)
    close = make_outcome("topk", (0.89, 0.90, 0.91), 0, k=0.1)
    far = make_outcome("dropout", (0.20, 0.21, 0.22), 8 * 3, p=0.1)
    assert find_front([best, close, far]) == [best]
    assert find_near_front([best, close, far]) == [close]
    assert beats(best, close)
    assert not surely_beats(best, close)
    assert surely_beats(best, far)


def test_equal_settings_do_not_beat_each_other() -> None:
    one, other = make_outcome("topk", (0.9,), 1, k=0.1), make_outcome("topk", (0.9,), 1, k=0.2)
    assert find_front([one, other]) == [one, other]


def test_the_mildest_of_a_kind_is_the_most_accurate_that_held() -> None:
    result = make_frontier()
    weaker = make_outcome("gaussian", (0.94, 0.93, 0.95), 0, sigma=0.05, clip=None)
    more = dataclasses.replace(result, settings=(*result.settings, weaker))
    assert [each.label for each in more.mildest] == ["gaussian(sigma=0.05)", "topk(k=0.01)"]


def test_whether_one_who_knows_the_defense_was_tried() -> None:
    assert make_outcome("topk", (0.9,), 0, k=0.1).met_adaptive
    assert not make_outcome("topk", (0.9,), 0, attackers=("ig (naive)",), k=0.1).met_adaptive
