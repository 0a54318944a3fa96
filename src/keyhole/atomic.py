"""Files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from keyhole.errors import RunFolderError, one_line

HALVES = (".*.half", ".tmp??????")
"""What a killed process leaves behind: files that it, or safetensors, had not finished."""


def is_half(path: Path) -> bool:
    return any(path.match(pattern) for pattern in HALVES)


def sweep(root: Path) -> None:
    """Removes what a killed process left behind under ``root``."""
    for pattern in HALVES:
        for half in root.rglob(pattern):
            half.unlink()


def write_text(path: Path, text: str) -> Path:
    return _write(path, lambda half: half.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> Path:
    return write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None
) -> Path:
    """Writes safetensors; ``header`` holds words beside them."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in whole.items():  # safetensors refuses tensors that share their memory
        place = tensor.untyped_storage().data_ptr()
        whole[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return _write(path, lambda half: save_file(whole, half, header))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunFolderError(f"{path} cannot be read ({one_line(error)})") from None


def _write(path: Path, fill: Callable[[Path], Any]) -> Path:
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(half)
        half.replace(path)
    except (OSError, SafetensorError) as error:
        half.unlink(missing_ok=True)
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise RunFolderError(f"cannot write {path} ({why})") from None
    return path
