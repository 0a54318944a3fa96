"""The trained network that the paper's attacks and explanations look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.federation.training import augmented
from keyhole.models import build
from keyhole.seeds import derive, generator
from keyhole.studies.held import Parts, accuracy, parts


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum on flipped and shifted images; the rate rises, then falls to 0."""

    epochs: int
    batch_size: int = 256
    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    smoothing: float = 0.05
    rising: float = 0.2

    def rate(self, share: float) -> float:
        """The learning rate after a share of all steps.

        >>> recipe = Recipe(epochs=10, lr=1.0, rising=0.25)
        >>> [recipe.rate(share) for share in (0.0, 0.125, 0.25, 0.625, 1.0)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        if share < self.rising:
            return self.lr * share / self.rising
        return self.lr * (1 - share) / (1 - self.rising)


RECIPES = {
    "cifar10": Recipe(epochs=10),
    "cifar100": Recipe(epochs=120, batch_size=64, lr=0.05),
    "tiny-imagenet": Recipe(epochs=16),
}
"""The archive of CIFAR-100 holds 1,117 images to train on: what is learnt of it is little."""


def trained(
    data: str,
    *,
    seed: int,
    device: torch.device,
    data_dir: str | None = None,
    network: str = "resnet18",
    recipe: Recipe | None = None,
    weights: Path | None = None,
) -> nn.Module:
    """A network trained on a data set at one place, or with ``weights`` of an earlier training.

    On a GPU it trains in bfloat16, weights and their sums in float32; it is returned in evaluation
    mode.
    """
    split = parts(data, data_dir, seed, device)
    model = build(
        network,
        classes=len(split.data.classes),
        channels=split.data.shape[0],
        image_size=split.data.size,
        seed=seed,
        weights=weights,
    ).to(device)
    if weights is None:
        train(model, split, recipe or RECIPES[data], seed=seed)
    return model.eval()


def train(model: nn.Module, split: Parts, recipe: Recipe, *, seed: int) -> None:
    """Trains ``model`` itself, on its own device."""
    like = next(model.parameters())
    device, fast = like.device, like.is_cuda
    layout = torch.channels_last if fast else torch.contiguous_format
    model.to(memory_format=layout).train()
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
    )
    draw = torch.Generator(device).manual_seed(derive(seed, "augmentation"))
    plan = list(batches(split.train, recipe, generator(seed, "batches")))
    labels = split.data.labels.to(device)
    with quick_convolutions():
        for step, batch in enumerate(plan):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate((step + 1) / len(plan))
            images = augmented(split.data.images(batch.tolist()).to(like), draw)
            inputs = split.data.normalise(images).to(memory_format=layout)
            with torch.autocast(device.type, torch.bfloat16, enabled=fast):
                logits = model(inputs)
            loss = F.cross_entropy(logits.float(), labels[batch], label_smoothing=recipe.smoothing)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.to(memory_format=torch.contiguous_format)


def batches(indices: list[int], recipe: Recipe, draw: torch.Generator) -> Iterator[Tensor]:
    """The images of every step: full batches in a new order each epoch."""
    every = torch.tensor(indices)
    size = min(recipe.batch_size, len(every))
    for _ in range(recipe.epochs):
        order = every[torch.randperm(len(every), generator=draw)]
        yield from torch.split(order[: len(order) // size * size], size)


@contextmanager
def quick_convolutions() -> Iterator[None]:
    """Lets cuDNN look for its fastest kernels inside the block: shapes stay the same for long."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def accuracy_of(model: nn.Module, split: Parts, most: int | None = None) -> float:
    """The share of test images, the first ``most`` of them, that the model classifies right."""
    return accuracy(model, (split.test, split.tested[:most]), None, 0)
