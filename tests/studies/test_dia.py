from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from keyhole.audit import run_plan
from keyhole.studies import STUDIES, base
from keyhole.studies.show import lines, rows

STUDY = STUDIES["dia"]
PIECES = ("mlp-mnist-p00", "mlp-mnist-p25")

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

    monkeypatch.setattr(base, "run_plan", spy)
    return titles


def tiny(folder: Path) -> tuple[str, ...]:
    return ("--victims", "2", "--iterations", "3", "--data-dir", str(folder))


def test_every_cell_of_the_paper_is_a_piece_of_its_own() -> None:
    names = [piece.name for piece in STUDY.pieces]
    assert len(names) == len(set(names)) == 69
    assert all(p.stage.victims * p.stage.batch_size == 128 for p in STUDY.pieces[:-1])
    for piece in STUDY.pieces:
        attacks = {text.partition("(")[0] for text in piece.stage.attacks}
        assert set(piece.paper) <= attacks


def test_the_list_marks_what_is_done(keyhole: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, images in ((PIECES[1], 128), (PIECES[0], 4)):
        result = {"images": images, "rows": {}}
        (tmp_path / "mine" / f"{name}.json").write_text(json.dumps(result))
    code, out, err = keyhole("study", "dia", "--list", "--results", "mine", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert listed["study"] == "dia"
    assert len(listed["pieces"]) == 69
    assert [p["piece"] for p in listed["pieces"] if p["done"]] == [PIECES[1]]
    code, out, _ = keyhole("study", "dia", "--list", "--results", "mine")
    assert code == 0
    marked = [line.split()[:2] for line in out.splitlines() if line.split()[0] in ("done", "part")]
    assert sorted(marked) == [["done", PIECES[1]], ["part", PIECES[0]]]
    code, few, _ = keyhole(
        "study", "dia", PIECES[0], "--victims", "4", "--list", "--results", "mine"
    )
    assert [line.split()[:2] for line in few.splitlines()[1:]] == [["done", PIECES[0]]]
    named = {word for line in out.splitlines() for word in line.split()}
    assert {piece.name for piece in STUDY.pieces} <= named


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dia", "--show", "--results", "mine"], "holds no results of study 'dia'"),
        (["dia", "--show", "--results", "mine"], "run `keyhole study dia`"),
        (["dai", "--list"], "did you mean dia"),
        (["dia", "mlp-mnst-p25"], "did you mean mlp-mnist-p25"),
        (["dia", "vgg*"], "unknown piece of study dia 'vgg*'"),
        (["dia", PIECES[0]], "--data-dir or KEYHOLE_DATA"),
        (["dia", PIECES[0], "--iterations", "0"], "iterations: "),
        (["dia", PIECES[0], "--parity", "mine"], "parity: "),
        (["dia", PIECES[0], "--victims-at-once", "0"], "victims-at-once: "),
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
    (tmp_path / "mine" / f"{PIECES[0]}.json").write_text('{"rows": ')
    code, _, err = keyhole("study", "dia", "--show", "--results", "mine")
    assert code == 2
    assert f"{PIECES[0]}.json cannot be read" in err


def test_pieces_are_run_once_and_shown_beside_the_paper(
    keyhole: Command, tmp_path: Path, small_victims: Path, ran: list[str]
) -> None:
    code, out, err = keyhole("study", "dia", *PIECES, *tiny(small_victims))
    assert code == 0
    assert [title.rpartition(" ")[2] for title in ran] == list(PIECES)
    assert err.splitlines() == [f"done: {name}" for name in PIECES]
    folder = tmp_path / "results" / "dia"
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{name}.json" for name in PIECES)

    result = json.loads((folder / f"{PIECES[1]}.json").read_text())
    assert set(result["rows"]) == {"linear", "ig", "wiig", "dia", "dia-read"}
    assert result["images"] == 2
    for name, row in result["rows"].items():
        for metric in ("ssim", "psnr", "read"):
            assert len(row["metrics"][metric]["per_image"]) == 2
        assert ("mmd" in row["metrics"]) == name.startswith("dia")
    assert result["rows"]["ig"]["parameters"]["iterations"] == 3
    assert result["rows"]["dia-read"]["parameters"]["masks"] == "read"

    again = keyhole("study", "dia", *PIECES, *tiny(small_victims))
    assert (again[0], again[1], again[2]) == (0, out, "")
    assert len(ran) == 2

    shown = json.loads(keyhole("study", "dia", "--show", "--json")[1])["rows"]
    assert shown == rows(STUDY, folder)
    cells = {(row["piece"], row["attack"]): row for row in shown}
    assert {piece for piece, _ in cells} == set(PIECES)
    ig = cells[PIECES[1], "ig"]
    assert ig["paper"] == {"ssim": 0.79}
    assert ig["ours"]["ssim"] == result["rows"]["ig"]["metrics"]["ssim"]["mean"]
    assert cells[PIECES[1], "linear"]["paper"] == {}
    assert cells[PIECES[0], "ig"]["paper"] == {"ssim": 1.0}
    (line,) = [text for text in lines(STUDY, folder) if text.split()[:2] == [PIECES[1], "linear"]]
    assert line in out.splitlines()


def test_no_piece_is_begun_when_the_time_is_over(
    keyhole: Command, small_victims: Path, ran: list[str]
) -> None:
    code, _, err = keyhole("study", "dia", *PIECES, *tiny(small_victims), "--within", "0")
    assert code == 2
    assert "holds no results" in err
    assert not ran


def test_an_attack_that_was_not_run_still_shows_what_the_paper_reports(tmp_path: Path) -> None:
    (piece,) = STUDY.chosen([PIECES[1]])
    row = {"metrics": {"ssim": {"mean": 0.5}}, "iterations": 3, "seconds": 1.0}
    value = {"rows": {"ig": row}, "images": 2, "device": "cpu"}
    base.write_result(tmp_path / "new", piece, value)
    found = {r["attack"]: r for r in rows(STUDY, tmp_path / "new")}
    assert found["ig"]["ours"] == {"ssim": 0.5}
    assert found["wiig"]["ours"] == {}
    assert found["wiig"]["paper"] == {"ssim": 1.0}
    assert not list((tmp_path / "new").glob("*.half"))


def test_a_star_stands_for_all_that_begin_so_and_no_piece_is_chosen_twice() -> None:
    found = STUDY.chosen(["mlp-mnist-*", "mlp-mnist-p25", "lenet-mnist-p00"])
    assert len(found) == 4 + 9 + 1
    assert found[-1].name == "lenet-mnist-p00"
    assert {piece.name for piece in STUDY.chosen(["lenet-*-p00"])} == {
        "lenet-mnist-p00",
        "lenet-cifar10-p00",
    }
    assert STUDY.chosen([]) == list(STUDY.pieces)
