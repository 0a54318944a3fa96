"""What a client trains in one round, against a plain torch loop."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import ClientSide, Defense, NoDefense
from keyhole.federation import LocalTraining, compute_local_update, train_client
from keyhole.models import build
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
IMAGES, LABELS = digits.images(range(9)), digits.labels[:9]
INPUTS = digits.normalise(IMAGES)


def plain_optimiser(training: LocalTraining, model: nn.Module) -> torch.optim.Optimizer:
    assert training.lr is not None
    if training.optimiser == "adam":
        return torch.optim.Adam(model.parameters(), lr=training.lr)
    return torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum)


def by_hand(model: nn.Module, training: LocalTraining, seed: int) -> dict[str, Tensor]:
    """What a plain torch loop over the same batches changes."""
    twin = copy.deepcopy(model).train()
    optimiser = plain_optimiser(training, twin)
    for _, batch in training.batches(len(INPUTS), generator(seed, "batches")):
        optimiser.zero_grad()
        F.cross_entropy(twin(INPUTS.double()[batch]), LABELS[batch]).backward()
        if training.clip is not None:
            whole = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
            for parameter in twin.parameters():
                parameter.grad *= min(1.0, training.clip / float(whole))
        optimiser.step()
    before = model.state_dict()
    return {name: end - before[name] for name, end in twin.state_dict().items()}


def conv_and_norm() -> nn.Sequential:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


RECIPES: list[dict[str, Any]] = [
    {"epochs": 2, "batch_size": 4},
    {"steps": 3, "batch_size": 4},
    {"epochs": 2, "batch_size": 3, "momentum": 0.9},
    {"epochs": 2, "batch_size": 3, "optimiser": "adam"},
    {"epochs": 1, "batch_size": 2, "clip": 0.05},
    {"epochs": 3, "momentum": 0.5, "clip": 1.0},
    {"steps": 4, "batch_size": 5, "optimiser": "adam", "clip": 0.1},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("name", ["mlp", "norm"])
def test_a_client_trains_like_a_plain_torch_loop(name: str, recipe: dict[str, Any]) -> None:
    model = conv_and_norm() if name == "norm" else build(name, classes=10, channels=1, image_size=8)
    model.double()
    training = LocalTraining(lr=0.02, **recipe)
    update = compute_local_update(model, INPUTS.double(), LABELS, training=training, seed=11)
    expected = by_hand(model, training, 11)
    assert list(update.change) == list(expected)
    assert update.norm() > 0
    for key, change in update.change.items():
        assert change.dtype == expected[key].dtype
        assert torch.allclose(change, expected[key], rtol=0, atol=1e-9)
    facts = (update.steps, update.lr, update.batch_size, update.examples)
    assert facts == (training.count_steps(9), 0.02, training.batch_size_for(9), 9)


def test_the_clip_is_felt() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    training = LocalTraining(steps=1, lr=2.0, clip=0.01)
    moved = compute_local_update(model, INPUTS, LABELS, training=training, seed=0)
    assert moved.norm() == pytest.approx(0.02, rel=1e-4)
    shared = compute_local_update(model, INPUTS, LABELS, training=LocalTraining(clip=0.01), seed=0)
    assert shared.norm() == pytest.approx(0.01, rel=1e-4)


def test_running_statistics_are_among_what_a_client_shares() -> None:
    model = conv_and_norm()
    training = LocalTraining(lr=0.1, epochs=2, batch_size=3)
    change = compute_local_update(model, INPUTS, LABELS, training=training, seed=0).change
    assert change["1.running_mean"].any()
    assert change["1.running_var"].any()
    assert change["1.num_batches_tracked"].item() == 6
    assert not change["1.num_batches_tracked"].is_floating_point()


@pytest.mark.parametrize("mode", ["eval", "frozen-norm"])
def test_statistics_that_are_not_learnt_do_not_change(mode: Any) -> None:
    training = LocalTraining(lr=0.1, epochs=2, batch_size=3, mode=mode)
    change = compute_local_update(conv_and_norm(), INPUTS, LABELS, training=training, seed=0).change
    assert change["0.weight"].any()
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert not change[name].any()


def test_a_client_that_shares_a_gradient_shares_parameters_only() -> None:
    model = conv_and_norm()
    update = compute_local_update(model, INPUTS, LABELS, training=LocalTraining(), seed=0)
    assert list(update.change) == [name for name, _ in model.named_parameters()]


def test_the_same_seed_augments_alike_and_another_otherwise() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    training = LocalTraining(lr=0.1, epochs=2, augment=True)

    def weights(seed: int) -> Tensor:
        torch.rand(1)  # wherever the global generator stands
        return compute_local_update(model, INPUTS, LABELS, training=training, seed=seed).change[
            "1.weight"
        ]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    plain = compute_local_update(
        model, INPUTS, LABELS, training=LocalTraining(lr=0.1, epochs=2), seed=1
    ).change["1.weight"]
    assert not torch.equal(weights(1), plain)


@pytest.mark.parametrize(
    ("recipe", "calls"),
    [
        ({"epochs": 1, "batch_size": 4}, 0),
        ({"epochs": 3, "batch_size": 4}, 2),
        ({"steps": 5, "batch_size": 5}, 2),
        ({"steps": 4}, 3),
    ],
)
def test_inputs_are_asked_for_once_for_each_later_epoch(recipe: dict[str, Any], calls: int) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    called = []

    def again() -> Tensor:
        called.append(1)
        return INPUTS

    compute_local_update(
        model, INPUTS, LABELS, training=LocalTraining(lr=0.1, **recipe), seed=0, next_inputs=again
    )
    assert len(called) == calls


def test_later_epochs_train_on_the_inputs_that_were_given_anew() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    training = LocalTraining(lr=0.1, epochs=2)
    twin = copy.deepcopy(model)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1)
    for inputs in (INPUTS, -INPUTS):
        optimiser.zero_grad()
        F.cross_entropy(twin(inputs), LABELS).backward()
        optimiser.step()
    change = compute_local_update(
        model, INPUTS, LABELS, training=training, seed=0, next_inputs=lambda: -INPUTS
    ).change
    for (name, end), start in zip(twin.state_dict().items(), model.parameters(), strict=True):
        assert torch.allclose(change[name], end - start.detach(), atol=1e-6)


def test_a_step_of_its_own_replaces_the_gradient() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    shown: list[tuple[Tensor, Tensor]] = []

    def ones(network: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        assert network is not model
        assert network.training
        shown.append((x, y))
        return [torch.ones_like(p) for p in network.parameters()]

    training = LocalTraining(steps=3, lr=0.5, batch_size=4)
    update = compute_local_update(
        model, INPUTS, LABELS, training=training, seed=2, step_gradient=ones
    )
    assert all(torch.allclose(t, torch.full_like(t, -1.5)) for t in update.change.values())
    batches = [batch for _, batch in training.batches(9, generator(2, "batches"))]
    assert all(torch.equal(x, INPUTS[b]) for (x, _), b in zip(shown, batches, strict=True))
    assert all(torch.equal(y, LABELS[b]) for (_, y), b in zip(shown, batches, strict=True))


def test_a_step_that_gives_nothing_leaves_the_plain_gradient() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    one, other = (
        compute_local_update(
            model, INPUTS, LABELS, training=LocalTraining(), seed=0, step_gradient=step
        )
        for step in (None, lambda network, x, y: None)
    )
    assert all(torch.equal(one.change[n], t) for n, t in other.change.items())


def test_a_gradient_of_its_own_is_clipped_as_well() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    update = compute_local_update(
        model,
        INPUTS,
        LABELS,
        training=LocalTraining(lr=1.0, clip=0.25),
        seed=0,
        step_gradient=lambda network, x, y: [torch.ones_like(p) for p in network.parameters()],
    )
    assert update.norm() == pytest.approx(0.25, rel=1e-4)


def test_masks_are_recorded_batch_by_batch() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    record = MaskRecorder()
    training = LocalTraining(lr=0.1, epochs=2, batch_size=4)
    compute_local_update(model, INPUTS, LABELS, training=training, seed=0, mask_recorder=record)
    assert [mask.shape[0] for mask in record.masks_by_site()] == [18, 18, 18]


@dataclass(frozen=True)
class Doors(Defense):
    """Notes what passes each door, remembers how often, and draws at the image door."""

    seen: list[str] = field(default_factory=list)
    name: ClassVar[str] = "doors"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert torch.equal(images, IMAGES)
        self.seen.append("images")
        side.memory["epochs"] = side.memory.get("epochs", 0) + 1
        return images + torch.rand(1, generator=side.generator)

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        assert side is not None
        self.seen.append(f"step of {len(inputs)}")
        side.memory["steps"] = side.memory.get("steps", 0) + 1
        side.memory["shift"] = [*side.memory.get("shift", []), float((inputs * 0.3).mean())]
        return None

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        self.seen.append("update")
        side.record(epochs=side.memory["epochs"])
        return update


def through_the_doors(memory: dict[str, Any] | None) -> tuple[Doors, dict[str, Any]]:
    doors = Doors()
    _, telemetry = train_client(
        build("mlp", classes=10, channels=1, image_size=8),
        IMAGES,
        LABELS,
        data=digits,
        defense=doors,
        generator=generator(0, "client"),
        training=LocalTraining(lr=0.1, epochs=2, batch_size=6),
        memory=memory,
    )
    return doors, telemetry


def test_every_epoch_passes_the_image_door_anew() -> None:
    memory: dict[str, Any] = {}
    doors, _ = through_the_doors(memory)
    epoch = ["images", "step of 6", "step of 3"]
    assert doors.seen == [*epoch, *epoch, "update"]
    assert len({round(value, 3) for value in memory["shift"]}) == 4


def test_what_a_defense_remembers_outlives_the_round() -> None:
    memory: dict[str, Any] = {"epochs": 40}
    assert through_the_doors(memory)[1]["epochs"] == 42
    assert (memory["epochs"], memory["steps"]) == (42, 4)
    assert through_the_doors(None)[1]["epochs"] == 2


def test_a_client_without_defense_is_the_local_update_alone() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    training = LocalTraining(lr=0.1, epochs=2, batch_size=4, momentum=0.9)
    update, telemetry = train_client(
        model,
        IMAGES,
        LABELS,
        data=digits,
        defense=NoDefense(),
        generator=generator(4),
        training=training,
    )
    seed = int(torch.randint(2**62, (), generator=generator(4)))
    alone = compute_local_update(model, INPUTS, LABELS, training=training, seed=seed)
    assert all(torch.equal(update.change[n], t) for n, t in alone.change.items())
    assert telemetry == {}
