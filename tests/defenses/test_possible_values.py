"""The gradient before a defense always lies between the bounds that the defense declares."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from keyhole.defenses import DEFENSES, Capability, ClientSide
from keyhole.seeds import generator
from keyhole.update import Update

SETTINGS = {
    "pruning": ["", "(ratio=0.5, scope='update')", "(ratio=0.99)"],
    "topk": ["", "(k=0.01)", "(k=0.2, scope='tensor')", "(error_feedback=True)"],
    "quantise": [
        "",
        "(bits=2)",
        "(bits=8)",
        "(bits=16)",
        "(bits=24)",
        *(f"(bits={bits}, rounding='qsgd')" for bits in (2, 3, 5, 16)),
    ],
    "signsgd": ["", "(step=0.01)"],
    "half": ["", "(kind='bfloat16')"],
    "percentile-privacy": [
        "",
        "(percentile=0)",
        "(percentile=50, gamma=None)",
        "(percentile=90, gamma=0.0001)",
    ],
    "svt": ["", "(fraction=0.5, gamma=0.001, noise_var=1000)", "(fraction=1, replace=False)"],
}
EVERY = [name + setting for name, settings in SETTINGS.items() for setting in settings]


def draw_changes() -> list[dict[str, Tensor]]:
    """Changes of weights: of many sizes, with ties, zeros, few values and extreme ones."""
    draws = generator(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws)

    levels = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    spread = normal(200) * 10 ** (4 * torch.rand(200, generator=draws) - 4)
    return [
        {"large": normal(20, 30), "small": 1e-3 * normal(50), "nothing": torch.zeros(4)},
        {"spread": spread, "pair": torch.tensor([0.7, 0.7]), "one": torch.tensor([-0.02])},
        {"ties": levels[torch.randint(5, (300,), generator=draws)], "scalar": torch.tensor(0.3)},
        {"huge": 1e6 * normal(40), "tiny": 1e-7 * normal(40), "none": torch.zeros(0)},
        {"sparse": torch.where(torch.rand(400, generator=draws) < 0.02, normal(400), 0.0)},
    ]


def test_every_defense_with_bounds_is_here() -> None:
    declared = {m.name for m in DEFENSES if Capability.VALUES in m().declares}
    assert declared == set(SETTINGS)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("text", EVERY)
def test_the_truth_lies_between_the_bounds(text: str, kind: torch.dtype) -> None:
    """Svt's bounds leave out one value in a million: none of these."""
    defense = DEFENSES.parse(text)
    for seed, change in enumerate(draw_changes()):
        for steps, lr in ((1, 1.0), (7, 0.03)):
            whole = Update({n: t.to(kind) for n, t in change.items()}, steps=steps, lr=lr)
            sent = defense.on_update(whole, ClientSide(generator(seed)))
            shown = sent.gradient()
            for name, bounds in defense.possible_values(sent).items():
                truth = whole.gradient()[name]
                assert bool((bounds.low <= truth).all()), name
                assert bool((truth <= bounds.high).all()), name
                near = 1e-6 * shown[name].abs()
                assert bool((bounds.low <= shown[name] + near).all()), name
                assert bool((shown[name] - near <= bounds.high).all()), name


@pytest.mark.parametrize("text", [text for text in EVERY if not text.startswith(("svt", "half"))])
def test_bounds_say_something(text: str) -> None:
    """They leave out half of all other gradients' values, at least, if there are any."""
    defense = DEFENSES.parse(text)
    draws = generator(1)
    whole = Update({"w": 1e-4 * torch.randn(1000, generator=draws)})
    values = defense.possible_values(defense.on_update(whole, ClientSide(generator(2))))
    if "error_feedback" in text:
        assert values == {}
        return
    other = -whole.gradient()["w"] * 2
    fits = (values["w"].low <= other) & (other <= values["w"].high)
    assert float(fits.double().mean()) < 0.995


def test_small_tensors_that_one_level_rounded_to_zero_are_not_bounded() -> None:
    defense = DEFENSES.parse("quantise(bits=2, rounding='qsgd')")
    whole = Update({"pair": torch.tensor([5.0, 5.0]), "large": 1e-3 * torch.ones(100)})
    silent = 0
    for seed in range(60):
        sent = defense.on_update(whole, ClientSide(generator(seed)))
        bounds = defense.possible_values(sent)["pair"]
        assert bool((bounds.low <= -5).all())
        silent += bool((sent.change["pair"] == 0).all())
        if not sent.change["pair"].any():
            assert bounds.high.tolist() == [math.inf, math.inf]
    assert silent > 0
