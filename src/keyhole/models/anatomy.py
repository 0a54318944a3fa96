"""Finds how an image enters a network, by probing it rather than by knowing its class.

There are two probes. In the *index image* each pixel's value is its own index: what the first layer
receives then says which pixel meets which of its weights, for any way of cutting and flattening.
The *gradient probe* then looks for a parameter whose gradient repeats, row by row, the gradient at
the patch embedding's output: that is a learned absolute position embedding, under any name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit, one_line
from keyhole.models.dropout_sites import FixedMasks
from keyhole.seeds import generator

Shape = tuple[int, int, int]
T = TypeVar("T")

TOLERANCE = 1e-3
"""Relative distance under which two gradients count as the same in float32."""


@dataclass(frozen=True)
class InputLayer:
    """The first layer with parameters, and the pixel that each of its weight columns sees.

    ``layout[t, f]`` is the flat index (over C, H, W) of the pixel that column ``f`` of the weight
    sees at token ``t``. A fully connected layer has one token, a patch embedding one per patch.
    """

    layer: str
    layout: Tensor

    @property
    def weight(self) -> str:
        return f"{self.layer}.weight" if self.layer else "weight"

    @property
    def bias(self) -> str:
        return f"{self.layer}.bias" if self.layer else "bias"

    @property
    def tokens(self) -> int:
        return int(self.layout.shape[0])

    def patch_size(self, shape: Shape) -> tuple[int, int]:
        """Returns the height and width of a patch, from the pixels of the first one."""
        _, height, width = shape
        pixels = self.layout[0] % (height * width)
        rows, columns = pixels // width, pixels % width
        return int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1

    def is_regular_grid(self, shape: Shape) -> bool:
        """Returns whether the patches form a regular grid, numbered row by row."""
        channels, height, width = shape
        tall, wide = self.patch_size(shape)
        if tall * wide * channels != self.layout.shape[1] or height % tall or width % wide:
            return False
        corners = torch.arange(height)[::tall, None] * width + torch.arange(width)[None, ::wide]
        return torch.equal(self.layout.amin(1), corners.flatten())

    def assemble(self, columns: Tensor, shape: Shape) -> Tensor:
        """Puts ``[..., T, F]`` values of the weight's columns back into ``[..., C, H, W]``."""
        flat = columns.new_zeros(*columns.shape[:-2], shape[0] * shape[1] * shape[2])
        flat[..., self.layout.to(columns.device).flatten()] = columns.flatten(-2)
        return flat.reshape(*flat.shape[:-1], *shape)


@dataclass(frozen=True)
class PatchEmbedding:
    """A patch embedding whose output is added to a learned absolute position embedding."""

    input_layer: InputLayer
    position: str
    """The name of the position embedding's parameter."""
    offset: int
    """The number of its rows before the first patch (class and other prefix tokens)."""

    def patch_rows(self, table: Tensor) -> Tensor:
        """Returns the patches' rows ``[N, D]`` of the position embedding, or of its gradient."""
        return table.flatten(0, -2)[self.offset : self.offset + self.input_layer.tokens]


def input_shape(model: nn.Module) -> Shape | None:
    """Returns the shape of a model's images if it says so: timm's, torchvision's, our ViTs do."""
    stem = getattr(model, "patch_embed", None)
    size = getattr(stem, "img_size", None) or getattr(model, "image_size", None)
    if size is None:
        return None
    height, width = size if isinstance(size, Sequence) else (size, size)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = getattr(model, "channels", None if first is None else first.in_channels)
    return None if channels is None else (int(channels), int(height), int(width))


class _LayerReached(Exception):
    def __init__(self, layer: str, module: nn.Module, received: Tensor) -> None:
        self.layer, self.module, self.received = layer, module, received


def cache_per_model(find: Callable[[nn.Module, Shape], T]) -> Callable[[nn.Module, Shape], T]:
    """Caches the results of ``find`` for each model, as long as the model exists."""
    known: WeakKeyDictionary[nn.Module, dict[Shape, T]] = WeakKeyDictionary()

    @wraps(find)
    def find_cached(model: nn.Module, shape: Shape) -> T:
        found = known.setdefault(model, {})
        if shape not in found:
            found[shape] = find(model, shape)
        return found[shape]

    return find_cached


@cache_per_model
def find_logits_layer(model: nn.Module, shape: Shape) -> str | None:
    """Finds the linear layer whose output is the logits, in whatever order layers are listed.

    Args:
        model: A network that ends in logits.
        shape: The shape of one image, ``(C, H, W)``.
    """
    probe = copy.deepcopy(model).eval()
    outputs: list[tuple[str, Tensor]] = []

    def keep_output(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, args, output: outputs.append((name, output))

    for name, module in probe.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(keep_output(name))
    with torch.no_grad():
        logits = probe(torch.zeros(1, *shape).to(next(probe.parameters())))
    return next((name for name, out in reversed(outputs) if torch.equal(out, logits)), None)


@cache_per_model
@torch.enable_grad()
def unused_parameters(model: nn.Module, shape: Shape) -> frozenset[str]:
    """Returns the parameters that the logits do not depend on, such as those of an extra loss."""
    probe = copy.deepcopy(model).requires_grad_(True)
    names, weights = zip(*probe.named_parameters(), strict=True)
    with FixedMasks():
        logits = probe(torch.zeros(2, *shape).to(weights[0]))
    found = torch.autograd.grad(logits.sum(), weights, allow_unused=True)
    return frozenset(n for n, gradient in zip(names, found, strict=True) if gradient is None)


@cache_per_model
def find_input_layer(model: nn.Module, shape: Shape) -> InputLayer | str:
    """Finds the layer at which images enter ``model``, or the reason why pixels cannot be read."""
    like = next(model.parameters(), None)
    if like is None:
        return "no layer of the model has parameters"
    index = torch.arange(shape[0] * shape[1] * shape[2]).to(like)
    try:
        reached = _first_layer(model, index.view(1, *shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise DoesNotFit(f"the model cannot be fed {shape} images ({one_line(error)})") from None
    if reached is None:
        return "no layer of the model has parameters"
    layer, module, received = reached.layer, reached.module, reached.received
    if isinstance(module, nn.Conv2d):
        is_patchwise = module.kernel_size == module.stride and module.padding == (0, 0)
        if not is_patchwise or module.groups != 1 or module.dilation != (1, 1):
            size = "x".join(str(k) for k in module.kernel_size)
            kind = "whose windows overlap" if module.dilation == (1, 1) else "that is dilated"
            return f"its first layer {layer!r} is a {size} convolution {kind}"
        columns = F.unfold(received, module.kernel_size, stride=module.stride)[0].T
    elif isinstance(module, nn.Linear):
        columns = received.reshape(-1, module.in_features)
    else:
        kind = type(module).__name__
        return f"its first layer {layer!r} is a {kind}, not linear or a patch embedding"
    layout = columns.round().long().cpu()
    if not torch.equal(layout.flatten().sort().values, torch.arange(layout.numel())):
        return f"its first layer {layer!r} sees a processed image, not the pixels"
    return InputLayer(layer, layout)


def _first_layer(model: nn.Module, image: Tensor) -> _LayerReached | None:
    """Runs ``model`` up to the first module with parameters of its own."""
    probe = copy.deepcopy(model).eval()
    for name, module in probe.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not _has_children(module):

            def stop(mod: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                raise _LayerReached(name, mod, args[0])

            module.register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            probe(image)
    except _LayerReached as reached:
        return reached
    return None


def _has_children(module: nn.Module) -> bool:
    """Returns whether a module only holds parameters for its children (class token, positions)."""
    return any(True for _ in module.children())


@cache_per_model
@torch.enable_grad()
def find_patch_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding | str:
    """Finds the model's patch and position embedding, or the reason why it has none."""
    first = find_input_layer(model, shape)
    if isinstance(first, str):
        return first
    if first.tokens < 2:
        return f"its first layer {first.layer!r} sees the whole image at once, not patches"
    return _probe_embedding(copy.deepcopy(model), first, shape)


@cache_per_model
@torch.enable_grad()
def find_position_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding | str:
    """Does the same for an untrained model, some of whose weights may start at zero."""
    found = find_patch_embedding(model, shape)
    first = find_input_layer(model, shape)
    if isinstance(first, str) or found != NO_GRADIENT:
        return found
    probe = copy.deepcopy(model)
    draw = generator(0, "zero weights")
    for weight in probe.parameters():
        if weight.ndim > 1 and not weight.any():
            weight.data.copy_(torch.randn(weight.shape, generator=draw) * 0.02)
    return _probe_embedding(probe, first, shape)


NO_GRADIENT = "no gradient reaches its patch embedding (are the head's weights all zero?)"


def _probe_embedding(probe: nn.Module, first: InputLayer, shape: Shape) -> PatchEmbedding | str:
    """Runs the gradient probe; ``probe`` is a copy of the model, which is changed."""
    probe.eval().requires_grad_(True)
    outputs: list[Tensor] = []
    handle = probe.get_submodule(first.layer).register_forward_hook(
        lambda module, args, output: outputs.append(output)
    )
    like = next(probe.parameters())
    image = torch.randn(1, *shape, generator=generator(0, "anatomy")).to(like)
    logits = probe(image)
    handle.remove()
    names = [name for name, _ in probe.named_parameters()]
    found = torch.autograd.grad(
        logits.logsumexp(-1).sum() - logits.flatten()[0],
        [*outputs, *probe.parameters()],
        allow_unused=True,
    )
    rows = _token_rows(found[0], first.tokens)
    if not rows.any():
        return NO_GRADIENT
    for name, gradient in zip(names, found[1:], strict=True):
        offset = None if gradient is None else _find_rows(rows, gradient)
        if offset is not None:
            return PatchEmbedding(first, name, offset)
    return (
        "it has no learned absolute position embedding: no parameter's gradient repeats the "
        "gradient at the patch embedding's output"
    )


def require_patch_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding:
    """Returns the patch embedding of a model that is known to have one."""
    found = find_patch_embedding(model, shape)
    assert not isinstance(found, str)
    return found


def _token_rows(gradient: Tensor, tokens: int) -> Tensor:
    """Returns the gradient at a patch embedding's output (conv or linear layout) as ``[T, D]``."""
    if gradient.ndim == 4:
        return gradient[0].flatten(1).T
    return gradient.reshape(tokens, -1)


def _find_rows(rows: Tensor, gradient: Tensor) -> int | None:
    """Returns the row of ``gradient`` at which ``rows`` begin, if it contains them."""
    tokens, width = rows.shape
    if gradient.shape[-1] != width or gradient.numel() < rows.numel():
        return None
    table = gradient.reshape(-1, width)
    for offset in range(len(table) - tokens, -1, -1):
        if (table[offset : offset + tokens] - rows).norm() <= TOLERANCE * rows.norm():
            return offset
    return None
