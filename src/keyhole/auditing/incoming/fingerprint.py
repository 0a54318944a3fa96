"""One short text for a whole model, by which clients see whether they got the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from keyhole.errors import BadValue

HASH = re.compile(r"[0-9a-f]{64}")


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Returns the sha256 over names, types, shapes and values of all tensors, sorted by name.

    >>> hash_weights({"a": torch.zeros(2)}) == hash_weights({"a": torch.zeros(1, 2)})
    False

    Args:
        weights: The model's tensors by name.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        header = f"{len(name)} {name} {tensor.dtype} {list(tensor.shape)}\n"
        digest.update(header.encode("utf-8", "surrogatepass"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_hash(text: str) -> str:
    """Returns a hash in lower case; raises :class:`BadValue` if the text is not one."""
    found = text.strip().lower()
    if not HASH.fullmatch(found):
        raise BadValue(f"expected-hash: a sha256 has 64 hexadecimal digits, got {text[:80]!r}")
    return found
