"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from keyhole.errors import RunFolderError, one_line
from keyhole.untrusted import parse_json, read_regular

if TYPE_CHECKING:
    from torch import Tensor

HALVES = (".*.half", ".tmp??????")
"""What a killed process leaves behind: files that it, or safetensors, had not finished."""


def is_half(path: Path) -> bool:
    return any(path.match(pattern) for pattern in HALVES)


def sweep(root: Path, *, below: bool = True) -> None:
    """Removes what a killed process left behind in ``root``, and in all folders below it."""
    for pattern in HALVES:
        for half in root.rglob(pattern) if below else root.glob(pattern):
            if half.is_file():
                half.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Writes UTF-8; what is no text, in names of files, as its escape."""
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a whole file; its folder is made where it does not exist."""
    return _write(path, lambda half: half.write_bytes(content))


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> Path:
    return write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None
) -> Path:
    """Writes safetensors; ``header`` holds words beside them."""
    from safetensors.torch import save_file  # needs torch, which other files do not

    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in whole.items():  # safetensors refuses tensors that share their memory
        place = tensor.untyped_storage().data_ptr()
        whole[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return _write(path, lambda half: save_file(whole, half, header))


def digest_of(tensors: Mapping[str, Tensor], words: str = "") -> str:
    """Tells these tensors, in this order, and words from any others: by names, shapes and bits."""
    import torch

    digest = hashlib.sha256(words.encode())
    for name, tensor in tensors.items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_regular(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise RunFolderError(f"{path} cannot be read ({why})") from None


def check_writable(root: Path) -> None:
    """Raises, before long work, where its results could not be written; leaves nothing there."""
    half = root / f".{os.getpid()}.half"
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        half.touch()
        half.unlink()
        for folder in missing:
            folder.rmdir()
    except OSError as error:
        raise _cannot(f"write to {root}", error) from None


def add_line(path: Path, text: str) -> None:
    """Adds to a record; a kill may leave half a line at its end."""
    try:
        with path.open("a", encoding="utf-8") as record:
            record.write(f"{text}\n")
            record.flush()
            os.fsync(record.fileno())
    except OSError as error:
        raise _cannot(f"write {path}", error) from None


def remove_tree(root: Path) -> None:
    """Removes a folder of ours with all that is in it, or a file; none of it need be there."""
    try:
        if root.is_dir() and not root.is_symlink():
            shutil.rmtree(root)
        else:
            root.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot(f"remove {root}", error) from None


def flush_to_disk(path: Path) -> None:
    """Waits until a file, or a folder's list of names, would survive a power cut."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no fsync for folders
            raise
    finally:
        os.close(file)


def _write(path: Path, fill: Callable[[Path], Any]) -> Path:
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(half)
        flush_to_disk(half)
        half.replace(path)
        flush_to_disk(path.parent)
    except BaseException as error:
        with suppress(OSError):  # what is wrong with the folder is said below
            half.unlink(missing_ok=True)
        if not isinstance(error, (OSError, SafetensorError)):
            raise
        raise _cannot(f"write {path}", error) from None
    return path


def _cannot(do: str, error: Exception) -> RunFolderError:
    why = (isinstance(error, OSError) and error.strerror) or one_line(error)
    return RunFolderError(f"cannot {do} ({why})")
