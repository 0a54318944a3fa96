"""Clients that train under MJP, and what a server sees of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from keyhole.attacks import Reconstruction
from keyhole.data import ImageSet, denormalise, load
from keyhole.defenses import Mjp
from keyhole.federation import LocalTraining, train_client
from keyhole.metrics import psnr
from keyhole.models.anatomy import PatchEmbedding, find_patch_embedding
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update


@dataclass(frozen=True)
class Puzzled:
    """What the server saw of a client, beside the truth."""

    observation: Observation
    images: Tensor
    """In [0, 1], ``[B, C, H, W]``."""
    covered: tuple[Tensor, ...]
    """Which cells were, update by update: bool ``[N]``."""
    patches: Tensor
    """The first image as the model is fed, patch by patch: ``[N, F]``."""
    data: ImageSet

    def decibels(self, found: Reconstruction) -> float:
        assert found.images is not None
        pixels = denormalise(found.images.double(), self.data.mean, self.data.std).clamp(0, 1)
        return float(psnr(pixels, self.images, data_range=1.0))


Puzzle = Callable[..., Puzzled]


@pytest.fixture(scope="session")
def photos() -> ImageSet:
    return load("photos", image_size=32)


@pytest.fixture(scope="session")
def vit() -> nn.Module:
    """16 patches of 8 x 8 pixels (192 values) in 128 dimensions."""
    torch.manual_seed(0)
    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=2, num_classes=10
    )


@pytest.fixture(scope="session")
def puzzle(photos: ImageSet) -> Puzzle:
    """Lets a client send ``rounds`` updates by the same images; the attacker knows the labels."""

    def run(
        model: nn.Module,
        defense: Mjp,
        *indices: int,
        rounds: int = 1,
        training: LocalTraining | None = None,
        seed: int = 0,
    ) -> Puzzled:
        model = defense.prepare_model(model)
        images, labels = photos.images(list(indices)), photos.labels[list(indices)] % 10
        draw = generator(seed, "client", *indices)
        sent: list[Update] = []
        covered = []
        for _ in range(rounds):
            record = MaskRecorder()
            update, _ = train_client(
                model,
                images,
                labels,
                data=photos,
                defense=defense,
                generator=draw,
                training=training,
                mask_recorder=record,
            )
            sent.append(update)
            covered += [~mask[0] for mask in record.masks_by_site()]
        knowledge = Knowledge(
            shape=photos.shape,
            classes=10,
            mean=photos.mean,
            std=photos.std,
            batch_size=len(images),
            labels=labels,
            defense=defense,
            rounds=rounds,
        )
        seen = Server(model).receive(sent[-1], knowledge, earlier=sent[:-1])
        embedding = find_patch_embedding(model, photos.shape)
        assert isinstance(embedding, PatchEmbedding)
        flat = photos.normalise(images)[0].flatten().double()
        return Puzzled(seen, images, tuple(covered), flat[embedding.input_layer.layout], photos)

    return run
