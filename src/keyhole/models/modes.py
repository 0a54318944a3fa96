"""The modes in which a client may run its network."""

from __future__ import annotations

from torch import nn

from keyhole.settings import ClientMode

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
RUNNING_STATISTICS = ("running_mean", "running_var")
"""The buffers in which a BatchNorm keeps what its batches were like."""


def set_mode(model: nn.Module, mode: ClientMode) -> nn.Module:
    """Puts ``model`` into a mode and returns it."""
    model.train(mode != "eval")
    if mode == "frozen-norm":
        for module in model.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Returns whether a model has batch norms of any kind.

    Args:
        model: The model.
    """
    return any(isinstance(module, BATCH_NORMS) for module in model.modules())


def default_mode(model: nn.Module, batch_size: int) -> ClientMode:
    """Returns the mode in which clients train with batches of a size, if nobody says.

    With a batch of one image, batch statistics are of no use.

    Args:
        model: The model.
        batch_size: Images of a batch.

    >>> norm = nn.BatchNorm2d(3)
    >>> default_mode(norm, 1), default_mode(norm, 2), default_mode(nn.Linear(2, 2), 1)
    ('frozen-norm', 'train', 'train')
    >>> default_mode(nn.BatchNorm2d(3, track_running_stats=False), 1)
    'train'
    """
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    has_statistics = any(norm.running_mean is not None for norm in norms)
    return "frozen-norm" if batch_size == 1 and has_statistics else "train"


def find_trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that clients train and report, by name.

    Those that require a gradient, if some do and some do not (adapters of a frozen network);
    otherwise all: an evaluated model, none of whose parameters requires one, is trained as well.

    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.weight.requires_grad_(False)
    >>> list(find_trained_parameters(layer))
    ['bias']
    >>> list(find_trained_parameters(layer.requires_grad_(False)))
    ['weight', 'bias']
    """
    every = dict(model.named_parameters())
    return {name: p for name, p in every.items() if p.requires_grad} or every


def is_partly_frozen(model: nn.Module) -> bool:
    """Returns whether clients train only some of a model's parameters."""
    return len(find_trained_parameters(model)) < sum(1 for _ in model.parameters())
