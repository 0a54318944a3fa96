"""One step of many clients as one network, against the mean of their own steps."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, RoundClient, average_updates, compute_local_update
from keyhole.federation.training import clip_gradient
from keyhole.seeds import generator
from keyhole_studies.fedsgd import FedSgd, SeparateBatchNorm

CLIENTS, IMAGES = 3, 6
digits = load("digits", image_size=16)
SGD = LocalTraining(lr=0.1, batch_size=IMAGES)


def make_clients(
    training: LocalTraining, sizes: tuple[int, ...] = (IMAGES,) * CLIENTS
) -> list[RoundClient]:
    found, start = [], 0
    for client, size in enumerate(sizes):
        indices = list(range(start, start + size))
        images, labels = digits.images(indices).double(), digits.labels[indices]
        found.append(RoundClient(images, labels, generator(0, client), {}, digits, training))
        start += size
    return found


def normed() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(72, 10), nn.BatchNorm1d(10)).double()


def federated(model: nn.Module, training: LocalTraining, defense: str = "none") -> FedSgd:
    chosen = DEFENSES.parse(defense)
    rate = training.lr or 0.0
    return FedSgd(model, make_clients(training), training, defense=chosen, rate=lambda number: rate)


def trained(training: LocalTraining, rounds: int, *, defense: str = "none") -> nn.Module:
    model = normed()
    together = federated(model, training, defense)
    assert list(together.run_rounds(rounds)) == list(range(1, rounds + 1))
    return model


def one_by_one(training: LocalTraining, rounds: int, defense: str = "none") -> dict[str, Tensor]:
    """Rounds of clients whose batch is all they have."""
    model, chosen, some = normed(), DEFENSES.parse(defense), make_clients(training)
    sides = [ClientSide(client.generator) for client in some]
    for _ in range(rounds):
        sent = copy.deepcopy(model.state_dict())
        shown = [chosen.on_images(m.images, s) for m, s in zip(some, sides, strict=True)]
        updates = [
            compute_local_update(model, digits.normalise(x), m.labels, training=training, seed=0)
            for x, m in zip(shown, some, strict=True)
        ]
        model.load_state_dict(average_updates(sent, updates))
    return model.state_dict()


@pytest.mark.parametrize("defense", ["none", "csvar", "image-noise"])
def test_a_round_is_the_mean_of_the_clients_own_steps(defense: str) -> None:
    """Weights and running statistics, over several rounds."""
    ours = trained(SGD, 3, defense=defense).state_dict()
    theirs = one_by_one(SGD, 3, defense)
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, rtol=1e-9, atol=1e-12), name


def test_statistics_of_all_together_would_be_others() -> None:
    """What the test above would miss, were the clients not kept apart."""
    x = torch.randn(12, 4, 5, 5, dtype=torch.double) * torch.arange(1, 4).repeat(4).view(
        -1, 1, 1, 1
    )
    norm = nn.BatchNorm2d(4).double()
    jointly = norm(x)
    with SeparateBatchNorm(3):
        apart = norm(x)
    assert not torch.allclose(apart, jointly)
    for client in range(3):
        own = nn.BatchNorm2d(4).double()(x[client::3])
        assert torch.allclose(apart[client::3], own)


def test_a_network_that_is_tested_takes_the_running_statistics() -> None:
    norm = nn.BatchNorm2d(4).eval()
    before, x = norm.running_mean.clone(), torch.randn(6, 4, 3, 3)  # type: ignore[union-attr]
    with SeparateBatchNorm(3):
        found = norm(x)
    assert torch.allclose(found, norm(x))
    assert torch.equal(norm.running_mean, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_server_steps_as_torch_does(optimiser: str, clip: float | None) -> None:
    """By the mean gradient, whole images a batch, and with what it remembers of earlier rounds."""
    training = LocalTraining(
        lr=0.01, batch_size=IMAGES, optimiser=optimiser, momentum=0.9, clip=clip
    )
    model, some = normed(), make_clients(training)
    stepping = training.make_optimiser(model.parameters())
    for _ in range(5):
        each = []
        for client in some:
            alone = copy.deepcopy(model)
            logits = alone(digits.normalise(client.images))
            loss = F.cross_entropy(logits, client.labels)
            each.append(torch.autograd.grad(loss, list(alone.parameters())))
        mean = [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)]
        for parameter, gradient in zip(model.parameters(), clip_gradient(mean, clip), strict=True):
            parameter.grad = gradient
        stepping.step()
    ours = dict(trained(training, 5).named_parameters())
    for name, tensor in model.named_parameters():
        assert torch.allclose(ours[name], tensor, rtol=1e-6, atol=1e-9), name


def test_augmentation_repeats_by_its_seed() -> None:
    training = LocalTraining(lr=0.01, batch_size=2, augment=True)
    one, two = (next(trained(training, 7).parameters()) for _ in range(2))
    assert torch.equal(one, two)
    plain = next(trained(replace(training, augment=False), 7).parameters())
    assert not torch.allclose(one, plain)


def test_training_may_be_left_and_gone_on_with() -> None:
    training = LocalTraining(lr=0.01, batch_size=4, optimiser="adam", augment=True)
    model = normed()
    together = federated(model, training)
    for number in together.run_rounds(9):
        if number == 4:
            break
    assert not torch.equal(next(model.parameters()), next(normed().parameters()))
    assert list(together.run_rounds(9)) == [5, 6, 7, 8, 9]
    whole = trained(training, 9).state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("size", "left_out"), [(2, 0), (4, 2)])
def test_every_image_is_met_once_an_epoch(
    monkeypatch: pytest.MonkeyPatch, size: int, left_out: int
) -> None:
    """But for those that fill no batch."""
    seen: list[Tensor] = []
    monkeypatch.setattr(FedSgd, "take_step", lambda self, x, y: seen.append(x))
    training = LocalTraining(lr=0.1, batch_size=size)
    batches = IMAGES // size
    trained(training, 2 * batches)
    for epoch in (seen[:batches], seen[batches:]):
        met = torch.cat(epoch).flatten(1)
        for number, client in enumerate(make_clients(training)):
            own = [row for x in epoch for row in x[number::CLIENTS].flatten(1)]
            every = digits.normalise(client.images).flatten(1)
            places = {int((every - row).abs().sum(1).argmin()) for row in own}
            assert len(own) == len(places) == IMAGES - left_out
        assert len(met) == CLIENTS * (IMAGES - left_out)
    assert not torch.equal(seen[0], seen[batches])


@pytest.mark.parametrize(
    ("defense", "sizes", "training", "said"),
    [
        ("gaussian", (6, 6), SGD, "gaussian acts on clients' updates"),
        ("dropout", (6, 6), SGD, "dropout acts on clients' models"),
        ("none", (5, 6), SGD, "equally many images"),
        ("none", (), SGD, "needs clients"),
        ("none", (6, 6), LocalTraining(), "give the training one"),
        ("none", (6, 6), LocalTraining(lr=0.1, steps=2), "one step per round"),
        ("none", (6, 6), LocalTraining(lr=0.1, epochs=2), "one step per round"),
    ],
)
def test_what_one_network_cannot_stand_for_is_refused(
    defense: str, sizes: tuple[int, ...], training: LocalTraining, said: str
) -> None:
    chosen = DEFENSES.parse(defense)
    with pytest.raises(DoesNotFit, match=said):
        FedSgd(
            normed(), make_clients(SGD, sizes), training, defense=chosen, rate=lambda number: 0.1
        )


@pytest.mark.gpu
@pytest.mark.parametrize("training", [SGD, replace(SGD, lr=0.01, optimiser="adam")], ids=str)
def test_recorded_steps_are_those_of_the_cpu(training: LocalTraining) -> None:
    assert on_gpu(training, half=False) < 1e-6


@pytest.mark.gpu
def test_bfloat16_steps_lead_nearly_where_the_others_do() -> None:
    assert on_gpu(replace(SGD, lr=0.01), half=True) < 0.05


def on_gpu(training: LocalTraining, *, half: bool) -> float:
    """How far the weights end from those of the CPU, beside the way they went."""
    model = normed().float().cuda() if half else normed().cuda()
    like = next(model.parameters())
    some = [
        RoundClient(m.images.to(like), m.labels.cuda(), m.generator, {}, digits, training)
        for m in make_clients(training)
    ]
    rate = training.lr or 0.0
    chosen = DEFENSES.parse("none")
    list(
        FedSgd(model, some, training, defense=chosen, rate=lambda n: rate, half=half).run_rounds(3)
    )
    found, start = dict(model.named_parameters()), dict(normed().named_parameters())
    off, way = torch.zeros(2, dtype=torch.double)
    for name, tensor in trained(training, 3).named_parameters():
        off += (found[name].cpu().double() - tensor).detach().square().sum()
        way += (start[name] - tensor).detach().square().sum()
    return float((off / way).sqrt())
