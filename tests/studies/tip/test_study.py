"""The TIP study as a whole: its pieces, its tables, and privacy beside accuracy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from keyhole.attacks import ATTACKS
from keyhole.audit.progress import Silent
from keyhole.defenses import DEFENSES
from keyhole.studies import STUDIES
from keyhole.studies.base import AuditPiece, Setting
from keyhole.studies.tip import paper
from keyhole.studies.tip.averaging import Recipe
from keyhole.studies.tip.curves import CurvePiece
from keyhole.studies.tip.front import FAMILIES, LABELS, UtilityPiece, draw, points
from keyhole.studies.tip.inversion import PRIVATE, VICTIMS
from keyhole.studies.tip.tables import tables

STUDY = STUDIES["tip"]
RESULTS = Path(__file__).parents[3] / "results" / "tip"

Command = Callable[..., tuple[int, str, str]]


def test_every_cell_of_table_1_has_its_piece() -> None:
    names = [piece.name for piece in STUDY.pieces]
    assert len(names) == len(set(names))
    for data in paper.DATA:
        for defense in paper.DEFENSES:
            (piece,) = STUDY.chosen([f"invert-{data}-{defense}"])
            assert isinstance(piece, AuditPiece)
            assert piece.stage.victims == VICTIMS >= 32
            named = {ATTACKS.parse(attack).name for attack in piece.stage.attacks}
            assert set(piece.paper) == named == set(paper.ATTACKS)
    for piece in STUDY.pieces:
        assert piece.about()
        for name in getattr(getattr(piece, "stage", None), "defenses", ()):
            assert DEFENSES.parse(name)
        for name in getattr(getattr(piece, "stage", None), "attacks", ()):
            assert ATTACKS.parse(name)


def test_the_papers_order_is_as_its_table_says() -> None:
    for data in paper.DATA:
        for attack in paper.ATTACKS:
            none, *defended = (
                paper.table_1(data, defense)[attack]["psnr"] for defense in paper.DEFENSES
            )
            assert none > max(defended) + 3


def row(psnr: float, attacker: str) -> dict[str, Any]:
    metrics = {"psnr": {"mean": psnr}, "ssim": {"mean": psnr / 40}}
    return {"attacker": attacker, "metrics": metrics}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two settings inverted, one of them trained as well."""
    for short, naive, adaptive in (("none", 26.0, None), ("tip", 10.0, 25.5)):
        rows = {"ig": row(naive, "naive")}
        if adaptive is not None:
            rows["ig (adaptive)"] = row(adaptive, "adaptive")
            rows["gifd"] = row(30.0, "naive")
        found = {"piece": f"invert-cifar10-{short}", "images": 32, "rows": rows}
        (tmp_path / f"invert-cifar10-{short}.json").write_text(json.dumps(found))
    trained = {"piece": "utility-cifar10-tip", "accuracy": 0.6}
    (tmp_path / "utility-cifar10-tip.json").write_text(json.dumps(trained))
    return tmp_path


def test_the_tables_show_who_knows_beside_who_does_not(results: Path) -> None:
    lines = list(tables(STUDY, results))
    naive = next(line for line in lines if line.strip().startswith("ig (naive), PSNR"))
    assert naive.split()[3:5] == ["26.0", "(14.58)"]
    assert naive.split()[-2:] == ["10.0", "(9.85)"]
    adaptive = next(line for line in lines if line.strip().startswith("ig (adaptive), PSNR"))
    assert adaptive.split()[3:] == ["-", "-", "-", "25.5"]


def test_a_setting_is_worth_what_the_better_of_igs_attackers_leaves(
    results: Path, tmp_path: Path
) -> None:
    """GIFD, which did not meet every setting, does not count."""
    (point,) = points(results)
    assert (point.short, point.psnr, point.accuracy) == ("tip", 25.5, 0.6)
    (picture,) = draw(results, tmp_path / "out")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw(tmp_path, tmp_path / "out") == []


def test_a_setting_is_trained(tmp_path: Path) -> None:
    small = Recipe(
        "small", rounds=2, lr=0.05, clients=3, sampled=2, epochs=1, model="lenet", every=2
    )
    piece = UtilityPiece("utility-digits-tip", "tip(epsilon=1.0)", small, "digits")
    found = piece.measure(STUDY, Setting(tmp_path, None, "cpu", Silent()))
    assert 0 <= found["accuracy"] <= 1
    assert found["recipe"]["rounds"] == 2


def test_committed_results_belong_to_pieces(keyhole: Command) -> None:
    names = {piece.name for piece in STUDY.pieces}
    files = sorted(RESULTS.glob("*.json"))
    for path in files:
        assert path.stem in names
        assert json.loads(path.read_text())["piece"] == path.stem
    if files:
        code, out, _ = keyhole("study", "tip", "--show", "--results", str(RESULTS))
        assert code == 0
        assert "Table" in out


def test_accuracy_by_another_recipe_does_not_count(tmp_path: Path) -> None:
    (piece,) = STUDY.chosen(["utility-small-cifar10-none"])
    setting = Setting(tmp_path, None, "cpu", Silent())
    known = json.loads((RESULTS / f"{piece.name}.json").read_text(encoding="utf-8"))
    assert piece.covers(known, setting)
    assert not piece.covers({**known, "recipe": {**known["recipe"], "lr": 0.05}}, setting)


def test_every_setting_has_a_name_beside_its_mark() -> None:
    known = {piece.name.removeprefix("utility-cifar10-") for piece in STUDY.chosen(["utility-c*"])}
    assert known | set(PRIVATE) == set(LABELS)
    assert {name.partition("-")[0] for name in LABELS} == set(FAMILIES)


def test_curves_are_compared_at_the_last_round_they_share(tmp_path: Path) -> None:
    for short, rounds in (("none", (5, 10, 15)), ("dp", (5, 10))):
        (piece,) = STUDY.chosen([f"curve-cifar10-iid-{short}-practical"])
        assert isinstance(piece, CurvePiece)
        found = [{"round": number, "accuracy": number / 100} for number in rounds]
        result = piece.result(found, 0, torch.device("cpu"))
        (tmp_path / f"{piece.name}.json").write_text(json.dumps(result))
    text = "\n".join(tables(STUDY, tmp_path))
    assert text.count("10.0") == 2
    assert "15.0" not in text


def test_what_was_measured_is_what_the_pieces_ask_for() -> None:
    """The same attacks on the same defense; at most as many images and iterations."""
    known = {piece.name: piece for piece in STUDY.pieces}
    for file in sorted(RESULTS.glob("*.json")):
        found, piece = json.loads(file.read_text(encoding="utf-8")), known[file.stem]
        if not isinstance(piece, AuditPiece):
            assert found.get("defense", "") == getattr(piece, "defense", ""), file.stem
            continue
        asked = {attack.name: attack for attack in map(ATTACKS.parse, piece.stage.attacks)}
        assert {name.partition(" (")[0] for name in found["rows"]} == set(asked), file.stem
        assert 0 < found["images"] <= piece.stage.victims
        for name, row in found["rows"].items():
            most = asked[name.partition(" (")[0]].iterations  # type: ignore[attr-defined]
            assert 0 < row["parameters"]["iterations"] <= most, file.stem
