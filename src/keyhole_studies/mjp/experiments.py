"""The experiments of the study: networks that are trained, and audits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from keyhole.atomic import write_tensors
from keyhole.defenses import DEFENSES, Defense, Mjp
from keyhole.device import find_device
from keyhole.errors import BadValue
from keyhole.models import Jigsaw, load_weights
from keyhole.seeds import generator
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import count_gap, settings_gap
from keyhole_studies.mjp.evaluation import evaluate_network, evaluate_positions, evaluate_robustness
from keyhole_studies.mjp.networks import build_network
from keyhole_studies.resident_data import ResidentData, load_resident_data, measure_accuracy
from keyhole_studies.training import Penalty, TrainingSettings, train_network

CURVE_EPOCHS = 5
"""Accuracy is taken every so many epochs, and after the last."""


@dataclass(frozen=True)
class TrainingExperiment(Experiment):
    """One network trained on CIFAR-10 under one variant of MJP, and all that is measured of it.

    Args:
        network: A name of :data:`~keyhole_studies.mjp.networks.NETWORKS`.
        variant: The variant's letter in Table 2, or ``plain`` or ``jp`` (a jigsaw puzzle only).
        settings: How the network is trained.
        defense: The variant as a defense; ``none``: the plain network.
        corrupted: Test images on which robustness is measured; 0: it is not.
        data: The data set.
        seed: In place of the study's.
        puzzles_from: Puzzles begin after so many epochs, as in the authors' code.
        wide_positions: Position embeddings start from N(0, 1), as in the authors' code.
    """

    network: str
    variant: str
    settings: TrainingSettings
    defense: str = "none"
    corrupted: int = 0
    data: str = "cifar10"
    seed: int | None = None
    puzzles_from: int = 0
    wide_positions: bool = False

    def choose_seed(self, study: Study) -> int:
        return study.seed if self.seed is None else self.seed

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device, seed = find_device(context.device), self.choose_seed(study)
        model, training = self.train(study, context)
        data = load_resident_data(self.data, context.data_dir, seed, device)
        robustness = None
        if self.corrupted:
            robustness = evaluate_robustness(model, data.test, self.corrupted, context.data_dir)
        return {
            "piece": self.name,
            "network": self.network,
            "variant": self.variant,
            "defense": "none" if self.defense == "none" else str(self.parse_defense()),
            "seed": seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "training": training,
            "evaluation": evaluate_network(model, data.test, seed=seed),
            "positions": evaluate_positions(model, seed=seed) if self.has_positions() else None,
            "robustness": robustness,
            "data": self.data,
            "test_images": len(data.test_indices),
            "puzzles_from": self.puzzles_from,
            "wide_positions": self.wide_positions,
            "device": name_device(device),
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training, or robustness on fewer images than asked for."""
        gap = settings_gap(known["training"]["recipe"], asdict(self.settings), "training")
        defense = "none" if self.defense == "none" else str(self.parse_defense())
        gap = gap or settings_gap({"defense": known["defense"]}, {"defense": defense})
        robustness = known.get("robustness") or {"images": 0}
        return gap or count_gap(robustness["images"], self.corrupted, "corrupted images")

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """Top-1 accuracy and consistency."""
        tables = (study.published[name] for name in ("table-1", "table-2", "table-3"))
        rows = [(row[0], row[-1]) for table in tables if (row := table.get(self.name))]
        if self.paper:
            rows.append((self.paper["accuracy"], self.paper["consistency"]))
        for accuracy, consistency in rows[:1]:
            found = known["evaluation"]
            yield Comparison("top-1", "points", 100 * found["accuracy"], accuracy)
            yield Comparison("consistency", "points", 100 * found["consistency"], consistency)

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{known.get('test_images', 10_000):,} test images"

    def tell(self, known: dict[str, Any]) -> str:
        found = known["evaluation"]
        steady = f"consistency {100 * found['consistency']:.1f} %"
        return f"top-1 {100 * found['accuracy']:.1f} %, {steady}"

    def train(self, study: Study, context: StudyContext) -> tuple[nn.Module, dict[str, Any]]:
        """Trains the network and writes its weights; returns it, and how the training went."""
        device, seed = find_device(context.device), self.choose_seed(study)
        data = load_resident_data(self.data, context.data_dir, seed, device)
        context.progress.show(f"{self.name}: {self.settings.epochs} epochs on {self.data}")
        model = self.build_model(seed).to(device)
        training = train_on_curve(
            model,
            data,
            self.settings,
            self.parse_defense(),
            seed=seed,
            puzzles_from=self.puzzles_from,
        )
        state = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_tensors(self.weights_file(context.runs), state)
        return model, training

    def parse_defense(self) -> Defense:
        return DEFENSES.parse(self.defense)

    def build_model(self, seed: int) -> nn.Module:
        """The untrained network, prepared for the variant."""
        network = build_network(self.network, seed)
        if self.wide_positions:
            with torch.no_grad():
                draw = generator(seed, "wide positions")
                network.get_parameter("pos_embed").normal_(generator=draw)
        return self.parse_defense().prepare_model(network)

    def load_trained(self, seed: int, runs: Path) -> nn.Module:
        """The network as an earlier run left it."""
        path = self.weights_file(runs)
        if not path.is_file():
            raise BadValue(f"{path} does not exist: run the experiment {self.name} first")
        model = self.build_model(seed)
        load_weights(model, path)
        return model

    def weights_file(self, runs: Path) -> Path:
        return runs / self.name / "weights.safetensors"

    def has_positions(self) -> bool:
        """Whether the network has position embeddings: ViTs have, unless the variant drops them."""
        defense = self.parse_defense()
        dropped = isinstance(defense, Mjp) and defense.positions == "none"
        return self.network.startswith("deit") and not dropped

    def describe(self) -> dict[str, Any]:
        trained = f"{self.settings.epochs} epochs on {self.data}"
        under = "" if self.defense == "none" else f" under {self.parse_defense()}"
        return {"does": f"trains {self.network} for {trained}{under}"}


@dataclass(frozen=True)
class PrivacyExperiment(AuditExperiment):
    """An audit of MJP.

    Args:
        gamma: The share of patches that the defense covers; 0: there is no defense.
        network: ``deit`` (DeiT-S at 224 px) or ``vit`` (vit-small at 32 px).
        updates: Whether the attacker sees one update of an image or several.
        trained: The experiment whose network clients have; empty: random weights. What a puzzle
            adds to a network starts anew.
    """

    gamma: float
    network: Literal["deit", "vit", "trained"]
    updates: Literal["one", "several"]
    trained: str = ""

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        if not self.trained:
            return super().measure(study, context)
        experiment = study.find(self.trained)
        assert isinstance(experiment, TrainingExperiment)
        state = experiment.load_trained(experiment.choose_seed(study), context.runs).state_dict()
        plain = build_network(experiment.network, 0).state_dict()
        path = context.runs / f"{self.trained}-plain.safetensors"
        write_tensors(path, {name: state[name].contiguous() for name in plain})
        stage = {"weights": path, "checkpoint_epoch": experiment.settings.epochs}
        audit = replace(self, trained="", stage=self.stage.model_copy(update=stage))
        return {**audit.measure(study, context), "trained": self.trained}


def train_on_curve(
    model: nn.Module,
    data: ResidentData,
    settings: TrainingSettings,
    defense: Defense,
    *,
    seed: int,
    puzzles_from: int = 0,
) -> dict[str, Any]:
    """Trains ``model`` itself; returns accuracy by epoch and how fast images were trained on."""
    curve: list[tuple[int, float, float]] = []
    puzzle = model.puzzle if isinstance(model, Jigsaw) else None
    rules = None if puzzle is None else puzzle.rules
    if puzzles_from and puzzle is not None:
        puzzle.rules = replace(puzzle.rules, share=0.0)

    def add_point(epoch: int, loss: float) -> None:
        if epoch == puzzles_from and puzzle is not None and rules is not None:
            puzzle.rules = rules
        if epoch % CURVE_EPOCHS == 0 or epoch == settings.epochs:
            curve.append((epoch, measure_accuracy(model, data.test, data.test_indices), loss))

    began = time.perf_counter()
    train_network(
        model,
        data.data,
        data.train_indices,
        settings,
        seed=seed,
        penalty=make_penalty(model, defense),
        after_epoch=add_point,
    )
    seconds = time.perf_counter() - began
    return {
        "recipe": asdict(settings),
        "curve": curve,
        "seconds": round(seconds, 1),
        "images_per_second": round(settings.epochs * len(data.train_indices) / seconds),
    }


def make_penalty(model: nn.Module, defense: Defense) -> Penalty | None:
    """The loss by which a model that MJP prepared learns to tell positions; None: it does not.

    Args:
        model: The model in training.
        defense: The defense that prepared it.
    """
    if not isinstance(model, Jigsaw) or model.puzzle.localiser == "none":
        return None
    assert isinstance(defense, Mjp)
    weight = defense.dal_weight
    return lambda: weight * model.localisation_loss()
