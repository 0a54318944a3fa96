"""BatchNorms anchored to uploaded statistics, against a network written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.matching.gradients.choice import choose_matcher
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import Backend, Matcher
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.uploaded_statistics import (
    find_norm_layers,
    read_statistics,
    stack_statistics,
)
from keyhole.threat import Knowledge

VICTIMS, BATCH, EPS = 2, 3, 1e-5
BACKENDS: list[Backend] = ["factored", "vmap", "loop"]


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 6),
    )
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.weight, 1.0, 0.2)
        nn.init.normal_(norm.bias, 0.0, 0.2)
    return model.double().requires_grad_(False)


def train_once(images: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What one client's batch does to gradients and to buffers, by plain PyTorch."""
    model = network().requires_grad_(True).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss = F.cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    change = {name: buffer - before[name] for name, buffer in model.named_buffers()}
    return dict(zip(names, gradients, strict=True)), change


def anchored_by_hand(images: Tensor, labels: Tensor, moments: Any) -> list[Tensor]:
    """The gradients of one victim with anchored BatchNorms, each step written out."""
    model = network()

    def forward(x: Tensor, norm: int, known: Any) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = (value.view(1, -1, 1, 1) for value in (known.mean[0], known.var[0]))
        scale = (var + EPS).rsqrt()
        normalised = (x - mean) * scale
        weight, bias = (p.view(1, -1, 1, 1) for p in (model[norm].weight, model[norm].bias))
        return normalised, normalised * weight + bias, scale

    def backward(g: Tensor, normalised: Tensor, scale: Tensor, norm: int) -> Any:
        own = (g * normalised).sum((0, 2, 3)), g.sum((0, 2, 3))
        g = g * model[norm].weight.view(1, -1, 1, 1)
        centred = g - g.mean((0, 2, 3), keepdim=True)
        slope = (g * normalised).mean((0, 2, 3), keepdim=True)
        return scale * (centred - normalised * slope), own

    first = F.conv2d(images, model[0].weight, padding=1)
    xh1, y1, s1 = forward(first, 1, moments[0])
    hidden = y1.relu()
    second = F.conv2d(hidden, model[3].weight, stride=2)
    xh2, y2, s2 = forward(second, 4, moments[1])
    flat = y2.relu().flatten(1)
    logits = model[7](flat)
    delta = (logits.softmax(1) - F.one_hot(labels, 6)) / len(images)
    g = ((delta @ model[7].weight) * (flat > 0)).view_as(second)
    g2, own2 = backward(g, xh2, s2, 4)
    g = torch.nn.grad.conv2d_input(hidden.shape, model[3].weight, g2, stride=2) * (hidden > 0)
    g1, own1 = backward(g, xh1, s1, 1)
    return [
        torch.nn.grad.conv2d_weight(images, model[0].weight.shape, g1, padding=1),
        *own1,
        torch.nn.grad.conv2d_weight(hidden, model[3].weight.shape, g2, stride=2),
        *own2,
        delta.T @ flat,
        delta.sum(0),
    ]


def make_matcher(backend: Backend, gradients: Any, known: Any, *, statistics: bool) -> Matcher:
    model = network().train()
    knowledge = Knowledge((1, 8, 8), 6, (0.0,), (1.0,), batch_size=BATCH)
    problem = MatchingProblem(model, knowledge, steps=1, lr=1.0, local_batch=BATCH)
    targets = Targets.stack(gradients, problem.like)
    matcher, _ = choose_matcher(
        problem, targets, backend=backend, known=known, statistics=statistics
    )
    assert matcher.backend == backend
    return matcher


def clients() -> tuple[Tensor, Tensor, list[dict[str, Tensor]], Any]:
    torch.manual_seed(1)
    images = torch.randn(VICTIMS, BATCH, 1, 8, 8, dtype=torch.double)
    labels = torch.randint(6, (VICTIMS, BATCH))
    trained = [train_once(images[n], labels[n]) for n in range(VICTIMS)]
    layers = find_norm_layers(network().train(), (1, 8, 8))
    assert layers is not None
    read = [read_statistics(layers, change, steps=1, batch=BATCH) for _, change in trained]
    known = stack_statistics(read, layers, steps=1, anchored=True, like=images)
    return images, labels, [gradient for gradient, _ in trained], known


def test_statistics_read_from_buffers_are_those_of_the_batch() -> None:
    images, _, _, known = clients()
    model = network()
    first = F.conv2d(images.flatten(0, 1), model[0].weight, padding=1).unflatten(0, (VICTIMS, -1))
    var, mean = torch.var_mean(first, (1, 3, 4), correction=0)
    assert torch.allclose(known.moments[0].mean, mean, atol=1e-12)
    assert torch.allclose(known.moments[0].var, var, atol=1e-12)
    assert known.shares == ((1.0,), (1.0,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_anchored_gradients_are_the_clients_own_at_the_truth(backend: Backend) -> None:
    images, labels, gradients, known = clients()
    matcher = make_matcher(backend, gradients, known, statistics=True)
    tracked = images.clone().requires_grad_()
    match = matcher(tracked, F.one_hot(labels, 6).double(), None)
    for name in gradients[0]:
        expected = torch.stack([g[name] for g in gradients])
        assert torch.allclose(match.gradient(name), expected, atol=1e-10), name
    for layer, moments in zip(match.statistics, known.moments, strict=True):
        assert layer.known is not None
        assert torch.allclose(layer.mean, moments.mean, atol=1e-10)
        assert torch.allclose(layer.var, moments.var, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_away_from_the_truth_gradients_and_their_derivatives_are_those_written_out(
    backend: Backend,
) -> None:
    images, labels, gradients, known = clients()
    matcher = make_matcher(backend, gradients, known, statistics=False)
    chosen = torch.tensor([1, 0])  # a shrunken or reordered batch takes its statistics along
    dummy = torch.randn(images.shape, dtype=torch.double).requires_grad_()
    match = matcher.select(chosen)(dummy, F.one_hot(labels[chosen], 6).double(), None)
    draw = torch.Generator().manual_seed(5)
    for number, victim in enumerate(chosen.tolist()):
        moments = [each.select(torch.tensor([victim])) for each in known.moments]
        own = dummy[number].detach().clone().requires_grad_()
        expected = dict(
            zip(gradients[0], anchored_by_hand(own, labels[victim], moments), strict=True)
        )
        total, wanted = own.new_zeros(()), own.new_zeros(())
        for name, value in expected.items():
            assert torch.allclose(match.gradient(name)[number], value, atol=1e-10), name
            weight = torch.randn(value.shape, generator=draw, dtype=torch.double)
            total = total + (match.gradient(name)[number] * weight).sum()
            wanted = wanted + (value * weight).sum()
        found = torch.autograd.grad(total, dummy, retain_graph=True)[0][number]
        assert torch.allclose(found, torch.autograd.grad(wanted, own)[0], atol=1e-9)
