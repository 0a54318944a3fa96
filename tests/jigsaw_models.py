"""Small vision transformers with puzzles before them, and one written out plainly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.models import build
from keyhole.models.anatomy import PatchEmbedding, find_patch_embedding
from keyhole.models.jigsaw import add_puzzle
from keyhole.models.puzzle import Puzzle, PuzzlePool, PuzzleRules, draw_random_puzzle
from keyhole.seeds import generator

SHAPE = (3, 16, 16)
PATCH, CELLS = 4, 16


def timm_vit(**options: Any) -> nn.Module:
    sizes = {"img_size": 16, "patch_size": PATCH, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return VisionTransformer(**{**sizes, "num_classes": 5, **options})


def small_vit() -> nn.Module:
    model = build("vit-small", classes=5, image_size=16)
    model.blocks = model.blocks[:2]
    return model


MAKERS: dict[str, Callable[[], nn.Module]] = {"vit-small": small_vit, "timm": timm_vit}
EITHER = pytest.mark.parametrize("name", MAKERS)


@cache
def plain_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MAKERS[name]()


def embedding(model: nn.Module) -> PatchEmbedding:
    found = find_patch_embedding(model, SHAPE)
    assert isinstance(found, PatchEmbedding)
    return found


def with_puzzle(
    model: nn.Module, gamma: float = 0.4, *, alike: bool = False, **options: Any
) -> Any:
    rules = PuzzleRules(gamma, (PATCH, PATCH), alike=alike)
    return add_puzzle(model, rules, embedding=embedding(model), shape=SHAPE, **options)


def make_batch(count: int = 3) -> tuple[Tensor, Tensor]:
    draw = generator(0, "batch")
    images = torch.randn(count, *SHAPE, generator=draw)
    return images, torch.randint(5, (count,), generator=draw)


def compute_gradients(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Of a copy, which has no masks left over from before."""
    images, labels = make_batch()
    model = copy.deepcopy(model)
    names, weights = zip(*model.named_parameters(), strict=True)
    torch.manual_seed(seed)
    loss = F.cross_entropy(model(images), labels)
    found = torch.autograd.grad(loss, weights, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def draw_seeded_puzzle(model: Any, images: Tensor, seed: int = 0) -> Puzzle:
    """The puzzle that a model in training lays from a seed."""
    torch.manual_seed(seed)
    return draw_random_puzzle(images, model.puzzle.rules, pool=PuzzlePool())


def reference_logits(model: Any, images: Tensor, order: Tensor, table: Tensor) -> Tensor:
    """The logits of either ViT, patch by patch, with positions ``table [B, 1 + N, D]``."""
    linear = not isinstance(model, VisionTransformer)
    rows = []
    for image, places in zip(images, order.tolist(), strict=True):
        tokens = []
        for place in places:
            top, left = PATCH * (place // 4), PATCH * (place % 4)
            patch = image[:, top : top + PATCH, left : left + PATCH]
            stem = model.patch_embed if linear else model.patch_embed.proj
            pixels = patch.permute(1, 2, 0).flatten() if linear else patch.flatten()
            tokens.append(stem.weight.flatten(1) @ pixels + stem.bias)
        rows.append(torch.stack(tokens))
    x = torch.cat([model.cls_token.expand(len(images), -1, -1), torch.stack(rows)], 1) + table
    for block in model.blocks:
        x = block(x)
    return model.head(model.norm(x)[:, 0])
