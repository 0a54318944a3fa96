"""Units that never pass a gradient, or hardly ever: looked at with images, or with noise."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.rows import find_copies
from keyhole.auditing.incoming.subject import IncomingModel
from keyhole.models.anatomy import InputLayer, find_input_layer

FLAT = 1e-6
"""Slope of an activation below which nothing flows back through it in float32."""
DEAD_SHARE = 0.99
"""Share of a layer's units that are flat for every image: honest layers have units that are not."""
LEAST_UNITS = 32
"""Units a layer needs: each of the few of a squeeze-and-excite gate may be off by chance."""
RARE = 0.1
"""Share of images below which a first-layer unit fires rarely; fresh units fire for half."""
LEAST_IMAGES = 32
"""Images needed to tell a rare unit from another."""
ALIKE_SHARE = 0.25
"""Share of units that respond alike; images that differ in brightness alone may make a few so."""
NOT_ELEMENTWISE = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin, nn.GLU)
"""Activations whose slope is not one number per value."""
ACTIVATIONS = ("torch.nn.modules.activation", "timm.layers.activations")
"""The modules that define activations."""


def check_activity(model: IncomingModel) -> Iterator[Alarm]:
    """Finds layers of dead or saturated units."""
    assert model.network is not None
    assert model.inputs is not None
    for layer, slopes in record_slopes(model.network, model.inputs):
        units = slopes.amax(0)
        flat = float((units < FLAT).float().mean())
        if len(units) >= LEAST_UNITS and flat >= DEAD_SHARE:
            yield Alarm(
                "dead layer",
                layer,
                f"{flat:.0%} of its {len(units)} units pass no gradient for any of "
                f"{len(slopes)} images",
            )


def record_slopes(network: nn.Module, inputs: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields each call of an activation: its name and the steepest slope of every unit, ``[n, u]``.

    Units are the channels; the slope is the largest one over the positions of an image.
    """
    calls: list[tuple[str, Tensor]] = []
    names = {module: name for name, module in network.named_modules()}

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args[0].ndim > 1 and len(args[0]) == len(inputs):
            slopes = measure_slopes(module, args[0])
            calls.append((names[module], take_units(slopes)))

    handles = [m.register_forward_pre_hook(record) for m in names if is_activation(m)]
    try:
        with torch.no_grad():
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    yield from calls


def is_activation(module: nn.Module) -> bool:
    """Returns whether a module applies one function to every value."""
    is_single = not isinstance(module, (*NOT_ELEMENTWISE, nn.MultiheadAttention))
    return is_single and type(module).__module__.startswith(ACTIVATIONS)


@torch.enable_grad()
def measure_slopes(module: nn.Module, values: Tensor) -> Tensor:
    """Returns the absolute slope of an activation at each of ``values``."""
    function = copy.copy(module)
    if hasattr(function, "inplace"):
        setattr(function, "inplace", False)  # noqa: B010  a plain attribute, no child module
    function._forward_pre_hooks = type(module._forward_pre_hooks)()  # else it records itself
    points = values.detach().clone().requires_grad_(True)
    (slopes,) = torch.autograd.grad(function(points).sum(), points)
    return slopes.abs()


def take_units(slopes: Tensor) -> Tensor:
    """Returns the largest slope of each unit: of ``[n, C, H, W]`` by C, of ``[n, T, D]`` by D."""
    if slopes.ndim == 4:
        return slopes.amax((2, 3))
    return slopes if slopes.ndim == 2 else slopes.flatten(1, -2).amax(1)


def check_first_layer(model: IncomingModel) -> Iterator[Alarm]:
    """Looks at what a first layer that sees all pixels makes of the client's images."""
    first = find_first_layer(model)
    if first is None:
        return
    values = compute_values(model, first)
    layer, (count, units) = first.layer, values.shape
    if units < LEAST_UNITS or count < LEAST_IMAGES:
        return
    fired = (values > 0).float().mean(0)
    if float(fired.median()) < RARE:
        yield Alarm(
            "rare units",
            layer,
            f"half of its {units} units fire for less than {RARE:.0%} of {count} images, so that "
            "one image alone can be read from a batch",
        )
    alike = len(find_copies((values - values.mean(0)).T))
    if alike >= ALIKE_SHARE * units:
        yield Alarm(
            "ladder",
            layer,
            f"{alike} of its {units} units rise and fall together over {count} images, so that "
            "they differ in their thresholds alone",
        )


def find_first_layer(model: IncomingModel) -> InputLayer | None:
    """Finds the first layer, if it is linear and sees all pixels."""
    assert model.network is not None
    assert model.inputs is not None
    _, channels, height, width = model.inputs.shape
    first = find_input_layer(model.network, (channels, height, width))
    return None if isinstance(first, str) or first.tokens != 1 else first


@torch.no_grad()
def compute_values(model: IncomingModel, first: InputLayer) -> Tensor:
    """Returns what each unit of the first layer makes of each image, ``[n, units]``."""
    assert model.network is not None
    assert model.inputs is not None
    pixels = model.inputs.flatten(1)[:, first.layout[0].to(model.inputs.device)]
    values: Tensor = model.network.get_submodule(first.layer)(pixels)
    return values.float()
