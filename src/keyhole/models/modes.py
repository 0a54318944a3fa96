"""The modes in which a client may run its network."""

from __future__ import annotations

from typing import Literal, cast, get_args

from torch import nn

from keyhole.errors import BadValue

ClientMode = Literal["train", "eval", "frozen-norm"]
"""``frozen-norm``: trains, dropout and all, but BatchNorm keeps to its running statistics, as is
common where batches are small."""
NORMS = (nn.modules.batchnorm._BatchNorm,)


def read_mode(text: str) -> ClientMode:
    """The mode of this name; raises :class:`BadValue` where there is none."""
    for mode in get_args(ClientMode):
        if text == mode:
            return cast(ClientMode, mode)
    raise BadValue(f"client-mode: it is {', '.join(get_args(ClientMode))}, got {text!r}")


def set_mode(model: nn.Module, mode: ClientMode) -> nn.Module:
    """Puts ``model`` itself into a mode; returns it."""
    model.train(mode != "eval")
    if mode == "frozen-norm":
        for module in model.modules():
            if isinstance(module, NORMS):
                module.eval()
    return model


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, NORMS) for module in model.modules())


def usual_mode(model: nn.Module, batch_size: int) -> ClientMode:
    """How clients train with batches of a size, if nobody says how.

    The statistics of a single image are no norm to train by.

    >>> norm = nn.BatchNorm2d(3)
    >>> usual_mode(norm, 1), usual_mode(norm, 2), usual_mode(nn.Linear(2, 2), 1)
    ('frozen-norm', 'train', 'train')
    >>> usual_mode(nn.BatchNorm2d(3, track_running_stats=False), 1)
    'train'
    """
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    kept = any(norm.running_mean is not None for norm in norms)
    return "frozen-norm" if batch_size == 1 and kept else "train"
