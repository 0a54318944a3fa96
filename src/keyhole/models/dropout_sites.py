"""Every place where a network drops values, for any network: seen, recorded or driven.

Networks drop through a few functions of ``torch.nn.functional``. A mode stands between the network
and these functions, so that no module is replaced and the user's model object stays as it is: also
functional dropout (timm's ``drop_rate``) and the dropout hidden inside fused attention are met.
Sites are numbered in the order in which one forward pass reaches them.
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

from keyhole.models.puzzle import Dealer, Puzzle, Rules, drawn, lay, solved

ELEMENTWISE = (F.dropout,)
CHANNELWISE = (F.dropout1d, F.dropout2d, F.dropout3d)
UNDRIVEN = (F.alpha_dropout, F.feature_alpha_dropout)
"""Dropouts that do not multiply by a mask: a driven network leaves them out."""


@dataclass(frozen=True)
class Site:
    """One dropout in a network: its rate and the shape of one sample's mask."""

    p: float
    shape: tuple[int, ...]
    hides: str | None = None
    """The position embedding whose rows are not used where this mask is 0 (a jigsaw puzzle's)."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class DropoutMode(TorchFunctionMode):
    """Hands every dropout of the networks that run under it to :meth:`drop`.

    :meth:`begin` is called before each forward pass.
    """

    explicit_attention = False
    """Whether attention without dropout is also computed step by step (twice differentiable)."""

    drives = True
    """Whether it decides what is dropped; then dropouts that have no mask are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = 0

    def begin(self) -> None:
        self.reached = 0

    @abstractmethod
    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        """``x`` after dropout number ``self.reached``; ``shape`` is the whole mask's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in ELEMENTWISE or func in CHANNELWISE:
            return self._site(func, *args, **kwargs)
        if func in UNDRIVEN and self.drives:
            return args[0]
        if func is lay:
            return self._puzzle(*args, **kwargs)
        written_out = self._written_out(func, args, kwargs)
        if written_out is not None:
            with self:
                return written_out(*args, **kwargs)
        return func(*args, **kwargs)

    def _written_out(
        self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        """What stands in for a fused attention that drops, or that must be differentiated twice."""
        if func is F.scaled_dot_product_attention:
            drops = kwargs.get("dropout_p", 0.0) > 0
            return attention if drops or self.explicit_attention else None
        if func is F.multi_head_attention_forward and is_self_attention(args, kwargs):
            return packed_attention if args[10] > 0 or self.explicit_attention else None
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
        self.reached += 1
        return dropped

    def _puzzle(
        self,
        images: Tensor,
        rules: Rules,
        position: str | None = None,
        dealer: Dealer | None = None,
    ) -> Puzzle:
        """A network asks for its puzzle: where nobody hides positions there is nothing to know."""
        if position is None and self.drives:
            return solved(images, rules)
        puzzle = self.cover(images, rules, position, dealer)
        self.reached += position is not None
        return puzzle

    @abstractmethod
    def cover(
        self, images: Tensor, rules: Rules, position: str | None, dealer: Dealer | None
    ) -> Puzzle:
        """The puzzle in place of site number ``self.reached``: its mask is 0 where covered."""


class Survey(DropoutMode):
    """Notes which sites a forward pass reaches; nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[Site] = []

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        self.sites.append(Site(p, shape[1:]))
        return x

    def cover(
        self, images: Tensor, rules: Rules, position: str | None, dealer: Dealer | None
    ) -> Puzzle:
        puzzle = solved(images, rules)
        self.sites.append(Site(rules.gamma, tuple(puzzle.kept.shape[1:]), hides=position))
        return puzzle


class Record(DropoutMode):
    """Drops as torch does, from torch's global generator, and keeps the masks it drew."""

    drives = False

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

    def cover(
        self, images: Tensor, rules: Rules, position: str | None, dealer: Dealer | None
    ) -> Puzzle:
        puzzle = drawn(images, rules, dealer=dealer)
        if position is not None:
            self.masks[-1].append(puzzle.kept != 0)
        return puzzle

    def by_site(self) -> tuple[Tensor, ...]:
        """One bool tensor a site, ``[steps * batch, ...]``."""
        return tuple(torch.cat(each) for each in zip(*self.masks, strict=True))


class Driven(DropoutMode):
    """Drops by given masks, ``x * mask / (1 - p)``; without masks nothing is dropped."""

    explicit_attention = True

    def __init__(self, masks: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.given = masks

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
        if self.given is None:
            return x
        return x * (self.given[self.reached] / (1 - p))

    def cover(
        self, images: Tensor, rules: Rules, position: str | None, dealer: Dealer | None
    ) -> Puzzle:
        """The patches lie as the images show them; given masks say which positions are unknown."""
        if self.given is None:
            return solved(images, rules)
        return Puzzle(self.given[self.reached].to(images))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention, written out: ``dropout(softmax(q k^T * scale)) v``."""
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
    """Whether a call of ``F.multi_head_attention_forward`` is one that can be written out."""
    one_input = args[0] is args[1] is args[2] and args[5] is not None
    extras = (args[7], args[8], args[9] or None, kwargs.get("key_padding_mask"))
    return one_input and all(extra is None for extra in extras)


def packed_attention(
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
    """What ``nn.MultiheadAttention`` computes on ``[T, B, D]`` tokens, samples first inside."""
    x = tokens.transpose(0, 1)
    joint = F.linear(x, in_weight, in_bias)
    split = torch.unflatten(joint, 2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind()
    rate = dropout_p if training else 0.0
    mixed = attention(query, key, value, attn_mask, rate, is_causal)
    merged = mixed.transpose(1, 2).reshape(x.shape)
    return F.linear(merged, out_weight, out_bias).transpose(0, 1).contiguous(), None
