"""Training on images that have a version for each epoch: epoch e uses version e."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from keyhole.data import ImageSet, load
from keyhole.defenses import Csvar, NoDefense
from keyhole.defenses.base import ClientSide
from keyhole.federation import Federation, LocalTraining, TrainingPlan, train
from keyhole.federation.backends import LoopTrainer, VmapTrainer
from keyhole.federation.rounds import epochs_per_round
from keyhole.models import build
from keyhole.obfuscation import obfuscate

VERSIONS = 4


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits")


def with_versions(data: ImageSet, seen: list[int]) -> ImageSet:
    """Each version is brighter than the one before; notes which ones were read."""

    def reader(version: int):
        def read(indices: Sequence[int]) -> Tensor:
            seen.append(version)
            return (data.pixels(indices) // 2 + 20 * version).to(torch.uint8)

        return read

    readers = tuple(reader(version) for version in range(VERSIONS))
    return replace(data, pixels=readers[0], versions=readers)


def federation(data: ImageSet, **recipe: object) -> Federation:
    return Federation(
        model=build("mlp", classes=10, channels=1, image_size=8),
        data=data,
        shares=[range(6), range(6, 12)],
        test=(data, range(20, 30)),
        training=LocalTraining(lr=0.1, **recipe),
        defense=NoDefense(),
    )


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"epochs": 3, "batch_size": 3}, [[0, 1, 2], [3, 0, 1], [2, 3, 0]]),
        ({"epochs": 1, "batch_size": 3}, [[0], [1], [2]]),
        ({"steps": 3, "batch_size": 3}, [[0, 1], [2, 3], [0, 1]]),
        ({"steps": 2}, [[0, 1], [2, 3], [0, 1]]),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_an_epoch_uses_its_version(
    digits: ImageSet, recipe: dict[str, int], expected: list[list[int]], together: bool
) -> None:
    seen: list[int] = []
    crowd = federation(with_versions(digits, seen), **recipe)
    crowd.backend = VmapTrainer() if together else LoopTrainer()
    for number, versions in enumerate(expected, start=1):
        seen.clear()
        crowd.collect_updates(number, [0, 1])
        assert sorted(seen) == sorted(versions * 2)


def test_one_by_one_and_together_see_the_same(digits: ImageSet) -> None:
    crowd = federation(with_versions(digits, []), epochs=3, batch_size=2)
    alone = crowd.collect_updates(2, [0, 1])
    crowd.backend = VmapTrainer()
    for one, two in zip(alone, crowd.collect_updates(2, [0, 1]), strict=True):
        for name, change in one.update.change.items():
            assert torch.allclose(change, two.update.change[name], atol=1e-6)


def test_a_round_with_one_version_is_that_without(digits: ImageSet) -> None:
    plain = federation(digits, epochs=3, batch_size=2).collect_updates(2, [0])[0].update
    still = replace(digits, versions=(digits.pixels,))
    same = federation(still, epochs=3, batch_size=2).collect_updates(2, [0])[0].update
    assert all(torch.equal(plain.change[name], same.change[name]) for name in plain.change)
    moving = federation(with_versions(digits, []), epochs=3, batch_size=2).collect_updates(2, [0])[
        0
    ]
    assert not torch.equal(plain.change["1.weight"], moving.update.change["1.weight"])


class Watching(NoDefense):
    """Notes what passes its image door."""

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert torch.equal(side.images, images)
        side.memory.setdefault("seen", []).append(float(images.amin()))
        return images


@pytest.mark.parametrize("together", [False, True])
def test_the_defense_is_shown_every_version(digits: ImageSet, together: bool) -> None:
    crowd = federation(with_versions(digits, []), epochs=3, batch_size=3)
    crowd.defense = Watching()
    crowd.backend = VmapTrainer() if together else LoopTrainer()
    crowd.collect_updates(1, [0, 1])
    expected = pytest.approx([0, 20 / 255, 40 / 255])
    assert [crowd.memory[client]["seen"] for client in (0, 1)] == [expected, expected]


def test_epochs_of_a_round() -> None:
    assert epochs_per_round(LocalTraining(lr=0.1, epochs=3, batch_size=4), 10) == 3
    assert epochs_per_round(LocalTraining(lr=0.1, steps=1, batch_size=4), 10) == 1
    assert epochs_per_round(LocalTraining(), 10) == 1


@pytest.fixture
def shuffled(digits: ImageSet, tmp_path: Path) -> Path:
    """Forty digits, in two versions each."""
    from PIL import Image

    pixels = digits.pixels(range(40))
    for index in range(40):
        folder = tmp_path / "photos" / str(int(digits.labels[index]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[index, 0].numpy()).save(folder / f"{index}.png")
    obfuscate(tmp_path / "photos", tmp_path / "out", epochs=2, key_file=tmp_path / "key", jobs=1)
    return tmp_path / "out"


def test_a_federation_trains_on_a_folder_of_versions(
    shuffled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = TrainingPlan(
        data=str(shuffled), model="mlp", clients=2, rounds=2, epochs=2, lr=0.1, together="no"
    )
    with caplog.at_level(logging.WARNING):
        result = train(plan, out=tmp_path / "run")
    assert len(result.rounds) == 2
    assert "the images for evaluation are shuffled as well" in caplog.text
    again = train(plan.model_copy(update={"rounds": 3}), out=tmp_path / "run")
    straight = train(plan.model_copy(update={"rounds": 3}), out=tmp_path / "straight")
    assert again.resumed_after == 2
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


def test_versions_are_of_the_images_in_the_source_folder(shuffled: Path) -> None:
    sources = load(str(shuffled.parent / "photos"))
    versions = load(str(shuffled))
    originals, hidden = sources.images(range(40)), versions.images(range(40), 1)
    assert not torch.equal(originals, hidden)
    assert torch.equal(originals.flatten(1).sort(1).values, hidden.flatten(1).sort(1).values)


def test_the_defense_itself_can_come_on_top(digits: ImageSet) -> None:
    crowd = federation(with_versions(digits, []), epochs=2, batch_size=3)
    crowd.defense = Csvar()
    assert len(crowd.collect_updates(1, [0, 1])) == 2


def test_on_flower_as_well(digits: ImageSet) -> None:
    flower = pytest.importorskip("keyhole.federation.flower")
    crowd = federation(with_versions(digits, []), epochs=3, batch_size=3)
    expected = crowd.collect_updates(2, [1])[0].update
    member = crowd.make_client(2, 1)
    found = flower.train_locally(
        crowd.model,
        member.images,
        member.labels,
        data=crowd.data,
        training=crowd.training,
        generator=member.generator,
        images_by_epoch=member.images_by_epoch,
    )
    assert all(torch.equal(found.change[name], t) for name, t in expected.change.items())
