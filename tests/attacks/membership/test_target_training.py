from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.attacks.membership import LabelledImages, TargetTraining
from keyhole.attacks.membership import target_training as module
from keyhole.attacks.membership.target_training import changes_images, is_small, limit_threads
from keyhole.data import load
from keyhole.defenses import ClientSide, Defense, Dropout, Gaussian, NoDefense, Pruning
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, train_client
from keyhole.federation.rounds import client_generator
from keyhole.models import build
from keyhole.seeds import seeded_globally

digits = load("digits")


def some(first: int, count: int) -> LabelledImages:
    indices = list(range(first, first + count))
    return LabelledImages(digits.images(indices), digits.labels[indices])


SETS = [some(0, 12), some(20, 12), some(40, 12)]


def with_norms(seed: int) -> nn.Module:
    with seeded_globally(seed):
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def by_name(name: str) -> Callable[[int], nn.Module]:
    if name == "norms":
        return with_norms
    return lambda seed: build(name, classes=10, channels=1, image_size=8, seed=seed)


def training_for(
    name: str = "mlp", defense: Defense | None = None, **local: object
) -> TargetTraining:
    settings = {"lr": 0.1, "epochs": 2, "batch_size": 5, **local}
    return TargetTraining(
        network=by_name(name),
        local=LocalTraining(**settings),
        mean=digits.mean,
        std=digits.std,
        defense=defense or NoDefense(),
    )


def apart(training: TargetTraining, members: LabelledImages, seed: int) -> nn.Module:
    """What one client makes of its model, the plain way."""
    model = training.defense.prepare_model(training.network(seed))
    update, _ = train_client(
        model,
        members.images,
        members.labels,
        data=digits,
        defense=training.defense,
        generator=client_generator(seed, 0, 1),
        training=training.local,
    )
    change = update.change
    model.load_state_dict({k: v + change[k] for k, v in model.state_dict().items()})
    return model


def assert_same(one: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.allclose(tensor, other.state_dict()[name], rtol=0, atol=tolerance), name


@pytest.mark.parametrize("name", ["mlp", "lenet", "norms"])
@pytest.mark.parametrize("defense", [NoDefense(), Gaussian(sigma=0.1), Pruning(ratio=0.5)], ids=str)
def test_models_side_by_side_end_as_if_each_was_alone(name: str, defense: Defense) -> None:
    training = training_for(name, defense)
    shares = [training.make_federation(s, seed) for s, seed in zip(SETS, (3, 4, 5), strict=True)]
    models = [share.model for share in shares]
    training.train_stacked(shares)
    for model, members, seed in zip(models, SETS, (3, 4, 5), strict=True):
        assert_same(model, apart(training, members, seed))
        start = training.network(seed).state_dict()
        assert any((t - start[n]).abs().max() > 1e-3 for n, t in model.state_dict().items())


@pytest.mark.parametrize(
    "training",
    [{"optimiser": "adam", "lr": 0.002}, {"momentum": 0.9, "clip": 0.5}, {"batch_size": None}],
)
def test_every_way_to_train_is_the_same_side_by_side(training: dict[str, object]) -> None:
    training = training_for("mlp", **training)
    (models,) = training.train_models(SETS, [3, 4, 5])
    for model, members, seed in zip(models, SETS, (3, 4, 5), strict=True):
        assert_same(model, apart(training, members, seed), 1e-4)


def test_models_one_after_another_are_the_same_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_MODEL", 0)
    training = training_for("mlp", Gaussian(sigma=0.1))
    (models,) = training.train_models(SETS, [3, 4, 5])
    for model, members, seed in zip(models, SETS, (3, 4, 5), strict=True):
        assert_same(model, apart(training, members, seed))


def test_every_model_has_first_weights_of_its_own() -> None:
    (models,) = training_for(lr=1e-9).train_models([SETS[0], SETS[0]], [3, 4])
    assert_same(models[0], training_for().network(3))
    assert_same(models[1], training_for().network(4))
    assert not torch.allclose(models[0][1].weight, models[1][1].weight, atol=1e-3)


@dataclass(frozen=True, kw_only=True)
class Counted(Defense):
    """Counts how often images pass its door."""

    name: ClassVar[str] = "counted"
    passes: ClassVar[list[int]] = []

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        self.passes.append(len(images))
        return images


@pytest.mark.parametrize("together", [True, False])
def test_the_image_door_is_passed_anew_in_every_epoch(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL_MODEL", 10**9 if together else 0)
    Counted.passes.clear()
    list(training_for("mlp", Counted(), epochs=3).train_models(SETS, [3, 4, 5]))
    assert Counted.passes == [12] * 9


@pytest.mark.parametrize("defense", [NoDefense(), Dropout(p=0.3)], ids=str)
def test_the_same_seeds_make_the_same_models(
    defense: Defense, same_rng: Callable[[], bool]
) -> None:
    training = training_for("mlp", defense, augment=True)
    (first,), (second,) = (list(training.train_models(SETS, [3, 4, 5])) for _ in range(2))
    (other,) = training.train_models(SETS, [6, 7, 8])
    for one, same, unlike in zip(first, second, other, strict=True):
        assert_same(one, same, 0)
        assert not torch.allclose(one[1].weight, unlike[1].weight, atol=1e-3)
    assert same_rng()


def test_models_come_in_groups_ready_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STACKED", 2)
    reports: list[int] = []
    groups = list(training_for().train_models(SETS, [3, 4, 5], reports.append))
    assert [len(group) for group in groups] == [2, 1]
    assert sum(reports) == 3
    models = [model for group in groups for model in group]
    assert not any(m.training or any(p.requires_grad for p in m.parameters()) for m in models)


def test_several_clients_average_what_each_makes_of_its_share() -> None:
    training = replace(training_for(), clients=2, rounds=1)
    ((model,),) = training.train_models([SETS[0]], [3])
    start = training.network(3).state_dict()
    halves = [SETS[0].take(torch.arange(0, 6)), SETS[0].take(torch.arange(6, 12))]
    updates = [
        train_client(
            training.network(3),
            half.images,
            half.labels,
            data=digits,
            defense=NoDefense(),
            generator=client_generator(3, client, 1),
            training=training.local,
        )[0]
        for client, half in enumerate(halves)
    ]
    for name, tensor in model.state_dict().items():
        mean = sum(update.change[name] for update in updates) / 2
        assert torch.allclose(tensor, start[name] + mean, rtol=0, atol=1e-5)


def test_more_rounds_go_further() -> None:
    start = training_for().network(3)[1].weight
    one, two = (
        next(replace(training_for(), clients=3, rounds=rounds).train_models([SETS[0]], [3]))[0]
        for rounds in (1, 2)
    )
    assert (two[1].weight - start).norm() > 1.2 * (one[1].weight - start).norm() > 0


def test_clients_without_an_image_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="12 images cannot be shared by 13 clients: pass fewer"):
        next(replace(training_for(), clients=13).train_models([SETS[0]], [3]))


def test_who_does_not_know_the_defense_trains_without_it(negative: Defense) -> None:
    training = training_for("mlp", negative)
    assert isinstance(training.undefended().defense, NoDefense)
    assert replace(training.undefended(), defense=negative) == training
    assert changes_images(negative)
    assert not changes_images(Gaussian())


def test_small_models_get_one_thread_and_large_ones_all() -> None:
    before = torch.get_num_threads()
    small, large = nn.Linear(10, 10), nn.Linear(1000, 1000)
    assert is_small(small)
    assert not is_small(large)
    with limit_threads(small):
        assert torch.get_num_threads() == 1
    with limit_threads(large):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lenet", "norms"])
def test_the_same_models_come_from_a_gpu(name: str) -> None:
    training = training_for(name)
    on_gpu = replace(training, device=torch.device("cuda"))
    moved = [LabelledImages(s.images.cuda(), s.labels.cuda()) for s in SETS]
    (models,) = on_gpu.train_models(moved, [3, 4, 5])
    for model, members, seed in zip(models, SETS, (3, 4, 5), strict=True):
        assert_same(model.cpu(), apart(training, members, seed), 1e-3)
