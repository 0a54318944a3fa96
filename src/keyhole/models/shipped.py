"""Trained networks that ship with Keyhole, in files that say how to build them."""

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
from keyhole.models.weights import load_tensors
from keyhole.seeds import seeded_globally
from keyhole.update import read_safetensors

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class ShippedNetwork(Generic[Network]):
    """One kind of network that ships with Keyhole and that users can train anew.

    Args:
        kind: The kind's name; the file's header holds the plan of the network under this name.
        build: Returns an untrained network for a plan.
        shipped: The package, and the name of the file that ships with it.
        advice: How to get a file, for error messages.
        writer: What writes a file, for error messages.
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
        """Loads the network in a file; None means the one that ships with Keyhole.

        It is in float32 on the CPU, in evaluation mode, and its weights are fixed.
        """
        if path is not None:
            return self.read(path.expanduser())
        package, name = self.shipped
        with resources.as_file(resources.files(package) / "weights" / name) as file:
            return self.read(file)

    def read(self, path: Path) -> Network:
        """Reads a file that :meth:`save` wrote."""
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
        load_tensors(network, {name: tensor.float() for name, tensor in weights.items()}, str(path))
        return network.eval().requires_grad_(False)
