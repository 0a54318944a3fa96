from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keyhole.defenses import DEFENSES, Mjp
from keyhole.models import build
from keyhole_studies import load_study
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.mjp import april
from keyhole_studies.mjp.april import attack_images, build_random_networks
from keyhole_studies.mjp.experiments import PrivacyExperiment, TrainingExperiment
from keyhole_studies.mjp.tables import format_tables
from mjp_variants import VARIANTS

STUDY = load_study("mjp")
GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.9)
RESULTS = Path(__file__).parents[3] / "results" / "mjp"

Command = Callable[..., tuple[int, str, str]]


def test_every_table_has_its_experiments() -> None:
    names = [experiment.name for experiment in STUDY.experiments]
    assert len(names) == len(set(names))
    assert {f"deit-{letter}" for letter in VARIANTS} <= set(names)
    for gamma in GAMMAS:
        end = f"g{round(100 * gamma)}"
        assert {f"privacy-deit-{end}", f"privacy-vit-{end}", f"rounds-deit-{end}"} <= set(names)
    trained = {e.name: e for e in STUDY.experiments if isinstance(e, TrainingExperiment)}
    assert trained["deit-A"].settings == trained["deit-J"].settings
    assert trained["long-deit-A"].settings == trained["long-deit-J"].settings
    assert trained["deit-A"].defense == "none"


def test_variants_are_those_of_table_2() -> None:
    for letter, variant in VARIANTS.items():
        experiment = STUDY.find(f"deit-{letter}")
        assert isinstance(experiment, TrainingExperiment)
        assert experiment.variant == letter
        defense = experiment.parse_defense()
        if letter == "A":
            assert defense.name == "none"
        elif letter == "C":
            assert defense == dataclasses.replace(variant, share=0.5)
        else:
            assert defense == variant


def test_audits_say_the_gamma_of_their_defense() -> None:
    every = [e for e in STUDY.experiments if isinstance(e, PrivacyExperiment)]
    audits = [e for e in every if not e.trained]
    assert len(audits) == 2 + 5 * len(GAMMAS)
    for audit in every:
        defense = DEFENSES.parse(audit.stage.defenses[0])
        assert audit.gamma == (defense.gamma if isinstance(defense, Mjp) else 0.0)
        of = audit.trained.split("-")[2] if audit.trained else audit.network
        assert audit.name.endswith(f"{of}-g{round(100 * audit.gamma):02d}")
        assert (audit.stage.repeats > 1) == (audit.updates == "several")


def test_rows_of_the_papers_tables_stand_beside_experiments() -> None:
    names = {experiment.name for experiment in STUDY.experiments}
    for table, rows in STUDY.published.items():
        assert table.startswith("table-5") or set(rows) <= names
        assert len({len(row) for row in rows.values()}) == 1
    for what in ("table-2", "positions", "figures"):
        assert set(STUDY.labels[what]) <= names


def test_committed_results_belong_to_experiments_and_are_shown(keyhole: Command) -> None:
    names = {experiment.name for experiment in STUDY.experiments}
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
    text = "\n".join(format_tables(STUDY, tmp_path))
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
    text = "\n".join(format_tables(STUDY, tmp_path))
    assert "one update: nothing tried read an image from gamma = 0.7 on" in text
    write("privacy-deit-g90", 0.5)
    text = "\n".join(format_tables(STUDY, tmp_path))
    assert "one update: images were read at every gamma tried, up to 0.9" in text


def test_the_list_says_what_each_experiment_does(keyhole: Command) -> None:
    code, out, _ = keyhole("study", "mjp", "--list")
    assert code == 0
    assert "trains deit for 27 epochs on cifar10" in out
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
    return {name: attack_images(model, data, [0], None) for name, model in build_random_networks(0)}


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


def test_vit_s_and_deit_s_are_one_network_by_random_weights() -> None:
    one, other = (
        build(f"timm:{name}_small_patch16_224", classes=10, image_size=32, seed=0).state_dict()
        for name in ("vit", "deit")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_table_5_has_accuracies_and_vit_s_beside_deit_s() -> None:
    text = "\n".join(format_tables(STUDY, RESULTS))
    trained = json.loads((RESULTS / "deit-J.json").read_text())["evaluation"]["accuracy_by_gamma"]
    ours = text.partition("APRIL as published, cifar10")[2]
    for setting, gamma in (("a", "0.0"), ("b", "0.9")):
        (line,) = [x for x in ours.splitlines() if x.split()[:2] == [setting, "deit-J"]]
        assert line.split()[-1] == f"{100 * trained[gamma]:.1f}"
    (paper,) = [line for line in text.splitlines() if line.split()[:2] == ["b", "ViT-S"]]
    assert paper.split()[-1] == "18.7"
    known = json.loads((RESULTS / "april-deit-s.json").read_text())
    found = {
        c.what: c for c in STUDY.find("april-deit-s").compare(STUDY, known) if c.scale == "psnr"
    }
    assert found["a ViT-S"].ours == found["a DeiT-S"].ours
    assert found["a ViT-S"].paper != found["a DeiT-S"].paper


def test_audits_of_the_study_name_attacks_that_exist() -> None:
    from keyhole.attacks import ATTACKS

    for experiment in STUDY.experiments:
        if isinstance(experiment, AuditExperiment):
            assert [ATTACKS.parse(text) for text in experiment.stage.attacks]
            assert [DEFENSES.parse(text) for text in experiment.stage.defenses]
