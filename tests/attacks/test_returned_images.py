"""An attack that returns no images is told so in one line; values that are missing are noted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keyhole
from keyhole.attacks import Attack, Reconstruction
from keyhole.errors import DoesNotFit
from keyhole.threat import Observation

NAN = float("nan")


class Returns(Attack):
    """Returns what it was made with."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def incompatibilities(self, observation: Observation) -> list[str]:
        return []

    def reads(self, observation: Observation) -> set[str]:
        return set()

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return Reconstruction(images=self.images)


@pytest.fixture
def observation(observe: Any) -> Observation:
    data = keyhole.data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    seen: Observation = observe(model, data, [3]).observation
    return seen


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (torch.zeros(1, 8, 8), r"a tensor of shape \[1, 8, 8\]"),
        (torch.zeros(1, 1, 8, 9), r"a tensor of shape \[1, 1, 8, 9\]"),
        (torch.zeros(64), r"a tensor of shape \[64\]"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.cfloat), "complex numbers"),
        ([[0.0]], "a list in place of a tensor"),
    ],
)
def test_what_is_no_batch_of_images_is_refused_with_its_shape(
    observation: Observation, images: Any, found: str
) -> None:
    attack = Returns(images)
    wanted = rf"returned {found}: images must be of shape \[n, 1, 8, 8\]"
    with pytest.raises(DoesNotFit, match=wanted):
        attack(observation)


@pytest.mark.parametrize("images", [torch.rand(1, 1, 8, 8), torch.rand(0, 1, 8, 8), None])
def test_images_pass_as_they_are(observation: Observation, images: Tensor | None) -> None:
    found = Returns(images)(observation)
    assert found.images is images
    assert found.notes == ()


def test_values_that_are_no_numbers_cost_no_other_value_and_are_noted(
    observation: Observation,
) -> None:
    images = torch.rand(2, 1, 8, 8)
    holed = images.clone()
    holed[1, 0, 0, 0] = NAN
    found = Returns(holed)(observation)
    assert found.images is not None
    images[1, 0, 0, 0] = 0
    assert found.images.equal(images)
    (note,) = found.notes
    assert note.startswith("1 of 2 images had values that are not numbers")


def test_an_audit_scores_an_attack_that_divided_by_zero() -> None:
    result = keyhole.audit(
        model="mlp", data="digits", victims=1, attacks=[Returns(torch.full((1, 1, 8, 8), NAN))]
    )
    assert result.verdicts[0].words.startswith("not broken by the attacks tried: ")
