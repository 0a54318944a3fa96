from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keyhole
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.data import load
from keyhole.federation import LocalTraining
from keyhole.federation.client import compute_local_update
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.models.modes import set_mode
from keyhole.settings import ClientMode
from keyhole.threat import Knowledge, Server

P = 0.5


@pytest.fixture
def model() -> nn.Sequential:
    """With a BatchNorm whose running statistics are none of the batch's."""
    norm = nn.BatchNorm2d(4)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(torch.randn(4))
    norm.running_var.copy_(torch.rand(4) + 0.5)
    conv = nn.Conv2d(1, 4, 3)
    return nn.Sequential(conv, norm, nn.GELU(), nn.Flatten(), nn.Dropout(P), nn.Linear(144, 10))


@pytest.mark.parametrize(
    ("mode", "norm", "dropout"),
    [("train", True, True), ("eval", False, False), ("frozen-norm", False, True)],
)
@pytest.mark.parametrize("before", [True, False])
def test_each_mode_says_which_layers_train(
    model: nn.Sequential, mode: ClientMode, norm: bool, dropout: bool, before: bool
) -> None:
    model.train(before)
    assert set_mode(model, mode) is model
    assert (model[1].training, model[4].training) == (norm, dropout)
    assert model[5].training is dropout


def test_every_mode_is_tested() -> None:
    assert set(get_args(ClientMode)) == {"train", "eval", "frozen-norm"}


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm])
def test_every_kind_of_batchnorm_is_frozen_and_layernorm_has_nothing_to_freeze(
    norm: type[nn.Module],
) -> None:
    layers = nn.ModuleList([norm(4), nn.LayerNorm(4)])
    set_mode(layers, "frozen-norm")
    assert [layer.training for layer in layers] == [False, True]


@pytest.mark.parametrize("images", [1, 3])
def test_a_client_with_frozen_norms_sends_the_gradient_worked_out_by_hand(
    model: nn.Sequential, images: int
) -> None:
    inputs, labels = torch.randn(images, 1, 8, 8), torch.arange(images)
    running = {n: b.clone() for n, b in model.named_buffers()}
    record = MaskRecorder()
    training = LocalTraining(mode="frozen-norm")
    update = compute_local_update(
        model, inputs, labels, training=training, seed=3, mask_recorder=record
    )
    (mask,) = record.masks_by_site()
    assert 0 < int((~mask).sum()) < mask.numel()
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    loss = F.cross_entropy(by_hand(model[1], weights, inputs, mask), labels)
    expected = torch.autograd.grad(loss, list(weights.values()))
    found = update.gradient()
    for name, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(running[n], b) for n, b in model.named_buffers())


def by_hand(norm: nn.Module, weights: dict[str, Tensor], inputs: Tensor, mask: Tensor) -> Tensor:
    """The network written out: running statistics, and the mask that the client drew."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    x = F.conv2d(inputs, weights["0.weight"], weights["0.bias"])
    deviation = (norm.running_var + norm.eps).sqrt().view(-1, 1, 1)
    x = (x - norm.running_mean.view(-1, 1, 1)) / deviation
    x = x * weights["1.weight"].view(-1, 1, 1) + weights["1.bias"].view(-1, 1, 1)
    x = F.gelu(x).flatten(1) * mask / (1 - P)
    return F.linear(x, weights["5.weight"], weights["5.bias"])


@pytest.mark.parametrize(
    ("mode", "norm", "dropout"),
    [("train", True, True), ("eval", False, False), ("frozen-norm", False, True)],
)
def test_the_attacker_runs_its_copy_as_the_recipe_says(
    model: nn.Sequential, mode: ClientMode, norm: bool, dropout: bool
) -> None:
    data = load("digits")
    inputs, labels = data.normalise(data.images([0, 1])), data.labels[:2]
    update = compute_local_update(model, inputs, labels, training=LocalTraining(mode=mode), seed=0)
    knowledge = Knowledge(data.shape, 10, data.mean, data.std, batch_size=2, client_mode=mode)
    observation = Server(model).receive(update, knowledge)
    problem = MatchingProblem.from_observation(observation)
    own = problem.model
    assert isinstance(own, nn.Sequential)
    assert (own[1].training, own[4].training) == (norm, dropout)
    assert len(problem.sites) == int(dropout)
    assert not any(module.training for module in observation.model.modules())
    default = replace(knowledge, client_mode="train")
    assert (
        MatchingProblem.from_observation(replace(observation, knowledge=default)).model[1].training
    )  # type: ignore[index]


def test_an_audit_tells_the_attacker_of_the_mode_and_its_loss_can_vanish(
    model: nn.Sequential,
) -> None:
    model[4].p = 0.0  # type: ignore[assignment]
    result = keyhole.audit(
        model=model,
        data="digits",
        attacks=["ig"],
        victims=1,
        iterations=150,
        client_mode="frozen-norm",
    )
    (finding,) = result.findings
    assert finding.knowledge["client_mode"] == "frozen-norm"
    assert finding.recipe["client_mode"] == "frozen-norm"
    assert finding.diagnostics["loss"] < 0.05


@pytest.mark.parametrize(
    ("batch_size", "said", "mode"),
    [(1, None, "frozen-norm"), (2, None, "train"), (1, "train", "train"), (1, "eval", "eval")],
)
def test_a_batch_norm_that_sees_one_image_keeps_to_its_statistics(
    model: nn.Sequential, batch_size: int, said: ClientMode | None, mode: ClientMode
) -> None:
    """Unless the user says otherwise; what was decided is said."""
    result = keyhole.audit(
        model=model,
        data="digits",
        attacks=["labels"],
        victims=1,
        batch_size=batch_size,
        client_mode=said,
        mean=0.3,
        std=0.4,
    )
    (finding,) = result.findings
    assert finding.knowledge["client_mode"] == finding.recipe["client_mode"] == mode
    words = {"frozen-norm": ["batches of one image"], "train": ["own statistics"], "eval": []}[mode]
    assert len(finding.notes) == len(words)
    assert all(word in note for word, note in zip(words, finding.notes, strict=True))


def test_without_batch_norm_one_image_is_trained_on_as_ever() -> None:
    result = keyhole.audit(model="lenet", data="digits", attacks=["labels"], victims=1)
    assert result.findings[0].recipe["client_mode"] == "train"
    assert not result.findings[0].notes
