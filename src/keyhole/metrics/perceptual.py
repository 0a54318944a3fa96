"""LPIPS (AlexNet, v0.1), if its weights are available."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from keyhole.errors import DataMissing
from keyhole.metrics.image import check_images

WEIGHTS = "lpips/lpips_alex.safetensors"
HUB_FILE = "alexnet-owt-7be5be79.pth"
MIN_SIDE = 31
"""The least side of an image: AlexNet's five layers leave nothing of a smaller one."""
AT_ONCE = 32


def lpips(
    found: Tensor, truth: Tensor, *, data_range: float, data_dir: str | Path | None = None
) -> Tensor:
    """Learned perceptual distance, one value per image, ``[n]``.

    Weights come from ``lpips/lpips_alex.safetensors`` in the data folder, or from the AlexNet in
    torch's hub cache. Grey images are passed to the network as three equal channels.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        truth: True images, likewise.
        data_range: The difference of white and black.
        data_dir: The data folder; None: that of the environment variable KEYHOLE_DATA.

    Raises:
        DataMissing: There are no weights, or the images are too small.
    """
    reason = why_unavailable(min(found.shape[-2:]), data_dir)
    if reason:
        raise DataMissing(f"LPIPS is not available: {reason}")
    found, truth = check_images(found, truth, data_range)
    network = load_network(*find_weights(data_dir)).to(found.device)
    images, others = _prepare(found, data_range), _prepare(truth, data_range)
    with torch.no_grad():
        return torch.cat(
            [
                network(images[i : i + AT_ONCE], others[i : i + AT_ONCE]).double().flatten()
                for i in range(0, len(images), AT_ONCE)
            ]
        )


def why_unavailable(side: int, data_dir: str | Path | None = None) -> str:
    """Why LPIPS cannot be computed; empty if it can."""
    if side < MIN_SIDE:
        return f"images of {side} px are too small for AlexNet, which needs {MIN_SIDE}"
    if find_weights(data_dir) == (None, None):
        return (
            f"no weights: put {WEIGHTS} under the data folder (--data-dir, KEYHOLE_DATA) "
            f"or {HUB_FILE} into torch's hub cache"
        )
    return ""


def find_weights(data_dir: str | Path | None) -> tuple[Path | None, Path | None]:
    """The safetensors file, or else the hub checkpoint; None for each that does not exist."""
    root = data_dir or os.environ.get("KEYHOLE_DATA")
    own = Path(root).expanduser() / WEIGHTS if root else None
    hub = Path(torch.hub.get_dir()) / "checkpoints" / HUB_FILE
    if own is not None and own.is_file():
        return own, None
    return None, hub if hub.is_file() else None


@cache
def load_network(own: Path | None, hub: Path | None) -> nn.Module:
    """The LPIPS network with its weights."""
    with _silence():
        import lpips as package

        network: Any = package.LPIPS(net="alex", pnet_rand=True, verbose=False)
    if own is not None:
        try:
            weights = load_file(own)
        except (SafetensorError, OSError) as error:
            raise DataMissing(f"{own} is not a safetensors file ({error}): copy it again") from None
        for i in range(5):
            lin = getattr(network, f"lin{i}").model[-1]
            lin.weight.data.copy_(weights[f"lin{i}.weight"])
    else:
        assert hub is not None
        weights = torch.load(hub, map_location="cpu", weights_only=True)
    trunk = network.net.state_dict()
    network.net.load_state_dict({k: weights["features." + k.split(".", 1)[1]] for k in trunk})
    return network.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _prepare(images: Tensor, data_range: float) -> Tensor:
    """Images as RGB in [-1, 1], float32."""
    scaled = (images / data_range * 2 - 1).float()
    return scaled.expand(-1, 3, -1, -1) if scaled.shape[1] == 1 else scaled


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hides what the package prints and warns while it is set up."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
