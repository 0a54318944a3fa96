"""A piece: work that depends on no other piece, and what identifies its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from keyhole.lazy import import_address
from keyhole.progress import NullProgress, Progress
from keyhole.scale.contents import digest_code, digest_path
from keyhole.version import __version__

Values = Mapping[str, Any]
"""What JSON can hold."""


@dataclass(frozen=True)
class Machine:
    """What a piece may use where it runs. Results do not depend on where their files lie.

    Args:
        device: ``auto``, or a device of torch.
        data_dir: Where data sets lie; None: the default places.
        cpus: Threads of each piece. On CPUs another number may change the last bits of a result.
        gpus: GPUs of each piece, for Ray to reserve: 1, or 0.25 where four share one.
        victims_at_once: How many victims an attack may take at once; None: as many as fit.
    """

    device: str = "auto"
    data_dir: str | None = None
    cpus: int = 1
    gpus: float = 0.0
    victims_at_once: int | None = None


@dataclass(frozen=True)
class Workspace:
    """What the work of a piece is given.

    Args:
        folder: Where it keeps what it needs to continue, and what belongs to its result. A piece
            that was stopped finds there what it wrote.
        progress: Shows how far it is.
        machine: What it may use.
    """

    folder: Path
    progress: Progress = field(default_factory=NullProgress)
    machine: Machine = field(default_factory=Machine)


Work = Callable[[Values, Workspace], Mapping[str, Any]]
"""What a piece does: from its values to a result that JSON can hold."""


@dataclass(frozen=True)
class Piece:
    """Work that depends on no other piece. The same work on the same values has the same key.

    Args:
        work: The function that does it, ``package.module:function``; see :data:`Work`.
        values: What the function is given, as JSON holds it.
        title: What people call the piece.
        files: Digests of the files and folders that the values name, by their texts in the values.
        code: Digests of modules of the user's own, by name.
    """

    work: str
    values: Values
    title: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """The name of its result: a digest of all that determines it.

        That is the work, the values with the contents of files in the place of their paths, code
        of the user's own, and the version of Keyhole.
        """
        identity = [self.work, self.replace_paths(self.values), dict(self.code), __version__]
        text = json.dumps(identity, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def replace_paths(self, value: Any) -> Any:
        """A value with digests in the place of the paths in it.

        Args:
            value: What JSON can hold.
        """
        if isinstance(value, Mapping):
            return {str(name): self.replace_paths(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.replace_paths(each) for each in value]
        if not isinstance(value, str):
            return value
        for path, digest in self.files.items():
            value = digest if value == path else value.replace(repr(path), repr(digest))
        return value

    def load_work(self) -> Work:
        """Imports the function that does the work."""
        work: Work = import_address(self.work)
        return work


def build_piece(
    work: str,
    values: Values,
    *,
    title: str = "",
    reads: Iterable[str | Path | None] = (),
    parts: Iterable[str] = (),
) -> Piece:
    """Builds a piece; the contents of what it reads count in its key.

    Args:
        work: The function that does it, ``package.module:function``.
        values: What the function is given, as JSON holds it.
        title: What people call the piece.
        reads: Files and folders that the values name; None is none.
        parts: Attacks, defenses, models and metrics that the values name; the code of those named
            by their place, ``package.module:Name``, counts in the key.
    """
    files = {str(path): digest_path(Path(path)) for path in reads if path is not None}
    plain = json.loads(json.dumps(dict(values), allow_nan=False))
    return Piece(work, plain, title, files, digest_code(parts))
