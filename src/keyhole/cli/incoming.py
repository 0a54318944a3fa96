"""``keyhole guard --incoming``: the model that a server sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import BadValue
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import say_json, say_unwrapped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from keyhole.auditing.incoming import IncomingCheck
    from keyhole.data import ImageSet

ALARM = 1
"""Exit code where there is an alarm."""


@dataclass(frozen=True)
class IncomingFiles:
    """What the user says about the incoming model: files, a hash, names."""

    incoming: Path
    previous: Path | None
    expected_hash: str | None
    model: str | None
    defense: str


@dataclass(frozen=True)
class OwnImages:
    """What the user says about the client's images."""

    data: str | None
    images: str | None
    image_size: str | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    data_dir: str | None

    def load(self) -> ImageSet | None:
        """Reads the client's images; None if the user named none."""
        from keyhole.auditing.incoming.mod import hold_images
        from keyhole.data import load

        if self.data is None:
            return None
        found = load(
            self.data,
            image_size=self.image_size,
            data_dir=self.data_dir,
            mean=self.mean,
            std=self.std,
        )
        if self.images is None:
            return found
        chosen = read_indices(self.images, len(found))
        return hold_images(found, found.images(chosen), found.labels[chosen])


def guard_incoming(files: IncomingFiles, own: OwnImages, *, as_json: bool) -> int:
    """Checks the model, prints what was found and returns the exit code."""
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.incoming import check_incoming
        from keyhole.auditing.incoming.fingerprint import check_hash
        from keyhole.update import read_safetensors
    expected = None if files.expected_hash is None else check_hash(files.expected_hash)
    weights = read_safetensors(files.incoming)[0]
    previous = None if files.previous is None else read_safetensors(files.previous)[0]
    data = own.load()
    if data is not None and files.model is None:
        raise BadValue("--data takes a network that sees the images: give --model too")
    found = None if files.model is None else build_own_model(files, own, weights, data)
    model, shape = found or (None, None)
    result = check_incoming(model, weights, previous, data, shape=shape, expected_hash=expected)
    if as_json:
        say_json(result.to_json())
    else:
        for line in describe(result):
            say_unwrapped(line)
    return ALARM if result.suspicious else 0


def build_own_model(
    files: IncomingFiles, own: OwnImages, weights: dict[str, Tensor], data: ImageSet | None
) -> tuple[nn.Module, tuple[int, int, int]]:
    """Builds the client's own model, for its images or for those that the weights tell of."""
    from keyhole.auditing.incoming.input_shape import build_for_weights
    from keyhole.data.image_set import parse_size
    from keyhole.defenses import DEFENSES

    assert files.model is not None
    size = parse_size(own.image_size) if data is None else data.size
    channels = None if data is None else data.shape[0]
    model, shape = build_for_weights(files.model, weights, size, channels)
    return DEFENSES.parse(files.defense).prepare_model(model), shape


def describe(result: IncomingCheck) -> list[str]:
    """The alarms, what was not checked and the hash, a line each."""
    alarms = [f"ALARM: {alarm}" for alarm in result.alarms]
    return [
        *(alarms or [f"no alarm in these checks: {', '.join(result.checked)}"]),
        *(f"not checked: {each}" for each in result.not_checked),
        f"hash: {result.hash}",
    ]


def read_indices(text: str | None, count: int) -> list[int]:
    """Indices from ``3,5``; all without."""
    if text is None:
        return list(range(count))
    parts = [part.strip() for part in text.split(",")]
    bad = [part for part in parts if not part.isdecimal() or int(part) >= count]
    if bad:
        raise BadValue(f"images: there is no image {bad[0]!r} among {count}: write 3,5")
    return [int(part) for part in parts]
