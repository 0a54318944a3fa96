"""A model's weights from a safetensors file."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from keyhole.errors import BadUpdate
from keyhole.update import read_safetensors


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads ``path`` into ``model``; names and shapes must be the model's, values finite."""
    fill(model, read_safetensors(path)[0], str(path))


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
    return f"{', '.join(names[:2])}{more} {word}"
