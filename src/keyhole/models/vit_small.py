"""The small vision transformer of the DIA paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from keyhole.data.image_set import Size
from keyhole.errors import DoesNotFit

PATCH, DIM, DEPTH, HEADS, MLP_DIM = 4, 256, 4, 16, 256


class Attention(nn.Module):
    """Multi-head self-attention; qkv without bias, dropout on probabilities and output."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(DIM, DIM)
        self.proj_drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, D] -> [B, N, D]``."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (DIM // HEADS) ** -0.5
        mixed = self.attn_drop(scores.softmax(dim=-1)) @ v
        return self.proj_drop(self.proj(mixed.transpose(1, 2).reshape(batch, tokens, DIM)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(
            nn.Linear(DIM, MLP_DIM),
            nn.GELU(),
            nn.Dropout(0.0),
            nn.Linear(MLP_DIM, DIM),
            nn.Dropout(0.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class SmallViT(nn.Module):
    """Patches of 4 px, 256 dimensions, 4 blocks of 16 heads; 1 dropout site plus 4 per block.

    Class token and position embeddings start from N(0, 1). The patch embedding is a linear layer
    on flattened patches, ``[B, N, 4*4*C] -> [B, N, D]``.
    """

    def __init__(self, *, classes: int, channels: int, image_size: Size) -> None:
        super().__init__()
        height, width = image_size
        if height % PATCH or width % PATCH:
            near = "x".join(str(max(1, round(side / PATCH)) * PATCH) for side in image_size)
            raise DoesNotFit(
                f"vit-small cuts {PATCH} px patches and cannot take {height}x{width} images: "
                f"pass --image-size {near}"
            )
        patches = (height // PATCH) * (width // PATCH)
        self.image_size = image_size
        self.channels = channels
        self.patch_embed = nn.Linear(PATCH * PATCH * channels, DIM)
        self.cls_token = nn.Parameter(torch.randn(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, DIM))
        self.pos_drop = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, classes)

    def forward(self, images: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, classes]``."""
        batch, channels, height, width = images.shape
        grid = images.view(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH)
        patches = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        tokens = torch.cat([self.cls_token.expand(batch, -1, -1), self.patch_embed(patches)], dim=1)
        x = self.pos_drop(tokens + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))  # type: ignore[no-any-return]
