"""Vision transformers of which clients train adapters and the head alone (Houlsby et al. 2019).

Each block gets two adapters, one after its attention and one after its MLP. An adapter is a
bottleneck with a residual, ``x + up(ReLU(down(x)))``, on the tokens that the block passes on. Its
up-projection starts at zero, so the network computes what it did before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from keyhole.data.image_set import Size
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator

WIDTH = 64
"""Rows of an adapter's down-projection, unless someone says otherwise."""
BLOCK_PARTS = {"norm1", "attn", "norm2", "mlp"}
SCALES = {"ls1", "drop_path1", "ls2", "drop_path2"}
"""What timm's blocks have besides: layer scale and stochastic depth, or identities."""
PROBE_TOKENS = 3


class Adapter(nn.Module):
    """A bottleneck with a residual: ``x + up(ReLU(down(x)))``.

    Args:
        dim: Values of a token.
        width: Rows of the down-projection.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, width)
        self.act = nn.ReLU()
        self.up = nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D] -> [..., D]``."""
        return x + self.up(self.act(self.down(x)))  # type: ignore[no-any-return]


class AdaptedBlock(nn.Module):
    """A pre-norm transformer block with an adapter after attention and one after the MLP.

    The parts of the block keep their names.
    """

    norm1: nn.Module
    attn: nn.Module
    ls1: nn.Module
    drop_path1: nn.Module
    norm2: nn.Module
    mlp: nn.Module
    ls2: nn.Module
    drop_path2: nn.Module

    def __init__(self, block: nn.Module, width: int) -> None:
        super().__init__()
        for name, part in block.named_children():
            self.add_module(name, part)
        for name in SCALES - {name for name, _ in block.named_children()}:
            self.add_module(name, nn.Identity())
        dim = next(block.get_submodule("norm1").parameters()).numel()
        self.adapter1 = Adapter(dim, width)
        self.adapter2 = Adapter(dim, width)
        self.train(block.training)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, D] -> [B, N, D]``."""
        x = self.adapter1(x + self.drop_path1(self.ls1(self.attn(self.norm1(x)))))
        return self.adapter2(x + self.drop_path2(self.ls2(self.mlp(self.norm2(x)))))  # type: ignore[no-any-return]


def adapted_model(
    make: Callable[..., nn.Module], *, classes: int, channels: int, image_size: Size
) -> nn.Module:
    """Builds a vision transformer and adds adapters to it."""
    return add_adapters(make(classes=classes, channels=channels, image_size=image_size))


def add_adapters(model: nn.Module, width: int = WIDTH) -> nn.Module:
    """Returns a copy of a vision transformer with adapters, which freezes all else but the head.

    Clients train and report what is not frozen.

    Args:
        model: A vision transformer with ``blocks`` and a ``head``, as timm's and ``vit-small`` are.
        width: Rows of each adapter's down-projection.

    Raises:
        DoesNotFit: The model is no such transformer, or has adapters already.
    """
    changed = copy.deepcopy(model)
    blocks, head = getattr(changed, "blocks", None), getattr(changed, "head", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not isinstance(head, nn.Linear):
        raise DoesNotFit("adapters need a ViT with `blocks` and a linear `head`, as timm's have")
    for number, block in enumerate(blocks):
        blocks[number] = adapt_block(block, width, f"blocks.{number}")
    changed.requires_grad_(False)
    head.requires_grad_(True)
    for _, adapter in find_adapters(changed):
        adapter.requires_grad_(True)
    return changed


def adapt_block(block: nn.Module, width: int, name: str) -> AdaptedBlock:
    """Adds adapters to a block, and checks that it still computes the same."""
    parts = {child for child, _ in block.named_children()}
    if isinstance(block, AdaptedBlock):
        raise DoesNotFit(f"{name!r} has adapters already")
    if not parts >= BLOCK_PARTS:
        raise DoesNotFit(f"{name!r} lacks norm1, attn, norm2 or mlp: adapters fit pre-norm blocks")
    weight = next(block.get_submodule("norm1").parameters())
    draw = generator(0, "adapter probe")
    tokens = torch.randn(2, PROBE_TOKENS, weight.numel(), generator=draw).to(weight)
    was_training = block.training
    with torch.no_grad():
        wanted = block.eval()(tokens)
        adapted = AdaptedBlock(block, width).to(weight)
        same = torch.allclose(adapted(tokens), wanted, atol=1e-5)
    if not same:
        raise DoesNotFit(f"{name!r} is not a plain pre-norm block: adapters would change its rest")
    adapted.train(was_training)
    return adapted


def find_adapters(model: nn.Module) -> list[tuple[str, Adapter]]:
    """Returns the adapters of a model with their names, in the order tokens pass them."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, Adapter)]
