"""``keyhole epsilon``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Keyhole = Callable[..., tuple[int, str, str]]

SMALL = ("epsilon", "--model", "keyhole.models.shallow_convnet:shallow_convnet", "--data", "digits")


def test_it_prints_one_json_object(keyhole: Keyhole) -> None:
    options = ("--defense", "dp(epsilon=3)", "--canaries", "60", "--seed", "1", "--json")
    code, out, err = keyhole(*SMALL, *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["claimed"] == 3.0
    assert 0 <= found["lower_bound"] < found["provable"]
    assert (found["plan"]["canaries"], found["plan"]["seed"]) == (60, 1)


BROKEN = """
from keyhole.defenses import Dp


class Broken(Dp):
    def on_update(self, update, side=None):
        sigma = self.strength(update, side.model) / 1000
        return Dp(clip=self.clip, sigma=sigma).on_update(update, side)
"""


def test_a_refuted_claim_fails_if_that_is_asked_for(keyhole: Keyhole) -> None:
    Path("epsilon_parts.py").write_text(BROKEN)
    broken = ("--defense", "epsilon_parts:Broken(epsilon=0.5)", "--canaries", "60")
    code, out, _ = keyhole(*SMALL, *broken)
    assert code == 0
    assert "the claimed 0.50 is refuted" in out
    assert keyhole(*SMALL, *broken, "--check")[0] == 3
    honest = ("--defense", "dp(epsilon=0.5)", "--canaries", "60", "--check")
    assert keyhole(*SMALL, *honest)[0] == 0


def test_bad_values_are_told_in_one_line(keyhole: Keyhole) -> None:
    code, _, err = keyhole(*SMALL, "--canaries", "3")
    assert (code, "canaries" in err) == (2, True)
    code, _, err = keyhole(*SMALL, "--defense", "nosuch")
    assert (code, "unknown defense" in err) == (2, True)
    code, _, err = keyhole(*SMALL, "--defense", "dp", "--steps", "2")
    assert (code, "need a learning rate" in err) == (2, True)
