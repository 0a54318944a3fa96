"""The pictures of a finding in the run folder: uint8 ``[n, C, H, W]`` by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from keyhole.spelling import shorten

PLACES = "seen.at"
"""The numbers of the victims whose images ``seen`` shows; in older run folders the first ones."""


def to_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as uint8, on the CPU."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def check_pictures(pictures: Mapping[str, Tensor]) -> None:
    """Raises ValueError if tensors are not the pictures that an audit keeps."""
    for name, tensor in pictures.items():
        if name == PLACES or (name.startswith("film.") and name.endswith(".at")):
            fits = tensor.dtype == torch.int64 and tensor.ndim == 1 and bool((tensor >= 0).all())
        else:
            fits = tensor.dtype == torch.uint8 and tensor.ndim == 4 and tensor.shape[1] in (1, 3)
            fits = fits and tensor.numel() > 0
        if not fits:
            raise ValueError(f"{shorten(name)} holds no pictures")
    pairs = [
        ("seen", "truth"),
        ("seen", PLACES),
        *((name, f"{name}.at") for name in pictures if is_film(name)),
    ]
    for one, other in pairs:
        if one in pictures and other in pictures and len(pictures[one]) != len(pictures[other]):
            raise ValueError(f"{one} and {other} differ in length")
        if is_film(one) and other not in pictures:
            raise ValueError(f"{other} is missing")


def is_film(name: str) -> bool:
    """Whether a picture shows an image over the iterations of an attack."""
    return name.startswith("film.") and not name.endswith(".at")


def victims_of(pictures: Mapping[str, Tensor]) -> list[int]:
    """The number of the victim that each picture of ``seen`` is of.

    Args:
        pictures: The pictures of a finding by name.
    """
    if PLACES in pictures:
        return [int(victim) for victim in pictures[PLACES]]
    return list(range(len(pictures.get("seen", ()))))
