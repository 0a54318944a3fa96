"""An added layer of threshold rows takes batches apart, and secure sums."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from keyhole.attacks import Imprint, Loki
from keyhole.attacks.malicious.imprint_block import ImprintBlock
from keyhole.data import ImageSet, load
from keyhole.defenses import Csvar, Dropout, Gaussian, Mjp, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, PublicKnowledge, Server
from keyhole.update import Update


@pytest.fixture(scope="module")
def data() -> ImageSet:
    return load("digits")


def know(data: ImageSet, **facts: int) -> PublicKnowledge:
    """What a server knows: the last hundred images are public."""
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    return PublicKnowledge(data.shape, len(data.classes), public, **facts)


def network(name: str = "resnet18") -> nn.Module:
    return build(name, classes=10, channels=1, image_size=8, seed=0)


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18"])
def test_every_image_that_is_alone_in_its_bin_is_read(observe, data, name):
    """By a share of (1 - 1/bins)^15 = 98% on average, and whatever comes after the block."""
    attack = Imprint(bins=1024)
    model = attack.alter(network(name), know(data, batch_size=16))
    victim = observe(model, data, range(16))
    found = victim.best_decibels(attack(victim.observation))
    assert sum(decibels > 40 for decibels in found) >= 14


def test_fewer_bins_hold_more_images_at_once(observe, data):
    read = []
    for bins in (4, 16, 1024):
        attack = Imprint(bins=bins)
        victim = observe(attack.alter(network(), know(data, batch_size=16)), data, range(16))
        read.append(sum(d > 40 for d in victim.best_decibels(attack(victim.observation))))
    assert read[0] < read[1] < read[2]


def test_local_steps_leave_the_sparse_form_intact_and_not_the_cumulative_one(observe, data):
    training = LocalTraining(steps=4, lr=0.05)
    read = {}
    for form in ("cumulative", "auto"):
        attack = Imprint(form=form)
        model = attack.alter(network(), know(data, batch_size=16, steps=4))
        victim = observe(model, data, range(16), training=training)
        read[form] = sum(d > 40 for d in victim.best_decibels(attack(victim.observation)))
    assert read["auto"] >= 12
    assert read["auto"] > read["cumulative"]


def test_one_shot_reads_at_most_one_image(observe, data):
    attack = Imprint(form="one-shot")
    hits = []
    for start in range(0, 160, 16):
        model = attack.alter(network("mlp"), know(data, batch_size=16))
        victim = observe(model, data, range(start, start + 16))
        found = attack(victim.observation)
        assert found.images is None or len(found.images) == 1
        hits.append(found.images is not None and max(victim.best_decibels(found)) > 40)
    assert sum(hits) >= 2  # one in e batches has exactly one image in the bin


@pytest.mark.parametrize("defense", [Dropout(p=0.5), Csvar()])
def test_defenses_behind_or_before_the_block_do_not_help(observe, data, defense):
    """Dropout acts after the block; what was done to images is undone by one who knows it."""
    attack = Imprint()
    victim = observe(
        attack.alter(network("lenet"), know(data, batch_size=8)), data, range(8), defense
    )
    found = attack(victim.unaware)
    if isinstance(defense, Dropout):
        assert sum(d > 40 for d in victim.best_decibels(found)) >= 7
    else:
        known = attack(victim.observation)
        assert sum(victim.best_decibels(known)) > sum(victim.best_decibels(found)) + 8


def test_knowing_the_noise_helps(observe, data):
    attack = Imprint()
    model = attack.alter(network("mlp"), know(data, batch_size=4))
    victim = observe(model, data, range(4), Gaussian(sigma=5e-7))
    unaware = sum(victim.best_decibels(attack(victim.unaware)))
    assert sum(victim.best_decibels(attack(victim.observation))) > unaware + 40


def sum_of_clients(attack: Loki, data: ImageSet, clients: int, batch: int):
    """What a server sees of clients under secure aggregation: the sum of their updates."""
    public = know(data, batch_size=batch, clients=clients)
    model = attack.alter(network(), public)
    total: dict[str, torch.Tensor] = {}
    for client in range(clients):
        indices = range(client * batch, (client + 1) * batch)
        update, _ = train_client(
            attack.personalise(model, client, public),
            data.images(indices),
            data.labels[list(indices)],
            data=data,
            defense=NoDefense(),
            generator=generator(0, client),
        )
        for name, change in update.change.items():
            total[name] = total.get(name, 0) + change / clients
    knowledge = Knowledge(
        data.shape, 10, data.mean, data.std, batch_size=clients * batch, clients=clients
    )
    return Server(model).receive(Update(total, examples=clients * batch), knowledge)


def test_loki_finds_the_images_of_a_sum_and_whose_they_are(data):
    attack = Loki(bins=256)
    observation = sum_of_clients(attack, data, clients=5, batch=4)
    found = attack(observation)
    truth = data.normalise(data.images(range(20))).double()
    gaps = torch.cdist(truth.flatten(1), found.images.flatten(1))
    nearest = gaps.argmin(1)
    exact = gaps.amin(1) < 0.01
    assert int(exact.sum()) >= 16
    assert torch.equal(found.clients[nearest][exact], (torch.arange(20) // 4)[exact])


@pytest.mark.parametrize("name", ["mlp", "resnet18", "vit-small"])
def test_an_altered_model_is_copied_as_it_is(data, name):
    model = Imprint(bins=16).alter(network(name), know(data))
    other = copy.deepcopy(model)
    images = data.normalise(data.images(range(3)))
    assert type(other) is type(model)
    assert torch.equal(other.eval()(images), model.eval()(images))
    with torch.no_grad():
        other.get_parameter("imprint.mix.weight").zero_()
    assert bool(model.get_parameter("imprint.mix.weight").any())


def test_a_puzzle_behind_the_block_does_not_help(observe, data):
    attack, defense = Imprint(), Mjp(gamma=0.5)
    model = attack.alter(defense.prepare_model(network("vit-small")), know(data, batch_size=8))
    victim = observe(model, data, range(8), defense)
    assert sum(d > 40 for d in victim.best_decibels(attack(victim.unaware))) >= 7


def test_the_model_keeps_its_names_and_its_blocks_are_in_front(data):
    plain = network()
    changed = Imprint(bins=16).alter(plain, know(data))
    assert isinstance(changed.imprint, ImprintBlock)
    assert set(plain.state_dict()) < set(changed.state_dict())
    assert not hasattr(plain, "imprint")


def test_refusals_say_what_is_missing(observe, data):
    with pytest.raises(DoesNotFit, match="public images"):
        Imprint().alter(network())
    victim = observe(network("mlp"), data, [0])
    with pytest.raises(DoesNotFit, match="imprint block"):
        Imprint()(victim.observation)
    twice = Imprint().alter(network(), know(data))
    with pytest.raises(DoesNotFit, match="already"):
        Imprint().alter(twice, know(data))
    with pytest.raises(DoesNotFit, match="one step"):
        Loki().alter(network(), know(data, steps=3))
