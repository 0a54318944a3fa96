"""A model's weights from a safetensors file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from keyhole.errors import BadUpdate
from keyhole.models.jigsaw import CHILD
from keyhole.update import read_safetensors


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads ``path`` into ``model``; names and shapes must be the model's, values finite.

    What a defense added to the model that was trained is left for :func:`filled_up`.
    """
    found = read_safetensors(path)[0]
    fill(
        model,
        {k: v for k, v in found.items() if k in model.state_dict() or not added(k)},
        str(path),
    )


def added(name: str) -> bool:
    """Whether a parameter is one that a defense gives to a model."""
    return name.startswith(f"{CHILD}.")


def spare_weights(path: Path) -> dict[str, Tensor]:
    """Those weights of a file that belong to what a defense had added to the model."""
    return {k: v for k, v in read_safetensors(path)[0].items() if added(k)}


def filled_up(model: nn.Module, spare: Mapping[str, Tensor], source: str) -> nn.Module:
    """A defended model with what the defense had learnt; as it is where nothing is known of it.

    A copy, unless there is nothing to fill in.
    """
    own = {k: v for k, v in model.state_dict().items() if added(k)}
    if not own or not spare:
        return model
    made = copy.deepcopy(model)
    fill(made, {**made.state_dict(), **spare}, source)
    return made


def fill(model: nn.Module, found: dict[str, Tensor], source: str) -> None:
    """Loads tensors into ``model``; ``source`` says in an error where they came from."""
    own = model.state_dict()
    missing = [k for k in own if k not in found]
    surplus = [k for k in found if k not in own]
    other = [k for k in own if k in found and own[k].shape != found[k].shape]
    if missing or surplus or other:
        parts = [
            _list("missing", missing),
            _list("not the model's", surplus),
            _list("of another shape", other),
        ]
        raise BadUpdate(
            f"{source} holds another model's weights: {'; '.join(p for p in parts if p)}"
        )
    broken = [k for k, v in found.items() if v.is_floating_point() and not v.isfinite().all()]
    if broken:
        raise BadUpdate(f"{source} has NaN or infinite values in {broken[0]!r}")
    model.load_state_dict(found)


def _list(word: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(name[:80] for name in names[:2])}{more} {word}"
