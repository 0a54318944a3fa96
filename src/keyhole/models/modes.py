"""The modes in which a client may run its network."""

from __future__ import annotations

from torch import nn

from keyhole.settings import ClientMode

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


def set_mode(model: nn.Module, mode: ClientMode) -> nn.Module:
    """Puts ``model`` into a mode and returns it."""
    model.train(mode != "eval")
    if mode == "frozen-norm":
        for module in model.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
    return model


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def default_mode(model: nn.Module, batch_size: int) -> ClientMode:
    """Returns the mode in which clients train with batches of a size, if nobody says.

    With a batch of one image, batch statistics are of no use.

    >>> norm = nn.BatchNorm2d(3)
    >>> default_mode(norm, 1), default_mode(norm, 2), default_mode(nn.Linear(2, 2), 1)
    ('frozen-norm', 'train', 'train')
    >>> default_mode(nn.BatchNorm2d(3, track_running_stats=False), 1)
    'train'
    """
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    has_statistics = any(norm.running_mean is not None for norm in norms)
    return "frozen-norm" if batch_size == 1 and has_statistics else "train"
