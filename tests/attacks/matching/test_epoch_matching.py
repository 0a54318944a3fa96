from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import EpochMatching, InvertingGradients
from keyhole.attacks.analytic.step_order import infer_order
from keyhole.attacks.matching.parts.epochs import EpochProblem, Orders, average_epochs
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.data import load
from keyhole.federation.training import cut_batches
from keyhole.optimisers import Sgd
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update

Observe = Callable[..., Any]


def train_by_hand(
    model: nn.Module, inputs: Tensor, labels: Tensor, orders: list[list[int]], local: int
) -> Update:
    """What PyTorch's own SGD with momentum makes of epochs in these orders."""
    own = copy.deepcopy(model).requires_grad_(True)
    optimiser = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    for order in orders:
        for cut in cut_batches(len(order), local):
            batch = torch.tensor(order[cut])
            optimiser.zero_grad()
            F.cross_entropy(own(inputs[batch]), labels[batch]).backward()
            optimiser.step()
    start = model.state_dict()
    change = {name: end - start[name] for name, end in own.state_dict().items()}
    steps = sum(len(cut_batches(len(order), local)) for order in orders)
    return Update(change, steps=steps, lr=0.1, batch_size=local, examples=len(inputs))


def network(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), activation(), nn.Linear(40, 10))


def observe_epochs(
    orders: list[list[int]], local: int, activation: type[nn.Module] = nn.Tanh
) -> tuple[Observation, Tensor]:
    data, images = load("digits"), len(orders[0])
    inputs, labels = data.normalise(data.images(list(range(images)))), data.labels[:images]
    update = train_by_hand(network(activation), inputs, labels, orders, local)
    knowledge = Knowledge(
        data.shape,
        10,
        data.mean,
        data.std,
        batch_size=images,
        labels=labels,
        optimiser=Sgd(momentum=0.9),
        orders=10**6,
    )
    return Server(network(activation)).receive(update, knowledge), inputs


@pytest.mark.parametrize("local", [2, 3])
def test_the_clients_own_copies_and_orders_fit_exactly(local: int) -> None:
    orders = [[3, 1, 0, 2, 4], [4, 0, 2, 1, 3]]
    seen, inputs = observe_epochs(orders, local)
    attack = EpochMatching(agreement=1.0)
    group = VictimGroup(attack, [seen])
    problem, batch = group.problem, group.parts.batch
    assert isinstance(problem, EpochProblem)
    assert (problem.epochs, problem.steps) == (2, 4)
    assert batch is not None
    copies = torch.cat([inputs[torch.tensor(order)] for order in orders])[None]
    scores = torch.stack([100 * torch.eye(5)[torch.tensor(order)] for order in orders])[None]
    known = torch.eye(10)[seen.knowledge.labels][None]
    samples, targets = batch.form(copies, known, {"orders": scores}, problem)
    match = group.make_matcher([0])(samples, targets, None)
    assert group.parts.objective(match) < 1e-8
    shuffled = copies.flip(1)
    other = group.make_matcher([0])(shuffled, targets, None)
    assert group.parts.objective(other) > 1e-3
    restored = batch.restore(copies[0], {}, problem)
    assert torch.allclose(restored, inputs[torch.tensor(orders[0])], atol=1e-6)


def test_orders_are_doubly_stochastic() -> None:
    torch.manual_seed(0)
    matrices = Orders().render(3 * torch.randn(2, 3, 4, 4))
    assert torch.allclose(matrices.sum(-1), torch.ones(2, 3, 4), atol=1e-5)
    assert torch.allclose(matrices.sum(-2), torch.ones(2, 3, 4), atol=0.1)


def test_copies_are_matched_before_they_are_averaged() -> None:
    torch.manual_seed(0)
    images = torch.rand(5, 3, 4, 4)
    noise = 0.01 * torch.randn(2, 5, 3, 4, 4)
    epochs = torch.stack([images, images[torch.tensor([4, 2, 0, 1, 3])]]) + noise
    assert (average_epochs(epochs) - images).abs().max() < 0.05


def test_the_prior_does_not_depend_on_the_order_but_on_the_images() -> None:
    seen, inputs = observe_epochs([[0, 1, 2, 3], [3, 2, 1, 0]], 2)
    group = VictimGroup(EpochMatching(agreement=1.0), [seen])
    prior = group.parts.priors[-1]
    same = torch.cat([inputs, inputs.flip(0)])[None]
    other = torch.cat([inputs, torch.randn(inputs.shape)])[None]
    values = [float(prior(guess(images))) for images in (same, other)]
    assert values[0] < 1e-10 < 1e-3 < values[1]


def guess(images: Tensor) -> Any:
    from keyhole.attacks.matching.parts.priors import Guess

    return Guess(images, None, None, torch.zeros(1))  # type: ignore[arg-type]


def test_steps_are_unrolled_where_others_take_them_for_one() -> None:
    seen, _ = observe_epochs([[0, 1, 2, 3]], 2)
    assert VictimGroup(EpochMatching(), [seen]).problem.steps == 2
    assert VictimGroup(InvertingGradients(), [seen]).problem.steps == 1
    unknown = replace(seen, knowledge=replace(seen.knowledge, optimiser=None))
    assert VictimGroup(EpochMatching(), [unknown]).problem.steps == 1


def test_it_reads_images_out_of_two_epochs_in_unknown_orders() -> None:
    seen, inputs = observe_epochs([[0, 1], [1, 0]], 1)
    found = EpochMatching(iterations=250)(seen)
    plain = InvertingGradients(iterations=250)(seen)
    assert found.images is not None
    assert plain.images is not None
    assert found.images.shape == inputs.shape
    errors = [
        min((each - true).square().mean() for each in images)
        for images in (found.images, plain.images)
        for true in inputs
    ]
    assert sum(errors[:2]) < 0.5 * sum(errors[2:])


@pytest.mark.parametrize("order", [[3, 1, 0, 2, 4, 5], [5, 0, 2, 4, 1, 3]], ids=str)
def test_momentum_tells_which_label_was_in_which_step(order: list[int]) -> None:
    seen, _ = observe_epochs([order], 2, nn.Sigmoid)
    labels = seen.knowledge.labels
    assert labels is not None
    mixed = labels.flip(0)
    found = infer_order(seen, mixed)
    assert found is not None
    steps = [set(cut.tolist()) for cut in mixed[found].split(2)]
    assert steps == [set(cut.tolist()) for cut in labels[torch.tensor(order)].split(2)]
    start = EpochMatching().extra_inputs(seen)["start.orders"]
    assert start.shape == (1, 6, 6)
    assert EpochMatching(told=0).extra_inputs(seen) == {}


def test_several_epochs_tell_no_order() -> None:
    seen, _ = observe_epochs([[0, 1, 2, 3], [2, 3, 1, 0]], 2)
    assert infer_order(seen, seen.knowledge.labels) is None
    assert "start.orders" not in EpochMatching().extra_inputs(seen)
