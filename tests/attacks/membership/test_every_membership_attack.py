"""What holds for every membership attack: it is given no truth, and draws by its seed alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch

from keyhole.attacks.membership import (
    MEMBERSHIP,
    LabelledImages,
    Lira,
    LossThreshold,
    MembershipAttack,
    MembershipProblem,
    ShadowModels,
)
from keyhole.errors import BadValue, UnknownName
from keyhole.metrics.membership import auc

ATTACKS = [LossThreshold(), ShadowModels(shadows=3), Lira(shadows=4)]
EVERY = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)


def test_all_are_tried_here() -> None:
    assert {attack.name for attack in ATTACKS} == set(MEMBERSHIP.names())


def test_nothing_that_an_attacker_is_given_says_who_is_a_member() -> None:
    given = {f.name for f in fields(MembershipProblem)}
    assert given == {"model", "candidates", "public", "training", "members", "seed"}
    assert {f.name for f in fields(LabelledImages)} == {"images", "labels"}


@EVERY
def test_where_no_candidate_was_a_member_nobody_finds_one(
    attack: MembershipAttack, problem: MembershipProblem
) -> None:
    public = problem.public
    (model,) = next(problem.training.train_models([public.take(torch.arange(40))], [1]))
    scores = attack(replace(problem, model=model))
    assert 0.35 < auc(scores[:40], scores[40:]) < 0.65


@EVERY
def test_the_seed_decides_and_the_model_stays_as_it_was(
    attack: MembershipAttack, problem: MembershipProblem, same_rng: Callable[[], bool]
) -> None:
    before = copy.deepcopy(problem.model.state_dict())
    one, same, other = (attack(replace(problem, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one, other) == (attack.own_models == 0)
    assert one.dtype == torch.float64
    assert one.isfinite().all()
    assert all(torch.equal(v, before[k]) for k, v in problem.model.state_dict().items())
    assert same_rng()


@EVERY
def test_it_says_what_it_is_and_what_it_knew(
    attack: MembershipAttack, problem: MembershipProblem
) -> None:
    assert attack.summary
    assert attack.paper
    assert MEMBERSHIP.parse(str(attack)) == attack
    known = attack.knowledge(problem)
    assert known["own_models"] == attack.own_models
    assert known["views"] == 0


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("lrai", UnknownName, "unknown membership attack 'lrai': did you mean lira"),
        ("lira(shadows=3)", BadValue, "lira: shadows: .* got 3"),
        ("lira(shadows=5)", BadValue, "lira: shadows: .*multiple of 2"),
        ("loss(views=-1)", BadValue, "loss: views: .* got -1"),
        ("shadow(shadow=3)", UnknownName, "did you mean shadows"),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(
    text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        MEMBERSHIP.parse(text)
