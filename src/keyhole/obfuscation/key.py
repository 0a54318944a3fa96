"""The secret key of a collection node: whoever has it can restore every image."""

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

from keyhole.data.versions import ScryptSettings
from keyhole.defenses.shuffles import draw_keyed_numbers
from keyhole.errors import BadValue, DataMissing, one_line
from keyhole.untrusted import read_regular

MIN_BYTES, MAX_BYTES = 16, 1 << 16
"""The size of a key file's content."""
MIN_DISTINCT_BYTES = 8
"""A key has at least this many different bytes; sixteen random bytes practically always do."""
HASH_DIGITS = 32
"""Hex digits of a keyed hash: 128 bits."""


@dataclass(frozen=True)
class SiteKey:
    """A key that makes keyed hashes and random numbers; it is never shown.

    Args:
        material: The key's bytes.
    """

    material: bytes = field(repr=False)

    def sign(self, purpose: str, *parts: bytes) -> str:
        """Returns a keyed hash (HMAC-SHA256) of ``parts``.

        Nobody without the key can make or check it.

        Args:
            purpose: What the hash is for; the same parts have another hash for another purpose.
            parts: What is hashed.
        """
        digest = hmac.new(self.material, f"keyhole {purpose}".encode(), "sha256")
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()[:HASH_DIGITS]

    @property
    def fingerprint(self) -> str:
        """What identifies this key in manifests whose lines are signed."""
        return self.sign("which key, with a record that is marked")

    @property
    def old_fingerprint(self) -> str:
        """What identifies this key in manifests from before lines were signed."""
        return self.sign("which key")

    def random_numbers(self, stream: str, count: int) -> Tensor:
        """Returns the first numbers of a stream of random numbers, int32 ``[count]``.

        Args:
            stream: The stream's name.
            count: How many numbers are wanted.
        """
        return draw_keyed_numbers(self.material, stream, count)

    def xor(self, data: bytes, stream: str) -> bytes:
        """Returns ``data`` XOR the bytes of a stream; applied twice, this gives ``data`` back.

        Args:
            data: What is encrypted or decrypted.
            stream: The stream's name.
        """
        numbers = self.random_numbers(stream, -(-len(data) // 4)).numpy().astype("<i4").tobytes()
        return bytes(a ^ b for a, b in zip(data, numbers, strict=False))


@dataclass(frozen=True)
class KeyFile:
    """The content of a key file: random bytes, or a passphrase, which must be stretched."""

    content: bytes = field(repr=False)
    is_text: bool

    def derive_key(self, stretch: ScryptSettings | None) -> SiteKey:
        """Returns the key; without settings the content itself, as for older folders."""
        if stretch is None:
            return SiteKey(self.content)
        salt = bytes.fromhex(stretch.salt)
        material = hashlib.scrypt(
            self.content,
            salt=salt,
            n=stretch.n,
            r=stretch.r,
            p=stretch.p,
            maxmem=2 * MAX_MEMORY,
            dklen=2 * MIN_BYTES,
        )
        return SiteKey(material)


MAX_MEMORY = 1 << 28
"""Bytes that scrypt may use: a manifest is not trusted to ask for more."""


def new_scrypt_settings() -> ScryptSettings:
    """Returns a new salt, and costs of 64 MiB and some tenths of a second for each guess."""
    return ScryptSettings(secrets.token_hex(MIN_BYTES), n=1 << 16, r=8, p=1)


def check_scrypt_settings(stretch: ScryptSettings) -> None:
    """Raises BadValue if a manifest's settings are invalid for scrypt or cost too much."""
    costs = 128 * stretch.n * stretch.r * stretch.p
    positive = min(stretch.n, stretch.r, stretch.p) >= 1 and stretch.n > 1
    hexadecimal = len(stretch.salt) <= 128 and not set(stretch.salt) - set("0123456789abcdef")
    if not positive or costs > MAX_MEMORY or stretch.n & (stretch.n - 1) or not hexadecimal:
        raise BadValue("the manifest's settings for stretching the key (scrypt) are invalid")
    if len(stretch.salt) % 2:
        raise BadValue("the manifest's salt for stretching the key is cut off")


def read_key(path: Path) -> KeyFile:
    """Reads a key file: hex digits, or any other bytes; spaces around them do not count."""
    try:
        found = read_regular(path, MAX_BYTES).strip()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise invalid_key(path) from None
        why = error.strerror or one_line(error)
        raise DataMissing(f"the key file {path} cannot be read ({why})") from None
    try:
        key_file = KeyFile(bytes.fromhex(found.decode("ascii")), is_text=False)
    except ValueError:
        key_file = KeyFile(found, is_text=is_text(found))
    if len(key_file.content) < MIN_BYTES or len(set(key_file.content)) < MIN_DISTINCT_BYTES:
        raise invalid_key(path)
    return key_file


def invalid_key(path: Path) -> BadValue:
    return BadValue(
        f"{path} holds no key: it needs {MIN_BYTES} random bytes or more, such as 32 hex digits; "
        "name a file that does not exist, and a key is created there"
    )


def is_text(content: bytes) -> bool:
    r"""Returns whether a person may have typed these bytes, in any encoding.

    Some random bytes are taken for text, and then stretched needlessly.

    >>> is_text(b"correct horse\nbattery"), is_text("Schl\xfcssel".encode("latin-1"))
    (True, True)
    """
    try:
        lines = content.decode("utf-8").split()
    except UnicodeDecodeError:
        lines = []
    bare = content.replace(b"\0", b"")  # of which UTF-16 has many
    letters = sum(byte in TYPED_BYTES for byte in bare)
    return 2 * letters >= len(bare) or (bool(lines) and all(x.isprintable() for x in lines))


TYPED_BYTES = frozenset(string.printable.encode("ascii"))


def make_key(path: Path) -> KeyFile:
    """Creates a key in a new file that only its owner can read, as a whole or not at all."""
    content = secrets.token_bytes(2 * MIN_BYTES)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        remove_unfinished(path)
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(f"{content.hex()}\n".encode("ascii"))
            out.flush()
            os.fsync(out.fileno())
        rename_to_new(half, path)
    except OSError as error:
        raise DataMissing(f"cannot make the key file {path} ({error.strerror})") from None
    finally:
        with suppress(OSError):
            half.unlink()
    return KeyFile(content, is_text=False)


def remove_unfinished(path: Path) -> None:
    """Removes key files that a killed process had not finished; nothing was made with them."""
    for half in path.parent.glob(f".{glob.escape(path.name)}.*.half"):
        half.unlink(missing_ok=True)


def rename_to_new(half: Path, path: Path) -> None:
    """Renames a finished file; raises FileExistsError if a file of that name exists."""
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
