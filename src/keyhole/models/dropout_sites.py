"""Finds, records and sets what a network drops or draws, for any network.

Networks drop values through a few functions of ``torch.nn.functional``. A torch function mode
intercepts these functions, so that no module is replaced and the user's model object stays as it
is. It also sees functional dropout (timm's ``drop_rate``) and the dropout inside fused attention.
Each dropout is a *site*; sites are numbered in the order in which a forward pass reaches them. The
noise of a variational bottleneck is a site, too, whose mask is the noise itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from keyhole.models.bottleneck import draw_noise
from keyhole.models.puzzle import (
    Puzzle,
    PuzzlePool,
    PuzzleRules,
    draw_puzzle,
    draw_random_puzzle,
    solved_puzzle,
)

ELEMENTWISE = (F.dropout,)
CHANNELWISE = (F.dropout1d, F.dropout2d, F.dropout3d)
WITHOUT_MASK = (F.alpha_dropout, F.feature_alpha_dropout)
"""Dropouts that do not multiply by a mask; modes that set the masks skip them."""


@dataclass(frozen=True)
class Site:
    """One dropout in a network.

    Args:
        p: The dropout rate.
        shape: The shape of one sample's mask.
        hides: For a jigsaw puzzle, the position embedding whose rows are not used where the mask
            is 0.
        is_noise: Whether the mask is noise from N(0, 1), as a variational bottleneck draws it.
    """

    p: float
    shape: tuple[int, ...]
    hides: str | None = None
    is_noise: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class DropoutMode(TorchFunctionMode):
    """Passes every dropout of the networks that run under it to :meth:`drop`.

    Call :meth:`begin` before each forward pass.
    """

    writes_out_attention = False
    """Whether attention without dropout is written out, too: that is twice differentiable."""

    decides = True
    """Whether it decides what is dropped; then dropouts without a mask are skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.next_site = 0

    def begin(self) -> None:
        """Starts to count sites for a new forward pass."""
        self.next_site = 0

    @abstractmethod
    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        """Returns ``x`` after dropout number ``self.next_site``, whose mask has ``shape``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in ELEMENTWISE or func in CHANNELWISE:
            return self._site(func, *args, **kwargs)
        if func in WITHOUT_MASK and self.decides:
            return args[0]
        if func is draw_puzzle:
            return self._puzzle(*args, **kwargs)
        if func is draw_noise:
            noise = self.make_noise(*args)
            self.next_site += 1
            return noise
        explicit = self._find_explicit(func, args, kwargs)
        if explicit is not None:
            with self:
                return explicit(*args, **kwargs)
        return func(*args, **kwargs)

    def _find_explicit(
        self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        """Returns what replaces a fused attention that drops or must be differentiated twice."""
        if func is F.scaled_dot_product_attention:
            drops = kwargs.get("dropout_p", 0.0) > 0
            return explicit_attention if drops or self.writes_out_attention else None
        if func is F.multi_head_attention_forward and is_self_attention(args, kwargs):
            drops = args[10] > 0
            return explicit_packed_attention if drops or self.writes_out_attention else None
        return None

    def _site(
        self,
        func: Callable[..., Any],
        x: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return x
        shape = tuple(x.shape)
        if func in CHANNELWISE:
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        dropped = self.drop(x, p, shape)
        self.next_site += 1
        return dropped

    def _puzzle(
        self,
        images: Tensor,
        rules: PuzzleRules,
        position: str | None = None,
        pool: PuzzlePool | None = None,
    ) -> Puzzle:
        """Answers a network that draws a puzzle; without hidden positions it is the solved one."""
        if position is None and self.decides:
            return solved_puzzle(images, rules)
        puzzle = self.make_puzzle(images, rules, position, pool)
        self.next_site += position is not None
        return puzzle

    @abstractmethod
    def make_puzzle(
        self, images: Tensor, rules: PuzzleRules, position: str | None, pool: PuzzlePool | None
    ) -> Puzzle:
        """Returns the puzzle of site number ``self.next_site``; its mask is 0 where covered."""

    @abstractmethod
    def make_noise(self, like: Tensor) -> Tensor:
        """Returns the noise of site number ``self.next_site``, in the shape of ``like``."""


class SiteFinder(DropoutMode):
    """Lists the sites that a forward pass reaches; nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[Site] = []

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        self.sites.append(Site(p, shape[1:]))
        return x

    def make_puzzle(
        self, images: Tensor, rules: PuzzleRules, position: str | None, pool: PuzzlePool | None
    ) -> Puzzle:
        puzzle = solved_puzzle(images, rules)
        self.sites.append(Site(rules.gamma, tuple(puzzle.kept.shape[1:]), hides=position))
        return puzzle

    def make_noise(self, like: Tensor) -> Tensor:
        self.sites.append(Site(0.0, tuple(like.shape[1:]), is_noise=True))
        return torch.zeros_like(like)


class MaskRecorder(DropoutMode):
    """Drops as torch does, from torch's global generator, and keeps the masks that it drew."""

    decides = False

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[list[Tensor]] = []

    def begin(self) -> None:
        super().begin()
        self.masks.append([])

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        ones = torch.ones_like(x) if shape == x.shape else x.new_ones(shape)
        scaled = F.dropout(ones, p)
        self.masks[-1].append(scaled != 0)
        return x * scaled

    def make_puzzle(
        self, images: Tensor, rules: PuzzleRules, position: str | None, pool: PuzzlePool | None
    ) -> Puzzle:
        puzzle = draw_random_puzzle(images, rules, pool=pool)
        if position is not None:
            self.masks[-1].append(puzzle.kept != 0)
        return puzzle

    def make_noise(self, like: Tensor) -> Tensor:
        noise = torch.randn_like(like)
        self.masks[-1].append(noise)
        return noise

    def masks_by_site(self) -> tuple[Tensor, ...]:
        """Returns one tensor per site, ``[steps * batch, ...]``: bool, or the noise itself."""
        return tuple(torch.cat(each) for each in zip(*self.masks, strict=True))


class FixedMasks(DropoutMode):
    """Drops by given masks, ``x * mask / (1 - p)``; without masks nothing is dropped or drawn."""

    writes_out_attention = True

    def __init__(self, masks: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.masks = masks

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        if self.masks is None:
            return x
        return x * (self.masks[self.next_site] / (1 - p))

    def make_puzzle(
        self, images: Tensor, rules: PuzzleRules, position: str | None, pool: PuzzlePool | None
    ) -> Puzzle:
        """Returns a puzzle that moves no patch; the masks say which positions are unknown."""
        if self.masks is None:
            return solved_puzzle(images, rules)
        return Puzzle(self.masks[self.next_site].to(images))

    def make_noise(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if self.masks is None else self.masks[self.next_site].to(like)


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Computes scaled dot-product attention step by step: ``dropout(softmax(q k^T * scale)) v``."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
    scores = (query * (scale or query.shape[-1] ** -0.5)) @ key.transpose(-2, -1)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    probabilities = F.dropout(scores.softmax(-1), dropout_p)
    mixed: Tensor = probabilities @ value
    return mixed


def is_self_attention(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Returns whether a call of ``F.multi_head_attention_forward`` can be written out."""
    one_input = args[0] is args[1] is args[2] and args[5] is not None
    extras = (args[7], args[8], args[9] or None, kwargs.get("key_padding_mask"))
    return one_input and all(extra is None for extra in extras)


def explicit_packed_attention(
    tokens: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor | None,
    bias_k: None,
    bias_v: None,
    add_zero_attn: bool,
    dropout_p: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    **unused: object,
) -> tuple[Tensor, None]:
    """Computes ``nn.MultiheadAttention`` on ``[T, B, D]`` tokens step by step."""
    x = tokens.transpose(0, 1)
    joint = F.linear(x, in_weight, in_bias)
    split = torch.unflatten(joint, 2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind()
    rate = dropout_p if training else 0.0
    mixed = explicit_attention(query, key, value, attn_mask, rate, is_causal)
    merged = mixed.transpose(1, 2).reshape(x.shape)
    return F.linear(merged, out_weight, out_bias).transpose(0, 1).contiguous(), None
