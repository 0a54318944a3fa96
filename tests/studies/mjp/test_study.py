from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keyhole.defenses.mjp import VARIANTS
from keyhole.studies import STUDIES
from keyhole.studies.base import AuditPiece
from keyhole.studies.mjp import april
from keyhole.studies.mjp.april import attacked, by_chance
from keyhole.studies.mjp.pieces import GAMMAS, TrainedPiece
from keyhole.studies.mjp.tables import tables

STUDY = STUDIES["mjp"]
RESULTS = Path(__file__).parents[3] / "results" / "mjp"

Command = Callable[..., tuple[int, str, str]]


def test_every_table_has_its_pieces() -> None:
    names = [piece.name for piece in STUDY.pieces]
    assert len(names) == len(set(names))
    assert {f"deit-{letter}" for letter in VARIANTS} <= set(names)
    for gamma in GAMMAS:
        end = f"g{round(100 * gamma)}"
        assert {f"privacy-deit-{end}", f"privacy-vit-{end}", f"rounds-deit-{end}"} <= set(names)
    trained = {p.name: p for p in STUDY.pieces if isinstance(p, TrainedPiece)}
    assert trained["deit-A"].recipe == trained["deit-J"].recipe
    assert trained["long-deit-A"].recipe == trained["long-deit-J"].recipe
    assert trained["deit-A"].defense is None


def test_committed_results_belong_to_pieces_and_are_shown(keyhole: Command) -> None:
    names = {piece.name for piece in STUDY.pieces}
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for path in files:
        assert path.stem in names
        assert json.loads(path.read_text())["piece"] == path.stem
    code, out, err = keyhole("study", "mjp", "--show", "--results", str(RESULTS))
    assert (code, err) == (0, "")
    for words in ("Table 1", "Table 2", "Table 3", "Table 5", "Table 7", "Table 8", "Figure 2"):
        assert words in out
    assert "nothing tried read an image from gamma" in out


def test_ours_stand_before_the_papers(tmp_path: Path) -> None:
    value = {"accuracy": 0.5, "difference_norm": 2.0, "consistency": 0.75}
    curve = {"accuracy_by_gamma": {str(g): 0.5 for g in (0.0, *GAMMAS)}}
    result = {"piece": "deit-J", "evaluation": {**value, **curve}, "positions": None}
    (tmp_path / "deit-J.json").write_text(json.dumps(result))
    text = "\n".join(tables(STUDY, tmp_path))
    assert "50.0 (80.5)" in text
    assert "75.0 (82.9)" in text
    assert "Table 1" not in text


def test_the_verdict_names_the_gamma_from_which_nothing_reads(tmp_path: Path) -> None:
    def write(name: str, read: float) -> None:
        metrics = {m: {"mean": 0.5} for m in ("ssim", "psnr", "lpips", "reid")}
        row = {
            "metrics": {**metrics, "read": {"mean": read}},
            "attacker": "adaptive",
            "iterations": None,
        }
        value = {"piece": name, "rows": {"mjp-span": row}, "images": 2, "stage": {"repeats": 1}}
        (tmp_path / f"{name}.json").write_text(json.dumps(value))

    for gamma, read in ((10, 1.0), (30, 0.0), (50, 0.1), (70, 0.0), (90, 0.0)):
        write(f"privacy-deit-g{gamma}", read)
    text = "\n".join(tables(STUDY, tmp_path))
    assert "one update: nothing tried read an image from gamma = 0.7 on" in text
    write("privacy-deit-g90", 0.5)
    text = "\n".join(tables(STUDY, tmp_path))
    assert "one update: images were read at every gamma tried, up to 0.9" in text


def test_the_list_says_what_each_piece_does(keyhole: Command) -> None:
    code, out, _ = keyhole("study", "mjp", "--list")
    assert code == 0
    assert "trains deit for 27 epochs on CIFAR-10" in out
    assert "mjp-span" in out


def test_a_study_without_figures_says_so(keyhole: Command, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mlp-mnist-p00.json").write_text('{"rows": {}, "images": 1, "device": ""}')
    code, _, err = keyhole("study", "dia", "--show", "--results", "r", "--figures", "f")
    assert code == 2
    assert "no figures" in err


def test_figures_are_drawn_from_the_results(keyhole: Command, tmp_path: Path) -> None:
    options = ("--show", "--results", str(RESULTS), "--figures", str(tmp_path / "f"))
    code, _, err = keyhole("study", "mjp", *options)
    assert code == 0
    drawn = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert drawn == ["figure-2.png", "figure-3.png", "figure-6.png", "figure-7.png"]
    assert err.count("drawn: ") == 4


def test_trained_networks_are_asked_for_before_they_are_attacked(
    keyhole: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    code, _, err = keyhole("study", "mjp", "april-cifar10", "--data-dir", str(tmp_path / "data"))
    assert code == 2
    assert err.count("\n") == 1


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Table 5 of one photo by a small ViT that stands for DeiT-S."""
    from timm.models.vision_transformer import VisionTransformer

    from keyhole.data import load

    def small(*args: Any, seed: int = 0, **options: Any) -> torch.nn.Module:
        torch.manual_seed(seed)
        return VisionTransformer(
            img_size=32, patch_size=8, embed_dim=192, depth=2, num_heads=2, num_classes=10
        )

    monkeypatch.setattr(april, "build", small)
    monkeypatch.setattr(april, "lpips", lambda seen, *args, **options: torch.zeros(1))
    data = load("photos", image_size=32)
    return {name: attacked(model, data, [0], None) for name, model in by_chance(0)}


def test_table_5_compares_as_the_paper_does(scores: Any) -> None:
    assert list(scores) == ["DeiT-S", "DeiT-S, PE N(0,1)", "w/o PE", "MJP", "MJP, PE N(0,1)"]
    plain, mjp = scores["DeiT-S"], scores["MJP"]
    assert plain["a"] == mjp["a"]  # by random weights, a plain image meets the same network
    assert plain["a"]["psnr"] > 20
    assert plain["b"] == plain["c"]  # nothing is unknown to DeiT
    assert mjp["b"] != mjp["c"]
    assert mjp["c"]["psnr"] == pytest.approx(plain["c"]["psnr"], abs=0.5)
    assert mjp["b"]["mse"] > mjp["c"]["mse"]
    assert np.isfinite(
        [v for each in scores.values() for s in each.values() for v in s.values()]
    ).all()


def test_audits_of_the_study_name_attacks_that_exist() -> None:
    from keyhole.attacks import ATTACKS
    from keyhole.defenses import DEFENSES

    for piece in STUDY.pieces:
        if isinstance(piece, AuditPiece):
            assert [ATTACKS.parse(text) for text in piece.stage.attacks]
            assert [DEFENSES.parse(text) for text in piece.stage.defenses]
