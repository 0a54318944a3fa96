"""How an image enters a network, found by probing it rather than by knowing its class.

Two probes. The *index image* carries in each pixel the pixel's own number: what the first layer
receives then says which pixel meets which of its weights, for any way of cutting and flattening.
A *gradient probe* then looks for a parameter whose gradient repeats, row by row, the gradient at
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
from keyhole.models.dropout_sites import Driven
from keyhole.seeds import generator

Shape = tuple[int, int, int]
T = TypeVar("T")

SAME = 1e-3
"""Relative distance under which two gradients count as the same in float32."""


@dataclass(frozen=True)
class Entrance:
    """The first layer with parameters, and the pixel each of its weight columns meets.

    ``layout[t, f]`` is the flat index (over C, H, W) of the pixel that column ``f`` of the weight
    sees at token ``t``; a fully connected layer has one token, a patch embedding one a patch.
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

    def patch(self, shape: Shape) -> tuple[int, int]:
        """Height and width of a patch, from the pixels that the first one holds."""
        _, height, width = shape
        pixels = self.layout[0] % (height * width)
        rows, columns = pixels // width, pixels % width
        return int(rows.max() - rows.min()) + 1, int(columns.max() - columns.min()) + 1

    def in_rows(self, shape: Shape) -> bool:
        """Whether the patches are cut as a regular grid, numbered row by row."""
        channels, height, width = shape
        tall, wide = self.patch(shape)
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

    entrance: Entrance
    position: str
    """Name of the position-embedding parameter."""
    offset: int
    """Its rows before the first patch (class and other prefix tokens)."""

    def rows(self, table: Tensor) -> Tensor:
        """The patches' rows ``[N, D]`` of the position embedding, or of its gradient."""
        return table.flatten(0, -2)[self.offset : self.offset + self.entrance.tokens]


def input_shape(model: nn.Module) -> Shape | None:
    """The images a model is made for, where it says so: timm's, torchvision's and our ViTs do."""
    stem = getattr(model, "patch_embed", None)
    said = getattr(stem, "img_size", None) or getattr(model, "image_size", None)
    if said is None:
        return None
    height, width = said if isinstance(said, Sequence) else (said, said)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = getattr(model, "channels", None if first is None else first.in_channels)
    return None if channels is None else (int(channels), int(height), int(width))


class _Reached(Exception):
    def __init__(self, layer: str, module: nn.Module, received: Tensor) -> None:
        self.layer, self.module, self.received = layer, module, received


def once_a_model(find: Callable[[nn.Module, Shape], T]) -> Callable[[nn.Module, Shape], T]:
    """Remembers what ``find`` found, as long as the model lives."""
    known: WeakKeyDictionary[nn.Module, dict[Shape, T]] = WeakKeyDictionary()

    @wraps(find)
    def remembered(model: nn.Module, shape: Shape) -> T:
        found = known.setdefault(model, {})
        if shape not in found:
            found[shape] = find(model, shape)
        return found[shape]

    return remembered


@once_a_model
def logits_layer(model: nn.Module, shape: Shape) -> str | None:
    """The linear layer whose output is the logits, whatever order the layers are listed in."""
    probe = copy.deepcopy(model).eval()
    made: list[tuple[str, Tensor]] = []
    for name, module in probe.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, args, out, name=name: made.append((name, out)))
    with torch.no_grad():
        logits = probe(torch.zeros(1, *shape).to(next(probe.parameters())))
    return next((name for name, out in reversed(made) if torch.equal(out, logits)), None)


@once_a_model
@torch.enable_grad()
def without_part(model: nn.Module, shape: Shape) -> frozenset[str]:
    """Parameters that the logits do not depend on: those of a loss term of the clients' own."""
    probe = copy.deepcopy(model).requires_grad_(True)
    names, weights = zip(*probe.named_parameters(), strict=True)
    with Driven():
        logits = probe(torch.zeros(2, *shape).to(weights[0]))
    found = torch.autograd.grad(logits.sum(), weights, allow_unused=True)
    return frozenset(n for n, gradient in zip(names, found, strict=True) if gradient is None)


@once_a_model
def entrance(model: nn.Module, shape: Shape) -> Entrance | str:
    """The image's entrance into ``model``, or the reason why none can be read off."""
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
        cut = module.kernel_size == module.stride and module.padding == (0, 0)
        if not cut or module.groups != 1 or module.dilation != (1, 1):
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
    return Entrance(layer, layout)


def _first_layer(model: nn.Module, image: Tensor) -> _Reached | None:
    """Runs ``model`` until the first module that owns parameters is entered."""
    probe = copy.deepcopy(model).eval()
    for name, module in probe.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not _only_tokens(module):

            def stop(mod: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                raise _Reached(name, mod, args[0])

            module.register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            probe(image)
    except _Reached as reached:
        return reached
    return None


def _only_tokens(module: nn.Module) -> bool:
    """Whether a module merely holds parameters for its children (class token, positions)."""
    return any(True for _ in module.children())


@once_a_model
@torch.enable_grad()
def patch_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding | str:
    """The model's patch and position embedding, or the reason why it has none of the kind."""
    entry = entrance(model, shape)
    if isinstance(entry, str):
        return entry
    if entry.tokens < 2:
        return f"its first layer {entry.layer!r} sees the whole image at once, not patches"
    return _embedding(copy.deepcopy(model), entry, shape)


@once_a_model
@torch.enable_grad()
def position_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding | str:
    """The same for a model that is yet to be trained: weights that start at zero do not matter."""
    found = patch_embedding(model, shape)
    entry = entrance(model, shape)
    if isinstance(entry, str) or found != SILENT:
        return found
    probe = copy.deepcopy(model)
    draw = generator(0, "zero weights")
    for weight in probe.parameters():
        if weight.ndim > 1 and not weight.any():
            weight.data.copy_(torch.randn(weight.shape, generator=draw) * 0.02)
    return _embedding(probe, entry, shape)


SILENT = "no gradient reaches its patch embedding (are the head's weights all zero?)"


def _embedding(probe: nn.Module, entry: Entrance, shape: Shape) -> PatchEmbedding | str:
    """The gradient probe; ``probe`` is a copy of the model."""
    probe.eval().requires_grad_(True)
    at_output: list[Tensor] = []
    handle = probe.get_submodule(entry.layer).register_forward_hook(
        lambda module, args, output: at_output.append(output)
    )
    like = next(probe.parameters())
    image = torch.randn(1, *shape, generator=generator(0, "anatomy")).to(like)
    logits = probe(image)
    handle.remove()
    names = [name for name, _ in probe.named_parameters()]
    found = torch.autograd.grad(
        logits.logsumexp(-1).sum() - logits.flatten()[0],
        [*at_output, *probe.parameters()],
        allow_unused=True,
    )
    rows = _token_rows(found[0], entry.tokens)
    if not rows.any():
        return SILENT
    for name, gradient in zip(names, found[1:], strict=True):
        offset = None if gradient is None else _where_repeated(rows, gradient)
        if offset is not None:
            return PatchEmbedding(entry, name, offset)
    return (
        "it has no learned absolute position embedding: no parameter's gradient repeats the "
        "gradient at the patch embedding's output"
    )


def known_embedding(model: nn.Module, shape: Shape) -> PatchEmbedding:
    """The same of a model of which it is known that it has one."""
    found = patch_embedding(model, shape)
    assert not isinstance(found, str)
    return found


def _token_rows(gradient: Tensor, tokens: int) -> Tensor:
    """The gradient at a patch embedding's output as ``[T, D]`` (from conv or linear layout)."""
    if gradient.ndim == 4:
        return gradient[0].flatten(1).T
    return gradient.reshape(tokens, -1)


def _where_repeated(rows: Tensor, gradient: Tensor) -> int | None:
    """The row at which ``rows`` stand inside ``gradient``, if they do."""
    tokens, width = rows.shape
    if gradient.shape[-1] != width or gradient.numel() < rows.numel():
        return None
    table = gradient.reshape(-1, width)
    for offset in range(len(table) - tokens, -1, -1):
        if (table[offset : offset + tokens] - rows).norm() <= SAME * rows.norm():
            return offset
    return None
