from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import DropoutInversion
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.readable_masks import UNKNOWN, find_readable_sites, read_masks
from keyhole.data import load
from keyhole.defenses import Dropout, Gaussian, Mjp
from keyhole.federation import LocalTraining
from keyhole.models import build

Clients = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    return build("mlp", classes=10, channels=1, image_size=8)


def concatenate(masks: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([mask.flatten(1) for mask in masks], 1)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("index", [3, 14])
def test_masks_before_linear_layers_are_read_off(
    clients: Clients, mlp: nn.Module, p: float, index: int
) -> None:
    client = clients(mlp, [[index]], Dropout(p=p))[0]
    problem = MatchingProblem.from_observation(client.observation)
    assert find_readable_sites(problem) == {0: "4.weight", 1: "7.weight", 2: "10.weight"}
    found = read_masks(problem, client.observation.update.gradient())
    assert found.shape == (1, 3 * 512)
    assert torch.equal(found.bool(), concatenate(client.masks))
    assert set(found.unique().tolist()) == {0.0, 1.0}


def test_an_attack_returns_the_masks_it_has_read(clients: Clients, mlp: nn.Module) -> None:
    seen = clients(mlp, [[3], [14]], Dropout(p=0.5))
    attack = DropoutInversion(masks="read", iterations=150)
    for client, found in zip(seen, attack.on_many([c.observation for c in seen]), strict=True):
        assert client.decibels(found.images) > 40
        assert found.masks is not None
        assert len(found.masks) == 3
        for mask, true in zip(found.masks, client.masks, strict=True):
            assert torch.equal(mask, true.float())


@pytest.mark.parametrize("options", [{}, {"steps": 2, "lr": 0.1}], ids=["images", "steps"])
def test_masks_of_several_images_or_steps_are_sought_instead(
    clients: Clients, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 10))
    )
    seen = clients(model.double(), [[3] if options else [3, 14]], **options)[0].observation
    problem = MatchingProblem.from_observation(seen)
    assert find_readable_sites(problem) == {}
    assert (read_masks(problem, seen.update.gradient()) == UNKNOWN).all()
    found, sought = (DropoutInversion(masks=how, iterations=3)(seen) for how in ("read", "sought"))
    assert found.masks is not None
    assert found.masks[0].shape == (2, 20)
    assert torch.equal(found.masks[0], sought.masks[0])
    assert torch.equal(found.images, sought.images)


def test_masks_that_are_not_shown_stay_unknown(clients: Clients) -> None:
    """After a convolution, and behind another activation; the last one is shown."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.Dropout2d(0.4), nn.GELU(), nn.Flatten()),
        *(nn.Linear(108, 20), nn.Dropout(0.3), nn.GELU(), nn.Linear(20, 15), nn.GELU()),
        *(nn.Dropout(0.5), nn.Linear(15, 10)),
    )
    client = clients(model, [[3]])[0]
    problem = MatchingProblem.from_observation(client.observation)
    assert find_readable_sites(problem) == {2: "10.weight"}
    found = read_masks(problem, client.observation.update.gradient())
    assert (found[:, :23] == UNKNOWN).all()
    assert torch.equal(found[:, 23:].bool(), client.masks[2])


def test_masks_of_tokens_are_not_read(clients: Clients) -> None:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    client = clients(model, [[3]], Dropout(p=0.5))[0]
    assert find_readable_sites(MatchingProblem.from_observation(client.observation)) == {}


def test_what_was_not_reported_is_not_read(clients: Clients, mlp: nn.Module) -> None:
    client = clients(mlp, [[3]], Dropout(p=0.5))[0]
    gradient = client.observation.update.gradient()
    del gradient["7.weight"]
    found = read_masks(MatchingProblem.from_observation(client.observation), gradient)
    assert (found[:, 512:1024] == UNKNOWN).all()
    assert (found[:, :512] != UNKNOWN).all()


def test_what_noise_hides_is_not_read_as_kept(clients: Clients) -> None:
    """Where no column is 0 although half should be, the update does not show the mask."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 100), nn.GELU(), nn.Dropout(0.5), nn.Linear(100, 10))
    )
    client = clients(model, [[3]])[0]
    noisy = Gaussian(sigma=1e-3).on_update(client.observation.update)
    found = read_masks(MatchingProblem.from_observation(client.observation), noisy.gradient())
    wrong = (found == 1) & ~client.masks[0]
    assert not wrong.any()


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    model = build("vit-small", classes=10, channels=1, image_size=16)
    model.blocks = model.blocks[:1]
    return model


def test_the_mask_of_a_puzzle_is_read_off(observe: Callable[..., Any], vit: nn.Module) -> None:
    victim = observe(vit, load("digits", image_size=16), [3], Mjp(gamma=0.4))
    problem = MatchingProblem.from_observation(victim.observation)
    assert [site.hides for site in problem.sites] == ["pos_embed"]
    found = read_masks(problem, victim.observation.update.gradient())
    assert torch.equal(found, victim.masks[0].float())
    assert not found.all()


@pytest.mark.parametrize(
    ("indices", "training"),
    [([3, 14], None), ([3], LocalTraining(steps=2, lr=0.1))],
    ids=["images", "steps"],
)
def test_puzzles_of_several_images_or_steps_are_not_read(
    observe: Callable[..., Any],
    vit: nn.Module,
    indices: list[int],
    training: LocalTraining | None,
) -> None:
    """A row was used wherever one of them did not cover it."""
    data = load("digits", image_size=16)
    victim = observe(vit, data, indices, Mjp(gamma=0.4), training=training)
    found = read_masks(
        MatchingProblem.from_observation(victim.observation), victim.observation.update.gradient()
    )
    assert (found == UNKNOWN).all()
    attack = DropoutInversion(masks="read", iterations=2)
    masks = attack(victim.telling("labels").observation).masks
    assert masks is not None
    assert masks[0].shape == (2, 16)


def test_a_puzzle_whose_positions_were_not_reported_is_not_read(
    observe: Callable[..., Any], vit: nn.Module
) -> None:
    seen = observe(vit, load("digits", image_size=16), [3], Mjp(gamma=0.4)).observation
    gradient = seen.update.gradient()
    del gradient["pos_embed"]
    assert (read_masks(MatchingProblem.from_observation(seen), gradient) == UNKNOWN).all()
