"""The secret of a collection node: who has it can put every picture together again."""

from __future__ import annotations

import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from keyhole.defenses.shuffles import secret_numbers
from keyhole.errors import BadValue, DataMissing

LEAST, MOST = 16, 1 << 16
"""Bytes of key material."""
DIFFERENT = 8
"""A key has at least so many different bytes: sixteen random ones practically always do."""
DIGITS = 32
"""Of a keyed hash that is written down: 128 bits."""


@dataclass(frozen=True)
class SiteKey:
    """Keyed hashes (HMAC-SHA256), each for one purpose; the key itself is never shown."""

    material: bytes = field(repr=False)

    def mark(self, purpose: str, *parts: bytes) -> str:
        """A keyed hash of ``parts``, which nobody without the key can make or check."""
        made = hmac.new(self.material, f"keyhole {purpose}".encode(), "sha256")
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.hexdigest()[:DIGITS]

    @property
    def check(self) -> str:
        """Tells this key from others."""
        return self.mark("which key")

    def numbers(self, place: str, count: int) -> Tensor:
        """Random int32 ``[count]`` for one place in the work."""
        return secret_numbers(self.material, place, count)

    def veiled(self, data: bytes, place: str) -> bytes:
        """``data`` exclusive-or random bytes; the same again is ``data``."""
        stream = self.numbers(place, -(-len(data) // 4)).numpy().astype("<i4").tobytes()
        return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def read_key(path: Path) -> SiteKey:
    """The key in a file: hex digits, or any other bytes; space around them does not count."""
    try:
        with path.open("rb") as file:
            found = file.read(MOST + 1).strip()
    except OSError as error:
        raise DataMissing(f"the key file {path} cannot be read ({error.strerror})") from None
    try:
        material = bytes.fromhex(found.decode("ascii"))
    except ValueError:
        material = found
    if not LEAST <= len(material) <= MOST or len(set(material)) < DIFFERENT:
        raise BadValue(
            f"{path} holds no key: it needs {LEAST} random bytes or more, as 32 hex digits say; "
            "name a file that does not exist, and one is made"
        )
    return SiteKey(material)


def make_key(path: Path) -> SiteKey:
    """A new key in a new file that only its owner can read."""
    material = secrets.token_bytes(2 * LEAST)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="ascii") as out:
            out.write(f"{material.hex()}\n")
            out.flush()
            os.fsync(file)
    except OSError as error:
        raise DataMissing(f"cannot make the key file {path} ({error.strerror})") from None
    return SiteKey(material)
