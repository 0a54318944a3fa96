"""The weights that clients are sent: fresh, or trained until they know a share of their images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from keyhole.atomic import read_json, write_json, write_tensors
from keyhole.data import ImageSet
from keyhole.errors import BadValue, DoesNotFit
from keyhole.models import build
from keyhole.seeds import derive, generator
from keyhole_studies.base import StudyContext
from keyhole_studies.resident_data import keep_on_device, measure_accuracy
from keyhole_studies.training.loop import seeded_everywhere, take_step

BATCH, RATE, MOST_STEPS = 64, 1e-3, 20_000
"""Adam trains the weights; one that needs more steps for its accuracy is given up."""
LOOKS = 10
"""Accuracy is taken after so many steps."""


@dataclass(frozen=True)
class Start:
    """The weights that clients are sent, and what is known of them.

    Args:
        model: The network, on the device, in evaluation mode.
        facts: Steps of training and accuracy, as a result holds them.
    """

    model: nn.Module
    facts: dict[str, Any]


def choose_images(data: ImageSet, count: int, seed: int) -> list[int]:
    """The images that weights are trained on, in random order; the clients' are the first."""
    order: list[int] = torch.randperm(len(data), generator=generator(seed, "regimes")).tolist()
    if count > len(order):
        raise BadValue(f"data set {data.name!r} has {len(order)} images, {count} are needed")
    return order[:count]


def prepare_start(
    name: str,
    model: str,
    data: ImageSet,
    indices: list[int],
    accuracy: float,
    context: StudyContext,
    *,
    device: torch.device,
    seed: int,
    start: str = "",
) -> Start:
    """The weights of one accuracy; once trained they are kept in the folder of runs.

    Args:
        name: What the file of weights is called.
        model: The network, as a user writes it.
        data: The images.
        indices: Those to train on.
        accuracy: The share of them that is classified right at the end of the training; 0: fresh.
        context: Where files are.
        device: Where it is trained.
        seed: Of fresh weights and batches.
        start: A file of weights in the folder of data sets to begin with; empty: random ones.
    """
    file = context.runs / "weights" / f"{name}.safetensors"
    facts = file.with_suffix(".json")
    known = bool(accuracy) and facts.is_file() and file.is_file()
    network = build(
        model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
        weights=file if known else None,
    ).to(device)
    if known:
        return Start(network.eval(), read_json(facts))
    if start:
        load_pretrained(network, find_start(start, context))
    if not accuracy:
        return Start(network.eval(), {"steps": 0})
    context.progress.show(f"{name}: {model} learns {len(indices)} images of {data.name}")
    found = train_until(network, keep_on_device(data, device), indices, accuracy, seed)
    write_tensors(file, {key: tensor.cpu() for key, tensor in network.state_dict().items()})
    write_json(facts, found)
    return Start(network.eval(), found)


def find_start(start: str, context: StudyContext) -> Path:
    """The file of weights to begin with."""
    file = Path(context.data_dir or ".") / start
    if not file.is_file():
        raise DoesNotFit(
            f"{file} is not there: write the pretrained weights into it, as safetensors of timm's "
            "names (--data-dir names the folder)"
        )
    return file


def load_pretrained(model: nn.Module, file: Path) -> None:
    """Loads all weights but those of the head, which is for other classes."""
    from safetensors.torch import load_file

    own = model.state_dict()
    fitting = {n: t for n, t in load_file(file).items() if n in own and t.shape == own[n].shape}
    if len(fitting) < len(own) / 2:
        raise DoesNotFit(f"{file} holds weights of another network")
    model.load_state_dict({**own, **fitting})


def train_until(
    model: nn.Module, data: ImageSet, indices: list[int], accuracy: float, seed: int
) -> dict[str, Any]:
    """Trains ``model`` itself until it classifies so large a share of its images right.

    Args:
        model: The network.
        data: The images, kept on the device.
        indices: Those to train on.
        accuracy: The share.
        seed: Of batches.
    """
    like = next(model.parameters())
    labels = data.labels.to(like.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    draw, every = generator(seed, "regimes", "batches"), torch.tensor(indices)
    reached, step = 0.0, 0
    with seeded_everywhere(derive(seed, "regimes", "training")):
        while reached < accuracy:
            for batch in torch.split(every[torch.randperm(len(every), generator=draw)], BATCH):
                model.train()
                inputs = data.normalise(data.images(batch.tolist()).to(like))
                take_step(model, inputs, labels[batch.to(labels.device)], optimiser, clip=1.0)
                step += 1
                if step % LOOKS == 0:
                    reached = measure_accuracy(model, data, indices)
                    if reached >= accuracy:
                        break
            if step > MOST_STEPS and reached < accuracy:
                raise DoesNotFit(
                    f"it classifies {reached:.0%} of its training images after {step} steps, "
                    f"not {accuracy:.0%}"
                )
    return {"steps": step, "accuracy": reached}
