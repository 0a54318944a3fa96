from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.attacks import GradInversion, InvertingGradients
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.matching.gradients.gradient_weights import keep_largest
from keyhole.attacks.matching.group_consistency import agree, register
from keyhole.attacks.matching.parts.optimisers import Adam, draw_noise
from keyhole.data import load
from keyhole.federation import LocalTraining
from keyhole.threat import Observation

Observe = Callable[..., Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(384, 10),
    )


def evaluating_client(observe: Observe, indices: list[int]) -> tuple[Any, Observation]:
    """A client whose BatchNorms use the statistics that were sent, and what the server saw."""
    victim = observe(network(), load("digits"), indices, training=LocalTraining(mode="eval"))
    seen = victim.telling("labels").observation
    return victim, replace(seen, knowledge=replace(seen.knowledge, client_mode="eval"))


def test_shifted_images_are_registered() -> None:
    torch.manual_seed(0)
    images = torch.rand(3, 2, 16, 16)
    shifted = torch.stack(
        [images[0].roll((1, 2), (1, 2)), images[1], images[2].roll((-2, 1), (1, 2))]
    )
    assert torch.equal(register(shifted, images), images)
    far = images.roll((5, 0), (2, 3))  # farther than an eighth of the side
    assert not torch.equal(register(far, images), images)


def test_searches_agree_on_the_mean_of_what_is_registered_with_the_best() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 1, 16, 16)
    found = [images, images.roll((1, 1), (2, 3)), torch.full_like(images, 9.0)]
    assert torch.allclose(agree(found, [0.1, 0.2, torch.inf]), images, atol=1e-6)
    moved = agree(found, [0.2, 0.1, torch.inf])
    assert torch.allclose(moved, found[1], atol=1e-6)


def test_later_rounds_start_where_all_searches_were_and_are_drawn_together(
    observe: Observe,
) -> None:
    victim, seen = evaluating_client(observe, [0, 1])
    attack = GradInversion(iterations=60, trials=3, rounds=2, labels="given", consistency=0.1)
    found = attack(seen)
    assert found.images is not None
    assert found.diagnostics["iterations"] == 120
    one = GradInversion(iterations=60, trials=3, labels="given")(seen)
    assert found.diagnostics["loss"] < one.diagnostics["loss"]
    assert sum(victim.best_decibels(found)) > sum(victim.best_decibels(one))


def test_rounds_go_on_where_they_were_stopped(observe: Observe) -> None:
    victim = observe(network(), load("digits"), [0]).telling("labels").observation
    attack = GradInversion(iterations=60, trials=2, rounds=2, labels="given", noise=0.1)
    memory = Memory()
    (whole,) = attack.stream([victim], memory)
    (again,) = attack.stream([victim], memory)
    assert whole.images is not None
    assert again.images is not None
    assert torch.equal(whole.images, again.images)


class Memory(NullCheckpointer):
    """Keeps what was saved last."""

    saved: Any = None

    def save(self, tensors: Any, facts: Any) -> None:
        self.saved = ({n: t.clone() for n, t in tensors.items()}, dict(facts))

    def load(self) -> Any:
        return self.saved


def test_noise_is_normal_and_differs_by_victim_and_step() -> None:
    like = torch.zeros(2, 3, 20, 20)
    victims, steps = torch.tensor([0.0, 1.0]).double(), torch.tensor([4.0, 4.0]).double()
    drawn = draw_noise(like, victims, steps)
    assert abs(float(drawn.mean())) < 0.06
    assert abs(float(drawn.std()) - 1) < 0.06
    later = draw_noise(like, victims, steps + 1)
    both = torch.stack([drawn[0].flatten(), drawn[1].flatten(), later[0].flatten()])
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.15
    assert torch.equal(drawn, draw_noise(like, victims, steps))


def test_noise_moves_a_step_by_its_size() -> None:
    plain, noisy = Adam(lr=0.1), Adam(lr=0.1, noise=0.2)
    moved: list[Tensor] = []
    for optimiser in (plain, noisy):
        values = {"x": torch.zeros(1, 4000)}
        state = {**optimiser.start(values), "victim": torch.zeros(1)}
        optimiser.step(values, {"x": torch.ones(1, 4000)}, state, torch.ones(1))
        moved.append(values["x"])
    assert abs(float((moved[1] - moved[0]).std()) - 0.02) < 0.002


def test_only_the_largest_values_are_matched(observe: Observe) -> None:
    victim, seen = evaluating_client(observe, [0])
    gradient = seen.update.gradient()
    weights = keep_largest({}, gradient, 0.25)
    kept = torch.cat([weights[n].values.flatten() for n in gradient])  # type: ignore[union-attr]
    sizes = torch.cat([gradient[n].abs().flatten() for n in gradient])
    assert abs(float(kept.mean()) - 0.25) < 0.01
    assert sizes[kept == 1].min() >= sizes[kept == 0].max()
    part = InvertingGradients(iterations=200, largest=0.25)(seen)
    assert victim.decibels(part) > 15
