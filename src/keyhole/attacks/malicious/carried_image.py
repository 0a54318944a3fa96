"""How a network's own layers can bring an image, unharmed, to a fully connected layer.

A convolution with identity kernels passes its input on. One with a stride does, too, if it has
channels enough: each takes one of the pixels that a window steps over. Whether the image really
arrives is then probed with an image in which each pixel's value is its own index.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.attacks.malicious.last_layer import record_call
from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import Shape


@dataclass(frozen=True)
class CarriedImage:
    """The first fully connected layer of a network that carries images to it.

    Args:
        name: The layer's name.
        layer: The layer.
        follower: The linear layer that receives the rectified output.
        pixels: Which of the layer's inputs each pixel is, ``[C * H * W]``.
        offset: What is added to each pixel on the way, ``[C * H * W]``.
    """

    name: str
    layer: nn.Linear
    follower: nn.Linear
    pixels: Tensor
    offset: Tensor


def wire_convolutions(model: nn.Module, shape: Shape, lowest: float) -> None:
    """Makes the convolutions before the first fully connected layer pass images on.

    Args:
        model: The model, which is changed.
        shape: The images' shape, ``(C, H, W)``.
        lowest: The least value of an input. The first convolution adds what makes it positive, so
            that no ReLU cuts it off.

    Raises:
        DoesNotFit: A layer on the way cannot carry an image.
    """
    channels, shift = shape[0], max(0.0, -lowest)
    for name, module in layers_before_linear(model, shape):
        if isinstance(module, nn.Conv2d):
            channels = wire_convolution(name, module, channels, shift)
            shift = 0.0
        elif any(True for _ in module.parameters()):
            raise DoesNotFit(f"{name!r} stands before its first fully connected layer")


def layers_before_linear(model: nn.Module, shape: Shape) -> list[tuple[str, nn.Module]]:
    """Returns the modules without children that are called before the first linear layer."""
    called: list[nn.Module] = []
    names = {module: name for name, module in model.named_modules()}
    handles = [
        module.register_forward_hook(lambda m, args, out: called.append(m))
        for module in names
        if not any(True for _ in module.children())
    ]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape).to(next(model.parameters())))
    for handle in handles:
        handle.remove()
    end = next((i for i, m in enumerate(called) if isinstance(m, nn.Linear)), None)
    if end is None:
        raise DoesNotFit("it has no fully connected layer")
    return [(names[module], module) for module in called[: end + 1]][:-1]


def wire_convolution(name: str, convolution: nn.Conv2d, channels: int, shift: float) -> int:
    """Gives a convolution identity kernels; returns how many channels they fill."""
    (down, right), (tall, wide) = convolution.stride, convolution.kernel_size
    padding, filled = convolution.padding, channels * down * right
    if isinstance(padding, str) or convolution.groups != 1 or convolution.dilation != (1, 1):
        raise DoesNotFit(f"the convolution {name!r} is grouped, dilated or padded by name")
    if padding[0] + down > tall or padding[1] + right > wide or filled > convolution.out_channels:
        raise DoesNotFit(
            f"the convolution {name!r} has {convolution.out_channels} channels and would need "
            f"{filled} to carry the image"
        )
    if convolution.bias is None and shift:
        raise DoesNotFit(f"the convolution {name!r} has no bias to keep pixels positive with")
    with torch.no_grad():
        convolution.weight.zero_()
        if convolution.bias is not None:
            convolution.bias.fill_(shift)
        for place in range(filled):
            channel, step = divmod(place, down * right)
            row, column = padding[0] + step // right, padding[1] + step % right
            convolution.weight[place, channel, row, column] = 1.0
    return filled


def find_carried_image(model: nn.Module, shape: Shape) -> CarriedImage:
    """Finds where the pixels arrive in a network that carries images.

    Raises:
        DoesNotFit: Some pixel does not arrive, or no ReLU and linear layer follow.
    """
    like = next(model.parameters())
    index = torch.arange(1, 1 + shape[0] * shape[1] * shape[2]).to(like).view(1, *shape)
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    for name, layer in linear:
        inputs, out = record_call(model, layer, index)
        empty = record_call(model, layer, torch.zeros_like(index))[0].flatten()
        pixels = find_pixels((inputs.flatten() - empty).round().long(), index.numel())
        if pixels is None:
            continue
        for _, follower in linear:
            if follower is not layer and receives(model, follower, index, out.relu()):
                return CarriedImage(name, layer, follower, pixels, empty[pixels])
        raise DoesNotFit(f"no ReLU and linear layer follow {name!r}")
    raise DoesNotFit("its layers lose pixels before the first fully connected one")


def find_pixels(received: Tensor, count: int) -> Tensor | None:
    """Returns at which place each of the numbers 1 to ``count`` arrived; None if one did not."""
    found = torch.full((count + 1,), -1)
    inside = (received > 0) & (received <= count)
    found[received[inside].cpu()] = torch.nonzero(inside)[:, 0].cpu()
    return None if bool((found[1:] < 0).any()) else found[1:]


def receives(model: nn.Module, layer: nn.Linear, images: Tensor, values: Tensor) -> bool:
    """Returns whether ``layer`` is fed exactly ``values``."""
    found = record_call(model, layer, images)[0]
    return found.shape == values.shape and torch.equal(found, values)
