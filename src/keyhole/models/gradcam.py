"""Grad-CAM's heat maps: where in an image a network sees its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit
from keyhole.models.channel_importance import IMAGES_PER_PASS, apply_change, convolutions
from keyhole.seeds import seeded_globally


def heat_maps(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    layer: str | None = None,
    change: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Returns Grad-CAM (Selvaraju et al. 2017) of inputs: ``[n, H, W]`` in [0, 1].

        ReLU(sum over k of alpha_k H_k),  alpha_k = mean over places of d y_c / d H_k,

    where H is the output of a layer and y_c the logit of the label. The map is interpolated to the
    input's size (bilinear) and divided by its greatest value; a map without heat stays zero. The
    graph begins at the layer's output: one backward pass from the logits to it serves a whole
    batch.

    Args:
        model: Run in evaluation mode, and not changed.
        inputs: ``[n, C, H, W]``, normalised.
        labels: The classes to explain, ``[n]``.
        layer: The layer's name; None means :func:`last_convolution`.
        change: Added to the model's weights, by name; None means that nothing is added.

    >>> net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> image = torch.tensor([[[[0.0, 1.0], [2.0, 4.0]]]])
    >>> heat_maps(net, image, torch.tensor([0]), change={"0.weight": 1 - net[0].weight.detach()})
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]]])
    """
    if not len(inputs):
        return inputs.new_zeros(0, *inputs.shape[-2:])
    probe = apply_change(model, change).eval().requires_grad_(False)
    name = last_convolution(probe, inputs[:1]) if layer is None else layer
    outputs: list[Tensor] = []
    try:
        probe.get_submodule(name).register_forward_hook(make_output_hook(outputs))
    except AttributeError:
        raise DoesNotFit(f"the model has no layer {name!r} to draw heat maps of") from None
    found = []
    with torch.enable_grad(), seeded_globally(0):
        for x, y in zip(
            torch.split(inputs, IMAGES_PER_PASS), torch.split(labels, IMAGES_PER_PASS), strict=True
        ):
            outputs.clear()
            logits = probe(x.detach().clone())
            score = logits.gather(1, y.to(logits.device).view(-1, 1)).sum()
            maps = weight_maps(last_output(outputs, name), score)
            found.append(resize_maps(maps, x.shape[-2:]))
    return torch.cat(found)


def last_convolution(model: nn.Module, inputs: Tensor) -> str:
    """Returns the convolution that runs last of those whose output has more than one pixel.

    Maps of a single pixel, as in channel attention (squeeze and excitation), show nothing.
    """
    ran: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            if is_spatial(output):
                ran.append(name)

        return hook

    layers = convolutions(model)
    handles = [conv.register_forward_hook(make_hook(name)) for name, conv in layers.items()]
    training = model.training
    try:
        with torch.no_grad(), seeded_globally(0):
            model.eval()(inputs.detach().clone())
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    if not ran:
        size = "x".join(str(n) for n in inputs.shape[-2:])
        raise DoesNotFit(
            f"no convolution of the model returns maps of {size} images that could show heat"
        )
    return ran[-1]


def is_spatial(output: object) -> bool:
    """Returns whether a layer's output is a batch of maps of more than one pixel."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1


def make_output_hook(outputs: list[Tensor]) -> Callable[[nn.Module, object, Tensor], Tensor]:
    """Returns a hook that keeps a layer's output and begins the graph there.

    The model continues with a copy, since later layers may change it in place.
    """

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if not is_spatial(output):
            return output
        outputs.append(output.detach().clone().requires_grad_(True))
        return outputs[-1].clone()

    return hook


def last_output(outputs: list[Tensor], layer: str) -> Tensor:
    """Returns the output of the layer when it last ran, ``[n, K, h, w]``."""
    if not outputs:
        raise DoesNotFit(f"layer {layer!r} returns no maps: name a convolution or a block of them")
    return outputs[-1]


def weight_maps(output: Tensor, score: Tensor) -> Tensor:
    """Returns ``ReLU(sum over k of alpha_k H_k)``, ``[n, h, w]``; zeros if the score ignores H."""
    if not score.requires_grad:
        return torch.zeros_like(output[:, 0]).detach()
    (gradient,) = torch.autograd.grad(score, output, allow_unused=True, materialize_grads=True)
    alpha = gradient.mean((-2, -1), keepdim=True)
    return (alpha * output.detach()).sum(1).relu()


def resize_maps(maps: Tensor, size: torch.Size) -> Tensor:
    """Scales maps ``[n, h, w]`` to the images' size and divides each by its greatest value."""
    grown = F.interpolate(maps[:, None], list(size), mode="bilinear", align_corners=False)[:, 0]
    peak = grown.amax((-2, -1), keepdim=True)
    return torch.where(peak > 0, grown / peak, torch.zeros_like(grown))
