"""The secret of a collection node: who has it can put every picture together again."""

from __future__ import annotations

import errno
import glob
import hashlib
import hmac
import os
import secrets
import string
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from keyhole.data.versions import Stretch
from keyhole.defenses.shuffles import secret_numbers
from keyhole.errors import BadValue, DataMissing, one_line
from keyhole.untrusted import read_regular

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
        """Tells this key from others; on records whose lines are marked."""
        return self.mark("which key, with a record that is marked")

    @property
    def old_check(self) -> str:
        """The same on records that were made before lines were marked."""
        return self.mark("which key")

    def numbers(self, place: str, count: int) -> Tensor:
        """Random int32 ``[count]`` for one place in the work."""
        return secret_numbers(self.material, place, count)

    def veiled(self, data: bytes, place: str) -> bytes:
        """``data`` exclusive-or random bytes; the same again is ``data``."""
        stream = self.numbers(place, -(-len(data) // 4)).numpy().astype("<i4").tobytes()
        return bytes(a ^ b for a, b in zip(data, stream, strict=False))


@dataclass(frozen=True)
class KeyFile:
    """What a key file holds: random bytes, or words, which must be stretched."""

    content: bytes = field(repr=False)
    is_text: bool

    def key(self, stretch: Stretch | None) -> SiteKey:
        """The key; words without a stretch are taken as they are, as older folders did."""
        if stretch is None:
            return SiteKey(self.content)
        salt = bytes.fromhex(stretch.salt)
        material = hashlib.scrypt(
            self.content,
            salt=salt,
            n=stretch.n,
            r=stretch.r,
            p=stretch.p,
            maxmem=2 * MEMORY,
            dklen=2 * LEAST,
        )
        return SiteKey(material)


MEMORY = 1 << 28
"""Bytes that stretching may take: a record is not trusted to ask for more."""


def new_stretch() -> Stretch:
    """A fresh salt, and costs of 64 MiB and some tenths of a second for each guess."""
    return Stretch(secrets.token_hex(LEAST), n=1 << 16, r=8, p=1)


def check_stretch(stretch: Stretch) -> None:
    """Raises BadValue where a record asks for what scrypt cannot do, or not in bounds."""
    costs = 128 * stretch.n * stretch.r * stretch.p
    whole = min(stretch.n, stretch.r, stretch.p) >= 1 and stretch.n > 1
    hexadecimal = len(stretch.salt) <= 128 and not set(stretch.salt) - set("0123456789abcdef")
    if not whole or costs > MEMORY or stretch.n & (stretch.n - 1) or not hexadecimal:
        raise BadValue("the record asks for a way to stretch the key that does not exist")
    if len(stretch.salt) % 2:
        raise BadValue("the record's salt, to stretch the key with, is cut")


def read_key(path: Path) -> KeyFile:
    """The key in a file: hex digits, or any other bytes; space around them does not count."""
    try:
        found = read_regular(path, MOST).strip()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise no_key(path) from None
        why = error.strerror or one_line(error)
        raise DataMissing(f"the key file {path} cannot be read ({why})") from None
    try:
        held = KeyFile(bytes.fromhex(found.decode("ascii")), is_text=False)
    except ValueError:
        held = KeyFile(found, is_text=is_text(found))
    if len(held.content) < LEAST or len(set(held.content)) < DIFFERENT:
        raise no_key(path)
    return held


def no_key(path: Path) -> BadValue:
    return BadValue(
        f"{path} holds no key: it needs {LEAST} random bytes or more, as 32 hex digits say; "
        "name a file that does not exist, and one is made"
    )


def is_text(content: bytes) -> bool:
    r"""Whether bytes may be what a person typed, on one line or several, in any encoding.

    Some random bytes are taken for text: they are only stretched in vain.

    >>> is_text(b"correct horse\nbattery"), is_text("Schl\xfcssel".encode("latin-1"))
    (True, True)
    """
    try:
        lines = content.decode("utf-8").split()
    except UnicodeDecodeError:
        lines = []
    bare = content.replace(b"\0", b"")  # of which UTF-16 has many
    letters = sum(byte in TYPED for byte in bare)
    return 2 * letters >= len(bare) or (bool(lines) and all(x.isprintable() for x in lines))


TYPED = frozenset(string.printable.encode("ascii"))


def make_key(path: Path) -> KeyFile:
    """A new key in a new file, whole or not there at all, that only its owner can read."""
    content = secrets.token_bytes(2 * LEAST)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        remove_halves(path)
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(f"{content.hex()}\n".encode("ascii"))
            out.flush()
            os.fsync(out.fileno())
        put_new(half, path)
    except OSError as error:
        raise DataMissing(f"cannot make the key file {path} ({error.strerror})") from None
    finally:
        with suppress(OSError):
            half.unlink()
    return KeyFile(content, is_text=False)


def remove_halves(path: Path) -> None:
    """Removes what a killed process had not finished of a key file; nothing was made with it."""
    for half in path.parent.glob(f".{glob.escape(path.name)}.*.half"):
        half.unlink(missing_ok=True)


def put_new(half: Path, path: Path) -> None:
    """Gives a finished file its name; raises FileExistsError where there is one of that name."""
    try:
        os.link(half, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        half.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
