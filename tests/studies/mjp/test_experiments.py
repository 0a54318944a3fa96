"""Experiments from beginning to end, on a CIFAR of forty images and a network of one block."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from keyhole.defenses import Mjp
from keyhole_studies import load_study
from keyhole_studies.mjp import april, experiments, networks
from keyhole_studies.mjp.networks import build_deit
from keyhole_studies.resident_data import load_resident_data
from keyhole_studies.training import TrainingSettings

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def forty(tmp_path: Path) -> Path:
    """A data folder whose CIFAR-10 has forty images of noise, and whose CIFAR-100 has four."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        files = []
        for _ in range(40):
            file = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (32, 32, 3), np.uint8)).save(file, "JPEG")
            files.append(file.getvalue())
        path = tmp_path / "data" / "cifar10" / f"cifar10_jpeg_{split}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            bytes=np.frombuffer(b"".join(files), np.uint8),
            offsets=np.cumsum([0, *map(len, files)]),
            labels=np.arange(40) % 10,
        )
    odd = tmp_path / "data" / "cifar100" / "cifar100_lossless_subset.npz"
    odd.parent.mkdir()
    images = draw.integers(0, 255, (4, 32, 32, 3), np.uint8)
    classes = np.array([f"class {n}" for n in range(100)])
    np.savez(odd, test_images=images, test_labels=np.arange(4), classes=classes)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(name: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_deit(width=96, depth=2, heads=2)

    monkeypatch.setattr(experiments, "build_network", network)
    monkeypatch.setattr(april, "lpips", lambda seen, *args, **options: torch.zeros(1))
    settings = TrainingSettings(epochs=1, batch_size=8, warm_up=1, mixed=0.5, erasing=0.25)
    for experiment in load_study("mjp").experiments:
        if isinstance(experiment, experiments.TrainingExperiment):
            monkeypatch.setitem(experiment.__dict__, "settings", settings)
            if experiment.corrupted:
                monkeypatch.setitem(experiment.__dict__, "corrupted", 2)
    load_resident_data.cache_clear()


def test_networks_are_trained_then_attacked(keyhole: Command, forty: Path, tmp_path: Path) -> None:
    options = ("--data-dir", str(forty), "--device", "cpu", "--victims", "2")
    code, _, err = keyhole("study", "mjp", "april-cifar10", *options)
    assert code == 2
    assert "run the experiment deit-A first" in err
    names = ("deit-A", "deit-J", "april-cifar10")
    code, out, err = keyhole("study", "mjp", *names, *options)
    assert code == 0, err
    assert err.splitlines() == [f"done: {name}" for name in names]
    folder = tmp_path / "results" / "mjp"
    trained = json.loads((folder / "deit-J.json").read_text())
    assert trained["defense"].startswith("mjp(gamma=0.1")
    assert set(trained["evaluation"]["accuracy_by_gamma"]) == {
        "0.0",
        "0.1",
        "0.3",
        "0.5",
        "0.7",
        "0.9",
    }
    assert (tmp_path / "runs" / "study-mjp" / "deit-J" / "weights.safetensors").is_file()
    attacked = json.loads((folder / "april-cifar10.json").read_text())
    assert attacked["images"] == 2
    assert set(attacked["rows"]) == {"deit-A", "deit-J"}
    assert attacked["rows"]["deit-J"]["b"]["psnr"] < attacked["rows"]["deit-A"]["b"]["psnr"]
    assert "Table 2" in out
    assert "Table 5, APRIL as published, cifar10, 2 images" in out


def test_robustness_is_measured_where_it_is_asked_for(
    keyhole: Command, forty: Path, tmp_path: Path
) -> None:
    options = ("--data-dir", str(forty), "--device", "cpu")
    code, out, err = keyhole("study", "mjp", "long-deit-J", *options)
    assert code == 0, err
    result = json.loads((tmp_path / "results" / "mjp" / "long-deit-J.json").read_text())
    tried = result["robustness"]
    assert len(tried["errors"]) >= 15
    wrong = [2 * share for severities in tried["errors"].values() for share in severities]
    assert set(wrong) <= {0, 1, 2}, "of two corrupted images"
    assert tried["mce"] == pytest.approx(sum(wrong) / 2 / len(wrong))
    assert tried["unseen_images"] == 4
    assert "Table 4's measures" in out


def test_puzzles_begin_after_so_many_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mjp(gamma=0.5).prepare_model(build_deit(width=96, depth=1, heads=2))
    shares = []

    def train(
        model: nn.Module, *_: object, after_epoch: Callable[[int, float], None], **__: object
    ):
        for epoch in (1, 2, 3):
            shares.append(model.puzzle.rules.share)
            after_epoch(epoch, 0.0)

    monkeypatch.setattr(experiments, "train_network", train)
    monkeypatch.setattr(experiments, "measure_accuracy", lambda *_: 0.0)
    settings = TrainingSettings(epochs=3)
    data = SimpleNamespace(data=None, train_indices=[0], test=None, test_indices=[0])
    experiments.train_on_curve(model, data, settings, Mjp(gamma=0.5), seed=0, puzzles_from=2)
    assert shares == [0.0, 0.0, 1.0]


def test_seeds_and_wide_positions_give_other_networks() -> None:
    study = load_study("mjp")
    positions = {}
    for name in ("full-deit-A-s0", "full-deit-A-s1", "full-deit-J-parity"):
        experiment = study.find(name)
        model = experiment.build_model(experiment.choose_seed(study))
        positions[name] = model.get_parameter("pos_embed")
    narrow, other, wide = positions.values()
    assert not narrow.equal(other)
    assert narrow.std() < 0.1 < 0.9 < wide.std()


def test_attackers_of_a_trained_network_have_its_weights(
    keyhole: Command, forty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims = forty / "victims" / "cifar10_128.npz"
    victims.parent.mkdir()
    images = np.random.default_rng(1).integers(0, 255, (128, 3, 32, 32), np.uint8)
    fixed = {"mean": np.full(3, 0.5), "std": np.full(3, 0.25)}
    np.savez(victims, images_u8=images, targets=np.arange(128) % 10, **fixed)

    def build_small(**options: int) -> nn.Module:
        return build_deit(width=96, depth=2, heads=2, **options)

    monkeypatch.setattr(networks, "build_deit", build_small)
    options = ("--data-dir", str(forty), "--device", "cpu", "--victims", "1", "--iterations", "2")
    code, _, err = keyhole("study", "mjp", "full-deit-J-s0", "trained-J-g50", *options)
    assert code == 0, err
    found = json.loads((tmp_path / "results" / "mjp" / "trained-J-g50.json").read_text())
    assert found["trained"] == "full-deit-J-s0"
    assert {"patch-lstsq", "mjp-span"} <= set(found["rows"])
    runs = tmp_path / "runs" / "study-mjp"
    whole = load_file(runs / "full-deit-J-s0" / "weights.safetensors")
    plain = load_file(runs / "full-deit-J-s0-plain.safetensors")
    assert set(whole) > set(plain) == set(build_small(classes=10).state_dict())
    assert all(whole[name].equal(tensor) for name, tensor in plain.items())
