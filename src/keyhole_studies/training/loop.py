"""The loop itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import ImageSet
from keyhole.seeds import derive, generator, seeded_globally
from keyhole_studies.training.batches import BatchMaker, draw_batches
from keyhole_studies.training.optimisers import make_optimiser, set_rate
from keyhole_studies.training.settings import TrainingSettings

Penalty = Callable[[], Tensor]
"""Computes what is added to a step's loss, after the forward pass."""


def train_network(
    model: nn.Module,
    data: ImageSet,
    indices: Sequence[int],
    settings: TrainingSettings,
    *,
    seed: int,
    penalty: Penalty | None = None,
    after_epoch: Callable[[int, float], None] | None = None,
) -> None:
    """Trains ``model`` itself, on its own device; on a GPU in bfloat16, its weights in float32.

    Args:
        model: Left in training mode.
        data: The images, best kept on the device.
        indices: Which of them are trained on.
        settings: How.
        seed: Of batches, augmentation and the model's own draws.
        penalty: Computes what is added to each step's loss.
        after_epoch: Told the number of each epoch, from 1, and the loss of its last step.
    """
    like = next(model.parameters())
    layout = torch.channels_last if like.is_cuda else torch.contiguous_format
    model.to(memory_format=layout)
    optimiser = make_optimiser(model, settings)
    batches = BatchMaker(data, settings, like, seed)
    plan = list(draw_batches(indices, settings, generator(seed, "batches")))
    per_epoch = len(plan) // settings.epochs
    with fast_convolutions(), seeded_everywhere(derive(seed, "training")):
        model.train()
        for step, batch in enumerate(plan, start=1):
            set_rate(optimiser, settings.rate(step / len(plan)))
            inputs, targets = batches.make(batch)
            inputs = inputs.to(memory_format=layout)
            loss = take_step(
                model,
                inputs,
                targets,
                optimiser,
                smoothing=settings.smoothing,
                clip=settings.clip,
                penalty=penalty,
            )
            if after_epoch is not None and step % per_epoch == 0:
                after_epoch(step // per_epoch, float(loss))
                model.train()
    model.to(memory_format=torch.contiguous_format)


def take_step(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimiser: torch.optim.Optimizer,
    *,
    smoothing: float = 0.0,
    clip: float | None = None,
    penalty: Penalty | None = None,
) -> Tensor:
    """One step of the optimiser; returns the loss before it.

    Args:
        model: In training mode.
        inputs: ``[n, C, H, W]``, as the model is fed.
        targets: Labels ``[n]``, or shares of classes ``[n, classes]``, which are smooth already.
        optimiser: Of the model's parameters.
        smoothing: Label smoothing.
        clip: The largest norm of the gradient; None: any.
        penalty: Computes what is added to the loss.
    """
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
        logits = model(inputs)
    soft = targets.ndim > 1
    loss = F.cross_entropy(logits.float(), targets, label_smoothing=0.0 if soft else smoothing)
    if penalty is not None:
        loss = loss + penalty()
    return take_gradient_step(loss, model, optimiser, clip)


def take_gradient_step(
    loss: Tensor, model: nn.Module, optimiser: torch.optim.Optimizer, clip: float | None = None
) -> Tensor:
    """One step of the optimiser along the gradient of ``loss``, which is returned detached."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()
    return loss.detach()


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seeds torch's, NumPy's and Python's global generators; puts their states back after it.

    timm draws from all three.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        with seeded_globally(seed):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@contextmanager
def fast_convolutions() -> Iterator[None]:
    """Lets cuDNN look for its fastest kernels, which pays while shapes stay the same."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
