"""Loads a model's weights from a safetensors file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from keyhole.errors import BadUpdate
from keyhole.models.jigsaw import CHILD_NAME
from keyhole.update import read_safetensors


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads a safetensors file into a model.

    Names and shapes must be the model's, and values finite. Weights that a defense added to the
    trained model are left for :func:`fill_defense_weights`.

    Args:
        model: The model, which is changed.
        path: The file.
    """
    found = read_safetensors(path)[0]
    load_tensors(
        model,
        {k: v for k, v in found.items() if k in model.state_dict() or not is_defense_weight(k)},
        str(path),
    )


def is_defense_weight(name: str) -> bool:
    """Returns whether a defense added the parameter of this name to a model."""
    return name.startswith(f"{CHILD_NAME}.")


def read_defense_weights(path: Path) -> dict[str, Tensor]:
    """Returns the weights in a file that a defense had added to the model."""
    return {k: v for k, v in read_safetensors(path)[0].items() if is_defense_weight(k)}


def fill_defense_weights(model: nn.Module, learnt: Mapping[str, Tensor], source: str) -> nn.Module:
    """Returns a copy of a defended model with the weights that its defense had learnt.

    If the model has no such weights, or none are given, returns the model itself.
    """
    own = {k: v for k, v in model.state_dict().items() if is_defense_weight(k)}
    if not own or not learnt:
        return model
    filled = copy.deepcopy(model)
    load_tensors(filled, {**filled.state_dict(), **learnt}, source)
    return filled


def load_tensors(model: nn.Module, found: dict[str, Tensor], source: str) -> None:
    """Loads tensors into ``model``; error messages name their ``source``."""
    own = model.state_dict()
    missing = [k for k in own if k not in found]
    surplus = [k for k in found if k not in own]
    other = [k for k in own if k in found and own[k].shape != found[k].shape]
    if missing or surplus or other:
        parts = [
            _list_names("missing", missing),
            _list_names("not the model's", surplus),
            _list_names("of another shape", other),
        ]
        raise BadUpdate(
            f"{source} holds another model's weights: {'; '.join(p for p in parts if p)}"
        )
    broken = [k for k, v in found.items() if v.is_floating_point() and not v.isfinite().all()]
    if broken:
        raise BadUpdate(f"{source} has NaN or infinite values in {broken[0]!r}")
    model.load_state_dict(found)


def _list_names(word: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(name[:80] for name in names[:2])}{more} {word}"
