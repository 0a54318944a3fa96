from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from keyhole.data import ImageSet, load
from keyhole.defenses import Defense, Dropout, Gaussian, Mjp, NoDefense, Pruning
from keyhole.errors import BadUpdate
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update

INDICES = [4, 7, 9]


def neighbours(thing: Any) -> list[Any]:
    """Everything one step away from ``thing``, code and modules aside."""
    if isinstance(thing, types.FunctionType):
        return [thing.__closure__, thing.__defaults__, thing.__kwdefaults__, vars(thing)]
    if isinstance(thing, types.ModuleType | types.CodeType | type | types.BuiltinFunctionType):
        return [getattr(thing, "__self__", None)] if callable(thing) else []
    if isinstance(thing, weakref.ref):
        return [thing()]
    found = gc.get_referents(thing)
    if isinstance(thing, Tensor):
        found += [thing.grad_fn, thing._base, thing._backward_hooks]
        found += [thing.grad] if thing.is_leaf else []
    if isinstance(thing, torch.autograd.graph.Node):
        found += [node for node, _ in thing.next_functions]
        found += [getattr(thing, "variable", None)]
        found += [getattr(thing, name) for name in dir(thing) if name.startswith("_saved_")]
    return found


def reachable(root: Any) -> Iterator[Any]:
    """Everything that can be got at from ``root``, however deep."""
    seen: set[int] = set()
    kept = []
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kept.append(thing)
        yield thing
        waiting.extend(neighbours(thing))


def leaks(observation: Observation, secrets: list[Tensor]) -> list[str]:
    """Every way found in which ``observation`` leads to ``secrets`` or to where they were."""
    found = []
    places = {s.untyped_storage().data_ptr() for s in secrets}
    for thing in reachable(observation):
        if isinstance(thing, torch.Generator | torch.autograd.graph.Node):
            found.append(type(thing).__name__)
        if isinstance(thing, np.ndarray) and thing.dtype != object:
            thing = torch.from_numpy(np.array(thing))
        if not isinstance(thing, Tensor):
            continue
        if thing.requires_grad or thing.grad_fn is not None or thing.grad is not None:
            found.append("gradient")
        if thing.untyped_storage().data_ptr() in places:
            found.append("storage")
        if any(equal(thing, secret) for secret in secrets):
            found.append("value")
    return found


def equal(one: Tensor, other: Tensor) -> bool:
    if one.numel() != other.numel() or one.is_floating_point() != other.is_floating_point():
        return False
    return torch.allclose(one.detach().double().flatten(), other.double().flatten(), atol=1e-6)


def secrets_of(data: ImageSet, images: Tensor, labels: Tensor) -> list[Tensor]:
    inputs = data.normalise(images)
    singles = [x for batch in (images, inputs) for x in batch]
    turned = [x.movedim(-3, -1) for x in (images, inputs, *singles)]
    return [images, inputs, labels, *singles, *turned]


@pytest.fixture(scope="module", params=["mlp", "vit-small"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param, classes=10, channels=1, image_size=8)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits")


@pytest.fixture
def knowledge(digits: ImageSet) -> Knowledge:
    return Knowledge(
        shape=digits.shape, classes=10, mean=digits.mean, std=digits.std, batch_size=len(INDICES)
    )


@pytest.mark.parametrize("defense", [NoDefense(), Gaussian(), Pruning(), Dropout()], ids=str)
def test_no_truth_can_be_reached_from_an_observation(
    model: nn.Module, digits: ImageSet, observe: Callable[..., Any], defense: Defense
) -> None:
    victim = observe(model, digits, INDICES, defense)
    secrets = secrets_of(digits, victim.images, victim.labels)
    tensors = [t for t in reachable(victim.observation) if isinstance(t, Tensor)]
    assert len(tensors) >= 2 * len(list(model.parameters()))
    assert leaks(victim.observation, secrets) == []


def test_no_mask_of_a_puzzle_can_be_reached(digits: ImageSet, observe: Callable[..., Any]) -> None:
    """Nor what is still to be dealt, where the global model had laid puzzles before."""
    defense = Mjp(gamma=0.5)
    vit: Any = defense.prepare_model(build("vit-small", classes=10, channels=1, image_size=8))
    vit.train()(torch.zeros(3, 1, 8, 8))
    victim = observe(vit, digits, INDICES, defense)
    secrets = secrets_of(digits, victim.images, victim.labels)
    masks = [victim.masks[0], victim.masks[0].float(), *vit.puzzle.pool.supply]
    assert leaks(victim.observation, [*secrets, *masks]) == []
    victim.observation.model.puzzle.pool.supply = vit.puzzle.pool.supply
    assert set(leaks(victim.observation, masks)) == {"storage", "value"}


def by_hook(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    observation.model.register_forward_hook(lambda module, args, output: images.sum())
    return observation


def by_value(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    observation.model.last_seen = [images.clone().flatten()]
    return observation


def by_storage(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    observation.update.change["crumb"] = images[0, 0, :2]
    return observation


def by_array(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    observation.knowledge.__dict__["note"] = {"pixels": images.numpy().copy()}
    return observation


def by_labels(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    return replace(observation, knowledge=replace(observation.knowledge, labels=labels.clone()))


def by_graph(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    weight = torch.ones_like(images, requires_grad=True)
    change = {"w": (weight * images).sum()}
    return replace(observation, update=replace(observation.update, change=change))


def by_generator(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    observation.model.draws = generator(0)
    return observation


def by_default_argument(observation: Observation, images: Tensor, labels: Tensor) -> Observation:
    def peek(kept: Tensor = images) -> Tensor:
        return kept

    observation.model.peek = peek
    return observation


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (by_hook, "storage"),
        (by_value, "value"),
        (by_storage, "storage"),
        (by_array, "value"),
        (by_labels, "value"),
        (by_graph, "gradient"),
        (by_graph, "value"),
        (by_generator, "Generator"),
        (by_default_argument, "storage"),
    ],
)
def test_the_search_finds_a_planted_leak(
    digits: ImageSet, observe: Callable[..., Any], plant: Callable[..., Observation], kind: str
) -> None:
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    victim = observe(small, digits, INDICES)
    secrets = secrets_of(digits, victim.images, victim.labels)
    assert leaks(victim.observation, secrets) == []
    planted = plant(victim.observation, victim.images, victim.labels)
    assert kind in leaks(planted, secrets)


def test_hooks_of_the_global_model_do_not_come_along(
    digits: ImageSet, observe: Callable[..., Any]
) -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    victim = observe(model, digits, INDICES)
    secrets = secrets_of(digits, victim.images, victim.labels)
    assert leaks(victim.observation, secrets) == []


def test_an_update_with_a_graph_is_received_without_it(knowledge: Knowledge) -> None:
    model = nn.Linear(2, 2)
    grown = {name: p * 2 for name, p in model.named_parameters()}
    received = Server(model).receive(Update(grown), knowledge).update
    assert all(t.grad_fn is None and not t.requires_grad for t in received.change.values())
    assert all(torch.equal(received.change[n], grown[n]) for n in grown)


def test_the_server_keeps_a_copy_of_what_it_received(knowledge: Knowledge) -> None:
    change = {"weight": torch.ones(2, 2)}
    received = Server(nn.Linear(2, 2)).receive(Update(change), knowledge).update
    change["weight"].zero_()
    assert received.change["weight"].sum() == 4


def test_earlier_updates_are_received_like_the_last(knowledge: Knowledge) -> None:
    model = nn.Linear(2, 2)
    server = Server(model)
    grown = [{"weight": model.weight * factor} for factor in (1, 2, 3)]
    first, second, last = (Update(change) for change in grown)
    seen = server.receive(last, knowledge, earlier=[first, second])
    assert len(seen.earlier) == 2
    for received, sent in zip((*seen.earlier, seen.update), grown, strict=True):
        assert torch.equal(received.change["weight"], sent["weight"])
        assert received.change["weight"].grad_fn is None
        assert received.change["weight"].data_ptr() != sent["weight"].data_ptr()
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        server.receive(last, knowledge, earlier=[Update({"weight": torch.full((2, 2), torch.nan)})])
    assert server.receive(last, knowledge).earlier == ()


def test_the_server_sends_a_frozen_copy_in_evaluation_mode() -> None:
    model = nn.Linear(2, 2).train()
    model(torch.ones(1, 2)).sum().backward()
    sent = Server(model).sent
    assert not sent.training
    assert all(p.grad is None and not p.requires_grad for p in sent.parameters())
    assert model.training
    assert all(p.grad is not None and p.requires_grad for p in model.parameters())
    with torch.no_grad():
        model.weight.zero_()
    assert sent.weight.any()


def test_all_observations_of_a_server_share_one_model(knowledge: Knowledge) -> None:
    server = Server(nn.Linear(2, 2))
    update = Update({"weight": torch.ones(2, 2)})
    assert server.receive(update, knowledge).model is server.receive(update, knowledge).model


@pytest.mark.parametrize(
    "change",
    [
        {"weight": torch.full((2, 2), float("nan"))},
        {"weight": torch.ones(3, 2)},
        {"other": torch.ones(2, 2)},
    ],
    ids=["nan", "shape", "name"],
)
def test_the_server_refuses_a_bad_update(knowledge: Knowledge, change: dict[str, Tensor]) -> None:
    with pytest.raises(BadUpdate):
        Server(nn.Linear(2, 2)).receive(Update(change), knowledge)


def test_the_box_holds_what_black_and_white_become(digits: ImageSet, knowledge: Knowledge) -> None:
    low, high = knowledge.box(torch.empty(1, dtype=torch.float64))
    assert low.dtype == torch.float64
    extremes = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]).double()
    black, white = digits.normalise(extremes)
    assert torch.allclose(black, low.expand_as(black), atol=1e-6)
    assert torch.allclose(white, high.expand_as(white), atol=1e-6)


def test_the_summary_says_what_was_known(knowledge: Knowledge) -> None:
    honest = knowledge.summary()
    assert honest["labels"] is False
    assert honest["defense"] is None
    assert honest["server"] == "honest but curious"
    more = replace(
        knowledge,
        labels=torch.tensor([1]),
        defense=Gaussian(sigma=0.5),
        altered_model="first block stripped",
    ).summary()
    assert more["labels"] is True
    assert more["defense"] == "gaussian(sigma=0.5)"
    assert more["server"] == "malicious"
    assert more["altered_model"] == "first block stripped"
