"""Networks in files that say how they are built, such as those that come with Keyhole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from keyhole.errors import BadUpdate, DataMissing
from keyhole.models.weights import fill
from keyhole.seeds import seeded_globally
from keyhole.update import read_safetensors

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Kept(Generic[Network]):
    """One kind of network on disk.

    ``build`` makes an untrained one of the plan that stands in the header under ``kind``;
    ``shipped`` is the package and the name of the file that comes with Keyhole. ``advice`` says how
    to get one, ``writer`` what writes one.
    """

    kind: str
    build: Callable[[Mapping[str, Any]], Network]
    shipped: tuple[str, str]
    advice: str
    writer: str

    def save(self, network: Network, path: Path, plan: Mapping[str, Any]) -> None:
        """Writes weights in float16, statistics in float32, and the plan in the header."""
        from safetensors.torch import save_file

        buffers = {name for name, _ in network.named_buffers()}
        weights = {
            name: tensor.detach()
            .to("cpu", torch.float32 if name in buffers else torch.float16)
            .contiguous()
            for name, tensor in network.state_dict().items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(weights, path, {self.kind: json.dumps(plan)})

    def load(self, path: Path | None = None) -> Network:
        """The network in a file (None: the one that comes with Keyhole).

        In float32 on the CPU, in evaluation mode, its weights fixed.
        """
        if path is not None:
            return self.read(path.expanduser())
        package, name = self.shipped
        with resources.as_file(resources.files(package) / "weights" / name) as file:
            return self.read(file)

    def read(self, path: Path) -> Network:
        if not path.is_file():
            raise DataMissing(f"there is no {self.kind} at {path}: {self.advice}")
        weights, header = read_safetensors(path)
        try:
            with seeded_globally(0):
                network = self.build(json.loads(header[self.kind]))
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise BadUpdate(
                f"{path} does not say what {self.kind} it holds: write it with {self.writer}"
            ) from None
        fill(network, {name: tensor.float() for name, tensor in weights.items()}, str(path))
        return network.eval().requires_grad_(False)
