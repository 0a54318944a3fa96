"""Steps replayed from a CUDA graph against clients trained step by step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole.federation import LocalTraining
from keyhole.federation.backends.cuda_graph import CudaGraphTrainer
from keyhole.federation.backends.recorder import Recorder
from keyhole.federation.client import RoundClient, train_client
from keyhole.seeds import generator

RECIPES = [
    LocalTraining(lr=0.05, epochs=2, batch_size=8, momentum=0.9, clip=1.0),
    LocalTraining(lr=0.05, epochs=1, batch_size=10, momentum=0.0, augment=True),
    LocalTraining(lr=0.003, epochs=2, batch_size=10, optimiser="adam"),
]


def members(recipe: LocalTraining, device: str) -> list[RoundClient]:
    data = load("digits", image_size=16)
    found = []
    for client in range(3):
        indices = list(range(20 * client, 20 * client + 20))
        images, labels = data.images(indices).to(device).double(), data.labels[indices].to(device)
        found.append(RoundClient(images, labels, generator(0, client), {}, data, recipe))
    return found


def test_a_cpu_and_gradients_of_a_defense_are_left_to_others() -> None:
    model = convolutional()
    assert not CudaGraphTrainer().supports(model, [20] * 3, RECIPES[0], DEFENSES.parse("none"))


def convolutional() -> nn.Module:
    """Small, with batch statistics."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(72, 10))


class FakeRecording:
    """Stands in for a CUDA graph: does the work anew."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[FakeRecording]:
    """Lets steps be recorded on a CPU; returns the recordings."""
    made: list[FakeRecording] = []

    def record(recorder: Recorder, work: Callable[[], None]) -> FakeRecording:
        made.append(FakeRecording(work))
        return made[-1]

    begin = Recorder.__init__

    def begin_recording(recorder: Recorder, device: torch.device) -> None:
        begin(recorder, device)
        recorder.records = True

    monkeypatch.setattr(Recorder, "__init__", begin_recording)
    monkeypatch.setattr(Recorder, "record", record)
    return made


def assert_agrees(recipe: LocalTraining, defense: str, device: str, slots: int) -> None:
    """Ours, and again from the recordings, are what clients do alone, step by step."""
    model = convolutional().to(device).double()
    chosen, trainer = DEFENSES.parse(defense), CudaGraphTrainer(slots=slots)
    for _ in range(2):
        ours = trainer.train(model, members(recipe, device), defense=chosen)
        for member, (update, _) in zip(members(recipe, device), ours, strict=True):
            plain, _ = train_client(
                model,
                member.images,
                member.labels,
                data=member.data,
                defense=chosen,
                generator=member.generator,
                training=recipe,
            )
            assert update.examples == plain.examples
            assert update.steps == plain.steps
            for name, change in plain.change.items():
                assert torch.allclose(update.change[name], change, rtol=1e-5, atol=1e-9), name


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize(("defense", "slots"), [("none", 2), ("csvar", 3), ("image-noise", 1)])
def test_the_steps_are_those_of_a_client_alone(
    recipe: LocalTraining, defense: str, slots: int, recording: list[FakeRecording]
) -> None:
    """Without a graph, on the CPU: the arithmetic, the draws and the turns."""
    assert_agrees(recipe, defense, "cpu", slots)
    assert recording


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize(("defense", "slots"), [("none", 1), ("none", 3), ("csvar", 2)])
def test_the_updates_are_those_of_clients_trained_step_by_step(
    recipe: LocalTraining, defense: str, slots: int
) -> None:
    assert_agrees(recipe, defense, "cuda", slots)
