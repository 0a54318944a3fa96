from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from keyhole.attacks.membership import LabelledImages, Lira, MembershipProblem, TargetTraining
from keyhole.attacks.membership.base import confidence
from keyhole.attacks.membership.target_training import ReportTrained
from keyhole.defenses import Defense
from keyhole.errors import DoesNotFit
from keyhole.metrics.membership import auc
from keyhole.seeds import derive
from keyhole.spelling import parse_call


def area(scores: torch.Tensor) -> float:
    half = len(scores) // 2
    return auc(scores[:half], scores[half:])


@dataclass(frozen=True)
class Ready(TargetTraining):
    """Hands out models as they are before any training."""

    def train_models(
        self,
        sets: Sequence[LabelledImages],
        seeds: Sequence[int],
        report: ReportTrained | None = None,
    ) -> Iterator[list[nn.Module]]:
        yield [self.network(seed) for seed in seeds]


def untrained(problem: MembershipProblem, defense: Defense) -> MembershipProblem:
    training = problem.training
    ready = Ready(training.network, training.local, training.mean, training.std, defense)
    return replace(problem, training=ready)


@pytest.mark.parametrize("variance", ["global", "each"])
@pytest.mark.parametrize("variant", ["online", "offline"])
def test_the_score_is_the_likelihood_ratio(
    variant: str, variance: str, problem: MembershipProblem, negative: Defense
) -> None:
    attack = Lira(shadows=8, variant=variant, variance=variance, views=3)
    asked = untrained(problem, negative)
    models = [asked.training.network(derive(asked.seed, "lira", i)) for i in range(8)]
    logits = asked.query([asked.model, *models], asked.candidates, 3)
    target, *shadows = np.asarray(confidence(logits, asked.candidates.labels))
    inside = np.asarray(attack.shadow_sets(asked)[1])

    def gaussian(chosen: np.ndarray, view: int, image: int) -> tuple[float, float]:
        own = [shadows[s][view, image] for s in range(8) if chosen[s, image]]
        squares = [
            np.var([shadows[s][view, i] for s in range(8) if chosen[s, i]], ddof=1)
            for i in range(inside.shape[1])
        ]
        deviation = np.std(own, ddof=1) if variance == "each" else np.sqrt(np.mean(squares))
        return float(np.mean(own)), float(deviation)

    scores = attack(asked)
    for image in (0, 17, 79):
        per_view = []
        for view in range(3):
            x = target[view, image]
            mean, deviation = gaussian(~inside, view, image)
            if variant == "offline":
                per_view.append((x - mean) / deviation)
                continue
            out = norm.logpdf(x, mean, deviation)
            per_view.append(norm.logpdf(x, *gaussian(inside, view, image)) - out)
        assert float(scores[image]) == pytest.approx(np.mean(per_view), rel=1e-4, abs=1e-4)


def test_online_every_candidate_is_in_half_of_the_models(problem: MembershipProblem) -> None:
    sets, inside = Lira(shadows=6).shadow_sets(problem)
    assert inside.sum(0).tolist() == [3] * 80
    assert inside.sum(1).tolist() == [40] * 6
    assert torch.equal(inside[0], ~inside[1])
    assert not torch.equal(inside[0], inside[2])
    for chosen, members in zip(inside, sets, strict=True):
        assert pixels(members) == pixels(problem.candidates.take(chosen.nonzero().flatten()))


def test_public_images_fill_a_set_up_to_the_size_of_the_members(problem: MembershipProblem) -> None:
    larger = replace(problem, members=50)
    sets, inside = Lira(shadows=4).shadow_sets(larger)
    public = pixels(problem.public)
    for chosen, members in zip(inside, sets, strict=True):
        own = pixels(problem.candidates.take(chosen.nonzero().flatten()))
        assert len(members) == 50
        assert own < pixels(members)
        assert pixels(members) - own <= public


def test_offline_no_candidate_is_trained_on(problem: MembershipProblem) -> None:
    sets, inside = Lira(shadows=4, variant="offline").shadow_sets(problem)
    assert not inside.any()
    assert all(len(members) == 40 and pixels(members) <= pixels(problem.public) for members in sets)
    assert len({frozenset(pixels(members)) for members in sets}) == 4


def pixels(images: LabelledImages) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.images}


@pytest.mark.parametrize(
    ("variant", "least"), [("online", 0.95), ("offline", 0.85)], ids=["online", "offline"]
)
def test_members_are_found(variant: str, least: float, problem: MembershipProblem) -> None:
    reports: list[int] = []
    scores = Lira(shadows=6, variant=variant)(problem, reports.append)
    assert area(scores) > least
    assert sum(reports) == 6


def test_who_knows_the_defense_looks_through_it(
    training: TargetTraining, ask: Callable[[TargetTraining], MembershipProblem], negative: Defense
) -> None:
    aware = ask(replace(training, defense=negative))
    naive = replace(aware, training=aware.training.undefended())
    assert area(Lira(shadows=6)(naive)) < 0.75
    assert area(Lira(shadows=6, views=4)(aware)) > 0.95


def test_few_models_share_one_variance_and_many_have_their_own() -> None:
    phi = torch.randn(64, 1, 5, generator=torch.Generator().manual_seed(0))
    chosen = torch.ones(64, 5, dtype=torch.bool)
    assert len(Lira(shadows=62).fit_gaussians(phi, chosen)[1].unique()) == 1
    assert len(Lira(shadows=64).fit_gaussians(phi, chosen)[1].unique()) == 5


def test_models_that_all_agree_do_not_divide_by_zero() -> None:
    attack = Lira(shadows=4)
    mean, deviation = attack.fit_gaussians(torch.ones(4, 1, 3), torch.ones(4, 3, dtype=torch.bool))
    assert torch.equal(mean, torch.ones(1, 3))
    assert (deviation > 0).all()


def test_what_cannot_be_asked_is_refused_and_what_is_odd_is_told(
    problem: MembershipProblem,
) -> None:
    assert Lira().notes(problem) == []
    few = replace(problem, public=problem.public.take(torch.arange(1)))
    with pytest.raises(DoesNotFit, match="needs 2 public images or more, and there are 1: pass"):
        Lira(variant="offline")(few)
    some = replace(problem, public=problem.public.take(torch.arange(20)))
    assert "trained on 20 images" in Lira(variant="offline").notes(some)[0]


def test_its_text_makes_it_again() -> None:
    attack = Lira(shadows=32, variant="offline")
    assert parse_call(attack.label) == ("lira", {"shadows": 32, "variant": "offline"})
    assert parse_call(str(attack))[1].keys() == {"views", "shadows", "variant", "variance"}
