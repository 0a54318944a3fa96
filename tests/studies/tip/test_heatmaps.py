"""Table 2 of the TIP paper on a small network."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from keyhole.metrics.heatmaps import CAP
from keyhole.progress import NullProgress
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.result_files import SHIPPED, read_result
from keyhole_studies.tip import STUDY
from keyhole_studies.tip.explanations import choose_across_classes, compare_maps
from keyhole_studies.tip.heatmaps import HeatMapExperiment
from keyhole_studies.training import TrainingSettings

SMALL = "keyhole.models.shallow_convnet:shallow_convnet"
TABLE_2 = [e for e in STUDY.experiments if isinstance(e, HeatMapExperiment)]
SGD = TrainingSettings(
    epochs=15,
    batch_size=64,
    lr=0.05,
    optimiser="sgd",
    weight_decay=5e-4,
    decay_all=True,
    warm_up=3,
    decay="linear",
    smoothing=0.05,
)
EXPERIMENT = HeatMapExperiment(
    "heat-digits",
    "digits",
    network=SMALL,
    settings=SGD,
    clients=4,
    images=10,
    tested=100,
    defenses=TABLE_2[0].defenses,
    equal_epsilon=TABLE_2[0].equal_epsilon,
    equal_noise=TABLE_2[0].equal_noise,
    paper={"dp": {"ssim": 0.5}},
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def measured(experiment: HeatMapExperiment, runs: Path) -> dict[str, Any]:
    study = Study("tip", "TIP", "paper", (experiment,))
    return experiment.measure(study, StudyContext(runs, None, "cpu", NullProgress()))


@pytest.fixture(scope="module")
def result(runs: Path) -> dict[str, Any]:
    return measured(EXPERIMENT, runs)


def decibels(result: dict[str, Any], name: str, whose: str = "uploaded") -> float:
    return float(result["rows"][name][whose]["overlay"]["psnr"])


def test_without_a_defense_nothing_changes(result: dict[str, Any]) -> None:
    none = result["rows"]["none"]
    for whose in ("uploaded", "averaged"):
        for kind in ("overlay", "map"):
            assert none[whose][kind] == {"mse": 0.0, "psnr": CAP, "ssim": 1.0}
    assert none["noise_norm"] == 0
    assert result["accuracy"] > 0.7


@pytest.mark.parametrize("whose", ["uploaded", "averaged"])
def test_the_papers_order_at_equal_budgets(result: dict[str, Any], whose: str) -> None:
    """TIP's heat maps are nearer to the clean ones than DP's, in all three measures."""
    dp, tip = (result["rows"][name][whose]["overlay"] for name in ("dp", "tip-at-dp-budget"))
    assert tip["mse"] < dp["mse"] / 2
    assert tip["psnr"] > dp["psnr"] + 3
    assert tip["ssim"] > dp["ssim"]


def test_noise_of_equal_length_is_as_long(result: dict[str, Any]) -> None:
    rows = result["rows"]
    for name in ("tip", "tip-divided"):
        assert rows[f"dp-as-{name}"]["noise_norm"] == pytest.approx(rows[name]["noise_norm"])
    layers = 2
    divided = rows["tip-divided"]["noise_norm"]
    assert divided == pytest.approx(rows["tip"]["noise_norm"] / layers, rel=1e-3)


def test_less_noise_is_nearer(result: dict[str, Any]) -> None:
    assert decibels(result, "tip") < decibels(result, "tip-divided")
    assert decibels(result, "tip-divided") < decibels(result, "tip-at-dp-budget")
    assert decibels(result, "dp-as-tip") < decibels(result, "dp-as-tip-divided")


def test_the_noises_of_many_clients_cancel_in_the_mean(result: dict[str, Any]) -> None:
    assert decibels(result, "dp", "averaged") > decibels(result, "dp")


def test_the_result_can_be_kept_and_says_how_it_came_about(
    result: dict[str, Any], runs: Path
) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["paper"] == {"dp": {"ssim": 0.5}}
    assert result["rows"]["tip"]["defense"].startswith("tip")
    assert result["local"] == {"steps": 4, "lr": 0.001, "batch_size": 1, "mode": "train"}
    assert (result["clients"], result["images"]) == (4, 10)
    with Image.open(runs / EXPERIMENT.name / "heat.png") as sheet:
        assert sheet.height > 1000


def test_it_is_repeatable(runs: Path) -> None:
    short = replace(SGD, epochs=1, batch_size=256, lr=0.2, warm_up=0.2)
    few = replace(EXPERIMENT, name="few", settings=short, clients=2, images=2, tested=10)
    assert measured(few, runs)["rows"] == measured(few, runs)["rows"]


def test_pairs_without_heat_do_not_count() -> None:
    images, cold = torch.rand(2, 1, 8, 8), torch.zeros(2, 8, 8)
    clean, other = cold.clone(), cold.clone()
    clean[0, :4], other[0, 4:] = 1.0, 1.0
    both = compare_maps(images, clean, other)
    assert both == compare_maps(images[:1], clean[:1], other[:1])
    assert both["map"]["psnr"] == pytest.approx(0.0)
    assert compare_maps(images, cold, cold)["overlay"]["psnr"] == CAP


def test_images_are_of_as_many_classes_as_there_are() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    draw = torch.Generator().manual_seed(0)
    found = choose_across_classes(labels, [0, 1, 2, 4, 5, 7], 3, draw)
    assert sorted(labels[found].tolist()) == [0, 1, 2]
    assert 7 in found
    assert 3 not in found
    more = choose_across_classes(labels, list(range(8)), 5, draw)
    assert len(set(more)) == 5
    assert torch.bincount(labels[more]).min() >= 1


def test_figures_are_means_on_0_to_255_as_the_papers_are() -> None:
    """The mean of PSNRs is at least the PSNR of the mean error."""
    assert {e.data for e in TABLE_2} == {"cifar10", "cifar100", "tiny-imagenet"}
    for experiment in TABLE_2:
        known = read_result(SHIPPED / "tip", experiment.name)
        ours = (
            {} if known is None else {n: r["uploaded"]["overlay"] for n, r in known["rows"].items()}
        )
        assert known is None or set(experiment.paper) < set(ours)
        for name, found in [*experiment.paper.items(), *ours.items()]:
            if name != "none":
                assert 10 * math.log10(255**2 / found["mse"]) <= found["psnr"]


def test_noise_decides_over_explanations_more_than_its_place() -> None:
    """At equal norm DP keeps maps nearly as well as TIP; louder noise keeps them worse."""
    for data in ("cifar10", "cifar100", "tiny-imagenet"):
        known = read_result(SHIPPED / "tip", f"heat-{data}")
        assert known is not None
        psnr = {name: row["uploaded"]["overlay"]["psnr"] for name, row in known["rows"].items()}
        norms = {name: row["noise_norm"] for name, row in known["rows"].items()}
        for one, other in (("tip", "dp-as-tip"), ("tip-divided", "dp-as-tip-divided")):
            assert norms[one] == pytest.approx(norms[other], rel=0.02)
            assert abs(psnr[one] - psnr[other]) < 6
        assert psnr["tip-divided"] > psnr["tip-at-dp-budget"] > psnr["tip"] + 6


def test_every_data_set_has_its_experiments() -> None:
    """One at the last layer, as published, and one at a block's output, which is rectified."""
    assert len(TABLE_2) == 2 * len({e.data for e in TABLE_2}) == len({e.name for e in TABLE_2})
    for experiment in TABLE_2:
        assert experiment.name.removesuffix("-rectified") == f"heat-{experiment.data}"
        assert set(experiment.paper) == {"dp", "agp", "tip"}
        assert "10 images by 10 clients" in experiment.describe()["does"]
        assert experiment.settings is not None
        assert experiment.settings.warm_up == pytest.approx(experiment.settings.epochs / 5)
