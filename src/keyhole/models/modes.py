"""The modes in which a client may run its network."""

from __future__ import annotations

from typing import Literal

from torch import nn

ClientMode = Literal["train", "eval", "frozen-norm"]
"""``frozen-norm``: trains, dropout and all, but BatchNorm keeps to its running statistics, as is
common where batches are small."""


def set_mode(model: nn.Module, mode: ClientMode) -> nn.Module:
    """Puts ``model`` itself into a mode; returns it."""
    model.train(mode != "eval")
    if mode == "frozen-norm":
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
    return model
