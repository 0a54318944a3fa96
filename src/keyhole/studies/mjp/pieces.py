"""What is run for the study: networks trained, the analytic attack of Table 5, and audits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from keyhole.atomic import write_tensors
from keyhole.audit import Stage, find_device
from keyhole.data import load
from keyhole.defenses.mjp import VARIANTS, Mjp
from keyhole.studies.base import AuditPiece, Piece, Setting, Study
from keyhole.studies.mjp.april import AprilPiece
from keyhole.studies.mjp.evaluation import evaluate, positions, robustness
from keyhole.studies.mjp.networks import PATCH, network
from keyhole.studies.mjp.training import Pictures, Recipe, train

GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.9)
SHORT = Recipe(epochs=27)
LONG = Recipe(epochs=50, batch_size=256)
ROUNDS = {0.1: 4, 0.3: 8, 0.5: 12, 0.7: 24, 0.9: 48}
"""Updates of one client that are combined: with about this many no patch is covered in all."""


@dataclass(frozen=True)
class TrainedPiece(Piece):
    """One network trained on CIFAR-10 under one variant, and all that is measured of it."""

    network: str
    letter: str
    defense: Mjp | None
    recipe: Recipe
    corrupted: int = 0
    """Test images on which robustness is measured."""

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        device = find_device(setting.device)
        options: dict[str, Any] = {"data_dir": setting.data_dir}
        pictures = Pictures.of(load("cifar10", **options), device)
        test = Pictures.of(load("cifar10", split="test", **options), device)
        setting.progress.show(f"{self.name}: {self.recipe.epochs} epochs on CIFAR-10")
        model = self.model(study.seed)
        training = train(model, pictures, test, self.recipe, seed=study.seed)
        write_tensors(setting.runs / self.name / "weights.safetensors", held(model))
        tried = None
        if self.corrupted:
            tried = robustness(model, test, self.corrupted, setting.data_dir)
        has_positions = self.network == "deit" and self.letter != "B"
        return {
            "piece": self.name,
            "network": self.network,
            "variant": self.letter,
            "defense": "none" if self.defense is None else str(self.defense),
            "seed": study.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            "training": training,
            "evaluation": evaluate(model, test, seed=study.seed),
            "positions": positions(model, seed=study.seed) if has_positions else None,
            "robustness": tried,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        }

    def model(self, seed: int) -> nn.Module:
        plain = network(self.network, seed)
        return plain if self.defense is None else self.defense.prepared(plain)

    def about(self) -> dict[str, Any]:
        trained = f"{self.recipe.epochs} epochs on CIFAR-10"
        under = "" if self.defense is None else f" under {self.defense}"
        return {"does": f"trains {self.network} for {trained}{under}"}


def held(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def trained() -> Iterator[TrainedPiece]:
    """Tables 1, 2, 3, 7 and 8; Figures 2, 3, 6 and 7."""
    for letter, variant in VARIANTS.items():
        defense = None if letter == "A" else variant
        if letter == "C":  # a network that sees nothing but shuffled pixels never learns images
            defense = dataclasses.replace(variant, share=0.5)
        yield TrainedPiece(f"deit-{letter}", "deit", letter, defense, SHORT, figure="T2")
    for gamma in GAMMAS[1:]:
        name = f"deit-J-g{round(100 * gamma)}"
        yield TrainedPiece(name, "deit", "J", Mjp(gamma=gamma), SHORT, figure="T3")
    for letter in "AJ":
        defense = None if letter == "A" else Mjp()
        name = f"long-deit-{letter}"
        yield TrainedPiece(name, "deit", letter, defense, LONG, 2000, figure="T1")
    image = Mjp(level="image", patch=PATCH, positions="own", dal="none")
    for kind in ("resnet", "swin"):
        yield TrainedPiece(f"{kind}-plain", kind, "plain", None, SHORT, figure="T1")
        yield TrainedPiece(f"{kind}-jp", kind, "jp", image, SHORT, figure="T1")


def audits() -> Iterator[AuditPiece]:
    """Every attacker against every gamma, at 224 px and at 32 px."""
    deit = {"model": "timm:deit_small_patch16_224", "data": "imagenet-sample"}
    small = {"model": "vit-small", "data": "dia-cifar10"}
    yield audit("privacy-deit-g00", "none", ("patch-lstsq", "april"), 8, **deit)
    yield audit("privacy-vit-g00", "none", ("patch-lstsq", "ig(iterations=2000)"), 16, **small)
    for gamma in GAMMAS:
        end, mjp = f"g{round(100 * gamma)}", f"mjp(gamma={gamma})"
        yield audit(f"privacy-deit-{end}", mjp, ("patch-lstsq", "april", "mjp-span"), 8, **deit)
        attacks = (
            "patch-lstsq",
            "april",
            "ig(iterations=2000)",
            "mjp-span",
            "mjp-ig(iterations=2000)",
        )
        yield audit(f"privacy-vit-{end}", mjp, attacks, 16, **small)
        yield audit(f"match-deit-{end}", mjp, ("mjp-ig(iterations=500)",), 2, **deit)
        rounds = {"repeats": ROUNDS[gamma]}
        yield audit(f"rounds-deit-{end}", mjp, ("mjp-span",), 2, **deit, **rounds)
        yield audit(f"rounds-vit-{end}", mjp, ("mjp-span",), 16, **small, **rounds)


def audit(
    name: str, defense: str, attacks: tuple[str, ...], victims: int, **stage: Any
) -> AuditPiece:
    made = Stage(defenses=(defense,), attacks=attacks, victims=victims, **stage)
    return AuditPiece(name, made, figure="T5")


def april() -> Iterator[AprilPiece]:
    """Table 5 by random weights at 224 px, and by the trained networks at 32 px."""
    yield AprilPiece("april-deit-s", figure="T5")
    yield AprilPiece("april-cifar10", trained=("deit-A", "deit-J"), figure="T5")


def all_pieces() -> tuple[Piece, ...]:
    return (*trained(), *april(), *audits())
