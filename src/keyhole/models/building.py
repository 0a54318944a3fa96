"""Builds a model by its name, and checks that it takes the images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from keyhole.data.image_set import Size, parse_size
from keyhole.errors import DoesNotFit, KeyholeError, one_line
from keyhole.models.architectures import find_maker
from keyhole.models.weights import load_weights
from keyhole.seeds import derive, seeded_globally


def build(
    name: str,
    *,
    classes: int,
    channels: int = 3,
    image_size: int | Size = 32,
    seed: int = 0,
    weights: Path | None = None,
) -> nn.Module:
    """Builds a model by name: initialised from ``seed``, or with weights from a file.

    Args:
        name: The model as a user writes it: ``mlp``, ``timm:deit_tiny_patch16_224``.
        classes: How many classes it tells apart.
        channels: Colour channels of the images.
        image_size: Pixels of an image's side, or its height and width.
        seed: The seed of its initial weights.
        weights: A safetensors file with all its weights; None means random ones.

    >>> model = build("mlp", classes=10, channels=1, image_size=28)
    >>> sum(p.numel() for p in model.parameters())
    930816
    """
    make = find_maker(name)
    size = parse_size(image_size)
    assert size is not None
    facts = f"{channels}x{size[0]}x{size[1]}"
    with seeded_globally(derive(seed, "weights")):
        try:
            model = make(classes=classes, channels=channels, image_size=size)
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            raise DoesNotFit(
                f"model {name!r} cannot be built for {facts} images ({one_line(error)})"
            ) from None
    if weights is not None:
        load_weights(model, weights)
    check_logits(model, name, (channels, *size), classes)
    return model


def check_logits(model: nn.Module, name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Raises :class:`DoesNotFit` unless ``model`` maps such an image to its classes' logits."""
    if (logits := count_logits(model, name, shape)) < classes:
        raise DoesNotFit(f"model {name!r} returns {(1, logits)}, not logits for {classes} classes")


def count_logits(model: nn.Module, name: str, shape: tuple[int, int, int]) -> int:
    """How many logits ``model`` gives for an image; raises :class:`DoesNotFit` where it gives none.

    Args:
        model: The model; it is left in the mode it is in.
        name: What errors call it.
        shape: Channels, height and width of the image.
    """
    training = model.training
    facts = "x".join(str(n) for n in shape)
    try:
        with torch.no_grad():
            like = next(model.parameters(), torch.zeros(0))
            logits = model.eval()(torch.zeros(1, *shape).to(like))
    except KeyholeError:
        raise
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as error:
        raise DoesNotFit(
            f"model {name!r} does not take {facts} images ({one_line(error)}): pass --image-size"
        ) from None
    finally:
        model.train(training)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise DoesNotFit(f"model {name!r} returns {got}, not logits for one image")
    return int(logits.shape[1])
