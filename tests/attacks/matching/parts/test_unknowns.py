from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from keyhole.attacks.matching.parts.unknowns import ConfinedPixels, DropoutMasks, Pixels, SoftLabels
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses import Dropout
from keyhole.models import build
from keyhole.models.dropout_sites import Site

Clients = Callable[..., list[Any]]


@pytest.fixture
def problem(clients: Clients) -> MatchingProblem:
    model = build("mlp", classes=10, channels=1, image_size=8)
    return MatchingProblem.from_observation(
        clients(model, [[3, 4]], Dropout(p=0.25))[0].observation
    )


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_pixels_start_as_noise(problem: MatchingProblem) -> None:
    values = torch.stack([Pixels().start(problem, draws(seed)) for seed in range(50)])
    assert values.shape == (50, 2, 1, 8, 8)
    assert values.mean().abs() < 0.05
    assert values.std() == pytest.approx(1, abs=0.05)
    assert torch.equal(Pixels().start(problem, draws(3)), values[3])


def test_pixels_stay_between_black_and_white(problem: MatchingProblem) -> None:
    far = torch.tensor([-100.0, 100.0]).view(1, 2, 1, 1, 1).expand(1, 2, 1, 8, 8)
    near = Pixels().project(far, problem, {})
    assert near.unique().tolist() == [float(edge) for edge in problem.box]
    assert torch.equal(Pixels(clamped=False).project(far, problem, {}), far)
    assert Pixels().render(far, problem) is far


@pytest.fixture
def confined() -> ConfinedPixels:
    """Four patches of 16 pixels each, cut in an order of their own."""
    return ConfinedPixels(layout=torch.randperm(64, generator=draws()).view(4, 16))


def known(victims: int, rank: int, padded: int = 0) -> dict[str, torch.Tensor]:
    """Per victim a space of ``rank`` directions, rows of 0 behind, and patches off it."""
    space = torch.linalg.qr(torch.randn(victims, 16, rank, generator=draws(1)))[0].mT
    patches = 0.1 * torch.randn(victims, 4, 16, generator=draws(2))
    rest = patches - (patches @ space.mT) @ space
    return {"rest": rest, "space": torch.nn.functional.pad(space, (0, 0, 0, padded))}


@pytest.mark.parametrize(("rank", "padded"), [(3, 0), (3, 2), (1, 3)])
def test_confined_pixels_differ_from_what_is_known_within_the_space_alone(
    problem: MatchingProblem, confined: ConfinedPixels, rank: int, padded: int
) -> None:
    facts = known(3, rank, padded)
    value = 0.1 * torch.randn(3, 1, 1, 8, 8, generator=draws(3))
    found = confined.project(value, problem, facts)
    assert found.shape == value.shape
    patches, before = (x.flatten(1)[:, confined.layout] for x in (found, value))
    space = facts["space"]
    torch.testing.assert_close(patches - (patches @ space.mT) @ space, facts["rest"])
    torch.testing.assert_close(patches @ space.mT, before @ space.mT)
    torch.testing.assert_close(confined.project(found, problem, facts), found)


def test_confined_pixels_of_a_whole_space_are_plain_pixels(
    problem: MatchingProblem, confined: ConfinedPixels
) -> None:
    facts = {"rest": torch.zeros(2, 4, 16), "space": torch.eye(16).expand(2, -1, -1)}
    value = 5 * torch.randn(2, 1, 1, 8, 8, generator=draws(3))
    found = confined.project(value, problem, facts)
    torch.testing.assert_close(found, Pixels().project(value, problem, {}))
    assert found.abs().max() < value.abs().max()


def test_confined_pixels_where_nothing_is_hidden_are_what_is_known(
    problem: MatchingProblem, confined: ConfinedPixels
) -> None:
    facts = {**known(2, 1), "space": torch.zeros(2, 0, 16)}
    found = confined.project(torch.ones(2, 1, 1, 8, 8), problem, facts)
    assert torch.equal(found.flatten(1)[:, confined.layout], facts["rest"])


def test_label_scores_start_as_noise_over_all_outputs(problem: MatchingProblem) -> None:
    assert SoftLabels().start(problem, draws()).shape == (2, 10)


def test_masks_start_as_the_client_would_draw_them(problem: MatchingProblem) -> None:
    unknown = DropoutMasks(problem.sites)
    value = unknown.start(problem, draws())
    assert value.shape == (2, 3 * 512)
    assert set(value.unique().tolist()) == {0.0, 1.0}
    assert 1 - float(value.mean()) == pytest.approx(0.25, abs=0.03)


def test_masks_of_rare_drops_start_mostly_kept() -> None:
    sites = (Site(0.05, (2000,)), Site(0.9, (2000,)))

    class Two:
        masked_samples = 1

    value = DropoutMasks(sites).start(Two(), draws())  # type: ignore[arg-type]
    assert float(value[:, :2000].mean()) == pytest.approx(0.95, abs=0.02)
    assert float(value[:, 2000:].mean()) == pytest.approx(0.1, abs=0.03)


def test_masks_stay_between_dropped_and_kept(problem: MatchingProblem) -> None:
    unknown = DropoutMasks(problem.sites)
    value = unknown.project(torch.tensor([[-1.0, 0.5, 3.0]]), problem, {})
    assert value.tolist() == [[0.0, 0.5, 1.0]]


def test_masks_are_cut_into_their_sites(problem: MatchingProblem) -> None:
    sites = (Site(0.2, (3,)), Site(0.3, (2, 2)), Site(0.4, (4, 1, 1)))
    value = torch.arange(2 * 5 * 11).view(2, 5, 11)
    first, second, third = DropoutMasks(sites).render(value)
    assert torch.equal(first, value[..., :3])
    assert torch.equal(second.flatten(2), value[..., 3:7])
    assert second.shape == (2, 5, 2, 2)
    assert torch.equal(third[..., 0, 0], value[..., 7:])


def test_noise_is_searched_for_without_bounds(problem: MatchingProblem) -> None:
    """Beside a dropout's mask, which stays between 0 and 1."""
    sites = (Site(0.5, (300,)), Site(0.0, (300,), is_noise=True))
    unknown = DropoutMasks(sites)
    start = unknown.start(problem, draws())
    assert set(start[:, :300].unique().tolist()) == {0.0, 1.0}
    assert start[:, 300:].std() == pytest.approx(1, abs=0.1)
    far = torch.full((1, 2, 600), -3.0)
    mask, noise = unknown.render(unknown.project(far, problem, {}))
    assert mask.unique().tolist() == [0.0]
    assert noise.unique().tolist() == [-3.0]
