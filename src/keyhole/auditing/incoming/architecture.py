"""Whether the server sent the tensors of the client's own model, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import Tensors
from keyhole.spelling import shorten
from keyhole.update import kind_of

NAMED = 3
"""Tensors that an alarm names."""


def check_architecture(weights: Tensors, expected: Tensors, whose: str) -> Iterator[Alarm]:
    """Compares names and shapes with those of a model that the client trusts.

    Args:
        weights: What the server sent.
        expected: The trusted model's tensors.
        whose: How sentences call the trusted model.
    """
    added = [name for name in weights if name not in expected]
    missing = [name for name in expected if name not in weights]
    if added:
        sentence = f"{whose} does not have {list_names(added)}"
        yield Alarm("added tensors", added[0], sentence)
    if missing:
        sentence = f"{whose} also has {list_names(missing)}"
        yield Alarm("missing tensors", missing[0], sentence)
    for name, tensor in weights.items():
        if name in expected and tensor.shape != expected[name].shape:
            sizes = f"{list(tensor.shape)}, where {whose} has {list(expected[name].shape)}"
            yield Alarm("other shape", name, f"its shape is {sizes}")


def check_types(weights: Tensors, expected: Tensors) -> Iterator[Alarm]:
    """Finds weights that are not floating numbers: a model loads them, and no check reads them.

    Args:
        weights: What the server sent.
        expected: The client's own tensors, if it has the model.
    """
    for name, tensor in weights.items():
        own = expected.get(name)
        is_weight = name.endswith(("weight", "bias")) if own is None else own.is_floating_point()
        if tensor.is_complex() or (is_weight and not tensor.is_floating_point()):
            yield Alarm(
                "other type", name, f"its values are {kind_of(tensor)}, not floating numbers"
            )


def list_names(names: list[str]) -> str:
    """Names a few tensors and counts the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shorten(name) for name in names[:NAMED]) + more
