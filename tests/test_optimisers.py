"""Steps of an attacker against torch's own optimisers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import KeyholeError
from keyhole.optimisers import OPTIMISERS, Adam, AdamW, LocalOptimiser, Sgd, read_optimiser

KINDS: list[LocalOptimiser] = [
    Sgd(),
    Sgd(momentum=0.9),
    Sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    Sgd(momentum=0.5, dampening=0.3),
    Adam(),
    Adam(weight_decay=0.1, beta1=0.5, eps=1e-3),
    AdamW(weight_decay=0.2),
]
EACH = pytest.mark.parametrize("optimiser", KINDS, ids=str)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()


INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def gradients(model: nn.Module, weights: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    batch = slice(2 * (step % 3), 2 * (step % 3) + 2)
    logits = torch.func.functional_call(model, weights, (INPUTS[batch],))
    loss = F.cross_entropy(logits, LABELS[batch])
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    return dict(zip(weights, found, strict=True))


@EACH
def test_an_attackers_steps_are_torchs(model: nn.Module, optimiser: LocalOptimiser) -> None:
    twin = copy.deepcopy(model)
    own = optimiser.make(twin.parameters(), 0.05)
    weights: dict[str, Tensor] = dict(model.named_parameters())
    state: dict[str, dict[str, Tensor]] = {}
    for step in range(5):
        batch = slice(2 * (step % 3), 2 * (step % 3) + 2)
        own.zero_grad()
        F.cross_entropy(twin(INPUTS[batch]), LABELS[batch]).backward()
        own.step()
        found = gradients(model, weights, step)
        weights, state = optimiser.step(weights, found, state, lr=0.05, number=step)
        for name, weight in twin.named_parameters():
            torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-12)


@EACH
def test_the_first_step_is_undone(model: nn.Module, optimiser: LocalOptimiser) -> None:
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(INPUTS), LABELS).backward()
    optimiser.make(twin.parameters(), 0.05).step()
    for before, after in zip(model.parameters(), twin.parameters(), strict=True):
        found = optimiser.undo_first_step((after - before).detach(), before.detach(), 0.05)
        torch.testing.assert_close(found, after.grad, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("optimiser", KINDS[1:4], ids=str)
def test_the_gradients_of_an_update_are_counted(optimiser: Sgd, steps: int) -> None:
    """With the same gradient of 1 in every step, and no decay."""
    plain = Sgd(
        momentum=optimiser.momentum, nesterov=optimiser.nesterov, dampening=optimiser.dampening
    )
    weight = nn.Parameter(torch.zeros((), dtype=torch.double))
    own = plain.make([weight], 1.0)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        own.step()
    assert plain.count_gradients(steps) == pytest.approx(-weight.item())


def test_a_gradient_of_zero_has_a_derivative() -> None:
    weight = torch.zeros(2, requires_grad=True)
    found = {"w": weight * torch.tensor([0.0, 1.0])}
    moved, _ = Adam().step({"w": torch.zeros(2)}, found, {}, lr=0.1, number=0)
    (derivative,) = torch.autograd.grad(moved["w"].sum(), weight)
    assert derivative.isfinite().all()


@EACH
def test_an_optimiser_is_spelled_as_it_is_read(optimiser: LocalOptimiser) -> None:
    assert OPTIMISERS.parse(str(optimiser)) == optimiser


def test_truth_values_may_be_written_as_in_toml() -> None:
    assert read_optimiser("sgd(momentum=0.9, nesterov=true)") == Sgd(momentum=0.9, nesterov=True)
    assert read_optimiser("sgd(momentum=0.9, nesterov=false)") == Sgd(momentum=0.9)


def test_a_momentum_beside_is_for_sgd_without_settings() -> None:
    assert read_optimiser("sgd", 0.9) == Sgd(momentum=0.9)
    assert read_optimiser("sgd(weight_decay=0.1)", 0.9) == Sgd(weight_decay=0.1)
    assert read_optimiser("adam", 0.9) == Adam()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("lbfgs", "unknown optimiser"),
        ("sgd(momentum=1.5)", "momentum"),
        ("sgd(nesterov=true)", "nesterov needs a momentum"),
        ("adam(betas=0.9)", "betas"),
    ],
)
def test_what_is_no_optimiser_is_said(text: str, word: str) -> None:
    with pytest.raises(KeyholeError, match=word) as said:
        read_optimiser(text)
    assert "\n" not in str(said.value)
