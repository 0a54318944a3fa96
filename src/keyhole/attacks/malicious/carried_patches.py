"""How a frozen vision transformer can bring its patches, unharmed, to its adapters.

The patch embedding copies pixels into the token, the blocks add nothing to it, and the position
embedding adds a constant that grows with the position by more than a patch's brightness can vary.
One functional, brightness plus that constant, then tells positions apart, and patches of the same
position by their brightness.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.attacks.malicious.last_layer import record_call
from keyhole.errors import DoesNotFit
from keyhole.models.adapters import AdaptedBlock, Adapter, find_adapters
from keyhole.models.anatomy import InputLayer, Shape, find_input_layer

SPARE = 3
"""Values of a token besides the pixels that make room for everything else the token carries."""
SPACING = 1.05
"""Distance of two positions, as a multiple of the range of the pixels."""
STEADY = 2.0
"""The least standard deviation of a token's values: a layer norm then scales tokens alike."""


@dataclass(frozen=True)
class TokenLayout:
    """What the values of a token are used for; each direction is ``[D]``.

    Args:
        pixels: How many pixels a patch has; they are the token's first values.
        functional: Measures brightness plus position.
        position: The direction of the position's constant; the functional of it is 1.
        carrier: The direction in which adapters write; the functional of it is 0.
        steady: The direction of a constant that all tokens have.
    """

    pixels: int
    functional: Tensor
    position: Tensor
    carrier: Tensor
    steady: Tensor

    @classmethod
    def choose(cls, dim: int, pixels: int) -> TokenLayout:
        """Gives each direction a value of its own if the token has room, else mixes all.

        Raises:
            DoesNotFit: A patch has more pixels than a token has values.
        """
        if dim < pixels or pixels < 4:
            raise DoesNotFit(f"its tokens of {dim} values cannot carry patches of {pixels} pixels")
        functional, position, carrier, steady = torch.zeros(4, dim)
        functional[:pixels] = 1 / pixels
        if dim >= pixels + SPARE:
            functional[pixels] = position[pixels] = 1.0
            carrier[pixels + 1] = steady[pixels + 2] = 1.0
        else:
            fours = pixels // 4 * 4
            position[:pixels] = 1.0
            carrier[:fours] = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(fours // 4)
            steady[:fours] = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(fours // 4)
        return cls(pixels, functional, position, carrier / carrier.norm(), steady / steady.norm())


@dataclass(frozen=True)
class AdaptedVit:
    """A vision transformer with adapters, and the parts of it that bring patches to them.

    Args:
        model: The model.
        first: Its patch embedding.
        blocks: Its blocks.
        averages: Whether its head sees the mean of all tokens, and not the class token.
    """

    model: nn.Module
    first: InputLayer
    blocks: tuple[AdaptedBlock, ...]
    averages: bool

    @classmethod
    def find(cls, model: nn.Module, shape: Shape) -> AdaptedVit:
        """Finds the parts.

        Args:
            model: The model, whose own parts are returned, not copies.
            shape: The images' shape, ``(C, H, W)``.

        Raises:
            DoesNotFit: The model is no vision transformer with adapters, or too unusual a one.
        """
        if not find_adapters(model):
            raise DoesNotFit("it has no adapters: pass --model adapters:NAME")
        first = find_input_layer(model, shape)
        if isinstance(first, str):
            raise DoesNotFit(first)
        stem = getattr(model, "patch_embed", None)
        between = [getattr(model, "norm_pre", None), getattr(stem, "norm", None)]
        if any(part is not None and not isinstance(part, nn.Identity) for part in between):
            raise DoesNotFit("it normalises tokens before its first block")
        table, pool = getattr(model, "pos_embed", None), getattr(model, "global_pool", "token")
        extra = table.shape[1] - first.tokens if isinstance(table, nn.Parameter) else -1
        if extra not in (0, 1) or getattr(model, "reg_token", None) is not None:
            raise DoesNotFit("it needs position embeddings for patches and one class token at most")
        if pool not in ("token", "avg"):
            raise DoesNotFit(f"it pools tokens by {pool!r}, neither a class token nor their mean")
        blocks = tuple(part for part in model.modules() if isinstance(part, AdaptedBlock))
        if pool == "token" and len(blocks) < 2:
            raise DoesNotFit("no adapter stands before the attention that feeds its class token")
        return cls(model, first, blocks, averages=pool == "avg")

    @property
    def embedding(self) -> Tensor:
        """The weights of the patch embedding, ``[D, P]``."""
        return self.model.get_parameter(self.first.weight).data.flatten(1)

    @property
    def positions(self) -> Tensor:
        """The position embedding of the patches, ``[N, D]``."""
        return self.model.get_parameter("pos_embed").data[0, -self.first.tokens :]

    @property
    def adapters(self) -> list[tuple[str, Adapter]]:
        """The adapters that the loss depends on, with their names.

        Where the head sees the class token, the last attention must bring it the patches, and the
        adapters after that come too late.
        """
        every = find_adapters(self.model)
        return every if self.averages else every[:-2]

    @property
    def head(self) -> nn.Linear:
        head = self.model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        return head

    @property
    def norm(self) -> nn.LayerNorm | None:
        """The layer norm through which patches pass on their way to the head, one by one."""
        last = getattr(self.model, "norm", None) if self.averages else self.blocks[-1].norm1
        return last if isinstance(last, nn.LayerNorm) else None

    def choose_layout(self) -> TokenLayout:
        """Returns what the token's values are used for."""
        return TokenLayout.choose(*self.embedding.shape)

    def embed(self, images: Tensor) -> Tensor:
        """Returns the tokens ``[n, N, D]`` that patches of images ``[n, C, H, W]`` should be."""
        patches = images.flatten(1)[:, self.first.layout.to(images.device)]
        return patches @ self.embedding.T + self.positions

    def read_pixels(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns the pixels ``[b, P]`` of tokens ``[b, D]`` at known positions ``[b]``."""
        return (tokens - self.positions[positions].to(tokens)) @ self.embedding.to(tokens)

    def compute_norm_slope(self, tokens: Tensor, carrier: Tensor) -> Tensor:
        """Returns how the norm's output follows tokens ``[b, D]``, along the carrier, ``[b]``."""
        if self.norm is None:
            return torch.ones_like(tokens[:, 0])
        centred, along = tokens - tokens.mean(1, keepdim=True), carrier - carrier.mean()
        deviation = (centred.square().mean(1) + self.norm.eps).sqrt()
        turned = (centred @ along).square() / (tokens.shape[1] * deviation**3)
        slope: Tensor = along.square().sum() / deviation - turned
        return slope


def wire_patches(vit: AdaptedVit, lowest: float, highest: float) -> None:
    """Makes a network bring its patches to all adapters, and what those write to the head.

    Args:
        vit: The network, which is changed.
        lowest: The least value of a pixel.
        highest: The greatest.
    """
    layout = vit.choose_layout()
    copy_pixels(vit, layout, lowest, highest)
    for block in vit.blocks:
        silence_block(block)
    for adapter in find_adapters(vit.model):
        for parameter in adapter[1].parameters():
            parameter.data.zero_()
    for part in (vit.norm, getattr(vit.model, "norm", None), getattr(vit.model, "fc_norm", None)):
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    if not vit.averages:
        mix_tokens(vit.blocks[-1], layout.carrier)


def check_wires(vit: AdaptedVit, image: Tensor) -> None:
    """Raises :class:`DoesNotFit` unless the patches of ``image [1, C, H, W]`` arrive unharmed."""
    arrived = record_call(vit.model, vit.adapters[-1][1], image)[0][:, -vit.first.tokens :]
    wanted = vit.embed(image)
    if arrived.shape != wanted.shape or not torch.allclose(arrived, wanted, rtol=1e-4, atol=1e-4):
        raise DoesNotFit("its blocks change tokens even where attention and MLP add nothing")


def copy_pixels(vit: AdaptedVit, layout: TokenLayout, lowest: float, highest: float) -> None:
    """Makes tokens of pixels, less their middle value, and of the constants."""
    embedding, table = vit.embedding, vit.model.get_parameter("pos_embed").data
    embedding.zero_()[: layout.pixels].fill_diagonal_(1.0)
    bias = dict(vit.model.named_parameters()).get(vit.first.bias)
    if bias is not None:
        bias.data.zero_()
    count, spacing = vit.first.tokens, SPACING * (highest - lowest)
    constants = spacing * (torch.arange(count) - (count - 1) / 2)
    steady = STEADY * len(layout.steady) ** 0.5 * layout.steady
    fixed = steady - (highest + lowest) / 2 * (torch.arange(len(steady)) < layout.pixels)
    table.zero_()
    vit.positions.copy_(constants[:, None] * layout.position + fixed)
    token = getattr(vit.model, "cls_token", None)
    if isinstance(token, nn.Parameter):  # it lies below all thresholds and fires nothing
        token.data.copy_((constants[0] - 2 * spacing) * layout.position + steady)


def silence_block(block: AdaptedBlock) -> None:
    """Makes a block's attention and MLP add nothing."""
    for part in (block.attn, block.mlp):
        last = [module for module in part.modules() if isinstance(module, nn.Linear)][-1]
        for parameter in last.parameters():
            parameter.data.zero_()


def mix_tokens(block: AdaptedBlock, carrier: Tensor) -> None:
    """Makes a block's attention add the tokens' mean to all, along the carrier alone.

    Raises:
        DoesNotFit: The attention has no ``qkv`` and ``proj``, as timm's has.
    """
    attention, dim = block.attn, len(carrier)
    query, out = getattr(attention, "qkv", None), getattr(attention, "proj", None)
    if not isinstance(query, nn.Linear) or not isinstance(out, nn.Linear):
        raise DoesNotFit("its attention has no `qkv` and `proj`, as timm's has")
    for parameter in query.parameters():
        parameter.data.zero_()
    query.weight.data[2 * dim] = carrier
    out.weight.data[:, 0] = carrier
    for parameter in block.ls1.parameters():
        parameter.data.fill_(1.0)
