"""How strongly the imprint block acts is found out on public images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import Imprint, Loki
from keyhole.attacks.malicious.imprint_block import ImprintBlock
from keyhole.attacks.malicious.imprint_gain import FAINT, GAINS, measure_slope, set_trial_mode
from keyhole.data import ImageSet, load
from keyhole.defenses import Gaussian, Precode
from keyhole.errors import BadUpdate
from keyhole.federation import LocalTraining, compute_local_update
from keyhole.models import build
from keyhole.models.bottleneck import find_bottleneck
from keyhole.threat import PublicKnowledge, Update


@pytest.fixture(scope="module")
def data() -> ImageSet:
    return load("digits")


def know(data: ImageSet, clients: int = 1, **local: float) -> PublicKnowledge:
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    told: dict[str, Any] = {"batch_size": 8, "clients": clients, **local}
    return PublicKnowledge(data.shape, len(data.classes), public, **told)


def network(name: str) -> nn.Module:
    return build(name, classes=10, channels=1, image_size=8, seed=0)


def gain_of(model: nn.Module) -> float:
    block = model.get_submodule("imprint")
    assert isinstance(block, ImprintBlock)
    return float(block.mix.weight.detach().sum())


def test_networks_without_norms_get_a_large_gain_and_sigmoids_a_small_one(data):
    found = {n: gain_of(Imprint().alter(network(n), know(data))) for n in ("mlp", "lenet")}
    assert GAINS[-1] >= found["mlp"] * 0.999 > found["lenet"] * 5


def test_a_bottleneck_does_not_overflow(data):
    """Its variances are exponentials: the largest gain would make them infinite."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = Precode(width=4).prepare_model(plain)
    own = find_bottleneck(model)
    assert own is not None
    own.encoder.weight.data *= 10
    row, thresholds, _ = Imprint()._place_thresholds(model, know(data))
    gain = gain_of(Imprint().alter(model, know(data)))
    tried = set_trial_mode(model, 8)
    slopes = [
        measure_slope(tried, ImprintBlock(row, thresholds, sparse=False, gain=g), know(data))
        for g in (gain, GAINS[-1])
    ]
    assert slopes[0] > slopes[1] == 0


def test_a_gain_that_is_given_is_kept(data):
    assert gain_of(Imprint(gain=7.0).alter(network("lenet"), know(data))) == pytest.approx(7.0)


def test_a_gain_at_which_several_steps_diverge_is_not_taken(data):
    attack, training = Imprint(form="sparse", bins=16), LocalTraining(steps=5, lr=3.0)
    images, labels = data.normalise(data.images(range(8))), data.labels[:8]

    def train(**known: float) -> tuple[float, Update]:
        model = attack.alter(network("mlp"), know(data, steps=5, **known))
        update = compute_local_update(model, images, labels, training=training, seed=0)
        return gain_of(model), update

    careless, diverged = train()
    careful, update = train(lr=3.0)
    assert careful < careless
    update.check()
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        diverged.check()


def test_where_all_gains_diverge_the_faintest_is_taken(data):
    attack = Imprint(form="sparse", bins=16)
    model = attack.alter(network("mlp"), know(data, steps=5, lr=1e9))
    block = model.get_submodule("imprint")
    assert isinstance(block, ImprintBlock)
    assert float(block.mix.weight[0, 0].detach()) == pytest.approx(FAINT[-1])


@pytest.mark.parametrize(("known", "images"), [({}, 8), ({"step_images": 1}, 1)])
def test_norms_are_tried_by_the_images_of_a_step(data, monkeypatch, known, images):
    """A batch of one image makes clients freeze their norms, whatever else they hold."""
    asked = []

    def watch(model: nn.Module, batch_size: int) -> nn.Module:
        asked.append(batch_size)
        return set_trial_mode(model, batch_size)

    monkeypatch.setattr("keyhole.attacks.malicious.imprint_gain.set_trial_mode", watch)
    Imprint(bins=16).alter(network("mlp"), know(data, steps=8, lr=0.01, **known))
    assert asked == [images]


def test_clients_of_a_sum_see_the_gain_that_was_found(data):
    """Of a block for four clients each fires a quarter."""
    one, four = (
        gain_of(Loki(bins=16).alter(network("lenet"), know(data, clients=clients)))
        for clients in (1, 4)
    )
    assert four == pytest.approx(4 * one, rel=1e-4)


def test_the_slope_is_the_gradient_of_a_row(data):
    """Against autograd through the block itself, for a single image."""
    public = know(data)
    one = PublicKnowledge(data.shape, 10, public.images[:1])
    model = network("mlp").double()
    row = torch.full((64,), 1 / 64, dtype=torch.double)
    block = ImprintBlock(row, torch.tensor([-9.0], dtype=torch.double), sparse=False, gain=3.0)
    found = measure_slope(model, block, one)
    slopes = []
    for label in range(10):
        logits = model(block(one.images.double()))
        loss = nn.functional.cross_entropy(logits, torch.tensor([label]))
        (slope,) = torch.autograd.grad(loss, block.measure.bias)
        slopes.append(abs(float(slope)))
    assert any(found == pytest.approx(slope, rel=1e-6) for slope in slopes)


def test_no_random_number_is_drawn_and_the_model_stays(data):
    model = network("resnet18")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    Imprint(bins=16).alter(model, know(data))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert model.training == network("resnet18").training


def test_more_survives_noise_than_with_a_gain_of_one(observe, data):
    read = []
    for attack in (Imprint(gain=1.0), Imprint()):
        model = attack.alter(network("mlp"), know(data))
        victim = observe(model, data, range(8), Gaussian(sigma=1e-5))
        read.append(sum(victim.best_decibels(attack(victim.observation))) / 8)
    assert read[1] > read[0] + 10
