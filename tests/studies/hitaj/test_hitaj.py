"""The malicious client: it learns from weights alone, and never holds the target class."""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.federation import Federation
from keyhole.models.shallow_convnet import shallow_convnet
from keyhole.seeds import generator
from keyhole.threat import Knowledge
from keyhole_studies.hitaj import Adversary, Hitaj, Infiltration
from keyhole_studies.hitaj import adversary as hitaj

TARGET, FAKE = 3, 10


@pytest.fixture(scope="module")
def after_honest_rounds(infiltrate: Callable[..., Infiltration]) -> Infiltration:
    game = infiltrate(rounds=12, begin=99)
    list(game.run_rounds())
    return game


@pytest.fixture
def taught(after_honest_rounds: Infiltration) -> Infiltration:
    """A game in which the global model knows the target class, the adversary nothing yet."""
    return copy.deepcopy(after_honest_rounds)


def confidence(adversary: Adversary) -> float:
    """Of the generator itself, not of the mean over rounds."""
    with torch.no_grad():
        codes = adversary.generator.sample_codes(64, generator(9))
        return float(
            adversary.compute_logits(adversary.generator(codes)).softmax(1)[:, TARGET].mean()
        )


def test_drawings_come_to_be_taken_for_the_target(taught: Infiltration) -> None:
    adversary = taught.adversary
    before = confidence(adversary)
    for i in range(15):
        adversary.train_generator(generator(i))
    assert before < 0.3
    assert confidence(adversary) > 0.8


def test_total_variation_is_lowered_by_its_weight(taught: Infiltration) -> None:
    roughness = []
    for tv in (0.0, 20.0):
        adversary = copy.deepcopy(taught.adversary)
        adversary.attack = replace(adversary.attack, tv=tv, average=0.0)
        for i in range(10):
            adversary.train_generator(generator(i))
        drawn = adversary.draw_images(32, generator(9)).images
        roughness.append(float(hitaj.total_variation(drawn)))
    assert roughness[1] < 0.5 * roughness[0]


def test_it_trains_on_its_own_images_and_fakes_and_never_on_the_target(
    infiltrate: Callable[..., Infiltration], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[tuple[Tensor, Tensor]] = []
    plain = hitaj.compute_local_update

    def spy(model: Any, inputs: Tensor, labels: Tensor, **rest: Any) -> Any:
        fed.append((inputs, labels))
        return plain(model, inputs, labels, **rest)

    monkeypatch.setattr(hitaj, "compute_local_update", spy)
    game = infiltrate(rounds=3, fakes=30, begin=2)
    list(game.run_rounds())
    own = game.adversary.images
    assert [int((labels == FAKE).sum()) for _, labels in fed] == [0, 30, 30]
    for inputs, labels in fed:
        assert TARGET not in labels.tolist()
        assert torch.allclose(inputs[: len(own)], game.adversary.normalise(own))
    assert not torch.equal(fed[1][0][len(own) :], fed[2][0][len(own) :])


def test_images_of_the_target_are_refused(digits: ImageSet) -> None:
    some = [int(i) for i in torch.nonzero(digits.labels == TARGET).flatten()[:2]]
    with pytest.raises(DoesNotFit, match="holds images of class 3"):
        Adversary(
            Hitaj(target=TARGET),
            Knowledge(digits.shape, 10, digits.mean, digits.std),
            shallow_convnet(classes=11, channels=1, image_size=digits.size),
            digits.images(some),
            digits.labels[some],
        )


def test_a_model_without_an_output_for_fakes_is_refused(digits: ImageSet) -> None:
    with pytest.raises(DoesNotFit, match="10 outputs for 10 classes"):
        Adversary(
            Hitaj(target=TARGET),
            Knowledge(digits.shape, 10, digits.mean, digits.std),
            shallow_convnet(classes=10, channels=1, image_size=digits.size),
            digits.images([0]),
            digits.labels[[0]],
        )


def neighbours(thing: Any) -> list[Any]:
    """What can be got at from a thing; functions lead to what they closed over."""
    if isinstance(thing, type | types.ModuleType | types.BuiltinFunctionType):
        return []
    if isinstance(thing, types.FunctionType):
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ())]
    return gc.get_referents(thing)


def reachable(root: Any) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen[id(thing)] = thing
            yield thing
            waiting.extend(neighbours(thing))


def holds(root: Any, image: Tensor) -> bool:
    """Whether some tensor reachable from ``root`` has ``image`` among its rows."""
    for thing in reachable(root):
        alike = isinstance(thing, Tensor) and thing.ndim == 4 and thing.shape[1:] == image.shape
        if alike and bool((thing - image).abs().flatten(1).amax(1).lt(1e-6).any()):
            return True
    return False


def test_no_image_of_the_victim_can_be_reached_from_the_adversary(
    infiltrate: Callable[..., Infiltration],
) -> None:
    game = infiltrate(rounds=2)
    list(game.run_rounds())
    data, shares = game.federation.data, game.federation.shares
    own, theirs = data.images(shares[1]), data.images(shares[0])
    assert holds(game.adversary, own[7]), "the search finds what is there"
    for image in (*theirs, *data.normalise(theirs)):
        assert not holds(game.adversary, image)
    found = [t for t in reachable(game.adversary) if isinstance(t, ImageSet | Federation)]
    arrays = [t for t in reachable(game.adversary) if isinstance(t, np.ndarray)]
    assert found == []
    assert arrays == []


def test_its_update_looks_like_any_other(infiltrate: Callable[..., Infiltration]) -> None:
    game = infiltrate(rounds=5)
    list(game.run_rounds())
    federation = game.federation
    sent = federation.model.state_dict()
    honest = federation.collect_updates(6, [0])[0].update
    ours = game.adversary.take_turn(sent, 6, federation.training)
    assert ours.check_against(sent).change.keys() == honest.change.keys()
    assert ours.examples == len(federation.shares[1]) + 30
    assert 0.2 < ours.norm() / honest.norm() < 5


def test_the_global_weights_are_left_as_they_were(taught: Infiltration) -> None:
    sent = {name: tensor.clone() for name, tensor in taught.federation.model.state_dict().items()}
    taught.adversary.take_turn(sent, 100, taught.federation.training)
    held = taught.adversary.discriminator
    assert all(torch.equal(sent[name], tensor) for name, tensor in held.state_dict().items())
    assert all(parameter.grad is None for parameter in held.parameters())


def test_what_it_draws_with_is_the_fading_mean_over_rounds(taught: Infiltration) -> None:
    adversary, seen = taught.adversary, []
    for i in range(3):
        adversary.train_generator(generator(i))
        seen.append(adversary.generator.stages[0][0].weight.detach().clone())
    fade = adversary.attack.average
    wanted = fade * (fade * seen[0] + (1 - fade) * seen[1]) + (1 - fade) * seen[2]
    assert torch.allclose(adversary.averaged.stages[0][0].weight, wanted, atol=1e-6)


def test_old_drawings_are_shown_again_and_forgotten_in_time(taught: Infiltration) -> None:
    adversary = taught.adversary
    first = adversary.draw_fakes(generator(0))
    mixed = adversary.draw_fakes(generator(1))
    assert len(first) == len(mixed) == 30
    old = [bool((first == image).flatten(1).all(1).any()) for image in mixed]
    assert sum(old) == 15
    for i in range(20):
        adversary.draw_fakes(generator(2 + i))
    assert len(adversary.earlier_fakes) == adversary.attack.replay


def test_drawings_are_ranked_by_the_discriminators_word(taught: Infiltration) -> None:
    taught.adversary.train_generator(generator(0))
    found = taught.draw_final(20)
    assert found.images.shape == (20, 1, 8, 8)
    assert 0 <= found.images.min() <= found.images.max() <= 1
    assert (found.confidence.diff() <= 0).all()
    again = taught.adversary.compute_logits(found.images)[:, :FAKE].softmax(1)[:, TARGET]
    assert torch.allclose(again, found.confidence, atol=1e-5)
    assert torch.equal(found.pick, found.images[:1])


@pytest.mark.parametrize(
    "wrong", [{"batch": 1}, {"lr": 0.0}, {"average": 1.0}, {"rounds": 0}, {"tv": -1.0}], ids=str
)
def test_senseless_hyperparameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Hitaj(target=0, **wrong)
