"""Figure 3's curves, on digits and for a few rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from keyhole.audit.progress import Silent
from keyhole.defenses import DEFENSES, Agp, Dp, NoDefense, Tip
from keyhole.federation import LocalTraining
from keyhole.models import build
from keyhole.studies.base import Setting, Study
from keyhole.studies.tip.averaging import (
    PAPER,
    RECIPES,
    Recipe,
    assembled,
    at_paper_strength,
    points,
)
from keyhole.studies.tip.curves import (
    FIGURE_3,
    SPELLED,
    CurvePiece,
    all_curves,
    curves,
    draw,
)

SMALL = Recipe(
    "small",
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


def piece_of(defense: str, recipe: Recipe = SMALL) -> CurvePiece:
    return CurvePiece(f"curve-digits-iid-{defense[:3]}", "digits", "iid", defense, recipe)


def study_of(*pieces: CurvePiece) -> Study:
    return Study(name="tip", title="TIP", paper="Wang and Su 2025 (TIP)", pieces=pieces)


@pytest.mark.parametrize("defense", ["none", "tip(beta=0.01)", "dp(sigma=0.001)", "agp"])
def test_a_curve_tells_accuracy_and_noise(defense: str, tmp_path: Path) -> None:
    setting = Setting(runs=tmp_path, data_dir=None, device="cpu", progress=Silent())
    piece = piece_of(defense)
    found = piece.measure(study_of(piece), setting)
    assert [point["round"] for point in found["points"]] == [2, 3]
    for point in found["points"]:
        assert 0 <= point["accuracy"] <= 1
        assert point["update_norm"] > 0
        assert (point["noise_norm"] > 0) == (point["strength"] > 0) == (defense != "none")
    if defense == "tip(beta=0.01)":
        model = build("lenet", classes=10, channels=1, image_size=8)
        expected = 0.01 * Tip().energy(model) ** 0.5
        assert found["points"][0]["noise_norm"] == pytest.approx(expected, rel=0.1)
    assert piece.covers(found, setting)
    assert not piece.covers({**found, "points": found["points"][:1]}, setting)


def test_a_curve_is_what_a_federation_does() -> None:
    federation = assembled(NoDefense(), SMALL, "digits", "iid", 5, CPU, None)
    rounds = list(federation.rounds(1, SMALL.rounds))
    found = list(points("none", SMALL, data="digits", seed=5))
    assert [point["accuracy"] for point in found] == [r.accuracy for r in rounds[1:]]
    assert [point["loss"] for point in found] == [r.loss for r in rounds[1:]]


FEW = dataclasses.replace(
    SMALL, rounds=4, every=4, clients=4, sampled=4, batch_size=32, model="mlp", lr=0.03
)


def test_clients_learn_and_loud_noise_undoes_it() -> None:
    (*_, quiet), (*_, loud) = (
        points(defense, FEW, data="digits") for defense in ("none", "dp(sigma=0.5)")
    )
    assert quiet["accuracy"] > 0.6
    assert loud["accuracy"] < quiet["accuracy"] - 0.3


def test_a_training_that_diverges_says_so() -> None:
    (last,) = points("dp(sigma=1000.0)", FEW, data="digits")
    assert last["diverged"]
    assert last["round"] < FEW.rounds
    assert last["accuracy"] < 0.3
    piece = piece_of("dp(sigma=1000.0)", FEW)
    setting = Setting(runs=Path(), data_dir=None, device="cpu", progress=Silent())
    assert piece.covers(piece.result([last], 0, CPU), setting)


def test_skewed_clients_train_on_whole_batches() -> None:
    parted = assembled(NoDefense(), SMALL, "digits", "dirichlet(alpha=0.5)", 0, CPU, None)
    sizes = [len(share) for share in parted.shares]
    assert len(set(sizes)) > 1
    assert all(size % SMALL.batch_size == 0 for size in sizes)
    even = assembled(NoDefense(), SMALL, "digits", "iid", 0, CPU, None)
    assert sum(len(share) for share in even.shares) == 1438


def test_noise_can_be_fixed_at_what_the_papers_rate_asks_for() -> None:
    model = build("lenet", classes=10, channels=3, image_size=32)
    steps, factor = 2 * 16, (2 * torch.tensor(1.25e5).log()).sqrt()
    zeta = float(factor) * steps * 0.001 * 5 / 32
    tip, dp = (at_paper_strength(d, model, 500) for d in (Tip(), Dp()))
    assert isinstance(tip, Tip)
    assert isinstance(dp, Dp)
    assert tip.beta == pytest.approx(zeta)
    assert dp.sigma == pytest.approx(zeta / 5)
    assert at_paper_strength(NoDefense(), model, 500) == NoDefense()
    found = list(points("agp", SMALL, data="digits", calibration="paper"))
    own = Agp().strength(PAPER.update_of(239), model)
    assert found[0]["strength"] == pytest.approx(own)


def test_every_curve_of_the_figure_has_its_piece() -> None:
    pieces = {piece.name: piece for piece in all_curves()}
    assert len(pieces) == len(RECIPES) * 2 * len(SPELLED)
    for short, theirs in FIGURE_3.items():
        piece = pieces[f"curve-cifar10-iid-{short}"]
        assert piece.paper == {str(n): v for n, v in theirs.items()}
        assert piece.recipe == PAPER
        assert f"curve-cifar10-dirichlet-{short}-practical" in pieces
    for piece in pieces.values():
        assert DEFENSES.parse(piece.defense)
        assert piece.about()["does"]
    assert PAPER.training == LocalTraining(lr=0.001, epochs=2, batch_size=32)
    assert (PAPER.clients, PAPER.sampled, PAPER.momentum) == (100, 10, 0)
    assert set(RECIPES) == {"paper", "practical", "small"}


def test_curves_are_drawn(tmp_path: Path) -> None:
    made = []
    for piece in list(all_curves())[:7]:
        found = [{"round": 5 * i, "accuracy": 0.1 * i} for i in range(1, 5)]
        made.append(piece.result(found, 0, CPU))
    with Image.open(curves(made, tmp_path / "curves.png")) as picture:
        assert picture.width > 1.5 * picture.height  # two panels
    study = study_of()
    assert draw(tmp_path, tmp_path / "out") == []
    assert study.draw is None
