"""The trained network that the paper's explanations look at."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from keyhole.models import build
from keyhole_studies.resident_data import load_resident_data
from keyhole_studies.training import TrainingSettings, train_network


def prepare_victim(
    data: str,
    settings: TrainingSettings | None,
    *,
    seed: int,
    device: torch.device,
    data_dir: str | None = None,
    network: str = "resnet18",
    weights: Path | None = None,
) -> nn.Module:
    """A network in evaluation mode, trained on a data set in one place, or with weights of a file.

    Args:
        data: The data set.
        settings: How the network is trained; not needed with ``weights``.
        seed: Of weights and batches.
        device: Where it is trained.
        data_dir: Folder of data sets.
        network: The network's name.
        weights: A file of an earlier training, which takes the place of this one.
    """
    resident = load_resident_data(data, data_dir, seed, device)
    model = build(
        network,
        classes=len(resident.data.classes),
        channels=resident.data.shape[0],
        image_size=resident.data.size,
        seed=seed,
        weights=weights,
    ).to(device)
    if weights is None:
        assert settings is not None, "a network without weights needs settings to be trained by"
        train_network(model, resident.data, resident.train_indices, settings, seed=seed)
    return model.eval()
