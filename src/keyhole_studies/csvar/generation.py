"""Figure 6: what a malicious client's generator draws of a class that another client holds."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES
from keyhole.device import find_device
from keyhole.federation import Federation, LocalTraining
from keyhole.models import build
from keyhole.seeds import derive, generator, seeded_globally
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.coverage import settings_gap
from keyhole_studies.csvar.generated import judge_generated
from keyhole_studies.hitaj import Hitaj, Infiltration, make_differentiable
from keyhole_studies.training import take_step

NETWORK = "keyhole.models.shallow_convnet:shallow_convnet"
GENERATED = 64
"""Images that the adversary draws in the end."""
SHOWN = 12
"""Of these, those that the result holds."""
OTHERS = 40
"""Images of each other class beside which the drawings are judged, at most."""
EVALUATED = 30
"""Images of a class on which the model is tested after each round, at most."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class GanSetup:
    """Two clients: the victim holds half of the classes, the adversary the other half.

    Args:
        data: The data set.
        data_name: What figures call it.
        images: Images of each class that the clients hold.
        apart: Others of each class, on which an independent classifier is trained.
        attack: The adversary's settings.
        size: Images are scaled to it, as ``56x46``; None: they keep their size.
        batch_size: Of the clients.
    """

    data: str
    data_name: str
    images: int
    apart: int
    attack: Hitaj
    size: str | None = None
    batch_size: int = 32


@plain_dataclass(frozen=True)
class GanExperiment(Experiment):
    """The attack of Hitaj et al. against one defense.

    Args:
        setup: Data, clients and attack.
        defense: What the clients do to their images.
        adaptive: Whether the adversary knows the defense.
    """

    setup: GanSetup
    defense: str
    adaptive: bool = False

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        setup, seed, device = self.setup, study.seed, find_device(context.device)
        data = load(setup.data, image_size=setup.size, data_dir=context.data_dir)
        held, spare = split_by_class(data, setup, seed)
        infiltration = self.make_infiltration(data, held, spare, seed, device)
        accuracy = 0.0
        for done in infiltration.run_rounds():
            context.progress.show(f"{self.name}: round {done.number} of {setup.attack.rounds}")
            accuracy = done.accuracy
        found = infiltration.draw_final(GENERATED)
        classifier, right = train_classifier(data, held, spare, seed)
        target = setup.attack.target
        others = [i for c in range(len(data.classes)) if c != target for i in held[c][:OTHERS]]
        judgement = judge_generated(
            found.images.cpu(),
            data.images(held[target]),
            data.images(others),
            target=target,
            generator=generator(seed, "null"),
            classifier=classifier,
        )
        drawn = save_sheet(found.images[:SHOWN], context.runs / self.name / "drawn.png")
        return {
            "piece": self.name,
            "data": setup.data,
            "defense": self.defense,
            "attacker": "adaptive" if self.adaptive else "paper",
            "attack": asdict(setup.attack),
            "seed": seed,
            "accuracy": accuracy,
            "confidence": float(found.confidence.mean()),
            "classifier_accuracy": right,
            **judgement.means(),
            "drawn": base64.b64encode(drawn.read_bytes()).decode(),
        }

    def make_infiltration(
        self,
        data: ImageSet,
        held: list[list[int]],
        spare: list[list[int]],
        seed: int,
        device: torch.device,
    ) -> Infiltration:
        """The federation of victim and adversary, before its first round."""
        classes, target = len(data.classes), self.setup.attack.target
        first, second = range(classes // 2), range(classes // 2, classes)
        victim, other = (first, second) if target in first else (second, first)
        model = build(
            NETWORK,
            classes=classes + 1,
            channels=data.shape[0],
            image_size=data.size,
            seed=seed,
        )
        defense = DEFENSES.parse(self.defense)
        federation = Federation(
            model=model.to(device),
            data=data,
            shares=[[i for c in group for i in held[c]] for group in (victim, other)],
            test=(data, [i for each in spare for i in each[:EVALUATED]]),
            training=LocalTraining(
                lr=1e-3, epochs=1, batch_size=self.setup.batch_size, optimiser="adam"
            ),
            defense=defense,
            seed=seed,
        )
        known = None
        if self.adaptive:
            known = make_differentiable(defense, generator(seed, "through"))
        return Infiltration(federation, self.setup.attack, client=1, known_defense=known)

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another attack, or under another defense."""
        gap = settings_gap(known["attack"], asdict(self.setup.attack), "attack")
        return gap or settings_gap(known, {"defense": self.defense})

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{GENERATED} drawings"

    def tell(self, known: dict[str, Any]) -> str:
        drawn = known["generated"]
        nearest = f"SSIM to the nearest {drawn['nearest_ssim']:.3f}"
        return f"{100 * drawn['recognised']:.0f} % recognised, {nearest}"

    def describe(self) -> dict[str, Any]:
        knows = ", which it knows" if self.adaptive else ""
        what = f"a GAN draws class {self.setup.attack.target} of {self.setup.data}"
        return {"does": f"{what} under {self.defense}{knows}"}


def split_by_class(
    data: ImageSet, setup: GanSetup, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Images of each class that clients hold, and others."""
    order = torch.randperm(len(data), generator=generator(seed, "split")).tolist()
    labels = data.labels.tolist()
    every: list[list[int]] = [[] for _ in data.classes]
    for index in order:
        every[labels[index]].append(index)
    cut = setup.images
    return [e[:cut] for e in every], [e[cut : cut + setup.apart] for e in every]


def train_classifier(
    data: ImageSet, held: list[list[int]], spare: list[list[int]], seed: int
) -> tuple[nn.Module, float]:
    """Trains a classifier that takes no part in the attack, of another kind, on clean images.

    Returns it, and its accuracy on a tenth of the ``spare`` images, which it has not seen.
    """
    tested = [i for each in spare for i in each[: max(1, len(each) // 10)]]
    rest = [each[max(1, len(each) // 10) :] for each in spare] + held
    hidden, pixels = 256, math.prod(data.shape)
    with seeded_globally(derive(seed, "independent")):
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, len(data.classes))
        )
        indices = [i for each in rest for i in each]
        images, labels = data.images(indices), data.labels[indices]
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(max(300, 6 * len(indices) // 32)):
            some = torch.randint(len(indices), (32,))
            take_step(network, add_noise(images[some]), labels[some], optimiser)
    with torch.no_grad():
        guessed = network(data.images(tested)).argmax(1)
    return network, float((guessed == data.labels[tested]).double().mean())


def add_noise(images: Tensor) -> Tensor:
    """Adds a little noise, so that the classifier does not hang on single pixels."""
    return images + 0.05 * torch.randn_like(images)


def save_sheet(images: Tensor, path: Path) -> Path:
    """Saves images ``[n, C, H, W]`` in one row as a PNG. Returns ``path``."""
    row = torch.cat(list(images.cpu()), -1).clamp(0, 1).mul(255).round().byte()
    pixels = np.ascontiguousarray(row.permute(1, 2, 0).numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path)
    return path
