from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from keyhole.data import load
from keyhole.defenses import ClientSide, Defense, DpSgd, Dropout, Gaussian, NoDefense, Pruning
from keyhole.errors import DoesNotFit
from keyhole.federation import (
    LocalTraining,
    TrainingPlan,
    build_federation,
    compute_local_update,
    train_client,
)
from keyhole.federation.backends.vmap import (
    VmapTrainer,
    clip_per_client,
    train_stacked,
    uses_batch_statistics,
    vmap_is_faster,
)
from keyhole.federation.choosing import choose_backend
from keyhole.federation.client import RoundClient
from keyhole.federation.training import clip_gradient
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
EQUAL, UNEQUAL = (6, 6, 6), (5, 6, 6)
ENOUGH = LocalTraining(lr=0.05, epochs=2, batch_size=3, momentum=0.9)


def shares(sizes: Sequence[int]) -> list[list[int]]:
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def inputs_of(sizes: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    held = shares(sizes)
    return [digits.normalise(digits.images(s)) for s in held], [digits.labels[s] for s in held]


def conv_and_norm() -> nn.Sequential:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def network(name: str) -> nn.Module:
    return conv_and_norm() if name == "norm" else build(name, classes=10, channels=1, image_size=8)


def assert_as_alone(
    model: nn.Module, sizes: Sequence[int], training: LocalTraining, tolerance: float = 1e-6
) -> None:
    inputs, labels = inputs_of(sizes)
    seeds = [7 * number + 1 for number in range(len(sizes))]
    found = train_stacked([model] * len(sizes), inputs, labels, training=training, seeds=seeds)
    assert len(found) == len(sizes)
    for update, x, y, seed in zip(found, inputs, labels, seeds, strict=True):
        alone = compute_local_update(model, x, y, training=training, seed=seed)
        assert list(update.change) == list(alone.change)
        assert replace(update, change={}) == replace(alone, change={})
        assert alone.norm() > 100 * tolerance
        for name, change in alone.change.items():
            assert update.change[name].dtype == change.dtype
            assert torch.allclose(update.change[name], change, rtol=0, atol=tolerance)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_clients_trained_together_end_as_if_alone(name: str, sizes: Sequence[int]) -> None:
    assert_as_alone(network(name), sizes, LocalTraining(lr=0.02, epochs=2, batch_size=3))


@pytest.mark.parametrize(
    "recipe",
    [
        {"epochs": 3, "batch_size": 3, "momentum": 0.9},
        {"epochs": 2, "batch_size": 3, "optimiser": "adam", "lr": 1e-3},
        {"epochs": 2, "batch_size": 3, "clip": 0.5},
        {"steps": 5, "batch_size": 4, "momentum": 0.5, "clip": 0.1},
        {"steps": 3},
        {"steps": 1},
        {"epochs": 2, "batch_size": 3, "mode": "eval"},
    ],
    ids=str,
)
def test_every_recipe_is_the_same_together(recipe: dict[str, Any]) -> None:
    assert_as_alone(network("mlp"), UNEQUAL, LocalTraining(**{"lr": 0.02, **recipe}))


def test_a_client_of_one_image_beside_larger_ones() -> None:
    assert_as_alone(network("mlp"), (1, 4, 2), LocalTraining(lr=0.05, steps=3))


@pytest.mark.parametrize("mode", ["train", "eval", "frozen-norm"])
def test_batch_statistics_are_the_same_together(mode: Any) -> None:
    training = replace(ENOUGH, lr=0.02, mode=mode)
    assert_as_alone(conv_and_norm(), EQUAL, training, tolerance=2e-6)


def test_running_statistics_are_each_clients_own() -> None:
    inputs, labels = inputs_of(EQUAL)
    one, other, _ = train_stacked(
        [conv_and_norm()] * 3, inputs, labels, training=ENOUGH, seeds=[0, 1, 2]
    )
    assert one.change["1.num_batches_tracked"].item() == 4
    assert one.change["1.running_mean"].any()
    assert not torch.equal(one.change["1.running_mean"], other.change["1.running_mean"])


def test_clients_with_the_same_images_and_seed_end_alike() -> None:
    inputs, labels = inputs_of((6,))
    one, other = train_stacked(
        [network("mlp")] * 2, inputs * 2, labels * 2, training=ENOUGH, seeds=[3, 3]
    )
    assert all(torch.allclose(one.change[n], t, atol=1e-7) for n, t in other.change.items())


@pytest.mark.parametrize("training", [True, False])
def test_the_global_model_is_left_as_it_was(training: bool) -> None:
    model = conv_and_norm().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    inputs, labels = inputs_of(EQUAL)
    train_stacked([model] * 3, inputs, labels, training=ENOUGH, seeds=[0, 1, 2])
    assert model.training is training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_one_clients_gradient_is_clipped_by_its_own_norm() -> None:
    gradients = [torch.randn(3, 4, 2), torch.randn(3, 5)]
    found = clip_per_client(gradients, 1.5)
    for client in range(3):
        expected = clip_gradient([g[client] for g in gradients], 1.5)
        assert all(torch.allclose(f[client], e) for f, e in zip(found, expected, strict=True))
    assert clip_per_client(gradients, None) is gradients


def members(
    sizes: Sequence[int], training: LocalTraining = ENOUGH, seed: int = 0
) -> list[RoundClient]:
    return [
        RoundClient(
            digits.images(share), digits.labels[share], generator(seed, i), {}, digits, training
        )
        for i, share in enumerate(shares(sizes))
    ]


def supports(name: str, clients: Sequence[RoundClient], defense: Defense) -> bool:
    sizes = [len(client.images) for client in clients]
    return VmapTrainer().supports(network(name), sizes, clients[0].training, defense)


@pytest.mark.parametrize(
    ("name", "sizes", "mode", "defense", "taken"),
    [
        ("mlp", EQUAL, "train", NoDefense(), True),
        ("mlp", UNEQUAL, "train", NoDefense(), True),
        ("norm", EQUAL, "train", NoDefense(), True),
        ("norm", UNEQUAL, "train", NoDefense(), False),
        ("norm", UNEQUAL, "eval", NoDefense(), True),
        ("norm", UNEQUAL, "frozen-norm", NoDefense(), True),
        ("mlp", (6, 12), "train", NoDefense(), False),
        ("mlp", (6,), "train", NoDefense(), False),
        ("mlp", EQUAL, "train", DpSgd(), False),
        ("mlp", EQUAL, "train", Gaussian(), True),
        ("mlp", EQUAL, "train", Dropout(), True),
    ],
)
def test_only_clients_that_go_together_are_taken(
    name: str, sizes: Sequence[int], mode: Any, defense: Defense, taken: bool
) -> None:
    crowd = members(sizes, replace(ENOUGH, mode=mode))
    assert supports(name, crowd, defense) is taken


def test_steps_make_clients_of_any_size_go_together() -> None:
    crowd = members((4, 9), LocalTraining(steps=3, lr=0.1, batch_size=4))
    assert supports("mlp", crowd, NoDefense())


def test_clients_that_share_gradients_are_not_taken() -> None:
    assert not supports("mlp", members(EQUAL, LocalTraining()), NoDefense())


def test_batch_statistics_matter_in_training_only() -> None:
    assert uses_batch_statistics(conv_and_norm(), LocalTraining())
    assert not uses_batch_statistics(conv_and_norm(), LocalTraining(mode="frozen-norm"))
    assert not uses_batch_statistics(network("vit-small"), LocalTraining())


@dataclass(frozen=True)
class Shifting(Defense):
    """Draws at the image door, counts its work, notes the draws at the last door."""

    name: ClassVar[str] = "shifting"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert side.images is images
        side.memory["epochs"] = side.memory.get("epochs", 0) + 1
        return (images + 0.1 * torch.rand(images.shape, generator=side.generator)).clamp(0, 1)

    def on_update(self, update: Any, side: ClientSide | None = None) -> Any:
        assert side is not None
        side.record(draw=float(torch.rand(1, generator=side.generator)))
        return update.map(lambda name, tensor: 2 * tensor)


def distances(one: Update, other: Update, *, ties: bool) -> Tensor:
    """How far the values of two updates are apart; with ``ties``, zero is the smallest kept value.

    Pruning keeps one of two values that rounding makes equal, and the other becomes zero.
    """
    values = torch.cat([t.flatten() for t in one.change.values()])
    others = torch.cat([other.change[name].flatten() for name in one.change])
    apart = (values - others).abs()
    if not ties:
        return apart
    smallest = torch.minimum(*(v.abs()[v != 0].min() for v in (values, others)))
    tied = (values == 0) != (others == 0)
    return torch.where(tied, (apart - smallest).abs(), apart)


@pytest.mark.parametrize(
    "defense",
    [NoDefense(), Gaussian(sigma=0.01, clip=0.5), Pruning(ratio=0.3, scope="update"), Shifting()],
    ids=str,
)
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_a_defense_does_together_what_it_does_alone(defense: Defense, sizes: Sequence[int]) -> None:
    model = network("mlp")
    training = LocalTraining(lr=0.05, epochs=2, batch_size=3)
    crowd, alone = members(sizes, training), members(sizes, training)
    found = VmapTrainer().train(model, crowd, defense=defense)
    for (update, telemetry), one, twin in zip(found, crowd, alone, strict=True):
        expected, told = train_client(
            model,
            twin.images,
            twin.labels,
            data=digits,
            defense=defense,
            generator=twin.generator,
            training=training,
            memory=twin.memory,
        )
        differ = distances(update, expected, ties=isinstance(defense, Pruning))
        assert differ.max() <= 2e-6
        assert telemetry.keys() == told.keys()
        assert all(telemetry[k] == pytest.approx(v, rel=1e-4) for k, v in told.items())
        assert one.memory == twin.memory
        assert torch.equal(one.generator.get_state(), twin.generator.get_state())


def test_defenses_remember_each_client_apart() -> None:
    crowd = members(EQUAL, LocalTraining(lr=0.05, epochs=3))
    crowd[1].memory["epochs"] = 10
    VmapTrainer().train(network("mlp"), crowd, defense=Shifting())
    assert [member.memory["epochs"] for member in crowd] == [3, 13, 3]


def test_every_client_drops_other_units() -> None:
    inputs, labels = inputs_of((6,))
    dropping = [Dropout(p=0.5).on_model(network("mlp"))] * 2
    training = LocalTraining(lr=0.1, steps=1)
    one, other = train_stacked(dropping, inputs * 2, labels * 2, training=training, seeds=[1, 1])
    assert one.norm() > 0
    assert not torch.equal(one.change["10.weight"], other.change["10.weight"])
    again, _ = train_stacked(dropping, inputs * 2, labels * 2, training=training, seeds=[1, 1])
    assert torch.equal(one.change["10.weight"], again.change["10.weight"])


def test_dropout_in_a_transformer_runs_together() -> None:
    found = VmapTrainer().train(network("vit-small"), members((4, 4)), defense=Dropout(p=0.2))
    assert all(update.norm() > 0 for update, _ in found)
    assert all(telemetry["dropout_sites"] == 17 for _, telemetry in found)


def test_augmented_clients_run_together_and_repeat() -> None:
    inputs, labels = inputs_of(UNEQUAL)
    training = LocalTraining(lr=0.1, epochs=2, batch_size=3, augment=True)
    one, same = (
        train_stacked([network("mlp")] * 3, inputs, labels, training=training, seeds=[0, 1, 2])
        for _ in range(2)
    )
    for a, b in zip(one, same, strict=True):
        assert all(torch.equal(a.change[n], t) for n, t in b.change.items())


class Undecided(nn.Module):
    """Looks at its input's values, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) if float(x.sum()) > 0 else -x.flatten(1))


def test_a_model_that_vmap_cannot_take_is_not_faster_together() -> None:
    assert vmap_is_faster(Undecided(), members(EQUAL)) is False


def test_weights_that_are_used_twice_train_together(tied: nn.Module) -> None:
    assert_as_alone(tied, EQUAL, LocalTraining(lr=0.05, epochs=2, batch_size=3))


@pytest.mark.parametrize(
    ("together", "values", "taken"),
    [
        ("yes", {}, True),
        ("no", {}, False),
        ("auto", {"partition": "dirichlet(alpha=0.1)", "images": None}, False),
        ("auto", {"clients": 1}, False),
        ("auto", {"model": "lenet"}, True),
        ("auto", {"model": "lenet", "clients": 20}, True),
        ("auto", {"model": "vit-small"}, True),
        ("auto", {"model": "mlp"}, False),
        ("auto", {"model": "mlp", "clients": 20}, False),
    ],
)
def test_how_clients_are_trained_is_chosen(
    together: str, values: dict[str, Any], taken: bool
) -> None:
    plan = TrainingPlan(**{"clients": 3, "images": 4, "together": together, **values})
    backend = choose_backend(plan, build_federation(plan, data_dir=None))
    assert isinstance(backend, VmapTrainer) is taken


def test_clients_that_cannot_be_trained_together_are_told() -> None:
    plan = TrainingPlan(clients=3, together="yes", partition="dirichlet(alpha=0.1)")
    with pytest.raises(DoesNotFit, match="cannot be trained together") as raised:
        choose_backend(plan, build_federation(plan, data_dir=None))
    assert "\n" not in str(raised.value)


def test_no_clock_has_a_say_in_how_clients_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal commands must give equal weights."""

    def look_at_the_clock() -> float:
        raise AssertionError("a stopwatch")

    for name in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, name, look_at_the_clock)
    plan = TrainingPlan(clients=3, images=4, model="lenet")
    assert isinstance(choose_backend(plan, build_federation(plan, data_dir=None)), VmapTrainer)


def test_choosing_which_way_leaves_no_trace() -> None:
    plan = TrainingPlan(clients=2, images=4, batch_size=4, model="lenet")
    federation = build_federation(plan, data_dir=None)
    before = {name: t.clone() for name, t in federation.model.state_dict().items()}
    choose_backend(plan, federation)
    assert all(torch.equal(before[n], t) for n, t in federation.model.state_dict().items())
    assert all(memory == {} for memory in federation.memory.values())
