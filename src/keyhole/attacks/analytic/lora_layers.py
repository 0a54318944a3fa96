"""Finds a LoRA layer whose inputs are the patches of an image, each known but for the patch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.models.anatomy import InputLayer as Stem
from keyhole.models.anatomy import Shape, cache_per_model, find_input_layer
from keyhole.seeds import generator

A_PART = ".lora_A."
TOLERANCE = 1e-4


@dataclass(frozen=True)
class TokenLayer:
    """A LoRA layer whose input tokens are ``norm(start_i + E p_i)``, of every patch p_i alike.

    Args:
        stem: The patch embedding.
        names: The A of each LoRA layer that gets these tokens.
        embedding: E, ``[D, F]``.
        start: What each token is without its patch, ``[N, D]``: bias and position.
        scale: The norm's scale, ``[D]``.
        shift: The norm's shift, ``[D]``.
        tokens: Tokens in all, those that belong to no patch among them.
        rank: Rows of each A.
    """

    stem: Stem
    names: tuple[str, ...]
    embedding: Tensor
    start: Tensor
    scale: Tensor
    shift: Tensor
    tokens: int
    rank: int


@cache_per_model
def find_token_layer(model: nn.Module, shape: Shape) -> TokenLayer | str:
    """Finds the first such layer by running the model, or the reason why it has none."""
    parts = [name for name, _ in model.named_parameters() if A_PART in name]
    if not parts:
        return "the model has no LoRA layer"
    stem = find_input_layer(model, shape)
    if isinstance(stem, str):
        return stem
    outside = stem.layer.removesuffix(".base_layer")
    if any(name.startswith(f"{outside}.") for name in parts) or stem.tokens < 2:
        return "it needs a frozen patch embedding"
    probe = copy.deepcopy(model).eval()
    like = next(probe.parameters())
    image = torch.randn(shape, generator=generator(0, "lora probe")).to(like)
    blank, drawn = (run_norms(probe, x) for x in (torch.zeros_like(image), image))
    weight = probe.get_submodule(stem.layer).get_parameter("weight").detach().flatten(1)
    moved = image.flatten()[stem.layout.to(image.device)] @ weight.T
    for norm, (before, after) in drawn.items():
        found = [name for name in parts if feeds(probe, image, name, after)]
        change = before - blank[norm][0]
        offset = len(change) - stem.tokens
        if not found or offset < 0 or change.shape[1:] != moved.shape[1:]:
            continue
        if (change[offset:] - moved).norm() > TOLERANCE * moved.norm() or change[:offset].any():
            continue
        module = probe.get_submodule(norm)
        assert isinstance(module, nn.LayerNorm)
        first = blank[norm][0][0]
        scale = torch.ones_like(first) if module.weight is None else module.weight.detach()
        shift = torch.zeros_like(first) if module.bias is None else module.bias.detach()
        return TokenLayer(
            stem,
            tuple(found),
            weight.double().cpu(),
            blank[norm][0][offset:].double().cpu(),
            scale.double().cpu(),
            shift.double().cpu(),
            len(change),
            model.get_parameter(found[0]).shape[0],
        )
    return "no LoRA layer gets the normalised patches themselves: all lie deeper"


@torch.no_grad()
def run_norms(model: nn.Module, image: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Input and output ``[T, D]`` of every layer norm when the model sees an image."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            seen.setdefault(name, (args[0][0], out[0]))

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
    ]
    model(image[None])
    for handle in handles:
        handle.remove()
    return {name: pair for name, pair in seen.items() if pair[0].ndim == 2}


@torch.no_grad()
def feeds(model: nn.Module, image: Tensor, part: str, tokens: Tensor) -> bool:
    """Whether a LoRA layer gets these tokens."""
    inputs: list[Tensor] = []
    module = model.get_submodule(part.partition(A_PART)[0])
    handle = module.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    model(image[None])
    handle.remove()
    return bool(inputs) and inputs[0][0].shape == tokens.shape and torch.equal(inputs[0][0], tokens)
