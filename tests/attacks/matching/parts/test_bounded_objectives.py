"""Distances to bounds, against their formulas written for one victim in flat vectors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients.factor_probe import probe_factors
from keyhole.attacks.matching.gradients.factored import FactoredMatcher
from keyhole.attacks.matching.gradients.gradient_weights import GradientWeights
from keyhole.attacks.matching.gradients.intervals import find_known
from keyhole.attacks.matching.gradients.low_rank import factor_targets
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.attacks.matching.gradients.matchers import LoopMatcher
from keyhole.attacks.matching.parts.bounded_objectives import (
    EXCESS_WEIGHT,
    BoundedCosine,
    BoundedError,
)
from keyhole.attacks.matching.parts.objectives import Cosine, Objective, SquaredError
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses import Interval, Pruning, Quantise, SignSgd
from keyhole.seeds import generator
from keyhole.threat import Knowledge
from keyhole.update import Update

SHAPES = {"conv": (4, 3, 3), "weight": (5, 6), "bias": (5,)}
VICTIMS = 3
Gradient = dict[str, Tensor]


def draw(seed: int) -> Gradient:
    source = generator(seed)
    return {
        name: torch.randn(VICTIMS, *shape, generator=source, dtype=torch.double)
        for name, shape in SHAPES.items()
    }


def one(gradients: Gradient, victim: int) -> Gradient:
    return {name: tensor[victim] for name, tensor in gradients.items()}


def pruned(T: Gradient, *, only: tuple[str, ...] = tuple(SHAPES)) -> Targets:
    """The targets with half their values pruned, and the bounds of some parameters."""
    sent = [Pruning(ratio=0.5).on_update(Update(one(T, v))) for v in range(VICTIMS)]
    bounds = [Pruning(ratio=0.5).possible_values(update) for update in sent]
    chosen = [{n: b for n, b in own.items() if n in only} for own in bounds]
    return Targets.stack([u.gradient() for u in sent], T["conv"], intervals=chosen)


def distance(G: Tensor, bounds: Interval) -> Tensor:
    return torch.maximum(bounds.low - G, G - bounds.high).clamp(min=0)


def flat_bounds(targets: Targets, victim: int) -> Interval:
    found = [
        targets.intervals.get(n, Interval(t, t)).map(lambda b: b[victim].flatten())
        for n, t in targets.tensors.items()
    ]
    return Interval(torch.cat([b.low for b in found]), torch.cat([b.high for b in found]))


def flat(gradients: Gradient, victim: int) -> Tensor:
    return torch.cat([g[victim].flatten() for g in gradients.values()])


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


def test_the_error_is_the_squared_distance_to_the_bounds() -> None:
    G, targets = draw(0), pruned(draw(1))
    expected = [
        float(distance(flat(G, v), flat_bounds(targets, v)).square().sum()) for v in range(VICTIMS)
    ]
    assert BoundedError()(BuiltMatch(G, targets)).tolist() == pytest.approx(expected)
    squares = [float(flat(targets.tensors, v).square().sum()) for v in range(VICTIMS)]
    relative = BoundedError(relative=True)(BuiltMatch(G, targets))
    assert relative.tolist() == pytest.approx(
        [e / s for e, s in zip(expected, squares, strict=True)]
    )


@pytest.mark.parametrize("bounded", [tuple(SHAPES), ("weight",)], ids=str)
def test_known_values_are_compared_and_others_stay_between_bounds(bounded: tuple[str, ...]) -> None:
    G, targets = draw(0), pruned(draw(1), only=bounded)
    expected = []
    for v in range(VICTIMS):
        g, t, bounds = flat(G, v), flat(targets.tensors, v), flat_bounds(targets, v)
        known = bounds.low == bounds.high
        assert 0 < int(known.sum()) < len(known)
        fit = float((g * t)[known].sum() / g[known].square().sum())
        scale = fit if fit > 0 else float(t[known].norm() / g[known].norm())
        beyond = distance(scale * g, bounds).square().sum() / t.square().sum()
        together = 1 - cosine(g[known], t[known]) + EXCESS_WEIGHT * float(beyond)
        expected.append(together / (1 + 2 * EXCESS_WEIGHT * float(known.float().mean()) ** 2))
    assert targets.shows_values
    assert BoundedCosine()(BuiltMatch(G, targets)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("defense", [SignSgd(), SignSgd(step=0.1), Quantise(bits=2)], ids=str)
def test_where_nothing_is_known_directions_are_compared_layer_by_layer(
    defense: SignSgd | Quantise,
) -> None:
    G, T = draw(0), draw(1)
    sent = [defense.on_update(Update(one(T, v))) for v in range(VICTIMS)]
    bounds = [defense.possible_values(update) for update in sent]
    targets = Targets.stack([u.gradient() for u in sent], T["conv"], intervals=bounds)
    assert not targets.shows_values
    expected = []
    for v in range(VICTIMS):
        g, t = flat(G, v), flat(targets.tensors, v)
        fit = float((g * t).sum() / g.square().sum())
        scale = fit if fit > 0 else float(t.norm() / g.norm())
        layers = []
        for name in SHAPES:
            scaled = scale * G[name][v].flatten()
            own = bounds[v][name].map(lambda b: b.double().flatten())
            layers.append(1 - cosine(scaled, scaled.clamp(own.low, own.high)))
        expected.append(sum(layers) / len(layers))
    assert BoundedCosine()(BuiltMatch(G, targets)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("plain", "bounded"),
    [(Cosine(weights={"conv": 0.5}), BoundedCosine), (SquaredError(relative=True), BoundedError)],
)
def test_without_bounds_it_is_the_plain_distance(
    plain: Objective, bounded: type[Objective]
) -> None:
    match = BuiltMatch(draw(0), Targets(draw(1)))
    assert isinstance(plain.bounded(), bounded)
    torch.testing.assert_close(plain.bounded()(match), plain(match))


def test_bounds_that_close_leave_the_cosine_near_the_images() -> None:
    """An attacker who knows of a defense that hides next to nothing loses nothing by it."""
    T = draw(1)
    near = {n: t + 1e-3 * noise for (n, t), noise in zip(T.items(), draw(2).values(), strict=True)}
    bounds = [{"bias": Interval(t - 1e-9, t + 1e-9)} for t in T["bias"]]
    own = [{n: t[v] for n, t in T.items()} for v in range(VICTIMS)]
    targets = Targets.stack(own, T["conv"], intervals=bounds)
    plain = Cosine()(BuiltMatch(near, Targets(T)))
    assert BoundedCosine()(BuiltMatch(near, targets)).tolist() == pytest.approx(
        plain.tolist(), rel=1e-3
    )


def test_the_true_gradient_is_at_distance_zero_whatever_its_length() -> None:
    T = draw(1)
    found = BoundedCosine()(BuiltMatch({n: -3 * t for n, t in T.items()}, pruned(T)))
    assert found.tolist() == pytest.approx([0] * VICTIMS, abs=1e-12)


def test_bounds_are_scaled_and_weighted_as_their_targets_are() -> None:
    bounds = Interval(
        torch.tensor([[1.0, -math.inf], [2.0, 0.0]]), torch.tensor([[1, 4.0], [2, 8]])
    )
    gradient = {"w": torch.tensor([[1.0, 3.0], [2.0, 4.0]])}
    weights = GradientWeights(torch.tensor([1.0, 0.5]))
    targets = Targets.stack(
        [gradient],
        torch.zeros((), dtype=torch.double),
        unit=True,
        gradient_weights=[{"w": weights}],
        intervals=[{"w": bounds}],
    )
    length = math.sqrt(1 + 9 + 1 + 4)
    found = targets.intervals["w"]
    assert (found.low * length).flatten().tolist() == pytest.approx([1, -math.inf, 1, 0])
    assert (found.high * length).flatten().tolist() == pytest.approx([1, 4, 1, 4])
    assert torch.equal(find_known(found, targets.tensors["w"]).flatten()[[0, 2]], torch.ones(2) > 0)
    assert torch.equal(targets.select(torch.tensor([0])).intervals["w"].low, found.low)


@pytest.mark.parametrize("defense", [Pruning(ratio=0.8), SignSgd()], ids=str)
@pytest.mark.parametrize("bounded", [("0.weight", "2.weight"), ("2.weight",)], ids=str)
def test_factored_gradients_give_what_plain_autograd_gives(
    defense: Pruning | SignSgd, bounded: tuple[str, ...]
) -> None:
    """Parameters without bounds are compared by products alone, also against low-rank targets."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 400), nn.Sigmoid(), nn.Linear(400, 300), nn.Linear(300, 10)
    ).double()
    model.requires_grad_(False)
    names = {"0.weight": "1.weight", "2.weight": "3.weight"}
    chosen = {names[name] for name in bounded}
    problem = MatchingProblem(model, Knowledge((1, 8, 8), 10, (0.0,), (1.0,)), 1, 1.0, 1)
    source = generator(3)
    images, secret = torch.rand(2, 2, 1, 1, 8, 8, generator=source, dtype=torch.double)
    labels = torch.eye(10, dtype=torch.double)[torch.tensor([[3], [5]])]
    blank = Targets({n: torch.zeros(2, *p.shape).double() for n, p in model.named_parameters()})
    with torch.enable_grad():
        truth = LoopMatcher(problem, blank)(secret, labels, None)
    whole = [Update({n: -truth.gradient(n)[v].detach() for n in truth.names}) for v in range(2)]
    sent = [defense.on_update(update) for update in whole]
    shown = [
        {n: (s if n in chosen else w).gradient()[n] for n in truth.names}
        for s, w in zip(sent, whole, strict=True)
    ]
    intervals = [{n: b for n, b in defense.possible_values(s).items() if n in chosen} for s in sent]
    targets = Targets.stack(shown, secret, unit=True, intervals=intervals)
    ranks = dict.fromkeys(["1.weight", "3.weight"], 1)
    factored = factor_targets(targets, ranks, needs_full_gradients=False)
    assert ("1.weight" in factored.factors) == ("1.weight" not in chosen)
    fast = FactoredMatcher(model, probe_factors(model, (1, 8, 8)), factored)
    found = []
    for matcher in (fast, LoopMatcher(problem, targets)):
        tracked = images.clone().requires_grad_()
        with torch.enable_grad():
            loss = BoundedCosine()(matcher(tracked, labels, None))
            found += [loss.detach(), torch.autograd.grad(loss.sum(), tracked)[0]]
    torch.testing.assert_close(found[0], found[2], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found[1], found[3], rtol=1e-5, atol=1e-9)
