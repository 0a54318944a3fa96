"""The last layer, by which a server decides whose gradient flows back into the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import Shape, find_logits_layer
from keyhole.update import Update


@dataclass(frozen=True)
class LastLayer:
    """The linear layer whose output is the logits.

    Args:
        name: The layer's name in the model.
        layer: The layer itself.
    """

    name: str
    layer: nn.Linear

    @classmethod
    def find(cls, model: nn.Module, shape: Shape) -> LastLayer:
        """Finds the layer, or raises :class:`DoesNotFit`.

        Args:
            model: The model, whose own layer is returned, not a copy.
            shape: The images' shape, ``(C, H, W)``.
        """
        name = find_logits_layer(model, shape)
        if name is None:
            raise DoesNotFit("it needs a model whose logits come from a linear layer")
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        return cls(name, layer)

    def inputs(self, model: nn.Module, images: Tensor) -> Tensor:
        """Returns what the layer receives when ``model`` is fed ``images``, ``[n, F]``.

        Args:
            model: The model that has the layer.
            images: Model inputs, ``[n, C, H, W]``.
        """
        return record_call(model, self.layer, images)[0]

    def leave_out(self, update: Update) -> Update:
        """Returns an update without this layer's own parameters.

        Args:
            update: What the server received.
        """
        own = {f"{self.name}.{part}" for part, _ in self.layer.named_parameters()}
        kept = {name: change for name, change in update.change.items() if name not in own}
        return replace(update, change=kept)


def record_call(model: nn.Module, layer: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what ``layer`` receives and what it returns when ``model`` is fed ``images``.

    Args:
        model: The model; it runs in evaluation mode and is left in its own.
        layer: One of its layers.
        images: Model inputs, ``[n, C, H, W]``.
    """
    calls: list[tuple[Tensor, Tensor]] = []
    handle = layer.register_forward_hook(lambda module, args, out: calls.append((args[0], out)))
    was_training = model.training
    with torch.no_grad():
        model.eval()(images)
    model.train(was_training)
    handle.remove()
    return calls[0]
