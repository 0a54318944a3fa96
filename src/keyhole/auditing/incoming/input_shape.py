"""The images' shape and the number of classes, from a model or from its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from keyhole.auditing.incoming.subject import Tensors, guess_last_layer
from keyhole.data.image_set import Size
from keyhole.errors import BadValue, DoesNotFit, KeyholeError
from keyhole.models import build
from keyhole.models.anatomy import Shape, find_logits_layer, input_shape
from keyhole.models.building import count_logits

SIDES = (32, 8, 28, 64, 224, 25, 96, 128)
"""Image sizes that are tried, the most usual first."""


def find_shape(model: nn.Module, given: Shape | None = None) -> Shape | None:
    """Returns a shape of images that the model takes: the given one, its own, or a usual one.

    Raises :class:`DoesNotFit` if the model does not take the given one.
    """
    if given is not None:
        count_logits(model, type(model).__name__, given)
        return given
    for shape in list_shapes(model):
        try:
            count_logits(model, type(model).__name__, shape)
        except KeyholeError:
            continue
        return shape
    return None


def list_shapes(model: nn.Module) -> Iterator[Shape]:
    """Yields shapes that a model may take, the likeliest first."""
    own = input_shape(model)
    if own is not None:
        yield own
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Linear):
        yield from square_shapes(first.in_features)
    elif first is not None:
        yield from ((first.in_channels, s, s) for s in SIDES)


def square_shapes(features: int) -> Iterator[Shape]:
    """Yields the square images with so many numbers, colour first.

    >>> list(square_shapes(64)), list(square_shapes(3072))
    ([(1, 8, 8)], [(3, 32, 32)])
    """
    for channels in (3, 1):
        side = math.isqrt(features // channels)
        if channels * side * side == features:
            yield channels, side, side


def build_for_weights(
    name: str, weights: Tensors, size: Size | None = None, channels: int | None = None
) -> tuple[nn.Module, Shape]:
    """Builds the model of this name with the weights' number of classes, for images that fit.

    Returns the model and the shape of its images. If no usual size fits, raises
    :class:`BadValue`. A size that was given is taken as it is.

    Args:
        name: The model, by name.
        weights: The tensors that the server sent.
        size: Height and width of the images; None: a usual size with which all tensors fit.
        channels: The images' channels; None: those with which all tensors fit.
    """
    colours = guess_channels(weights) if channels is None else [channels]
    sizes = [(side, side) for side in SIDES] if size is None else [size]
    errors: list[DoesNotFit] = []
    for each in sizes:
        for count in colours:
            try:
                classes = count_classes(name, weights, (count, *each))
                if classes is not None:
                    model = build(name, classes=classes, channels=count, image_size=each)
                    return model, (count, *each)
            except DoesNotFit as error:
                errors.append(error)
    if size is None:
        raise BadValue(
            f"the weights do not tell which images {name!r} is for: pass --image-size or --data"
        )
    if len(errors) == len(colours):
        raise errors[0]
    classes = count_rows(weights, None)
    model = build(name, classes=classes, channels=colours[-1], image_size=size)
    return model, (colours[-1], *size)


SOME_CLASSES = 7
"""Classes of a model that is built only to see which of its layers is the last."""


def count_classes(name: str, weights: Tensors, shape: Shape) -> int | None:
    """Returns the rows of the last layer; None if other tensors do not fit such images."""
    model = build(name, classes=SOME_CLASSES, channels=shape[0], image_size=shape[1:])
    last = find_logits_layer(model, shape)
    tensors = model.state_dict()
    for key, tensor in weights.items():
        own = tensors.get(key)
        is_last = last is not None and key.rpartition(".")[0] == last
        if own is not None and own.shape[is_last:] != tensor.shape[is_last:]:
            return None
    return count_rows(weights, last)


def count_rows(weights: Tensors, last: str | None) -> int:
    """Returns the number of the last layer's rows; of one that looks like it if it is missing."""
    names = (f"{layer}.weight" for layer in (last, guess_last_layer(weights)))
    found = next((weights[name] for name in names if name in weights), None)
    return SOME_CLASSES if found is None or not found.ndim else int(found.shape[0])


def guess_channels(weights: Tensors) -> list[int]:
    """Returns the channels that a convolution sees and images may have; else colour, then grey."""
    inputs = {int(t.shape[1]) for n, t in weights.items() if t.ndim == 4 and n.endswith("weight")}
    return [count for count in (3, 1) if count in inputs] or [3, 1]
