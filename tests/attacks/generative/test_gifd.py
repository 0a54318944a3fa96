"""GIFD: what a generator can draw is found, and every stage starts where the last one ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from keyhole.attacks import Checkpointer
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.generative.conditional import ConditionalBatchNorm, ConditionalGenerator
from keyhole.attacks.generative.feature_domain import (
    StageFeatures,
    measure_scales,
    project_to_l1_ball,
    project_to_simplex,
)
from keyhole.attacks.generative.gifd import Gifd
from keyhole.attacks.generative.prior import load_generator, save_generator
from keyhole.attacks.generative.stages import SearchStage
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.data import ImageSet
from keyhole.data.image_set import array_reader
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator

Observe = Callable[..., Any]
CLASSES = 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator 3x16x16 of three classes that differ, with strong contrasts."""
    torch.manual_seed(3)
    made = ConditionalGenerator((3, 16, 16), latent=4, classes=CLASSES, features=(8, 8, 6)).eval()
    for module in made.modules():
        if isinstance(module, ConditionalBatchNorm):
            nn.init.normal_(module.scale, std=0.3)
            nn.init.normal_(module.shift, std=0.3)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight, 1.4)
    path = tmp_path_factory.mktemp("generator") / "tiny.safetensors"
    save_generator(made, path, trained_on="nothing")
    return path


@pytest.fixture(scope="module")
def drawn(file: Path) -> ImageSet:
    """Images that the generator can draw, exactly but for rounding to 8 bits."""
    network, labels = load_generator(file), torch.arange(12) % CLASSES
    images = network(network.sample_codes(12, generator(7)), labels)
    pixels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return image_set(pixels, labels)


def image_set(pixels: np.ndarray[Any, Any], labels: Tensor) -> ImageSet:
    channels = 1 if pixels.ndim == 3 else pixels.shape[-1]
    return ImageSet(
        "drawn",
        array_reader(pixels, None),
        labels,
        tuple("abcdefghij"[: int(labels.max()) + 1]),
        (pixels.shape[1], pixels.shape[2]),
        (0.4,) * channels,
        (0.25,) * channels,
    )


def network(*, channels: int = 3, side: int = 16, classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(1)
    inputs = channels * side * side
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 24), nn.Sigmoid(), nn.Linear(24, classes))


def attack(file: Path, **settings: Any) -> Gifd:
    return Gifd(**{"generator": str(file), "iterations": 60, "stages": 3, **settings})


def test_an_image_that_the_generator_can_draw_is_found(
    observe: Observe, file: Path, drawn: ImageSet
) -> None:
    victim = observe(network(), drawn, [4]).telling("labels")
    found = attack(file, iterations=100)(victim.observation)
    first = replace(found, images=found.frames[0][1])
    assert victim.decibels(found) > victim.decibels(first) + 8
    assert found.diagnostics["loss"] < 0.05
    assert found.diagnostics["iterations"] == 300
    assert found.loss_curve[-1][0] == 300


def test_the_loss_never_rises_from_stage_to_stage(
    observe: Observe, file: Path, drawn: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = record_stages(monkeypatch)
    seen = [observe(network(), drawn, [i]).telling("labels").observation for i in (1, 2)]
    found = list(attack(file, iterations=20, pixels=10, trials=2).on_many(seen))
    assert len(stages) == 4
    for victim in range(4):
        losses = [stage.runner.outcomes[victim].loss for stage in stages]
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]
    for number, result in enumerate(found):
        trials = (2 * number, 2 * number + 1)
        least = min(stage.runner.outcomes[v].loss for v, stage in product(trials, stages))
        assert result.diagnostics["loss"] == least


def test_a_stage_starts_at_the_image_the_last_one_found_best(
    observe: Observe, file: Path, drawn: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = record_stages(monkeypatch)
    victim = observe(network(), drawn, [4, 5]).telling("labels")
    attack(file, iterations=15, pixels=5)(victim.observation)
    for before, after in pairwise(stages):
        problem, best = before.group.problem, before.runner.outcomes[0].best
        ended = before.parts.images.render(best[before.parts.images.name][None], problem)
        state = after.runner.engine.start([0], [generator(0)], after.known_values([0]))
        name = after.parts.images.name
        begun = after.parts.images.render(state[f"value.{name}"], problem)
        torch.testing.assert_close(begun, ended, rtol=0, atol=2e-5)


def test_every_stage_ends_at_the_deadline(observe: Observe, file: Path, drawn: ImageSet) -> None:
    seen = observe(network(), drawn, [4]).telling("labels").observation
    checkpointer = NullCheckpointer()
    checkpointer.deadline = time.monotonic() - 1
    tried = attack(file, iterations=15)
    (found,) = tried.on_many([seen], checkpointer)
    assert found.images is not None
    assert found.diagnostics["iterations"] == tried.stages


def record_stages(monkeypatch: pytest.MonkeyPatch) -> list[SearchStage]:
    """The stages of the attacks that follow, as they are run."""
    stages: list[SearchStage] = []
    run = SearchStage.run

    def record(stage: SearchStage, checkpointer: Checkpointer) -> None:
        stages.append(stage)
        run(stage, checkpointer)

    monkeypatch.setattr(SearchStage, "run", record)
    return stages


def test_features_stay_within_the_ball(
    observe: Observe, file: Path, drawn: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = record_stages(monkeypatch)
    seen = observe(network(), drawn, [4]).telling("labels").observation
    attack(file, iterations=15, radii=(0.02, 0.05), lr=0.3)(seen)
    for stage, radius in zip(stages[1:], (0.02, 0.05), strict=True):
        unknown = stage.parts.images
        assert isinstance(unknown, StageFeatures)
        centre = stage.known_values([0])["centre"][0]
        features, _ = unknown.split(stage.runner.outcomes[0].best["features"])
        moved = float((features - centre).abs().sum() / centre.abs().sum())
        assert 0.5 * radius < moved < 1.001 * radius


def test_the_generator_is_told_the_labels_where_classes_are_the_same(
    observe: Observe, file: Path, drawn: ImageSet
) -> None:
    seen = observe(network(), drawn, [4, 5]).telling("labels").observation
    problem = MatchingProblem.from_observation(seen)
    domain = attack(file).build_parts(problem).images
    assert isinstance(domain, StageFeatures)
    value = torch.randn(1, 2, 4 + CLASSES)
    labels = torch.eye(CLASSES)[torch.tensor([[1, 2]])]
    assert torch.equal(domain.split(domain.project(value, problem, {"labels": labels}))[1], labels)
    sought = replace(domain, classes_match=False).project(value, problem, {"labels": labels})
    shares = domain.split(sought)[1]
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, 2))
    assert (shares >= 0).all()


@pytest.mark.parametrize("labels", ["inferred", "sought"])
def test_labels_need_not_be_given(
    observe: Observe, file: Path, drawn: ImageSet, labels: str
) -> None:
    victim = observe(network(), drawn, [4])
    found = attack(file, iterations=40, labels=labels)(victim.observation)
    assert found.labels is not None
    assert found.labels.tolist() == victim.labels.tolist()


@pytest.mark.parametrize("shape", [(8, 8), (24, 20), (16, 16, 3), (20, 24, 3)], ids=str)
def test_other_sizes_channels_and_classes_are_drawn_too(
    observe: Observe, file: Path, shape: tuple[int, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, *shape), dtype=np.uint8)
    data = image_set(pixels, torch.arange(8) % 5)
    inputs = int(np.prod(shape))
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.Sigmoid(), nn.Linear(8, 5))
    seen = observe(model, data, [1, 2]).telling("labels").observation
    found = attack(file, iterations=3, stages=9, pixels=2)(seen)
    assert found.images is not None
    assert found.images.shape == (2, *data.shape)
    assert found.diagnostics["iterations"] == 3 * 4 + 2
    black, white = MatchingProblem.from_observation(seen).box
    assert ((found.images >= black - 1e-5) & (found.images <= white + 1e-5)).all()


def test_what_does_not_fit_is_said_in_a_line(
    observe: Observe, file: Path, drawn: ImageSet, tmp_path: Path
) -> None:
    seen = observe(network(), drawn, [4]).telling("labels").observation
    with pytest.raises(DoesNotFit, match="there is no generator at") as raised:
        attack(tmp_path / "none")(seen)
    assert "\n" not in str(raised.value)
    other = replace(seen, knowledge=replace(seen.knowledge, shape=(2, 16, 16)))
    assert "3 channels, but the client's have 2" in attack(file).incompatibilities(other)[-1]


class Kept:
    """A workbench in memory that pulls the plug after some saves."""

    victims_at_once = None
    deadline = None

    def __init__(self, saves: int) -> None:
        self.saves = saves
        self.kept: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self.told: list[tuple[int, int, str]] = []

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return self.kept

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if self.saves == 0:
            raise KeyboardInterrupt
        self.saves -= 1
        self.kept = ({n: t.clone() for n, t in tensors.items()}, dict(facts))

    def due(self) -> bool:
        return True

    def watch(self, done: int, total: int, text: str) -> None:
        self.told.append((done, total, text))


@pytest.mark.parametrize("saves", [1, 4])
def test_an_interrupted_attack_ends_as_if_it_had_not_been(
    observe: Observe, file: Path, drawn: ImageSet, saves: int
) -> None:
    seen = observe(network(), drawn, [1]).telling("labels").observation
    wanted = attack(file, iterations=55, stages=2, pixels=5)
    whole, checkpointer = wanted(seen), Kept(saves)
    with pytest.raises(KeyboardInterrupt):
        list(wanted.on_many([seen], checkpointer))
    assert checkpointer.kept is not None
    assert len(checkpointer.kept[1]["stages"]) == (1 if saves == 1 else 2)
    checkpointer.saves = 99
    (resumed,) = wanted.on_many([seen], checkpointer)
    assert torch.equal(resumed.images, whole.images)
    assert resumed.diagnostics == whole.diagnostics
    assert resumed.loss_curve == whole.loss_curve
    assert {total for _, total, _ in checkpointer.told} == {115}
    assert checkpointer.told[-1][0] == 115
    assert checkpointer.told[-1][2].startswith("stage 3 of 3: ")


def test_usual_sizes_are_those_of_the_features(file: Path) -> None:
    made = load_generator(file)
    sizes = measure_scales(made)
    assert sizes == measure_scales(made)
    codes = made.sample_codes(400, generator(5))
    first = made.run_stage(0, codes, torch.arange(400) % CLASSES)
    assert sizes[0] == 1.0
    assert sizes[1] == pytest.approx(float(first.square().mean().sqrt()), rel=0.3)
    assert len(sizes) == len(made.stage_shapes)


@pytest.mark.parametrize(
    ("value", "radius", "nearest"),
    [
        ([3.0, 0.0], 1.0, [1.0, 0.0]),
        ([2.0, -2.0], 2.0, [1.0, -1.0]),
        ([3.0, 1.0], 2.0, [2.0, 0.0]),
        ([3.0, -2.0, 0.5], 3.0, [2.0, -1.0, 0.0]),
        ([0.2, -0.3], 1.0, [0.2, -0.3]),
        ([0.0, 0.0], 0.0, [0.0, 0.0]),
        ([1.0, 5.0], 0.0, [0.0, 0.0]),
    ],
)
def test_the_ball_is_entered_at_its_nearest_point(
    value: list[float], radius: float, nearest: list[float]
) -> None:
    found = project_to_l1_ball(torch.tensor([value]), torch.tensor([[radius]]))
    torch.testing.assert_close(found, torch.tensor([nearest]))


numbers = st.floats(-4, 4, allow_nan=False, width=32)


@given(st.lists(numbers, min_size=3, max_size=3), st.floats(0.1, 3))
def test_no_point_of_the_ball_is_nearer(value: list[float], radius: float) -> None:
    point = torch.tensor(value, dtype=torch.double)
    found = project_to_l1_ball(point[None], torch.tensor([[radius]], dtype=torch.double))[0]
    assert float(found.abs().sum()) <= radius + 1e-9
    steps = torch.linspace(-1, 1, 21, dtype=torch.double)
    grid = torch.cartesian_prod(steps, steps, steps)
    grid = radius * grid[grid.abs().sum(1) <= 1]
    distances = (grid - point).square().sum(1)
    assert float((found - point).square().sum()) <= float(distances.min()) + 1e-9


def test_many_points_enter_their_own_balls_and_simplices() -> None:
    value = torch.randn(4, 3, 50)
    radius = torch.rand(4, 3, 1) * 10
    found = project_to_l1_ball(value, radius)
    alone = torch.stack(
        [project_to_l1_ball(value[i, j], radius[i, j]) for i in range(4) for j in range(3)]
    )
    assert torch.equal(found.flatten(0, 1), alone)
    shares = project_to_simplex(value, torch.ones(4, 3, 1))
    torch.testing.assert_close(shares.sum(-1), torch.ones(4, 3))
    assert (shares >= 0).all()
    torch.testing.assert_close(project_to_simplex(shares, torch.ones(4, 3, 1)), shares)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_finds_what_the_cpu_finds(observe: Observe, file: Path, drawn: ImageSet) -> None:
    from keyhole.threat import Server

    model = network()
    seen = observe(model, drawn, [4]).telling("labels").observation
    there = Server(model.cuda()).receive(
        seen.update.map(lambda _, tensor: tensor.cuda()), seen.knowledge
    )
    tried = attack(file, iterations=5, pixels=3)
    here, found = tried(seen), tried(there)
    assert found.notes == ()
    assert found.images is not None
    assert found.images.device.type == "cpu"
    assert here.diagnostics["loss"] == pytest.approx(found.diagnostics["loss"], rel=1e-2)
