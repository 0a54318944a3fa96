"""The engine against a slow, plain implementation of IG, WIIG and DIA, step for step.

The reference knows one victim, runs models written out by hand, and uses torch's own optimiser and
schedule. Everything is in double precision, so that no sign is decided by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks import ATTACKS
from keyhole.attacks.matching.attack import Matching
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.gradients import factors
from keyhole.attacks.matching.gradients.choice import choose_matcher
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses import Dropout
from keyhole.models import build
from keyhole.seeds import generator

Clients = Callable[..., list[Any]]
Masks = Sequence[Tensor]
Forward = Callable[[dict[str, Tensor], Tensor, Masks], Tensor]

ITERATIONS, LR, TV, MASK_WEIGHT, PATIENCE = 8, 0.3, 0.02, 0.05, 1
P = 0.25
BATCHES = {1: ([3], [14], [25]), 2: ([3, 4], [15, 16], [27, 18])}


def fully_connected() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 24), nn.GELU(), nn.Dropout(0.0)),
        *(nn.Linear(24, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 10)),
    )


def fully_connected_by_hand(w: dict[str, Tensor], images: Tensor, masks: Masks) -> Tensor:
    x = images.reshape(len(images), 64)
    x = F.gelu(x @ w["1.weight"].T + w["1.bias"]) * masks[0] / (1 - P)
    x = F.gelu(x @ w["4.weight"].T + w["4.bias"]) * masks[1] / (1 - P)
    return x @ w["7.weight"].T + w["7.bias"]


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(inplace=True)),
        *(nn.Dropout2d(0.0), nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.Sigmoid()),
        *(nn.Flatten(), nn.Dropout(0.0), nn.Linear(54, 10)),
    )


def convolutional_by_hand(w: dict[str, Tensor], images: Tensor, masks: Masks) -> Tensor:
    x = F.conv2d(images, w["0.weight"], w["0.bias"], padding=1)
    x = normalised(x, w["1.weight"], w["1.bias"])
    x = x * x.sigmoid() * masks[0] / (1 - P)
    x = F.conv2d(x, w["4.weight"], w["4.bias"], stride=2)
    x = normalised(x, w["5.weight"], w["5.bias"]).sigmoid()
    x = x.reshape(len(images), 54) * masks[1] / (1 - P)
    return x @ w["9.weight"].T + w["9.bias"]


def normalised(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """BatchNorm with the statistics of the batch, written out."""
    mean = x.mean((0, 2, 3), keepdim=True)
    var = (x - mean).square().mean((0, 2, 3), keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def vit() -> nn.Module:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    model.blocks = model.blocks[:1]
    return model


@cache
def hooked() -> nn.Module:
    return vit().double()


def vit_by_hand(w: dict[str, Tensor], images: Tensor, masks: Masks) -> Tensor:
    """The module itself, with hooks that put the masks in the place of its dropouts."""
    model = hooked()
    handles = [
        layer.register_forward_hook(lambda _, args, out, mask=mask: args[0] * mask / (1 - P))
        for layer, mask in zip(
            [m for m in model.modules() if isinstance(m, nn.Dropout)], masks, strict=True
        )
    ]
    logits = torch.func.functional_call(model, w, (images,))
    for handle in handles:
        handle.remove()
    return logits


MODELS: dict[str, tuple[Callable[[], nn.Module], Forward]] = {
    "mlp": (fully_connected, fully_connected_by_hand),
    "conv": (convolutional, convolutional_by_hand),
    "vit": (vit, vit_by_hand),
}


@dataclass(frozen=True)
class Step:
    """One iteration: the loss of the guess, and the guess after the move."""

    loss: float
    rate: float
    images: Tensor
    masks: list[Tensor]


def variation(x: Tensor) -> Tensor:
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    return down + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()


def reference(
    forward: Forward,
    weights: dict[str, Tensor],
    observed: dict[str, Tensor],
    labels: Tensor,
    images: Tensor,
    masks: Masks,
    box: tuple[float, float],
    *,
    seeks_masks: bool,
) -> list[Step]:
    """IG for one victim; with ``seeks_masks`` DIA, with the client's masks WIIG."""
    images = images.clone().requires_grad_()
    masks = [mask.clone().requires_grad_(seeks_masks) for mask in masks]
    sought = [images, *masks] if seeks_masks else [images]
    optimiser = torch.optim.Adam(sought, lr=LR)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="min", factor=0.1, patience=PATIENCE, threshold=1e-4
    )
    steps = []
    for _ in range(ITERATIONS):
        tracked = {name: w.clone().requires_grad_() for name, w in weights.items()}
        task = F.cross_entropy(forward(tracked, images, masks), labels)
        found = torch.autograd.grad(task, list(tracked.values()), create_graph=True)
        dot = sum((g * observed[n]).sum() for n, g in zip(tracked, found, strict=True))
        length = sum(g.square().sum() for g in found).sqrt()
        wanted = sum(t.square().sum() for t in observed.values()).sqrt()
        loss = 1 - dot / (length * wanted) + TV * variation(images)
        if seeks_masks:
            loss = loss + MASK_WEIGHT * sum((1 - mask.mean() - P).abs() for mask in masks)
        gradients = torch.autograd.grad(loss, sought)
        images.grad = gradients[0].sign()
        for mask, gradient in zip(masks, gradients[1:], strict=False):
            mask.grad = gradient
        schedule.step(loss.item())  # a rate that falls, falls for the step to come
        optimiser.step()
        with torch.no_grad():
            images.clamp_(*box)
            for mask in masks:
                mask.clamp_(0, 1)
        rate = optimiser.param_groups[0]["lr"] / LR
        now = [value.detach().clone() for value in (images, *masks)]
        steps.append(Step(loss.item(), rate, now[0], now[1:]))
    return steps


@dataclass(frozen=True)
class ReferenceCase:
    """Three clients, an attack on them at its first guess, and what the reference makes of it."""

    attack: Matching
    problem: MatchingProblem
    gradients: list[dict[str, Tensor]]
    given: dict[str, Tensor]
    expected: list[list[Step]]


def attack_of(name: str) -> Matching:
    attack = ATTACKS.parse(
        f"{name}(lr={LR}, tv={TV}, mask_weight={MASK_WEIGHT}, patience={PATIENCE})"
    )
    assert isinstance(attack, Matching)
    return attack


def engine_of(attack: Matching, problem: MatchingProblem) -> Engine:
    return Engine(attack.build_all_parts(problem), problem, ITERATIONS)


def start_engine(case: ReferenceCase) -> tuple[Engine, dict[str, Tensor]]:
    engine = engine_of(case.attack, case.problem)
    draws = [generator(0, "guess", victim) for victim in range(3)]
    given = {name: tensor.clone() for name, tensor in case.given.items()}
    return engine, engine.start(range(3), draws, given)


@pytest.fixture(scope="module")
def reference_case(clients: Clients) -> Callable[[str, str, int], ReferenceCase]:
    @cache
    def make(model: str, attack: str, batch: int) -> ReferenceCase:
        maker, forward = MODELS[model]
        net = maker().double()
        seen = clients(net, BATCHES[batch], Dropout(p=P))
        parsed, problem = attack_of(attack), MatchingProblem.from_observation(seen[0].observation)
        weights = {name: weight.detach() for name, weight in net.named_parameters()}
        given = {"labels": torch.eye(10).double()[torch.stack([c.labels for c in seen])]}
        if attack == "wiig":
            flat = [torch.cat([m.flatten(1) for m in c.masks], 1) for c in seen]
            given["masks"] = torch.stack(flat).double()
        gradients = [client.observation.update.gradient() for client in seen]
        first = ReferenceCase(parsed, problem, gradients, given, [])
        _, state = start_engine(first)
        black, white = (float(edge.flatten()) for edge in problem.box)
        sizes, shapes = [s.size for s in problem.sites], [s.shape for s in problem.sites]
        for victim, client in enumerate(seen):
            if attack == "ig":
                masks = [torch.full((batch, *shape), 1 - P).double() for shape in shapes]
            elif attack == "wiig":
                masks = [mask.double() for mask in client.masks]
            else:
                pieces = state["value.masks"][victim].split(sizes, 1)
                masks = [m.unflatten(1, s) for m, s in zip(pieces, shapes, strict=True)]
            steps = reference(
                *(forward, weights, gradients[victim], client.labels),
                *(state["value.pixels"][victim], masks, (black, white)),
                seeks_masks=attack == "dia",
            )
            first.expected.append(steps)
        return first

    return make


WAYS = ("factored", "products", "vmap", "loop")
COMBINATIONS = [
    (model, attack, batch, backend)
    for model, attack, batch in product(MODELS, ("ig", "wiig", "dia"), (1, 2))
    for backend in (WAYS if (model, batch) != ("vit", 2) else WAYS[:1])
]


@pytest.mark.parametrize(("model", "attack", "batch", "backend"), COMBINATIONS)
def test_every_step_is_the_references(
    monkeypatch: pytest.MonkeyPatch,
    reference_case: Callable[[str, str, int], ReferenceCase],
    model: str,
    attack: str,
    batch: int,
    backend: str,
) -> None:
    """``products``: factored, and no gradient is built or target kept whole for being small."""
    if backend == "products":
        monkeypatch.setattr(factors, "ALWAYS_BUILT", 0)
    set_up = reference_case(model, attack, batch)
    engine, state = start_engine(set_up)
    targets = Targets.stack(set_up.gradients, set_up.problem.like, unit=True)
    asked: Any = "factored" if backend == "products" else backend
    matcher, notes = choose_matcher(set_up.problem, targets, backend=asked)
    assert matcher.backend == asked
    assert notes == []
    sizes = [site.size for site in set_up.problem.sites]
    for number in range(ITERATIONS):
        engine.step(state, matcher)
        for victim in range(3):
            step = set_up.expected[victim][number]
            close = {"rtol": 1e-6, "atol": 1e-5}
            assert float(state["loss"][victim]) == pytest.approx(step.loss, abs=1e-6)
            assert float(state["plateau.lr"][victim]) == pytest.approx(step.rate, rel=1e-5)
            torch.testing.assert_close(state["value.pixels"][victim], step.images, **close)
            if attack == "dia":
                pieces = state["value.masks"][victim].split(sizes, 1)
                for found, mask in zip(pieces, step.masks, strict=True):
                    torch.testing.assert_close(found.view_as(mask), mask, **close)
    least = [min(step.loss for step in steps) for steps in set_up.expected]
    assert state["least"].tolist() == pytest.approx(least, abs=1e-6)
    assert not state["alive"].any()


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_gets_somewhere(
    reference_case: Callable[[str, str, int], ReferenceCase], model: str
) -> None:
    """Otherwise it would test little: losses fall and masks move."""
    runs = [
        steps
        for attack in ("ig", "wiig", "dia")
        for steps in reference_case(model, attack, 1).expected
    ]
    assert all(min(step.loss for step in steps) < steps[0].loss - 0.01 for steps in runs)
    for steps in reference_case(model, "dia", 1).expected:
        assert any(((mask > 0) & (mask < 1)).any() for mask in steps[-1].masks)


def test_some_of_the_references_rates_fall(
    reference_case: Callable[[str, str, int], ReferenceCase],
) -> None:
    runs = [
        steps
        for attack in ("ig", "wiig", "dia")
        for steps in reference_case("vit", attack, 1).expected
    ]
    rates = [steps[-1].rate for steps in runs]
    assert min(rates) < 0.5 < max(rates)


def test_the_hand_made_forward_passes_are_the_models(clients: Clients) -> None:
    for name, (maker, forward) in MODELS.items():
        net = maker().double()
        client = clients(net, [[3, 4]], Dropout(p=P))[0]
        weights = {n: p.detach().clone().requires_grad_() for n, p in net.named_parameters()}
        masks = [mask.double() for mask in client.masks]
        task = F.cross_entropy(forward(weights, client.inputs, masks), client.labels)
        found = torch.autograd.grad(task, list(weights.values()))
        expected = client.observation.update.gradient()
        for parameter, gradient in zip(weights, found, strict=True):
            torch.testing.assert_close(gradient, expected[parameter], msg=f"{name} {parameter}")
