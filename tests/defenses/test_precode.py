"""PRECODE: where the bottleneck goes, what it draws, and what its loss is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import Precode
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.models.bottleneck import LossCollector, VariationalLinear, find_bottleneck
from keyhole.models.dropout_sites import FixedMasks, MaskRecorder, SiteFinder
from keyhole.seeds import generator

digits = load("digits")
X = digits.normalise(digits.images([1, 2]))
Y = digits.labels[[1, 2]]


def prepared(defense: Precode, model: str = "lenet") -> nn.Module:
    return defense.prepare_model(build(model, classes=10, channels=1, image_size=8))


def test_the_bottleneck_is_a_child_of_the_last_layer() -> None:
    model = prepared(Precode(width=7))
    assert isinstance(model[8], VariationalLinear)
    added = {n: tuple(p.shape) for n, p in model.named_parameters() if "bottleneck" in n}
    assert added == {
        "8.bottleneck.encoder.weight": (14, 48),
        "8.bottleneck.encoder.bias": (14,),
        "8.bottleneck.decoder.weight": (48, 7),
        "8.bottleneck.decoder.bias": (48,),
    }


@pytest.mark.parametrize("model", ["mlp", "vit-small", "resnet18"])
def test_it_fits_networks_of_all_kinds(model: str) -> None:
    network = Precode(width=5).on_model(prepared(Precode(width=5), model))
    assert network(X).shape == (2, 10)


def test_the_server_s_model_decodes_the_mean() -> None:
    model = prepared(Precode(width=7)).train()
    assert torch.equal(model(X), model(X))
    local = Precode(width=7).on_model(model).train()
    assert not torch.equal(local(X), local(X))
    assert not find_bottleneck(model).samples  # type: ignore[union-attr]
    assert torch.equal(local.eval()(X), model.eval()(X))


def test_the_sample_is_mean_plus_deviation_times_noise() -> None:
    local = Precode(width=7).on_model(prepared(Precode(width=7))).train()
    record = MaskRecorder()
    record.begin()
    with record:
        drawn = local(X)
    (noise,) = record.masks_by_site()
    features, head = local[:8](X), local[8]
    mean, log_variance = head.bottleneck.encoder(features).chunk(2, 1)
    decoded = head.bottleneck.decoder(mean + (log_variance / 2).exp() * noise)
    torch.testing.assert_close(drawn, F.linear(decoded, head.weight, head.bias))
    with FixedMasks(record.masks[0]):
        assert torch.equal(local(X), drawn)


def test_the_noise_is_a_site_of_the_model() -> None:
    local = Precode(width=7).on_model(prepared(Precode(width=7))).train()
    finder = SiteFinder()
    with finder:
        local(X)
    (site,) = finder.sites
    assert (site.shape, site.is_noise) == ((7,), True)


def test_a_step_adds_the_divergence_from_the_standard_normal() -> None:
    """Against torch's own divergence, with the same noise."""
    local = Precode(width=7, beta=0.3).on_model(prepared(Precode(width=7))).train()
    torch.manual_seed(5)
    found = Precode(width=7, beta=0.3).on_step(local, X, Y)
    torch.manual_seed(5)
    with LossCollector():
        loss = F.cross_entropy(local(X), Y)
    mean, log_variance = local[8].bottleneck.encoder(local[:8](X)).chunk(2, 1)
    own = torch.distributions.Normal(mean, (log_variance / 2).exp())
    unit = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    divergence = torch.distributions.kl_divergence(own, unit).sum(1).mean()
    expected = torch.autograd.grad(loss + 0.3 * divergence, list(local.parameters()))
    assert found is not None
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_without_a_weight_the_divergence_is_no_part_of_the_loss() -> None:
    local = Precode(width=7, beta=0).on_model(prepared(Precode(width=7))).train()
    with LossCollector() as collected:
        local(X)
    assert collected.terms == []


def test_clients_report_the_bottleneck_and_train_with_weights_too() -> None:
    model = prepared(Precode(width=7))
    before = copy.deepcopy(model.state_dict())
    update, telemetry = train_client(
        model,
        digits.images([1, 2]),
        Y,
        data=digits,
        defense=Precode(width=7),
        generator=generator(0),
        training=LocalTraining(lr=0.1, steps=3),
    )
    assert set(update.change) == set(before)
    assert update.change["8.bottleneck.encoder.weight"].any()
    assert telemetry["width"] == 7
    assert telemetry["parameters_added"] == 14 * 48 + 14 + 48 * 7 + 48
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_model_prepared_for_another_width_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="a bottleneck of 7 dimensions, not 8"):
        Precode(width=8).prepare_model(prepared(Precode(width=7)))
    assert Precode().incompatibilities(nn.Conv2d(1, 1, 3)) == [
        "it has no linear layer before which a bottleneck could be put"
    ]


def test_what_follows_the_noise_is_told() -> None:
    model = prepared(Precode(width=7))
    update, _ = train_client(
        model, digits.images([1]), Y[:1], data=digits, defense=Precode(width=7),
        generator=generator(0),
    )  # fmt: skip
    told = Precode(width=7).misleading_values(update, model)
    assert set(told) == {n for n in update.change if n.startswith("8.")}
    assert all(bool(mask.all()) for mask in told.values())
    plain = build("lenet", classes=10, channels=1, image_size=8)
    assert Precode(width=0).misleading_values(update, plain) == {}
