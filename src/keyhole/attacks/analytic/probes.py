"""Questions about a model that are answered by running it."""

from __future__ import annotations

from torch import Tensor, nn

from keyhole.models.anatomy import find_patch_embedding
from keyhole.threat import Observation


def capture_input(model: nn.Module, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """The input of ``layer`` and the output of ``model`` when the model is given ``images``.

    Args:
        model: Any network.
        layer: The name of one of its modules.
        images: Normalised images, ``[B, C, H, W]``.
    """
    inputs: list[Tensor] = []
    module = model.get_submodule(layer)
    with module.register_forward_pre_hook(lambda module, args: inputs.append(args[0])):
        output: Tensor = model(images)
    return inputs[0], output


class _LayerReached(Exception):
    """Ends a forward pass at a layer, whose input it carries."""

    def __init__(self, received: Tensor) -> None:
        self.received = received


def capture_early_input(model: nn.Module, layer: str, images: Tensor) -> Tensor:
    """The input of ``layer`` when the model is given ``images``; what follows is not computed."""

    def stop(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        raise _LayerReached(args[0])

    with model.get_submodule(layer).register_forward_pre_hook(stop):
        try:
            model(images)
        except _LayerReached as reached:
            return reached.received
    raise RuntimeError(f"the model does not use {layer!r}")


def check_patch_embedding(observation: Observation) -> list[str]:
    """Why the model is not a ViT with learned absolute position embeddings; empty if it is one."""
    found = find_patch_embedding(observation.model, observation.knowledge.shape)
    if isinstance(found, str):
        return [f"it needs a ViT with learned absolute position embeddings, but {found}"]
    return []
