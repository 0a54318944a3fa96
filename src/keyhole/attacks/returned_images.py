"""What an attack returned, checked before anybody scores it: a slip is told in one line."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from keyhole.errors import DoesNotFit


def check_shape(attack: str, images: object, shape: Sequence[int]) -> None:
    """Refuses what is not a tensor of images as the model takes them.

    Args:
        attack: The attack's name.
        images: What it returned.
        shape: Of one image, ``[C, H, W]``.
    """
    wanted = f"[n, {', '.join(map(str, shape))}]"
    if not isinstance(images, Tensor):
        found = f"a {type(images).__name__} in place of a tensor"
    elif images.is_complex():
        found = "complex numbers"
    elif list(images.shape[1:]) != list(shape):
        found = f"a tensor of shape {list(images.shape)}"
    else:
        return
    raise DoesNotFit(f"attack {attack!r} returned {found}: images must be of shape {wanted}")


def fill_missing_values(images: Tensor) -> tuple[Tensor, str | None]:
    """Puts 0, which is about the mean colour, where a value is NaN; says so in a note.

    Args:
        images: Model inputs ``[n, C, H, W]``.

    >>> import torch
    >>> fill_missing_values(torch.tensor([[[[1.0, float("nan")]]], [[[2.0, 3.0]]]]))[1]
    '1 of 2 images had values that are not numbers: they count as the mean colour'
    """
    missing = images.isnan()
    if not missing.any():
        return images, None
    count = int(missing.flatten(1).any(1).sum())
    note = f"{count} of {len(images)} images had values that are not numbers: they count as the "
    return images.masked_fill(missing, 0), f"{note}mean colour"
