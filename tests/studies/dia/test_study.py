from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torch import nn

from keyhole.auditing import run_plan
from keyhole.defenses import DEFENSES, Dropout
from keyhole.models import build
from keyhole_studies import audits, load_study
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.result_files import SHIPPED, write_result
from keyhole_studies.show import format_study, make_result_rows
from keyhole_studies.tip.front import UtilityExperiment
from keyhole_studies.trained_audits import TrainedAudit

STUDY = load_study("dia")
NAMES = ("mlp-mnist-p00", "mlp-mnist-p25")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def small_victims(tmp_path: Path) -> Path:
    """A data folder in which 8x8 digits stand for the victims of the paper."""
    digits = load_digits()
    (tmp_path / "data" / "victims").mkdir(parents=True)
    np.savez(
        tmp_path / "data" / "victims" / "mnist_128.npz",
        images_u8=(digits.images[:128, None] / 16 * 255).astype(np.uint8),
        targets=digits.target[:128],
        mean=np.array([0.3]),
        std=np.array([0.4]),
    )
    return tmp_path / "data"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the plans that were run."""
    titles: list[str] = []

    def spy(plan: Any, **options: Any) -> Any:
        titles.append(plan.title)
        return run_plan(plan, **options)

    monkeypatch.setattr(audits, "run_plan", spy)
    return titles


def tiny(folder: Path) -> tuple[str, ...]:
    return ("--victims", "2", "--iterations", "3", "--data-dir", str(folder))


AUDITS = [e for e in STUDY.experiments if isinstance(e, AuditExperiment)]
VICTIMS = [e for e in AUDITS if e.stage.data != "imagenet-sample"]


def test_every_cell_of_the_paper_is_an_experiment_of_its_own() -> None:
    names = [experiment.name for experiment in STUDY.experiments]
    assert len(names) == len(set(names))
    assert all(e.stage.victims * e.stage.batch_size == 128 for e in VICTIMS)
    for experiment in AUDITS:
        attacks = {text.partition("(")[0] for text in experiment.stage.attacks}
        assert set(experiment.paper) <= attacks
    # Figures 2 and 7 have four networks, two data sets and four rates; Figure 6 has 36 batches.
    main = [e for e in VICTIMS if re.fullmatch(r"[a-z0-9]+(-small)?-(mnist|cifar10)-p\d+", e.name)]
    assert len(main) == 4 * 2 * 4
    assert sum(e.stage.batch_size > 1 for e in VICTIMS) == 36
    accuracies = [e for e in STUDY.experiments if isinstance(e, UtilityExperiment)]
    assert len(accuracies) == 16
    assert all(e.settings.rounds <= 100 for e in accuracies)


def test_names_say_what_the_cells_are() -> None:
    data = {"dia-mnist": "mnist", "dia-cifar10": "cifar10"}
    networks = {"tanh_lenet": "lenet-tanh", "stock_resnet18": "resnet18-stock"}
    for experiment in VICTIMS:
        stage = experiment.stage
        defense = DEFENSES.parse(stage.defenses[0])
        rate = defense.p if isinstance(defense, Dropout) else 0.0
        batch = "" if stage.batch_size == 1 else f"-b{stage.batch_size}"
        made = stage.model.rpartition(":")[2]
        name = f"{networks.get(made, made)}-{data[stage.data]}-p{round(100 * rate):02d}{batch}"
        trained = "trained-" if isinstance(experiment, TrainedAudit) else ""
        assert re.fullmatch(f"{trained}{name}(-weight.*)?", experiment.name)


def test_a_seed_gives_a_network_of_the_study_its_weights() -> None:
    for name in ("tanh_lenet", "stock_resnet18"):
        made = f"keyhole_studies.dia.networks:{name}"
        one, same, other = (
            build(made, classes=10, channels=1, image_size=32, seed=seed) for seed in (0, 0, 1)
        )
        weights = [next(model.parameters()) for model in (one, same, other)]
        assert weights[0].equal(weights[1])
        assert not weights[0].equal(weights[2])
    tanh = build("keyhole_studies.dia.networks:tanh_lenet", classes=10, image_size=32)
    plain = build("lenet", classes=10, image_size=32)
    kinds = [type(layer).__name__ for layer in tanh]
    assert kinds == [type(layer).__name__.replace("Sigmoid", "Tanh") for layer in plain]


def test_the_wide_vit_has_wide_positions_and_49_dropouts() -> None:
    made = "keyhole_studies.dia.networks:wide_vit_b16"
    model = build(made, classes=10, image_size=32)
    assert model.pos_embed.std() > 0.9
    assert model.cls_token.std() > 0.9
    assert sum(isinstance(module, nn.Dropout) for module in model.modules()) == 49


def test_the_list_marks_what_is_done(keyhole: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, images in ((NAMES[1], 128), (NAMES[0], 4)):
        shipped = (SHIPPED / "dia" / f"{name}.json").read_text(encoding="utf-8")
        result = {**json.loads(shipped), "images": images}
        (tmp_path / "mine" / f"{name}.json").write_text(json.dumps(result))
    code, out, err = keyhole("study", "dia", "--list", "--results", "mine", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert listed["study"] == "dia"
    assert len(listed["pieces"]) == len(STUDY.experiments)
    assert [p["piece"] for p in listed["pieces"] if p["done"]] == [NAMES[1]]
    code, out, _ = keyhole("study", "dia", "--list", "--results", "mine")
    assert code == 0
    marked = [line.split()[:2] for line in out.splitlines() if line.split()[0] in ("done", "part")]
    assert sorted(marked) == [["done", NAMES[1]], ["part", NAMES[0]]]
    (line,) = [line for line in out.splitlines() if line.split()[:2] == ["part", NAMES[0]]]
    assert line.endswith("(4 of 128 images)")
    code, few, _ = keyhole(
        "study", "dia", NAMES[0], "--victims", "4", "--list", "--results", "mine"
    )
    assert [line.split()[:2] for line in few.splitlines()[1:]] == [["done", NAMES[0]]]
    named = {word for line in out.splitlines() for word in line.split()}
    assert {experiment.name for experiment in STUDY.experiments} <= named


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dia", "--show", "--results", "mine"], "holds no results of study 'dia'"),
        (["dia", "--show", "--results", "mine"], "run `keyhole study dia`"),
        (["dai", "--list"], "did you mean dia"),
        (["dia", "mlp-mnst-p25"], "did you mean mlp-mnist-p25"),
        (["dia", "vgg*"], "unknown experiment of study dia 'vgg*'"),
        (["dia", NAMES[0]], "--data-dir or KEYHOLE_DATA"),
        (["dia", NAMES[0], "--iterations", "0"], "iterations: "),
        (["dia", NAMES[0], "--parity", "mine"], "parity: "),
        (["dia", NAMES[0], "--victims-at-once", "0"], "victims-at-once: "),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    keyhole: Command, tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, out, err = keyhole("study", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("keyhole: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_result_that_was_cut_off_is_named(keyhole: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / f"{NAMES[0]}.json").write_text('{"rows": ')
    code, _, err = keyhole("study", "dia", "--show", "--results", "mine")
    assert code == 2
    assert f"{NAMES[0]}.json cannot be read" in err


def test_experiments_are_run_once_and_shown_beside_the_paper(
    keyhole: Command, tmp_path: Path, small_victims: Path, ran: list[str]
) -> None:
    code, out, err = keyhole("study", "dia", *NAMES, *tiny(small_victims))
    assert code == 0
    assert [title.rpartition(" ")[2] for title in ran] == list(NAMES)
    assert err.splitlines() == [f"done: {name}" for name in NAMES]
    folder = tmp_path / "results" / "dia"
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{name}.json" for name in NAMES)

    result = json.loads((folder / f"{NAMES[1]}.json").read_text())
    assert set(result["rows"]) == {"linear", "ig", "wiig", "dia", "dia-read"}
    assert result["images"] == 2
    for name, row in result["rows"].items():
        for metric in ("ssim", "psnr", "read"):
            assert len(row["metrics"][metric]["per_image"]) == 2
        assert ("mmd" in row["metrics"]) == name.startswith("dia")
    assert result["rows"]["ig"]["parameters"]["iterations"] == 3
    assert result["rows"]["dia-read"]["parameters"]["masks"] == "read"

    again = keyhole("study", "dia", *NAMES, *tiny(small_victims))
    assert (again[0], again[1], again[2]) == (0, out, "")
    assert len(ran) == 2

    shown = json.loads(keyhole("study", "dia", "--show", "--json")[1])["rows"]
    assert shown == make_result_rows(STUDY, folder)
    cells = {(row["piece"], row["attack"]): row for row in shown if row["ours"] is not None}
    assert {piece for piece, _ in cells} == set(NAMES)
    ig = cells[NAMES[1], "ig"]
    assert ig["paper"] == {"ssim": 0.79}
    assert ig["ours"]["ssim"] == result["rows"]["ig"]["metrics"]["ssim"]["mean"]
    assert cells[NAMES[1], "linear"]["paper"] == {}
    assert cells[NAMES[0], "ig"]["paper"] == {"ssim": 1.0}
    lines = format_study(STUDY, folder)
    (line,) = [text for text in lines if text.split()[:2] == [NAMES[1], "linear"]]
    assert line in out.splitlines()


def test_no_experiment_is_begun_when_the_time_is_over(
    keyhole: Command, small_victims: Path, ran: list[str]
) -> None:
    code, _, err = keyhole("study", "dia", *NAMES, *tiny(small_victims), "--within", "0")
    assert code == 2
    assert "holds no results" in err
    assert not ran


def test_an_attack_that_was_not_run_still_shows_what_the_paper_reports(tmp_path: Path) -> None:
    row = {"metrics": {"ssim": {"mean": 0.5}}, "iterations": 3, "seconds": 1.0}
    value = {"rows": {"ig": row}, "images": 2, "device": "cpu"}
    write_result(tmp_path / "new", NAMES[1], value)
    rows = make_result_rows(STUDY, tmp_path / "new")
    assert {r["piece"] for r in rows} == {e.name for e in STUDY.experiments}
    assert all(r["ours"] is None for r in rows if r["piece"] != NAMES[1])
    found = {r["attack"]: r for r in rows if r["piece"] == NAMES[1]}
    assert found["ig"]["ours"] == {"ssim": 0.5}
    assert found["wiig"]["ours"] == {}
    assert found["wiig"]["paper"] == {"ssim": 1.0}
    assert not list((tmp_path / "new").glob("*.half"))


def test_a_star_stands_for_all_that_begin_so_and_none_is_chosen_twice() -> None:
    found = STUDY.choose(["mlp-mnist-*", "mlp-mnist-p25", "lenet-mnist-p00"])
    assert len(found) == 4 + 9 + 1
    assert found[-1].name == "lenet-mnist-p00"
    assert {e.name for e in STUDY.choose(["lenet-*-p00"])} == {
        "lenet-mnist-p00",
        "lenet-cifar10-p00",
        "lenet-tanh-mnist-p00",
        "lenet-tanh-cifar10-p00",
        "lenet-wide-cifar10-p00",
    }
    assert STUDY.choose([]) == list(STUDY.experiments)
