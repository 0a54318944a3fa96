"""Each distance against its formula, written for one victim in flat vectors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.gradient_weights import GradientWeights
from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets
from keyhole.attacks.matching.parts.objectives import (
    Cosine,
    NormsAndRightAngles,
    Objective,
    SquaredError,
)

SHAPES = {"conv": (4, 3, 3), "weight": (5, 6), "bias": (5,)}
VICTIMS = 3
CHANNELS = GradientWeights(torch.tensor([1.0, 0.0, 1.0, 0.0]))
WEIGHTS = {"conv": 0.5, "bias": 0.0}


def draw() -> dict[str, Tensor]:
    return {n: torch.randn(VICTIMS, *s, dtype=torch.double) for n, s in SHAPES.items()}


def flat(gradients: dict[str, Tensor], victim: int) -> Tensor:
    return torch.cat([g[victim].flatten() for g in gradients.values()])


def each(objective: Objective, G: dict[str, Tensor], T: dict[str, Tensor]) -> list[float]:
    return objective(BuiltMatch(G, Targets(T))).tolist()


def weighted_each(
    weighting: GradientWeights,
    objective: Objective,
    G: dict[str, Tensor],
    T: dict[str, Tensor],
) -> list[float]:
    """The same with one weighting for the convolution of every victim."""
    victims = [{n: t[v] for n, t in T.items()} for v in range(VICTIMS)]
    targets = Targets.stack(victims, T["conv"], gradient_weights=[{"conv": weighting}] * VICTIMS)
    return objective(BuiltMatch(G, targets)).tolist()


def test_the_cosine_is_over_all_parameters_together() -> None:
    G, T = draw(), draw()
    expected = [
        1 - float(torch.cosine_similarity(flat(G, v), flat(T, v), dim=0)) for v in range(VICTIMS)
    ]
    assert each(Cosine(), G, T) == pytest.approx(expected)


def test_norms_and_right_angles_are_compared_parameter_by_parameter() -> None:
    G, T = draw(), draw()
    expected = []
    for v in range(VICTIMS):
        terms = []
        for name in SHAPES:
            g, t = G[name][v].flatten(), T[name][v].flatten()
            ratio, cosine = g.norm() / t.norm(), torch.cosine_similarity(g, t, dim=0)
            terms.append(float((ratio - 1) ** 2 + cosine**2))
        expected.append(sum(terms) / len(terms))
    assert each(NormsAndRightAngles(), G, T) == pytest.approx(expected)


def test_the_squared_error_is_a_sum() -> None:
    G, T = draw(), draw()
    expected = [float((flat(G, v) - flat(T, v)).square().sum()) for v in range(VICTIMS)]
    assert each(SquaredError(), G, T) == pytest.approx(expected)
    sizes = [float(flat(T, v).square().sum()) for v in range(VICTIMS)]
    shares = [e / s for e, s in zip(expected, sizes, strict=True)]
    assert each(SquaredError(relative=True), G, T) == pytest.approx(shares)


def test_parameters_are_weighted() -> None:
    G, T = draw(), draw()
    squares, cosines = [], []
    for v in range(VICTIMS):
        apart = {n: G[n][v] - T[n][v] for n in SHAPES}
        w = {n: WEIGHTS.get(n, 1.0) for n in SHAPES}
        squares.append(sum(w[n] * float(apart[n].square().sum()) for n in SHAPES))
        dot, g, t = (
            sum(w[n] * float((a[n][v] * b[n][v]).sum()) for n in SHAPES)
            for a, b in ((G, T), (G, G), (T, T))
        )
        cosines.append(1 - dot / math.sqrt(g * t))
    assert each(SquaredError(weights=WEIGHTS), G, T) == pytest.approx(squares)
    assert each(Cosine(weights=WEIGHTS), G, T) == pytest.approx(cosines)


@pytest.mark.parametrize("kind", [Cosine, SquaredError], ids=lambda k: k.__name__)
def test_weights_on_channels_compare_only_those(kind: type[Objective]) -> None:
    G, T = draw(), draw()
    only = [{**gradients, "conv": gradients["conv"][:, [0, 2]]} for gradients in (G, T)]
    assert weighted_each(CHANNELS, kind(), G, T) == pytest.approx(each(kind(), *only))


def test_the_relative_error_is_a_share_of_what_is_compared() -> None:
    G, T = draw(), draw()
    nothing = {n: torch.zeros_like(g) for n, g in G.items()}
    relative = SquaredError(relative=True, weights=WEIGHTS)
    assert weighted_each(CHANNELS, relative, nothing, T) == pytest.approx([1.0] * VICTIMS)


@pytest.mark.parametrize(
    "objective",
    [Cosine(), SquaredError(), SquaredError(relative=True)],
    ids=str,
)
def test_equal_gradients_are_no_distance_apart(objective: Objective) -> None:
    T = draw()
    G = {n: t.clone().requires_grad_() for n, t in T.items()}
    loss = objective(BuiltMatch(G, Targets(T)))
    assert loss.detach().abs().max() < 1e-7
    for gradient in torch.autograd.grad(loss.sum(), list(G.values())):
        assert gradient.isfinite().all()


def test_the_cosine_does_not_ask_how_long_a_gradient_is() -> None:
    G, T = draw(), draw()
    longer = {n: 7.0 * g for n, g in G.items()}
    assert each(Cosine(), longer, T) == pytest.approx(each(Cosine(), G, T))
    assert Cosine.scale_free
    assert not Cosine.needs_full_gradients


@pytest.mark.parametrize(
    "objective",
    [Cosine(), SquaredError(relative=True)],
    ids=str,
)
@pytest.mark.parametrize("empty", ["dummy", "observed", "both"])
def test_vanishing_gradients_give_finite_losses_and_slopes(
    objective: Objective, empty: str
) -> None:
    G, T = ({n: t.float() for n, t in draw().items()} for _ in range(2))
    if empty in ("dummy", "both"):
        G = {n: torch.zeros_like(g) for n, g in G.items()}
    if empty in ("observed", "both"):
        T = {n: torch.zeros_like(t) for n, t in T.items()}
    G = {n: g.requires_grad_() for n, g in G.items()}
    loss = objective(BuiltMatch(G, Targets(T)))
    assert loss.isfinite().all()
    for gradient in torch.autograd.grad(loss.sum(), list(G.values())):
        assert gradient.isfinite().all()


def test_a_victims_loss_does_not_depend_on_the_others() -> None:
    G, T = draw(), draw()
    whole = each(Cosine(), G, T)
    for v in range(VICTIMS):
        alone = [{n: g[v : v + 1] for n, g in gradients.items()} for gradients in (G, T)]
        assert each(Cosine(), *alone) == pytest.approx(whole[v : v + 1])
