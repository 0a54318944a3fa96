"""What becomes of a network's explanations when clients defend their updates: heat maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from keyhole.audit.scene import Scene
from keyhole.audit.store import to_bytes
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.metrics.heatmaps import overlay
from keyhole.models.channel_importance import convolutions
from keyhole.models.gradcam import heat_maps
from keyhole.update import Update

SHOWN = 3
"""Clients whose first image is explained by the model that they upload."""


def explained(scene: Scene, victims: range, updates: Sequence[Update]) -> dict[str, Tensor]:
    """Overlays ``heat.VICTIM`` and images ``plain.VICTIM`` of early victims, uint8 ``[C, H, W]``.

    Each is by Grad-CAM of the model as the client uploads it. Empty where clients share gradients,
    where the defense is not on updates, and for networks without convolutions.
    """
    if not applies(scene):
        return {}
    data, like = scene.cast.data, next(scene.model.parameters())
    found = {}
    for victim, update in zip(victims, updates, strict=True):
        if victim >= SHOWN:
            break
        first = [scene.cast.victims[victim][0]]
        images = data.images(first).to(like)
        try:
            maps = heat_maps(
                scene.model, data.normalise(images), data.labels[first], change=update.change
            )
        except DoesNotFit:  # its convolutions' maps are of one place
            return {}
        found[f"heat.{victim:04d}"] = overlay(images, maps)[0].cpu()
        found[f"plain.{victim:04d}"] = to_bytes(images[0]).cpu()
    return found


def applies(scene: Scene) -> bool:
    """Whether clients upload trained convolutions whose explanations the defense may change."""
    defense = type(scene.defense)
    on_updates = defense.on_update is not Defense.on_update or defense is NoDefense
    trains = scene.cast.stage.lr is not None and scene.captured is None and scene.cast.scored
    honest = all(row.attack.altered_model is None for row in scene.rows)
    return on_updates and trains and honest and bool(convolutions(scene.model))


def sheet(pictures: dict[str, Tensor]) -> dict[str, Tensor]:
    """The kept overlays and images, ``heat`` and ``plain``, uint8 ``[n, C, H, W]``, if any."""
    stacks = {
        kind: [pictures[name] for name in sorted(pictures) if name.startswith(f"{kind}.")]
        for kind in ("heat", "plain")
    }
    return {kind: torch.stack(stack) for kind, stack in stacks.items() if stack}
