"""Heat maps that show what a defense on updates does to the explanations of a network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.pictures import to_bytes
from keyhole.defenses import NoDefense
from keyhole.defenses.base import uses_door
from keyhole.errors import DoesNotFit
from keyhole.metrics import overlay_heat_maps
from keyhole.models.channel_importance import convolutions
from keyhole.models.gradcam import heat_maps
from keyhole.update import Update

SHOWN = 3
"""Clients whose first image is explained by the model that they upload."""


def draw_heat_maps(
    setting: AttackSetting, victims: range, updates: Sequence[Update]
) -> dict[str, Tensor]:
    """Overlays ``heat.VICTIM`` and images ``plain.VICTIM`` of early victims, uint8 ``[C, H, W]``.

    They show Grad-CAM of the model as the client uploads it. Empty if clients share gradients, if
    the defense does not change updates, and for networks without convolutions.
    """
    if not can_explain(setting):
        return {}
    data, like = setting.resolved.data, next(setting.model.parameters())
    pictures = {}
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
        pictures[f"heat.{victim:04d}"] = overlay_heat_maps(images, maps)[0].cpu()
        pictures[f"plain.{victim:04d}"] = to_bytes(images[0])
    return pictures


def can_explain(setting: AttackSetting) -> bool:
    """Whether clients upload trained convolutions whose explanations the defense may change."""
    defense = setting.defense
    on_updates = uses_door(defense, "on_update") or isinstance(defense, NoDefense)
    trains = (
        setting.resolved.stage.lr is not None
        and setting.captured is None
        and setting.resolved.scored
    )
    honest = all(run.attack.altered_model is None for run in setting.runs)
    return on_updates and trains and honest and bool(convolutions(setting.model))
