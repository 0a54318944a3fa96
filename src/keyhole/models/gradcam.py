"""Where in an image a network sees its class: Grad-CAM's heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit
from keyhole.models.channel_importance import AT_ONCE, convolutions, moved
from keyhole.seeds import seeded_globally


def heat_maps(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    layer: str | None = None,
    change: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017) of inputs ``[n, C, H, W]``: ``[n, H, W]`` in [0, 1].

        ReLU(sum over k of alpha_k H_k),  alpha_k = mean over places of d y_c / d H_k,

    H being the output of ``layer`` (None: :func:`last_convolution`) and y_c the logit of the label,
    brought to the input's size by bilinear interpolation and divided by its greatest value. A map
    without heat stays zero. The model is asked in evaluation mode, its weights moved by ``change``
    where that is given, and is itself left alone. The graph begins at the layer's output: one
    backward pass from the logits to it serves a whole batch.

    >>> net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> image = torch.tensor([[[[0.0, 1.0], [2.0, 4.0]]]])
    >>> heat_maps(net, image, torch.tensor([0]), change={"0.weight": 1 - net[0].weight.detach()})
    tensor([[[0.0000, 0.2500],
             [0.5000, 1.0000]]])
    """
    if not len(inputs):
        return inputs.new_zeros(0, *inputs.shape[-2:])
    probe = moved(model, change).eval().requires_grad_(False)
    name = last_convolution(probe, inputs[:1]) if layer is None else layer
    kept: list[Tensor] = []
    try:
        probe.get_submodule(name).register_forward_hook(beginning_at(kept))
    except AttributeError:
        raise DoesNotFit(f"the model has no layer {name!r} to draw heat maps of") from None
    found = []
    with torch.enable_grad(), seeded_globally(0):
        for x, y in zip(torch.split(inputs, AT_ONCE), torch.split(labels, AT_ONCE), strict=True):
            kept.clear()
            logits = probe(x.detach().clone())
            score = logits.gather(1, y.to(logits.device).view(-1, 1)).sum()
            maps = weighted(spatial(kept, name), score)
            found.append(full_size(maps, x.shape[-2:]))
    return torch.cat(found)


def last_convolution(model: nn.Module, inputs: Tensor) -> str:
    """The convolution that runs last of those whose output has more than one place.

    The squeezed channels of an attention to channels, and a feature map of one pixel, show nothing.
    """
    ran: list[str] = []

    def noting(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            if is_spatial(output):
                ran.append(name)

        return hook

    layers = convolutions(model)
    handles = [conv.register_forward_hook(noting(name)) for name, conv in layers.items()]
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
            f"no convolution of the model makes a map of {size} images to show heat on"
        )
    return ran[-1]


def is_spatial(output: object) -> bool:
    """Whether a layer's output is a batch of maps of more than one place."""
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1


def beginning_at(kept: list[Tensor]) -> Callable[[nn.Module, object, Tensor], Tensor]:
    """A hook that keeps a layer's output and lets the graph begin there.

    What goes on is a copy: later layers may change it in place.
    """

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if not is_spatial(output):
            return output
        kept.append(output.detach().clone().requires_grad_(True))
        return kept[-1].clone()

    return hook


def spatial(kept: list[Tensor], layer: str) -> Tensor:
    """The output of the layer when it last ran, ``[n, K, h, w]``."""
    if not kept:
        raise DoesNotFit(f"layer {layer!r} makes no maps: name a convolution or a block of them")
    return kept[-1]


def weighted(output: Tensor, score: Tensor) -> Tensor:
    """``ReLU(sum over k of alpha_k H_k)``, ``[n, h, w]``; zeros where the score ignores H."""
    if not score.requires_grad:
        return torch.zeros_like(output[:, 0]).detach()
    (gradient,) = torch.autograd.grad(score, output, allow_unused=True, materialize_grads=True)
    alpha = gradient.mean((-2, -1), keepdim=True)
    return (alpha * output.detach()).sum(1).relu()


def full_size(maps: Tensor, size: torch.Size) -> Tensor:
    """Maps ``[n, h, w]`` at the images' size, each divided by its greatest value."""
    grown = F.interpolate(maps[:, None], list(size), mode="bilinear", align_corners=False)[:, 0]
    peak = grown.amax((-2, -1), keepdim=True)
    return torch.where(peak > 0, grown / peak, torch.zeros_like(grown))
