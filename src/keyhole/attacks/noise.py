"""What an attacker who knows a defense believes about the noise in the updates it sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.defenses.capabilities import Capability
from keyhole.defenses.noise_model import Noise
from keyhole.threat import Observation

Gradient = dict[str, Tensor]


def known_noise(observation: Observation) -> Mapping[str, Noise]:
    """The noise that a known defense declares in the client's update, by parameter."""
    defense = observation.knowledge.defense_with(Capability.NOISE)
    return {} if defense is None else defense.noise_model(observation.update, observation.model)


def find_misleading_values(observation: Observation) -> Mapping[str, Tensor]:
    """The values of a known defense's update that are not the images' own gradient, bool."""
    defense = observation.knowledge.defense_with(Capability.MISLEADING)
    if defense is None:
        return {}
    return defense.misleading_values(observation.update, observation.model)


def merge_updates(observation: Observation) -> tuple[Gradient, dict[str, Noise]]:
    """The gradient an attacker works with, and the noise it believes is in it.

    If the client sent several updates on the same images, each row is averaged over those updates
    in which it had the least noise.
    """
    defense = observation.knowledge.defense_with(Capability.NOISE)
    if defense is None:
        return observation.update.gradient(), {}
    updates = [observation.update, *observation.earlier]
    beliefs = [defense.noise_model(update, observation.model) for update in updates]
    gradients = [update.gradient() for update in updates]
    if len(updates) == 1:
        return gradients[0], dict(beliefs[0])
    merged, noise = gradients[0], {}
    for name in beliefs[0]:
        merged[name], noise[name] = merge_rows(
            [gradient[name] for gradient in gradients], [belief[name] for belief in beliefs]
        )
    return merged, noise


def merge_rows(gradients: Sequence[Tensor], beliefs: Sequence[Noise]) -> tuple[Tensor, Noise]:
    """The mean over the updates in which a row had the least noise, and the noise that is left."""
    variance = torch.stack([belief.variance for belief in beliefs])
    least = variance.min(0).values
    used = variance == least
    share = used / used.sum(0)
    rows = torch.stack(list(gradients))
    weights = share.view(*share.shape, *[1] * (rows.dim() - share.dim())).to(rows)
    left = Noise(least / used.sum(0), beliefs[0].bins, share=beliefs[0].share)
    return (rows * weights).sum(0), left
