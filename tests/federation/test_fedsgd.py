"""One step of many clients as one network, against the mean of their own steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, averaged, local_update
from keyhole.federation.fedsgd import ClientsApart, FedSgd
from keyhole.federation.together import Member
from keyhole.seeds import generator

CLIENTS, IMAGES = 3, 6
digits = load("digits", image_size=16)
SGD = LocalTraining(lr=0.1, batch_size=IMAGES)


def members(recipe: LocalTraining, sizes: tuple[int, ...] = (IMAGES,) * CLIENTS) -> list[Member]:
    found, start = [], 0
    for client, size in enumerate(sizes):
        indices = list(range(start, start + size))
        images, labels = digits.images(indices).double(), digits.labels[indices]
        found.append(Member(images, labels, generator(0, client), {}, digits, recipe))
        start += size
    return found


def normed() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(72, 10), nn.BatchNorm1d(10)).double()


def trained(recipe: LocalTraining, rounds: int, *, defense: str = "none") -> nn.Module:
    model = normed()
    together = FedSgd(
        model,
        members(recipe),
        recipe,
        defense=DEFENSES.parse(defense),
        rate=lambda number: recipe.lr or 0.0,
    )
    assert list(together.rounds(rounds)) == list(range(1, rounds + 1))
    return model


def one_by_one(recipe: LocalTraining, rounds: int, defense: str = "none") -> dict[str, Tensor]:
    """Rounds of clients whose batch is all they have."""
    model, chosen, some = normed(), DEFENSES.parse(defense), members(recipe)
    sides = [ClientSide(member.generator) for member in some]
    for _ in range(rounds):
        sent = copy.deepcopy(model.state_dict())
        shown = [chosen.on_images(m.images, s) for m, s in zip(some, sides, strict=True)]
        updates = [
            local_update(model, digits.normalise(x), m.labels, training=recipe, seed=0)
            for x, m in zip(shown, some, strict=True)
        ]
        model.load_state_dict(averaged(sent, updates))
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
    with ClientsApart(3):
        apart = norm(x)
    assert not torch.allclose(apart, jointly)
    for client in range(3):
        own = nn.BatchNorm2d(4).double()(x[client::3])
        assert torch.allclose(apart[client::3], own)


def test_a_network_that_is_tested_takes_the_running_statistics() -> None:
    norm = nn.BatchNorm2d(4).eval()
    before, x = norm.running_mean.clone(), torch.randn(6, 4, 3, 3)  # type: ignore[union-attr]
    with ClientsApart(3):
        found = norm(x)
    assert torch.allclose(found, norm(x))
    assert torch.equal(norm.running_mean, before)  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [None, 0.01])
def test_the_server_may_step_by_adam(clip: float | None) -> None:
    recipe = LocalTraining(lr=0.01, batch_size=2, optimiser="adam", clip=clip, augment=True)
    start, ours = normed(), trained(recipe, 7)
    assert not torch.allclose(next(ours.parameters()), next(start.parameters()))
    assert torch.equal(next(ours.parameters()), next(trained(recipe, 7).parameters()))


def test_every_image_is_met_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(FedSgd, "step", lambda self, x, y: seen.append(x))
    recipe = LocalTraining(lr=0.1, batch_size=2)
    trained(recipe, 6)
    every = torch.cat([digits.normalise(m.images) for m in members(recipe)]).flatten(1)
    for epoch in (seen[:3], seen[3:]):
        met = torch.cat(epoch).flatten(1)
        assert sorted(met.sum(1).tolist()) == pytest.approx(sorted(every.sum(1).tolist()))
    assert not torch.equal(seen[0], seen[3])


def test_what_one_network_cannot_stand_for_is_refused() -> None:
    for defense, sizes, said in (("gaussian", (6, 6), "acts on updates"), ("none", (5, 6), "many")):
        with pytest.raises(DoesNotFit, match=said):
            FedSgd(
                normed(),
                members(SGD, sizes),
                SGD,
                defense=DEFENSES.parse(defense),
                rate=lambda number: 0.1,
            )


@pytest.mark.gpu
def test_recorded_steps_are_those_of_the_cpu() -> None:
    model = normed()
    some = [
        Member(m.images.cuda(), m.labels.cuda(), m.generator, {}, digits, SGD) for m in members(SGD)
    ]
    model = model.cuda()
    chosen = DEFENSES.parse("none")
    list(FedSgd(model, some, SGD, defense=chosen, rate=lambda number: 0.1).rounds(3))
    for name, tensor in one_by_one(SGD, 3).items():
        assert torch.allclose(model.state_dict()[name].cpu(), tensor, rtol=1e-6), name
