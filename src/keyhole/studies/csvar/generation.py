"""Figure 6: what a malicious client's generator draws of a class that another client holds."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.generative import Hitaj, Infiltration, through
from keyhole.audit import find_device
from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES
from keyhole.federation import Federation, LocalTraining
from keyhole.metrics.generated import judged
from keyhole.models import build
from keyhole.seeds import derive, generator, seeded_globally
from keyhole.studies.base import Piece, Setting, Study

NETWORK = "keyhole.models.shallow_convnet:shallow_convnet"
DRAWN, KEPT = 64, 12
EVALUATED = 30
"""Images of a class by which the model is judged after each round, at most."""


@dataclass(frozen=True)
class Scenery:
    """Two clients: the victim holds half of the classes, the adversary the other half."""

    data: str
    size: str | None
    images: int
    """Of each class."""
    apart: int
    """Others of each class, by which an independent classifier is trained."""
    attack: Hitaj
    batch_size: int = 32


SCENERIES = {  # the targets are not those by which the attack's settings were chosen
    "mnist": Scenery("mnist", None, 60, 300, Hitaj(target=5)),
    "faces": Scenery(
        "orl-faces",
        "56x46",
        6,
        3,
        Hitaj(target=12, rounds=120, steps=12, batch=16, fakes=20, tv=0.1),
        batch_size=16,
    ),
}


@dataclass(frozen=True)
class GanPiece(Piece):
    """The attack of Hitaj et al. against one defense; ``adaptive``: the adversary knows it."""

    scenery: Scenery
    defense: str
    adaptive: bool = False

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        scenery, seed = self.scenery, study.seed
        data = load(scenery.data, image_size=scenery.size, data_dir=setting.data_dir)
        held, spare = by_class(data, scenery, seed)
        classes, target = len(data.classes), scenery.attack.target
        first, second = range(classes // 2), range(classes // 2, classes)
        victim, other = (first, second) if target in first else (second, first)
        device = find_device(setting.device)
        model = build(
            NETWORK,
            classes=classes + 1,
            channels=data.shape[0],
            image_size=data.size,
            seed=seed,
        ).to(device)
        defense = DEFENSES.parse(self.defense)
        federation = Federation(
            model=model,
            data=data,
            shares=[[i for c in group for i in held[c]] for group in (victim, other)],
            test=(data, [i for each in spare for i in each[:EVALUATED]]),
            training=LocalTraining(
                lr=1e-3, epochs=1, batch_size=scenery.batch_size, optimiser="adam"
            ),
            defense=defense,
            seed=seed,
        )
        known = through(defense, generator(seed, "through")) if self.adaptive else None
        game = Infiltration(federation, scenery.attack, client=1, through=known)
        accuracy = 0.0
        for seen in game.rounds():
            setting.progress.show(f"{self.name}: round {seen.number} of {scenery.attack.rounds}")
            accuracy = seen.accuracy
        found = game.generated(DRAWN)
        classifier, right = independent(data, held, spare, seed)
        verdict = judged(
            found.images.cpu(),
            data.images(held[target]),
            data.images([i for c in range(classes) if c != target for i in held[c][:40]]),
            target=target,
            generator=generator(seed, "null"),
            classifier=classifier,
        )
        drawn = sheet(found.images[:KEPT], setting.runs / self.name / "drawn.png")
        return {
            "piece": self.name,
            "data": scenery.data,
            "defense": self.defense,
            "attacker": "adaptive" if self.adaptive else "paper",
            "attack": asdict(scenery.attack),
            "seed": seed,
            "accuracy": accuracy,
            "confidence": float(found.confidence.mean()),
            "classifier_accuracy": right,
            **verdict.means(),
            "drawn": base64.b64encode(drawn.read_bytes()).decode(),
        }

    def about(self) -> dict[str, Any]:
        knows = ", which it knows" if self.adaptive else ""
        what = f"a GAN draws class {self.scenery.attack.target} of {self.scenery.data}"
        return {"does": f"{what} under {self.defense}{knows}"}


def by_class(
    data: ImageSet, scenery: Scenery, seed: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Images of each class that clients hold, and others."""
    order = torch.randperm(len(data), generator=generator(seed, "split")).tolist()
    labels = data.labels.tolist()
    every: list[list[int]] = [[] for _ in data.classes]
    for index in order:
        every[labels[index]].append(index)
    cut = scenery.images
    return [e[:cut] for e in every], [e[cut : cut + scenery.apart] for e in every]


def independent(
    data: ImageSet, held: list[list[int]], spare: list[list[int]], seed: int
) -> tuple[nn.Module, float]:
    """A classifier of another kind that took no part, trained on clean images; and how accurate it
    is on a tenth of the ``spare`` ones, which it has not seen."""
    kept = [each[: max(1, len(each) // 10)] for each in spare]
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
            loss = F.cross_entropy(network(noisy(images[some])), labels[some])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    tested = [i for each in kept for i in each]
    with torch.no_grad():
        guessed = network(data.images(tested)).argmax(1)
    return network, float((guessed == data.labels[tested]).double().mean())


def noisy(images: Tensor) -> Tensor:
    """Slightly, so that the classifier does not hang on single pixels."""
    return images + 0.05 * torch.randn_like(images)


def sheet(images: Tensor, path: Path) -> Path:
    """Images ``[n, C, H, W]`` in one row, as a PNG. Returns ``path``."""
    row = torch.cat(list(images.cpu()), -1).clamp(0, 1).mul(255).round().byte()
    pixels = np.ascontiguousarray(row.permute(1, 2, 0).numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(path)
    return path
