from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks.matching.problem import MatchingProblem, enumerate_label_orders
from keyhole.defenses import Dropout
from keyhole.models import build
from keyhole.models.dropout_sites import Site

Clients = Callable[..., list[Any]]


def problem_of(clients: Clients, model: nn.Module, *rest: Any, **options: Any) -> MatchingProblem:
    return MatchingProblem.from_observation(clients(model, *rest, **options)[0].observation)


def test_a_known_dropout_is_put_into_the_attackers_model(clients: Clients) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    problem = problem_of(clients, model, [[3]], Dropout(p=0.25))
    assert problem.sites == (Site(0.25, (512,)),) * 3
    assert problem.model.training
    assert not any(p.requires_grad for p in problem.model.parameters())
    assert problem.model is not model
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.0}


def test_a_model_without_dropout_has_no_sites(clients: Clients) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    assert problem_of(clients, model, [[3]]).sites == ()


def test_clients_that_evaluate_drop_nothing(clients: Clients) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    problem = problem_of(clients, model, [[3]], Dropout(p=0.25), mode="eval")
    assert not problem.model.training
    assert problem.sites == ()


def test_the_box_is_black_and_white_as_the_model_sees_them(clients: Clients) -> None:
    client = clients(build("mlp", classes=10, channels=1, image_size=8), [[3]])[0]
    problem = MatchingProblem.from_observation(client.observation)
    white, black = (
        client.data.normalise(torch.ones(1, 8, 8)),
        client.data.normalise(torch.zeros(1, 8, 8)),
    )
    torch.testing.assert_close(problem.box[0].expand(1, 8, 8), black)
    torch.testing.assert_close(problem.box[1].expand(1, 8, 8), white)


def test_a_model_may_have_more_outputs_than_there_are_classes(clients: Clients) -> None:
    model = build("mlp", classes=13, channels=1, image_size=8)
    assert problem_of(clients, model, [[3]]).outputs == 13


def test_looking_at_the_model_does_not_teach_it(clients: Clients) -> None:
    """Running statistics are what some attacks compare with: they must stay the server's."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(108, 10))
    )
    problem = problem_of(clients, model, [[3, 4]])
    assert problem.outputs == 10
    assert len(problem.sites) == 1
    assert torch.equal(problem.model[1].running_mean, model[1].running_mean)
    assert torch.equal(problem.model[1].running_var, model[1].running_var)


@pytest.mark.parametrize(
    ("steps", "local", "expected"),
    [(1, 2, [(0, 2)]), (3, 2, [(0, 2)] * 3), (3, 1, [(0, 1), (1, 2), (0, 1)])],
)
def test_steps_take_the_images_in_order_and_then_again(
    clients: Clients, steps: int, local: int, expected: list[tuple[int, int]]
) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    problem = problem_of(clients, model, [[3, 4]], steps=steps, lr=0.1, local=local)
    found = [problem.batch_slice(step) for step in range(steps)]
    assert [(s.start, s.stop) for s in found] == expected
    assert problem.masked_samples == steps * local


def test_labels_are_shared_out_among_batches_in_every_different_way() -> None:
    ways = enumerate_label_orders([3, 1, 2, 1], 2)
    assert ways[0] == (1, 3, 1, 2)
    assert len(set(ways)) == len(ways) == 4
    assert all(sorted(way) == [1, 1, 2, 3] for way in ways)
    assert len(enumerate_label_orders(range(4), 2)) == 6
    assert len(enumerate_label_orders(range(4), 1)) == 24
    assert enumerate_label_orders([5, 5], 1) == [(5, 5)]


def test_an_order_of_labels_matters_only_where_steps_differ(clients: Clients) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    of = partial(problem_of, clients, model, [[3, 4]], lr=0.1)
    assert of(steps=2, local=1).label_orders_matter
    assert not of(steps=2, local=2).label_orders_matter
    assert not of(steps=1, local=1).label_orders_matter
