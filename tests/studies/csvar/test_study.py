"""The experiments of the CSVAR study, and its tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole_studies import load_study, resident_data
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.csvar.experiments import AccuracyExperiment, MembershipExperiment
from keyhole_studies.csvar.networks import NETWORKS, build_network
from keyhole_studies.csvar.overfitting import measure_overfitting
from keyhole_studies.csvar.tables import format_tables
from keyhole_studies.csvar.training import FedSgdSettings, train_clients
from keyhole_studies.resident_data import ResidentData
from keyhole_studies.result_files import SHIPPED, read_results

STUDY = load_study("csvar")
DATA = ("mnist", "cifar10", "orl-faces")
TABLE_NETWORKS = ("resnet", "shufflenet", "mobilenet")
DEFENSE_NAMES = ("none", "image-noise", "csvar")
RESULTS = Path(__file__).parents[3] / "results" / "csvar"

Command = Callable[..., tuple[int, str, str]]
SHIPPED_RESULTS = read_results(SHIPPED / "csvar", [e.name for e in STUDY.experiments])


def test_every_cell_of_the_table_has_its_experiment() -> None:
    names = [experiment.name for experiment in STUDY.experiments]
    assert len(names) == len(set(names))
    trained = [e for e in STUDY.experiments if isinstance(e, AccuracyExperiment)]
    cells = [e for e in trained if e.group == "table-1"]
    assert len(trained) == len({e.name for e in trained}) > len(cells)
    found = {(c.data, c.network, c.defense): c.name for c in cells}
    assert set(found) == set(product(DATA, TABLE_NETWORKS, DEFENSE_NAMES))
    assert len(found) == 27
    assert set(STUDY.published["table-1"]) == set(found.values())
    for (data, network, defense), name in found.items():
        assert name == f"table-{data.removesuffix('-faces')}-{network}-{defense}"
    for experiment in STUDY.experiments:
        assert experiment.describe()
        for name in getattr(getattr(experiment, "stage", None), "defenses", ()):
            assert DEFENSES.parse(name)


@pytest.mark.parametrize(("data", "least", "most"), [("mnist", 7, 16), ("cifar10", 31, 39)])
def test_csvar_costs_what_the_docs_say(data: str, least: int, most: int) -> None:
    """The paper's table has .54 points on average; ours are measured on clean test images."""

    def accuracy(kind: str, defense: str) -> float:
        return 100 * SHIPPED_RESULTS[f"table-{data}-{kind}-{defense}"]["accuracy"]

    losses = [accuracy(kind, "none") - accuracy(kind, "csvar") for kind in TABLE_NETWORKS]
    assert least <= round(min(losses)) <= round(max(losses)) <= most


def test_members_are_attacked_alike_under_every_defense() -> None:
    plans = {
        e.name.removeprefix("membership-"): e.plan
        for e in STUDY.experiments
        if isinstance(e, MembershipExperiment) and e.group == "figure-7"
    }
    assert set(plans) == set(DEFENSE_NAMES)
    assert all(plan.defenses == (name,) for name, plan in plans.items())
    alike = {str(plan.model_copy(update={"defenses": ("x",)})) for plan in plans.values()}
    assert len(alike) == 1


def test_images_are_looked_at_in_one_version_and_in_five() -> None:
    stages = {e.name: e.stage for e in STUDY.experiments if isinstance(e, AuditExperiment)}
    for data in ("cifar10", "imagenet", "faces"):
        assert stages[f"see-{data}-csvar-v1"].repeats == 1
        assert stages[f"see-{data}-csvar-v5"].repeats == 5


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(("channels", "size"), [(1, (28, 28)), (3, (32, 32)), (1, (112, 92))])
def test_networks_take_the_papers_images(kind: str, channels: int, size: tuple[int, int]) -> None:
    made = build_network(kind, classes=7, channels=channels, size=size, seed=0).eval()
    with torch.no_grad():
        assert made(torch.rand(1, channels, *size)).shape == (1, 7)
    again = build_network(kind, classes=7, channels=channels, size=size, seed=0)
    one, two = next(made.parameters()), next(again.parameters())
    assert torch.equal(one, two)


def test_the_rate_rises_and_falls_over_the_rounds() -> None:
    settings = FedSgdSettings(rounds=20, batch_size=8, lr=0.1)
    rates = [settings.rate(number) for number in range(1, 21)]
    assert rates[:2] == [0.05, 0.1]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_ten_clients_train_a_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On digits in the place of MNIST, and for two rounds only."""
    every = load("digits", image_size=16)
    digits = dataclasses.replace(every, labels=every.labels[:200])

    def few(name: str, **_: Any) -> Any:
        assert name == "mnist"
        return digits

    monkeypatch.setattr(resident_data, "load", few)
    resident_data.load_resident_data.cache_clear()
    model, facts = train_clients(
        "mnist",
        "shufflenet",
        DEFENSES.parse("csvar"),
        FedSgdSettings(rounds=2, batch_size=10, lr=0.001, at=(1,)),
        seed=0,
        device=torch.device("cpu"),
        data_dir=None,
    )
    resident_data.load_resident_data.cache_clear()
    assert facts["clients"] == 10
    assert facts["train_images"] == len(digits)
    tested = range(facts["test_images"])
    images, labels = digits.normalise(digits.images(tested)), digits.labels[tested]
    with torch.no_grad():
        right = (model.eval()(images).argmax(1) == labels).double().mean()
    assert facts["accuracy"] == pytest.approx(float(right))
    assert [found["round"] for found in facts["overfitting"]] == [1, 2]
    last = facts["overfitting"][-1]
    assert last["members"] == last["others"] == facts["test_images"]
    assert last["others_accuracy"] == facts["accuracy"]
    assert last["gap"] == last["members_accuracy"] - last["others_accuracy"]
    assert (facts["test_images"] * facts["accuracy_on_defended"]) % 1 == pytest.approx(0, abs=1e-6)
    assert not any(p.isnan().any() for p in model.parameters())


def test_a_network_that_knows_its_members_by_heart_gives_them_away() -> None:
    class ByHeart(nn.Module):
        """Sure of an image's class where its first pixel says that it is a member."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known, label = x[:, 0, 0, 0] > 0.5, (10 * x[:, 0, 0, 1]).round().long()
            return 9.0 * known[:, None] * nn.functional.one_hot(label, 10) + self.weight

    labels = torch.arange(40) % 10
    images = torch.zeros(40, 1, 2, 2)
    images[:30, 0, 0, 0], images[:, 0, 0, 1] = 1.0, labels / 10
    data = dataclasses.replace(
        load("digits"), pixels=lambda i: 255 * images[list(i)], labels=labels
    )
    data = dataclasses.replace(data, mean=(0.0,), std=(1.0,), size=(2, 2))
    model = ByHeart()
    found = measure_overfitting(model, ResidentData(data, range(20), data, range(20, 40)))
    assert (found["members"], found["others"], found["members_accuracy"]) == (20, 20, 1.0)
    assert found["others_accuracy"] == pytest.approx(0.5 + 1 / 20)  # class 0 is the first guess
    assert found["auc"] == pytest.approx(0.75)  # half of the others are known, too
    assert model.training


def test_ours_stand_before_the_papers(tmp_path: Path) -> None:
    cell = {"piece": "table-mnist-resnet-csvar", "accuracy": 0.5, "accuracy_on_defended": 0.25}
    cell |= {"test_images": 10_000}
    (tmp_path / "table-mnist-resnet-csvar.json").write_text(json.dumps(cell))
    text = "\n".join(format_tables(STUDY, tmp_path))
    assert "50.0 / 25.0 (97.39)" in text
    assert "MNIST, CSVAR, n = 10,000" in text
    assert "- (95.67)" in text
    assert "CIFAR-10" not in text


def test_what_costs_accuracy_is_told_part_by_part(tmp_path: Path) -> None:
    cell = {"defense": "csvar(block=4)", "accuracy": 0.5, "accuracy_on_defended": 0.25}
    (tmp_path / "why-coarse.json").write_text(json.dumps({"piece": "why-coarse", **cell}))
    (line,) = [line for line in format_tables(STUDY, tmp_path) if "csvar(block=4)" in line]
    assert line.split()[-2:] == ["50.0", "25.0"]


def test_committed_results_belong_to_experiments_and_are_shown(keyhole: Command) -> None:
    names = {experiment.name for experiment in STUDY.experiments}
    files = sorted(RESULTS.glob("*.json"))
    assert files
    for path in files:
        assert path.stem in names
        assert json.loads(path.read_text())["piece"] == path.stem
    code, out, err = keyhole("study", "csvar", "--show", "--results", str(RESULTS))
    assert (code, err) == (0, "")
    for words in ("Figure 1", "Figure 7", "What is seen of the images"):
        assert words in out
