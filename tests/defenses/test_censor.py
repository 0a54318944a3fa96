"""CENSOR: what is sent is orthogonal to the truth, as long, and the best of several."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import Censor, ClientSide
from keyhole.defenses.censor import TRIAL_LR, draw_orthogonal
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("lenet", classes=10, channels=1, image_size=8)


def gradient_of(model: nn.Module) -> Update:
    loss = F.cross_entropy(model(digits.normalise(digits.images([1, 2]))), digits.labels[[1, 2]])
    found = torch.autograd.grad(loss, list(model.parameters()))
    return Update.from_gradient(found, model=model)


def side_of(model: nn.Module, seed: int = 0) -> ClientSide:
    images, labels = digits.images([1, 2]), digits.labels[[1, 2]]
    return ClientSide(generator(seed), model, images, labels, normalise=digits.normalise)


def test_every_tensor_is_orthogonal_to_its_own_and_as_long(model: nn.Module) -> None:
    update = gradient_of(model)
    sent = Censor(trials=3).on_update(update, side_of(model))
    for name, tensor in update.change.items():
        norm = float(tensor.norm())
        assert abs(float((sent.change[name] * tensor).sum())) < 1e-5 * norm**2
        assert float(sent.change[name].norm()) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_it_works_in_any_precision(kind: torch.dtype) -> None:
    true = torch.linspace(1, 2, 1000, dtype=kind)
    drawn = draw_orthogonal(true, generator(0))
    assert drawn.dtype == kind
    assert float(drawn.norm()) == pytest.approx(float(true.norm()), rel=1e-3)


def test_a_single_value_has_nothing_orthogonal() -> None:
    for tensor in (torch.tensor([2.0]), torch.tensor(3.0), torch.zeros(5)):
        assert not draw_orthogonal(tensor, generator(0)).any()


def test_the_best_of_several_candidates_is_sent(model: nn.Module) -> None:
    """Judged by hand: the loss after a small step along each candidate."""
    update, sides = gradient_of(model), [side_of(model), side_of(model)]
    x, y = digits.normalise(digits.images([1, 2])), digits.labels[[1, 2]]
    losses = []
    for _ in range(6):
        own = update.map(lambda _, t: draw_orthogonal(t, sides[0].generator))
        slopes, exact = own.gradient(), copy.deepcopy(model).double().eval()
        with torch.no_grad():
            for name, weight in exact.named_parameters():
                weight -= TRIAL_LR * slopes[name].double()
            losses.append(float(F.cross_entropy(exact(x.double()), y)))
    Censor(trials=6).on_update(update, sides[1])
    assert sides[1].telemetry["loss"] == pytest.approx(min(losses), abs=1e-12)
    assert max(losses) > min(losses)


def test_buffers_are_sent_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    change = {n: torch.ones_like(t) for n, t in model.state_dict().items()}
    change["1.num_batches_tracked"] = torch.tensor(3)
    sent = Censor(trials=1).on_update(Update(change), side_of(model))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(sent.change[name], change[name])
    assert not torch.equal(sent.change["0.weight"], change["0.weight"])
    assert len(Censor().caveats(model)) == 2


def test_it_needs_the_client_s_images_and_labels(model: nn.Module) -> None:
    with pytest.raises(DoesNotFit, match=r"pass ClientSide\(model=..., images=..., labels=...\)"):
        Censor().on_update(gradient_of(model), ClientSide(model=model))
