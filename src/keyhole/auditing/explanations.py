"""What becomes of a network's explanations when clients defend their updates: heat maps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.store import to_bytes
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.metrics import overlay_heat_maps
from keyhole.models.channel_importance import convolutions
from keyhole.models.gradcam import heat_maps
from keyhole.update import Update

SHOWN = 3
"""Clients whose first image is explained by the model that they upload."""


def explained(
    setting: AttackSetting, victims: range, updates: Sequence[Update]
) -> dict[str, Tensor]:
    """Overlays ``heat.VICTIM`` and images ``plain.VICTIM`` of early victims, uint8 ``[C, H, W]``.

    Each is by Grad-CAM of the model as the client uploads it. Empty where clients share gradients,
    where the defense is not on updates, and for networks without convolutions.
    """
    if not applies(setting):
        return {}
    data, like = setting.resolved.data, next(setting.model.parameters())
    found = {}
    for victim, update in zip(victims, updates, strict=True):
        if victim >= SHOWN:
            break
        first = [setting.resolved.victims[victim][0]]
        images = data.images(first).to(like)
        try:
            maps = heat_maps(
                setting.model, data.normalise(images), data.labels[first], change=update.change
            )
        except DoesNotFit:  # its convolutions' maps are of one place
            return {}
        found[f"heat.{victim:04d}"] = overlay_heat_maps(images, maps)[0].cpu()
        found[f"plain.{victim:04d}"] = to_bytes(images[0]).cpu()
    return found


def applies(setting: AttackSetting) -> bool:
    """Whether clients upload trained convolutions whose explanations the defense may change."""
    defense = type(setting.defense)
    on_updates = defense.on_update is not Defense.on_update or defense is NoDefense
    trains = (
        setting.resolved.stage.lr is not None
        and setting.captured is None
        and setting.resolved.scored
    )
    honest = all(row.attack.altered_model is None for row in setting.rows)
    return on_updates and trains and honest and bool(convolutions(setting.model))


def sheet(pictures: dict[str, Tensor]) -> dict[str, Tensor]:
    """The kept overlays and images, ``heat`` and ``plain``, uint8 ``[n, C, H, W]``, if any."""
    stacks = {
        kind: [pictures[name] for name in sorted(pictures) if name.startswith(f"{kind}.")]
        for kind in ("heat", "plain")
    }
    return {kind: torch.stack(stack) for kind, stack in stacks.items() if stack}
