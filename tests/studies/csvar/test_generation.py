"""Figure 6's experiment, on digits and for two rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from keyhole.data import load
from keyhole.progress import NullProgress
from keyhole_studies.base import StudyContext
from keyhole_studies.csvar import STUDY
from keyhole_studies.csvar.generation import (
    GanExperiment,
    GanSetup,
    split_by_class,
    train_classifier,
)
from keyhole_studies.hitaj import Hitaj

SMALL = GanSetup(
    data="digits",
    data_name="digits",
    size="16",
    images=8,
    apart=40,
    attack=Hitaj(target=7, rounds=2, steps=2, batch=4, fakes=4, features=4),
)


@pytest.mark.parametrize(("defense", "adaptive"), [("none", False), ("csvar", True)])
def test_an_experiment_is_run_and_judged(defense: str, adaptive: bool, tmp_path: Path) -> None:
    context = StudyContext(runs=tmp_path, data_dir=None, device="cpu", progress=NullProgress())
    experiment = GanExperiment("gan-digits", SMALL, defense, adaptive)
    found = experiment.measure(STUDY, context)
    assert found["piece"] == "gan-digits"
    assert found["attacker"] == ("adaptive" if adaptive else "paper")
    assert set(found["generated"]) == set(found["noise"]) == set(found["others"])
    assert found["others"]["recognised"] < 0.3 < found["classifier_accuracy"]
    with Image.open(tmp_path / "gan-digits" / "drawn.png") as picture:
        assert picture.size == (12 * 16, 16)


def test_clients_and_judge_have_different_images() -> None:
    data = load("digits")
    held, spare = split_by_class(data, SMALL, seed=0)
    assert [len(each) for each in held] == [8] * 10
    for label, (ours, theirs) in enumerate(zip(held, spare, strict=True)):
        assert not set(ours) & set(theirs)
        assert all(int(data.labels[i]) == label for i in (*ours, *theirs))


def test_the_judge_s_classifier_can_tell_classes() -> None:
    data = load("digits")
    held, spare = split_by_class(data, SMALL, seed=0)
    _, right = train_classifier(data, held, spare, seed=0)
    assert right > 0.7


def test_every_defense_meets_an_adversary_who_knows_it() -> None:
    known = {e.name: e for e in STUDY.experiments if isinstance(e, GanExperiment)}
    names = set(known)
    for data in ("mnist", "faces"):
        assert {f"gan-{data}-none", f"gan-{data}-csvar", f"gan-{data}-csvar-known"} <= names
        assert known[f"gan-{data}-csvar-known"].adaptive
        assert not known[f"gan-{data}-csvar"].adaptive
