"""Weights and updates in safetensors files that are not what they seem."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import save

from keyhole.models import build
from keyhole.models.weights import load_weights, read_defense_weights
from keyhole.update import Update
from torture.fuzzing import BrokenPromise, Fuzzer
from torture.mutations import TEXTS, spoil_bytes, spoil_json, spoil_path

TYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


class Weights(Fuzzer):
    name: ClassVar[str] = "weights"

    def prepare(self) -> None:
        self.model = build("mlp", classes=10, channels=1, image_size=8)
        self.sound = {k: v.clone() for k, v in self.model.state_dict().items()}

    def run(self, draw: random.Random, folder: Path) -> None:
        path = folder / "weights.safetensors"
        path.write_bytes(spoilt_file(draw, self.sound))
        if draw.random() < 0.1:
            spoil_path(draw, path)
        for read in (lambda: load_weights(self.model, path), lambda: Update.load(path)):
            self.model.load_state_dict(self.sound)
            read()
            for name, tensor in self.model.state_dict().items():
                if not tensor.isfinite().all():
                    raise BrokenPromise(f"weights that are not finite were taken: {name}")
        read_defense_weights(path)


def spoilt_file(draw: random.Random, sound: dict[str, torch.Tensor]) -> bytes:
    """A safetensors file with other bytes, another header, or other tensors."""
    match draw.randrange(3):
        case 0:
            return spoil_bytes(draw, save(sound))
        case 1:
            whole = save(sound, {"steps": "1", "lr": "1.0"})
            (length,) = struct.unpack("<Q", whole[:8])
            header = spoil_json(draw, json.loads(whole[8 : 8 + length]))
            text = json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + whole[8 + length :]
        case _:
            return save(spoilt_tensors(draw, sound), spoilt_header(draw))


def spoilt_tensors(draw: random.Random, sound: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = dict(sound)
    name = draw.choice(sorted(made))
    match draw.randrange(6):
        case 0:
            made[name] = made[name].to(draw.choice(TYPES))
        case 1:
            value = draw.choice([torch.nan, torch.inf, 1e38])
            made[name] = torch.full(made[name].shape, value)
        case 2:
            made[name] = made[name].flatten()[: draw.randrange(5)].clone()
        case 3:
            del made[name]
        case 4:
            made[draw.choice(TEXTS)] = torch.zeros(2)
        case _:
            made = {}
    return made


def spoilt_header(draw: random.Random) -> dict[str, str]:
    names = draw.sample(["steps", "lr", "batch_size", "examples", "other"], draw.randrange(4))
    return {name: draw.choice([*TEXTS, "9" * 5000, "1e400", "-0", "1_0"]) for name in names}
