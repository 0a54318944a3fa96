"""Where tensors are computed: the CPU or a GPU."""

from __future__ import annotations

import torch

from keyhole.errors import BadValue

__all__ = ["find_device"]


def find_device(name: str) -> torch.device:
    """Returns a device by its name; raises :class:`BadValue` where it cannot be used.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``, or ``auto``: the GPU if there is one.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadValue(f"unknown device {name!r}: it is auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadValue("this machine has no usable CUDA device: pass --device cpu")
    return device
