"""The one currency: what a client sends to the server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from keyhole.errors import BadUpdate, one_line


@dataclass(frozen=True)
class Update:
    """The change of every parameter that a client reports, and how it came about.

    ``change[name] = w_after - w_before``. A client that shares a gradient ``g`` is one step of
    SGD with ``lr=1``: its change is ``-g``, bit for bit. Integer buffers may be among the tensors;
    every operation here passes them through untouched.
    """

    change: Mapping[str, Tensor]
    steps: int = 1
    lr: float = 1.0
    batch_size: int = 1
    examples: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.lr < math.inf:
            raise BadUpdate(
                f"an update after {self.steps} steps of learning rate {self.lr} makes no sense: "
                "both must be positive"
            )

    @classmethod
    def from_gradient(cls, gradient: Mapping[str, Tensor], *, batch_size: int = 1) -> Update:
        """The update of a client that shares the gradient of one batch."""
        change = {name: -g.detach() for name, g in gradient.items()}
        return cls(change, batch_size=batch_size, examples=batch_size)

    def gradient(self) -> dict[str, Tensor]:
        """The mean gradient over the local steps, ``-change / (lr * steps)``, floats only."""
        scale = -1.0 / (self.lr * self.steps)
        return {k: v * scale for k, v in self.change.items() if v.is_floating_point()}

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Update:
        """Applies ``function(name, tensor)`` to the floating tensors; others stay as they are."""
        changed = {
            name: function(name, tensor) if tensor.is_floating_point() else tensor
            for name, tensor in self.change.items()
        }
        return replace(self, change=changed)

    def norm(self) -> float:
        """The Euclidean norm over all floating tensors."""
        floats = [v for v in self.change.values() if v.is_floating_point()]
        if not floats:
            return 0.0
        return float(torch.stack([v.double().norm() for v in floats]).norm())

    def check(self) -> Update:
        """Returns itself, or raises :class:`BadUpdate` where a value is NaN or infinite."""
        for name, tensor in self.change.items():
            if not tensor.is_floating_point() or tensor.sum(dtype=torch.double).isfinite():
                continue  # NaN and infinity survive any sum, which is quicker to look at
            if not torch.isfinite(tensor).all():
                count = int((~torch.isfinite(tensor)).sum())
                raise BadUpdate(
                    f"the update has {count} NaN or infinite values in {name!r}: "
                    "check the model's weights, the images and the learning rate"
                )
        return self

    def check_against(self, weights: Mapping[str, Tensor]) -> Update:
        """Returns itself, or raises :class:`BadUpdate` where it is another model's."""
        for name, tensor in self.change.items():
            if name not in weights:
                raise BadUpdate(f"the update has {name!r}, which the model does not have")
            if tensor.shape != weights[name].shape:
                raise BadUpdate(
                    f"the update's {name!r} has shape {tuple(tensor.shape)}, "
                    f"the model's {tuple(weights[name].shape)}: it belongs to another model"
                )
        return self

    def save(self, path: Path) -> None:
        """Writes the update as safetensors, its history in the header."""
        header = {"steps": self.steps, "lr": self.lr, "batch_size": self.batch_size}
        metadata = {k: repr(v) for k, v in {**header, "examples": self.examples}.items()}
        save_file({k: v.contiguous() for k, v in self.change.items()}, path, metadata)

    @classmethod
    def load(cls, path: Path) -> Update:
        """Reads what :meth:`save` wrote; a header without history means one gradient."""
        change, header = read_safetensors(path)
        try:
            return cls(
                change,
                steps=int(header.get("steps", "1")),
                lr=float(header.get("lr", "1.0")),
                batch_size=int(header.get("batch_size", "1")),
                examples=int(header.get("examples", header.get("batch_size", "1"))),
            ).check()
        except ValueError as error:
            raise BadUpdate(f"{path}: its header cannot be read ({one_line(error)})") from None


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; nothing else is ever unpickled."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except FileNotFoundError:
        raise BadUpdate(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise BadUpdate(
            f"{path} is not a safetensors file ({one_line(error)}): "
            "write it with safetensors.torch.save_file; pickles are not read"
        ) from None
