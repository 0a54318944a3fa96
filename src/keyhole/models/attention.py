"""Where a vision transformer looks: its class token's attention, found without knowing its class.

Networks attend through a few functions: torch's fused attention, ``nn.MultiheadAttention``, or a
softmax over square scores. A mode stands between the network and these, as for dropout sites, and
keeps the last attention that one forward pass reaches. The class token is the one that the logits
are read from: no gradient reaches the other tokens behind the last attention.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from keyhole.errors import DoesNotFit
from keyhole.models.anatomy import Shape, once_a_model
from keyhole.models.dropout_sites import attention
from keyhole.seeds import generator

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
PROBES = 2
"""Images in a probe: attention within windows shows by a first axis of another length."""


@dataclass(frozen=True)
class Attended:
    """One attention: its probabilities ``[B, heads, queries, keys]`` when asked for, its output."""

    probabilities: Callable[[], Tensor]
    output: Tensor
    queries: int
    """The output's axis of the tokens that attend."""

    def read(self, logits: Tensor) -> Tensor:
        """Which of the attending tokens the logits depend on, ``[queries]`` of bool."""
        # Zero times the output, so that logits which do not depend on it have a gradient, of zeros.
        score = logits.square().sum() + 0 * self.output.sum()
        (gradient,) = torch.autograd.grad(score, self.output)
        return gradient.movedim(self.queries, 0).flatten(1).any(1)


class LastAttention(TorchFunctionMode):
    """Keeps the last attention of the networks that run under it.

    Every attention's output is cut off from what comes before it, so that gradients end there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last: Attended | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._keep(lambda: fused_probabilities(*args, **kwargs), result, -2)
        if func is F.multi_head_attention_forward:
            mixed, weights = result
            return self._keep(lambda: packed_probabilities(args, kwargs), mixed, 0), weights
        if func in SOFTMAX and attends(result, *args[1:], **kwargs):
            return self._keep(lambda: result, result, -2)
        return result

    def _keep(self, probabilities: Callable[[], Tensor], output: Tensor, queries: int) -> Tensor:
        cut = output.detach().requires_grad_()
        self.last = Attended(probabilities, cut, queries)
        return cut


def attention_maps(model: nn.Module, images: Tensor) -> Tensor:
    """How the class token of the last self-attention spreads its attention: ``[B, heads, tokens]``.

    ``images``, ``[B, C, H, W]``, are what the model is fed (normalised). Tokens stand in the
    model's own order, as a rule class and other prefix tokens before the patches; a head's
    attention adds up to 1. Raises :class:`DoesNotFit` for networks without a class token.
    """
    _, channels, height, width = images.shape
    reason = why_no_class_token(model, (channels, height, width))
    if reason:
        raise DoesNotFit(f"there is no attention of a class token to show: {reason}")
    mode = LastAttention()
    with evaluating(model), torch.no_grad(), mode:
        model(images)
    assert mode.last is not None
    with torch.no_grad():
        return mode.last.probabilities()[:, :, 0]


@once_a_model
@torch.enable_grad()
def why_no_class_token(model: nn.Module, shape: Shape) -> str:
    """Why no class token's attention can be shown; empty where it can."""
    probe = copy.deepcopy(model).eval().requires_grad_(False)
    draws = generator(0, "attention")
    for parameter in probe.parameters():  # a head that starts from zero would hide what it reads
        if not parameter.any():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    like = next(probe.parameters(), torch.zeros(0))
    mode = LastAttention()
    with mode:
        logits = probe(torch.randn(PROBES, *shape, generator=draws).to(like))
    if mode.last is None:
        return "the model has no self-attention"
    read = mode.last.read(logits)
    prefix = len(read) == 1 or not read[-1]  # DeiT reads a second token, the distilled one
    in_front = prefix and bool(read[0]) and torch.equal(read, read.sort(descending=True).values)
    if not in_front or mode.last.probabilities().shape[0] != PROBES:
        return (
            f"its logits are read from {int(read.sum())} of the {len(read)} tokens of its last "
            "attention, not from a class token before the others"
        )
    return ""


def fused_probabilities(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    """What ``F.scaled_dot_product_attention`` mixes values by: its output where they are unit."""
    unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    units = unit.expand(*key.shape[:-2], *unit.shape)
    return attention(query, key, units, attn_mask, 0.0, is_causal, **options)


def packed_probabilities(args: Any, kwargs: dict[str, Any]) -> Tensor:
    """What ``F.multi_head_attention_forward`` mixes values by, head by head."""
    asked = {**kwargs, "training": False, "need_weights": True, "average_attn_weights": False}
    _, weights = F.multi_head_attention_forward(*args, **asked)
    assert weights is not None
    return weights


def attends(result: Tensor, dim: int | None = None, *unused: Any, **options: Any) -> bool:
    """Whether a softmax's result is attention: ``[B, heads, tokens or 1, tokens]``."""
    over_keys = dim in (-1, 3)
    return result.ndim == 4 and over_keys and result.shape[-2] in (1, result.shape[-1])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode, and back into its own after the block."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
