"""Tensors that a client keeps from round to round, as text that JSON can hold."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from keyhole.errors import BadUpdate


def write_kept(tensors: dict[str, Tensor]) -> str:
    """The tensors as text.

    Args:
        tensors: Contiguous tensors by name.
    """
    return base64.b64encode(save({name: v.cpu() for name, v in tensors.items()})).decode("ascii")


def read_kept(text: object, like: Mapping[str, Tensor], who: str) -> dict[str, Tensor]:
    """The tensors that a client kept; empty in its first round.

    Args:
        text: What :func:`write_kept` wrote; None: nothing was kept.
        like: Tensors of the names and shapes that they must have.
        who: The defense that kept them, for errors.
    """
    if text is None:
        return {}
    try:
        if not isinstance(text, str):
            raise TypeError
        kept = load(base64.b64decode(text, validate=True))
    except (binascii.Error, SafetensorError, TypeError, ValueError):
        raise BadUpdate(
            f"{who}: what the client kept of the round before is damaged: clear its memory"
        ) from None
    for name, tensor in kept.items():
        own = like.get(name)
        if own is None or own.shape != tensor.shape or not bool(torch.isfinite(tensor).all()):
            raise BadUpdate(
                f"{who}: what the client kept of the round before does not fit {name!r}: the model "
                "has changed; clear the client's memory"
            )
    return {name: tensor.to(like[name]) for name, tensor in kept.items()}
