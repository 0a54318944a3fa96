"""Networks in files that say how they are built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.errors import BadUpdate, DataMissing
from keyhole.models.shipped import ShippedNetwork


def built(plan: Mapping[str, Any]) -> nn.Sequential:
    width = int(plan["width"])
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


NETS = ShippedNetwork(
    "net", built, shipped=("keyhole", "none.safetensors"), advice="make one", writer="us"
)


def test_what_is_written_comes_back_built_as_it_was(tmp_path: Path) -> None:
    network = built({"width": 3}).train()
    network(torch.randn(8, 2))
    NETS.save(network, tmp_path / "deep" / "it.safetensors", {"width": 3})
    again = NETS.load(tmp_path / "deep" / "it.safetensors")
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())
    for name, tensor in network.named_parameters():
        assert torch.equal(dict(again.named_parameters())[name], tensor.detach().half().float())
    own, found = network.get_submodule("1"), again.get_submodule("1")
    assert torch.equal(found.running_mean, own.running_mean), "statistics are not rounded"


def test_files_that_hold_none_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"no net at .*: make one"):
        NETS.load(tmp_path / "none.safetensors")
    with pytest.raises(DataMissing, match=r"none\.safetensors"):
        NETS.load()
    for header in (None, {"net": "no json"}, {"net": "{}"}, {"net": '{"width": "wide"}'}):
        save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors", header)
        with pytest.raises(BadUpdate, match="write it with us") as raised:
            NETS.load(tmp_path / "other.safetensors")
        assert "\n" not in str(raised.value)
    NETS.save(built({"width": 4}), tmp_path / "other.safetensors", {"width": 3})
    with pytest.raises(BadUpdate, match="another model's weights"):
        NETS.load(tmp_path / "other.safetensors")
