"""Figure 6's piece, on digits and for two rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from keyhole.attacks.generative import Hitaj
from keyhole.audit.progress import Silent
from keyhole.data import load
from keyhole.studies import STUDIES
from keyhole.studies.base import Setting
from keyhole.studies.csvar.generation import SCENERIES, GanPiece, Scenery, by_class, independent
from keyhole.studies.csvar.pieces import generated

SMALL = Scenery(
    "digits", "16", 8, 40, Hitaj(target=7, rounds=2, steps=2, batch=4, fakes=4, features=4)
)


@pytest.mark.parametrize(("defense", "adaptive"), [("none", False), ("csvar", True)])
def test_a_piece_is_played_and_judged(defense: str, adaptive: bool, tmp_path: Path) -> None:
    setting = Setting(runs=tmp_path, data_dir=None, device="cpu", progress=Silent())
    piece = GanPiece("gan-digits", SMALL, defense, adaptive)
    found = piece.measure(STUDIES["csvar"], setting)
    assert found["piece"] == "gan-digits"
    assert found["attacker"] == ("adaptive" if adaptive else "paper")
    assert set(found["generated"]) == set(found["noise"]) == set(found["others"])
    assert found["others"]["recognised"] < 0.3 < found["classifier_accuracy"]
    with Image.open(tmp_path / "gan-digits" / "drawn.png") as picture:
        assert picture.size == (12 * 16, 16)


def test_clients_and_judge_have_different_images() -> None:
    data = load("digits")
    held, spare = by_class(data, SMALL, seed=0)
    assert [len(each) for each in held] == [8] * 10
    for label, (ours, theirs) in enumerate(zip(held, spare, strict=True)):
        assert not set(ours) & set(theirs)
        assert all(int(data.labels[i]) == label for i in (*ours, *theirs))


def test_the_judge_s_classifier_can_tell_classes() -> None:
    data = load("digits")
    held, spare = by_class(data, SMALL, seed=0)
    _, right = independent(data, held, spare, seed=0)
    assert right > 0.7


def test_every_defense_meets_an_adversary_who_knows_it() -> None:
    names = {piece.name for piece in generated()}
    for data in SCENERIES:
        assert {f"gan-{data}-none", f"gan-{data}-csvar", f"gan-{data}-csvar-known"} <= names
