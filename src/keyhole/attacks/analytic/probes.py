"""Questions about a model that are answered by running it."""

from __future__ import annotations

from torch import Tensor, nn

from keyhole.models.anatomy import find_patch_embedding
from keyhole.threat import Observation


def capture_input(model: nn.Module, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """The input of ``layer`` and the output of ``model`` when the model is given ``images``."""
    inputs: list[Tensor] = []
    module = model.get_submodule(layer)
    with module.register_forward_pre_hook(lambda module, args: inputs.append(args[0])):
        output: Tensor = model(images)
    return inputs[0], output


def check_patch_embedding(observation: Observation) -> list[str]:
    """Why the model is not a ViT with learned absolute position embeddings; empty if it is one."""
    found = find_patch_embedding(observation.model, observation.knowledge.shape)
    if isinstance(found, str):
        return [f"it needs a ViT with learned absolute position embeddings, but {found}"]
    return []
