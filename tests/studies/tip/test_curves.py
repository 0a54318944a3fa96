"""Figure 3's curves, on digits and for a few rounds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from keyhole.defenses import DEFENSES, Agp, Dp, NoDefense, Tip
from keyhole.federation import LocalTraining
from keyhole.models import build
from keyhole.progress import NullProgress
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.tip import STUDY
from keyhole_studies.tip.averaging import (
    PAPER,
    FedAvgSettings,
    build_federation,
    calibrate_as_paper,
    run_rounds,
)
from keyhole_studies.tip.curve_pictures import draw_curves, draw_panels
from keyhole_studies.tip.curves import CurveExperiment

CURVES = [e for e in STUDY.experiments if isinstance(e, CurveExperiment)]
SMALL = FedAvgSettings(
    name="small",
    rounds=3,
    lr=0.1,
    momentum=0.9,
    clients=6,
    sampled=3,
    epochs=1,
    batch_size=16,
    model="lenet",
    every=2,
    tested=50,
)
CPU = torch.device("cpu")


def make_curve(defense: str, settings: FedAvgSettings = SMALL) -> CurveExperiment:
    return CurveExperiment(f"curve-digits-iid-{defense[:3]}", "digits", "iid", defense, settings)


def make_study(*experiments: CurveExperiment) -> Study:
    return Study("tip", "TIP", "Wang and Su 2025 (TIP)", experiments)


@pytest.mark.parametrize("defense", ["none", "tip(beta=0.01)", "dp(sigma=0.001)", "agp"])
def test_a_curve_tells_accuracy_and_noise(defense: str, tmp_path: Path) -> None:
    context = StudyContext(runs=tmp_path, data_dir=None, device="cpu", progress=NullProgress())
    curve = make_curve(defense)
    found = curve.measure(make_study(curve), context)
    assert [point["round"] for point in found["points"]] == [2, 3]
    for point in found["points"]:
        assert (SMALL.tested * point["accuracy"]) % 1 == pytest.approx(0, abs=1e-6)
        assert point["update_norm"] > 0
        assert (point["noise_norm"] > 0) == (point["strength"] > 0) == (defense != "none")
    if defense == "tip(beta=0.01)":
        model = build("lenet", classes=10, channels=1, image_size=8)
        expected = 0.01 * Tip().energy(model) ** 0.5
        assert found["points"][0]["noise_norm"] == pytest.approx(expected, rel=0.1)
    assert curve.covers(found, context)
    shorter = {**found, "points": found["points"][:1]}
    assert curve.find_gap(shorter, context) == "part (2 of 3 rounds)"
    other = {**found, "recipe": {**found["recipe"], "lr": 0.5}}
    assert curve.find_gap(other, context) == "stale (training: lr 0.5, now 0.1)"


def test_a_curve_is_what_a_federation_does() -> None:
    federation = build_federation(NoDefense(), SMALL, "digits", "iid", 5, CPU, None)
    rounds = list(federation.run_rounds(1, SMALL.rounds))
    found = list(run_rounds("none", SMALL, data="digits", seed=5))
    assert [point["accuracy"] for point in found] == [r.accuracy for r in rounds[1:]]
    assert [point["loss"] for point in found] == [r.loss for r in rounds[1:]]


FEW = dataclasses.replace(
    SMALL, rounds=4, every=4, clients=4, sampled=4, batch_size=32, model="mlp", lr=0.03
)


def test_clients_learn_and_loud_noise_undoes_it() -> None:
    (*_, quiet), (*_, loud) = (
        run_rounds(defense, FEW, data="digits") for defense in ("none", "dp(sigma=0.5)")
    )
    assert quiet["accuracy"] > 0.6
    assert loud["accuracy"] < quiet["accuracy"] - 0.3


def test_a_training_that_diverges_says_so() -> None:
    (last,) = run_rounds("dp(sigma=1000.0)", FEW, data="digits")
    assert last["diverged"]
    assert last["round"] < FEW.rounds
    assert last["accuracy"] < 0.3
    curve = make_curve("dp(sigma=1000.0)", FEW)
    context = StudyContext(runs=Path(), data_dir=None, device="cpu", progress=NullProgress())
    assert curve.covers(curve.make_result([last], 0, CPU), context)


def test_skewed_clients_train_on_whole_batches() -> None:
    parted = build_federation(NoDefense(), SMALL, "digits", "dirichlet(alpha=0.5)", 0, CPU, None)
    sizes = [len(share) for share in parted.shares]
    assert len(set(sizes)) > 1
    assert all(size % SMALL.batch_size == 0 for size in sizes)
    even = build_federation(NoDefense(), SMALL, "digits", "iid", 0, CPU, None)
    assert sum(len(share) for share in even.shares) == 1438


def test_noise_can_be_fixed_at_what_the_papers_rate_asks_for() -> None:
    model = build("lenet", classes=10, channels=3, image_size=32)
    steps, factor = 2 * 16, (2 * torch.tensor(1.25e5).log()).sqrt()
    zeta = float(factor) * steps * 0.001 * 5 / 32
    tip, dp = (calibrate_as_paper(d, model, 500) for d in (Tip(), Dp()))
    assert isinstance(tip, Tip)
    assert isinstance(dp, Dp)
    assert tip.beta == pytest.approx(zeta)
    assert dp.sigma == pytest.approx(zeta / 5)
    assert calibrate_as_paper(NoDefense(), model, 500) == NoDefense()
    found = list(run_rounds("agp", SMALL, data="digits", calibration="paper"))
    own = Agp().strength(PAPER.describe_update(239), model)
    assert found[0]["strength"] == pytest.approx(own)


FIGURE_3 = {
    "none": {"100": 0.52, "500": 0.73, "1000": 0.79},
    "tip": {"100": 0.49, "500": 0.665, "1000": 0.73},
    "agp": {"100": 0.34, "500": 0.50, "1000": 0.59},
    "dp": {"100": 0.33, "500": 0.405, "1000": 0.44},
}


def test_every_curve_of_the_figure_has_its_experiment() -> None:
    curves = {curve.name: curve for curve in CURVES}
    assert len(curves) == 3 * 2 * 5
    for short, theirs in FIGURE_3.items():
        curve = curves[f"curve-cifar10-iid-{short}"]
        assert curve.paper == theirs
        assert curve.settings == dataclasses.replace(PAPER, rounds=200)
        assert f"curve-cifar10-dirichlet-{short}-practical" in curves
    assert sum(bool(curve.paper) for curve in curves.values()) == len(FIGURE_3)
    for curve in curves.values():
        assert DEFENSES.parse(curve.defense)
        assert curve.describe()["does"]
        assert (curve.calibration == "paper") == (curve.settings.name == "practical")
        assert f"-{curve.partition.partition('(')[0]}-" in curve.name
    assert PAPER.make_training() == LocalTraining(lr=0.001, epochs=2, batch_size=32)
    assert (PAPER.clients, PAPER.sampled, PAPER.momentum) == (100, 10, 0)
    assert {curve.settings.name for curve in CURVES} == {"paper", "practical", "small"}


def test_curves_are_drawn(tmp_path: Path) -> None:
    made = []
    for curve in CURVES[:7]:
        found = [{"round": 50 * i, "accuracy": 0.1 * i} for i in range(1, 5)]
        made.append((curve, curve.make_result(found, 0, CPU)))
    with Image.open(draw_panels(made, tmp_path / "curves.png")) as picture:
        assert picture.width > 1.5 * picture.height  # two panels
    assert draw_curves(STUDY, tmp_path, tmp_path / "out") == []
    (tmp_path / f"{CURVES[0].name}.json").write_text(json.dumps(made[0][1]))
    assert [path.name for path in draw_curves(STUDY, tmp_path, tmp_path / "out")] == [
        "figure-3-paper.png"
    ]
