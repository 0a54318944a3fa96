from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, Defense, Dropout, Gaussian, NoDefense
from keyhole.errors import BadUpdate, DoesNotFit, KeyholeError
from keyhole.federation import LocalTraining, compute_local_update, train_client
from keyhole.federation.averaging import average_updates
from keyhole.federation.backends import CudaGraphTrainer, VmapTrainer
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
IMAGES, LABELS = digits.images([3, 5]), digits.labels[[3, 5]]
INPUTS = digits.normalise(IMAGES)


@pytest.fixture(params=["mlp", "lenet", "vit-small"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param, classes=10, channels=1, image_size=8)


def reference_gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    loss = F.cross_entropy(twin(inputs), labels)
    names = [name for name, _ in twin.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(twin.parameters())), strict=True))


def shared(
    model: nn.Module,
    defense: Defense | None = None,
    training: LocalTraining | None = None,
    seed: int = 0,
) -> Update:
    return train_client(
        model,
        IMAGES,
        LABELS,
        data=digits,
        defense=defense or NoDefense(),
        generator=generator(seed, "client"),
        training=training,
    )[0]


def test_without_a_learning_rate_the_gradient_itself_is_shared(model: nn.Module) -> None:
    update = shared(model)
    expected = reference_gradient(model, INPUTS, LABELS)
    assert update.gradient().keys() == expected.keys()
    for name, gradient in update.gradient().items():
        assert torch.equal(gradient, expected[name])
    assert (update.steps, update.lr, update.batch_size, update.examples) == (1, 1.0, 2, 2)


@pytest.mark.parametrize("steps", [1, 3])
def test_local_steps_are_plain_sgd(model: nn.Module, steps: int) -> None:
    twin = copy.deepcopy(model)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(twin(INPUTS), LABELS).backward()
        optimiser.step()
    update = shared(model, training=LocalTraining(steps=steps, lr=0.05))
    for (name, start), end in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(update.change[name], (end - start).detach(), atol=1e-7)
    assert (update.steps, update.lr, update.batch_size, update.examples) == (steps, 0.05, 2, 2)


def test_one_step_with_a_learning_rate_tells_the_same_gradient(model: nn.Module) -> None:
    one, other = shared(model), shared(model, training=LocalTraining(lr=0.1))
    for name, gradient in one.gradient().items():
        assert torch.allclose(gradient, other.gradient()[name], atol=1e-5)


def test_the_client_trains_with_dropout_by_its_generator(same_rng: Callable[[], bool]) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    state = torch.get_rng_state()
    one, same, other = (shared(model, Dropout(p=0.5), seed=s).change["1.weight"] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_rng()


@pytest.mark.parametrize(("steps", "reached"), [(1, 0.5), (2, 0.75), (3, 0.875)])
def test_every_local_step_draws_a_new_mask(steps: int, reached: float) -> None:
    dropping = Dropout(p=0.5).on_model(build("mlp", classes=10, channels=1, image_size=8))
    training = LocalTraining(steps=steps, lr=0.1)
    update = compute_local_update(dropping, INPUTS[:1], LABELS[:1], training=training, seed=4)
    units = update.change["4.weight"].any(dim=0)
    assert units.double().mean().item() == pytest.approx(reached, abs=0.07)


def test_in_evaluation_mode_nothing_is_dropped() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    still = shared(model, Dropout(p=0.5), LocalTraining(mode="eval"))
    assert all(torch.equal(still.change[n], t) for n, t in shared(model).change.items())


@pytest.mark.parametrize("training", [True, False])
def test_the_global_model_is_left_as_it_was(training: bool) -> None:
    model = build("resnet18", classes=10, channels=1, image_size=16).train(training)
    model.fc.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    compute_local_update(
        model,
        torch.rand(2, 1, 16, 16),
        LABELS,
        training=LocalTraining(steps=2, lr=0.1),
        seed=0,
    )
    assert model.training is training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(p.requires_grad for p in model.fc.parameters())


def test_parameters_that_take_no_part_share_zeros() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(64, 10), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x.flatten(1))

    change = shared(Spare()).change
    assert not change["spare.weight"].any()
    assert change["used.weight"].any()


def test_models_in_double_precision_can_train() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8).double()
    update = compute_local_update(model, INPUTS.double(), LABELS, training=LocalTraining(), seed=0)
    expected = reference_gradient(model, INPUTS.double(), LABELS)
    assert all(torch.equal(g, expected[n]) for n, g in update.gradient().items())
    assert update.change["1.weight"].dtype == torch.float64


@pytest.mark.parametrize("values", [{"steps": 2}, {"steps": 0}, {"steps": -1, "lr": 0.1}])
def test_several_steps_need_a_learning_rate(values: dict[str, float]) -> None:
    with pytest.raises(DoesNotFit):
        LocalTraining(**values)


@pytest.mark.parametrize("lr", [0.0, float("nan"), float("inf")])
def test_a_learning_rate_that_teaches_nothing_is_refused(lr: float) -> None:
    with pytest.raises(KeyholeError):
        LocalTraining(lr=lr)


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet10t"])
def test_batch_norm_on_one_tiny_image_is_explained(name: str) -> None:
    model = build(name, classes=10, channels=1, image_size=8)
    with pytest.raises(DoesNotFit, match="--client-mode eval") as raised:
        train_client(
            model,
            IMAGES[:1],
            LABELS[:1],
            data=digits,
            defense=NoDefense(),
            generator=generator(0),
        )
    assert "\n" not in str(raised.value)
    still = compute_local_update(
        model, INPUTS[:1], LABELS[:1], training=LocalTraining(mode="eval"), seed=0
    )
    assert still.norm() > 0


def test_training_that_blows_up_is_told(model: nn.Module) -> None:
    with pytest.raises(BadUpdate, match="NaN or infinite"):
        shared(model, training=LocalTraining(steps=5, lr=1e38))


@dataclass(frozen=True)
class Recorder(Defense):
    """Goes through all three doors and notes what it was shown."""

    name: ClassVar[str] = "recorder"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert side.images is images
        assert torch.equal(images, IMAGES)
        side.record(images=len(images))
        return 1 - images

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        assert side is not None
        side.record(order="images, model")
        changed = copy.deepcopy(model)
        nn.init.zeros_(changed[-1].weight)
        return changed

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        side.record(order=f"{side.telemetry['order']}, update")
        return update.map(lambda name, tensor: 2 * tensor)


def test_a_defense_is_led_through_its_three_doors() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    update, telemetry = train_client(
        model, IMAGES, LABELS, data=digits, defense=Recorder(), generator=generator(0)
    )
    assert telemetry == {"images": 2, "order": "images, model, update"}
    changed = copy.deepcopy(model)
    nn.init.zeros_(changed[-1].weight)
    expected = reference_gradient(changed, digits.normalise(1 - IMAGES), LABELS)
    assert torch.equal(update.gradient()["10.weight"], 2 * expected["10.weight"])


def test_telemetry_comes_with_the_update(model: nn.Module) -> None:
    _, telemetry = train_client(
        model,
        IMAGES,
        LABELS,
        data=digits,
        defense=Gaussian(sigma=0.1),
        generator=generator(0),
    )
    assert telemetry.keys() == {"update_norm", "clip_scale", "noise_norm"}


@pytest.mark.parametrize("lr", [None, 0.1])
def test_of_a_partly_frozen_model_only_the_rest_is_trained_and_reported(lr: float | None) -> None:
    """As a plain loop of PyTorch trains it: three steps of SGD on what requires a gradient."""
    model = build("adapters:vit-small", classes=10, channels=1, image_size=8)
    steps = 1 if lr is None else 3
    update = shared(model, training=LocalTraining(steps=steps, lr=lr))
    twin = copy.deepcopy(model).train()
    trained = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    optimiser = torch.optim.SGD(trained.values(), lr=lr or 1.0)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(twin(INPUTS), LABELS).backward()
        optimiser.step()
    assert update.change.keys() == trained.keys()
    for name, change in update.change.items():
        expected = trained[name].detach() - model.get_parameter(name).detach()
        assert torch.allclose(change, expected, atol=1e-6)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_model_that_is_frozen_as_a_whole_is_trained_as_a_whole(frozen: bool) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    plain = shared(model)
    update = shared(model.requires_grad_(not frozen))
    assert all(torch.equal(update.change[n], change) for n, change in plain.change.items())
    assert update.change.keys() == plain.change.keys()


def test_backends_that_train_all_of_a_model_leave_frozen_ones_to_the_loop() -> None:
    model = build("adapters:vit-small", classes=10, channels=1, image_size=8)
    recipe = LocalTraining(lr=0.1)
    assert not VmapTrainer().supports(model, [2, 2], recipe, NoDefense())
    assert not CudaGraphTrainer().supports(model, [2, 2], recipe, NoDefense())
    assert VmapTrainer().supports(model.requires_grad_(True), [2, 2], recipe, NoDefense())


def test_averaging_leaves_frozen_weights_as_they_were() -> None:
    model = build("adapters:vit-small", classes=10, channels=1, image_size=8)
    update = shared(model, training=LocalTraining(lr=0.1))
    after = average_updates(model.state_dict(), [update, update])
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, after[n])}
    assert changed
    assert changed <= update.change.keys()


@pytest.mark.parametrize("name", ["dpsgd", "dropout", "pruning", "gaussian(sigma=0.1)"])
def test_defenses_take_partly_frozen_models(name: str) -> None:
    model = build("adapters:vit-small", classes=10, channels=1, image_size=8)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert shared(model, DEFENSES.parse(name)).change.keys() == trained
