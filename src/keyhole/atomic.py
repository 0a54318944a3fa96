"""Writes files so that they are there completely or not at all."""

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
from keyhole.lazy import import_on_call
from keyhole.untrusted import parse_json, read_regular

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "append_line",
    "check_writable",
    "digest_of",
    "is_unfinished",
    "read_json",
    "remove_tree",
    "remove_unfinished",
    "write_bytes",
    "write_json",
    "write_tensors",
    "write_text",
]

save_file = import_on_call("safetensors.torch:save_file")  # needs torch, which JSON does not
UNFINISHED = (".*.half", ".tmp??????")
"""Names of files that Keyhole or safetensors was writing when the process was killed."""


def is_unfinished(path: Path) -> bool:
    """Whether a killed process left this file behind.

    Args:
        path: The file.
    """
    return any(path.match(pattern) for pattern in UNFINISHED)


def remove_unfinished(root: Path, *, below: bool = True) -> None:
    """Removes the files that a killed process left unfinished.

    Args:
        root: The folder to look in.
        below: Whether to look in all folders below it as well.
    """
    for pattern in UNFINISHED:
        for file in root.rglob(pattern) if below else root.glob(pattern):
            if file.is_file():
                file.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> Path:
    """Writes a text file in UTF-8; returns its path.

    Args:
        path: The file.
        text: Its content; what UTF-8 cannot encode, as in odd file names, is written as an escape.
    """
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes a file; returns its path.

    Args:
        path: The file; missing folders are created.
        content: All of its bytes.
    """
    return _write(path, lambda unfinished: unfinished.write_bytes(content))


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> Path:
    """Writes a JSON file; returns its path.

    Args:
        path: The file.
        value: What JSON can hold; NaN and infinity are not.
        indent: Spaces per level; None means one line.
    """
    return write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None
) -> Path:
    """Writes a safetensors file; returns its path.

    Args:
        path: The file.
        tensors: The tensors by name.
        header: Texts to store beside them.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in contiguous.items():  # safetensors refuses tensors that share memory
        address = tensor.untyped_storage().data_ptr()
        contiguous[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return _write(path, lambda unfinished: save_file(contiguous, unfinished, header))


def digest_of(tensors: Mapping[str, Tensor], words: str = "") -> str:
    """Returns a hash of tensors, in this order: of their names, shapes and bits.

    Args:
        tensors: The tensors by name.
        words: A text that is hashed with them.
    """
    import torch

    digest = hashlib.sha256(words.encode())
    for name, tensor in tensors.items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises :class:`RunFolderError` where that is not possible.

    Args:
        path: The file.
    """
    try:
        return parse_json(read_regular(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise RunFolderError(f"{path} cannot be read ({why})") from None


def check_writable(root: Path) -> None:
    """Raises where results could not be written; leaves nothing behind.

    Args:
        root: The folder that results will go to; it need not exist.
    """
    probe = root / f".{os.getpid()}.half"
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        for folder in missing:
            folder.rmdir()
    except OSError as error:
        raise _cannot_error(f"write to {root}", error) from None


def append_line(path: Path, text: str) -> None:
    """Appends a line to a file; a killed process may leave half of it.

    Args:
        path: The file.
        text: The line.
    """
    try:
        with path.open("a", encoding="utf-8") as record:
            record.write(f"{text}\n")
            record.flush()
            os.fsync(record.fileno())
    except OSError as error:
        raise _cannot_error(f"write {path}", error) from None


def remove_tree(root: Path) -> None:
    """Removes a file, or a folder with everything in it.

    Args:
        root: The file or folder; it need not exist.
    """
    try:
        if root.is_dir() and not root.is_symlink():
            shutil.rmtree(root)
        else:
            root.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_error(f"remove {root}", error) from None


def _flush_to_disk(path: Path) -> None:
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
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(unfinished)
        _flush_to_disk(unfinished)
        unfinished.replace(path)
        _flush_to_disk(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the error below says what is wrong with the folder
            unfinished.unlink(missing_ok=True)
        if not isinstance(error, (OSError, SafetensorError)):
            raise
        raise _cannot_error(f"write {path}", error) from None
    return path


def _cannot_error(do: str, error: Exception) -> RunFolderError:
    why = (isinstance(error, OSError) and error.strerror) or one_line(error)
    return RunFolderError(f"cannot {do} ({why})")
