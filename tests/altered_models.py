"""Models as honest and as lying servers send them out, for tests of what a client notices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from keyhole.attacks import (
    April,
    Attack,
    Fishing,
    Imprint,
    ImprintWeights,
    Loki,
    PeftImprint,
    SingleOut,
    TrapWeights,
)
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.seeds import seeded_globally
from keyhole.threat import PublicKnowledge

ATTACKS: dict[str, Attack] = {
    "imprint cumulative": Imprint(bins=32, form="cumulative"),
    "imprint sparse": Imprint(bins=32, form="sparse"),
    "imprint one-shot": Imprint(form="one-shot"),
    "loki": Loki(bins=16),
    "imprint-weights": ImprintWeights(),
    "trap-weights published": TrapWeights(scale=0.95),
    "trap-weights calibrated": TrapWeights(),
    "trap-weights short": TrapWeights(strength=1.0),
    "fishing": Fishing(target=3),
    "fishing share": Fishing(target=3, share=0.1),
    "single-out": SingleOut(target=0),
    "april": April(),
    "peft-imprint": PeftImprint(),
}
ARCHITECTURES = ("mlp", "relu-mlp", "lenet", "resnet18", "vit-small", "adapters:vit-small")
digits = load("digits")


def make(name: str, seed: int = 0, data: ImageSet = digits) -> nn.Module:
    """A fresh network for the digits."""
    if name == "relu-mlp":
        with seeded_globally(seed):
            hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
            return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))
    return build(name, classes=10, channels=1, image_size=8, seed=seed)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def alter(attack: Attack, model: nn.Module, client: int = 1) -> dict[str, Tensor] | None:
    """What one of four clients gets from the attack's server; None where it does not apply."""
    images = digits.normalise(digits.images(range(1700, 1797)))
    public = PublicKnowledge(digits.shape, 10, images, batch_size=16, clients=4)
    try:
        return weights_of(attack.personalise(attack.alter(model, public), client, public))
    except DoesNotFit:
        return None


def random_rows(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) / width**0.5
