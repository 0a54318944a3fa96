"""The unscrambler that comes with Keyhole: read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keyhole.attacks.jigsaw.learned import Unscrambler, load_unscrambler, save_unscrambler
from keyhole.attacks.jigsaw.learned.shipped import UNSCRAMBLERS
from keyhole.errors import BadUpdate, DataMissing
from keyhole.update import read_safetensors

LEARNED = Path(__file__).parents[4] / "src/keyhole/attacks/jigsaw/learned"
WEIGHTS = LEARNED / "weights" / UNSCRAMBLERS.shipped[1]


def test_it_is_small_and_says_where_it_comes_from() -> None:
    header = read_safetensors(WEIGHTS)[1]
    plan = json.loads(header[UNSCRAMBLERS.kind])
    assert WEIGHTS.stat().st_size < 1e6
    assert "tiny-imagenet" in plan["trained_on"]
    assert "MNIST" in plan["trained_on"]
    assert plan["steps"] > 0
    assert plan["seed"] == 0


def test_it_is_read_once_and_fixed() -> None:
    network = load_unscrambler()
    assert network is load_unscrambler()
    assert not network.training
    assert not any(p.requires_grad or p.dtype != torch.float32 for p in network.parameters())


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    network = Unscrambler(width=8, depth=2, heads=2)
    save_unscrambler(network, tmp_path / "new" / "it.safetensors", trained_on="-", steps=1, seed=2)
    again = load_unscrambler(tmp_path / "new" / "it.safetensors")
    assert (again.width, again.depth, again.heads, again.side) == (8, 2, 2, 2)
    halves = {name: tensor.half().float() for name, tensor in network.state_dict().items()}
    assert all(torch.equal(halves[name], tensor) for name, tensor in again.state_dict().items())


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"no unscrambler at .*python tools/train_unscrambler.py"):
        load_unscrambler(tmp_path / "none.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(BadUpdate, match="write it with save_unscrambler"):
        load_unscrambler(tmp_path / "other.safetensors")
