from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from keyhole.attacks.matching import cpu_products
from keyhole.attacks.matching.cpu_products import (
    is_amd,
    multiply_fast,
    onednn_is_exact,
    onednn_is_faster,
)

MATMUL = torch.backends.mkldnn.matmul


def test_products_are_those_of_float32() -> None:
    draw = torch.Generator().manual_seed(3)
    left = torch.randn(4, 33, 500, generator=draw)
    right = torch.randn(4, 500, 17, generator=draw)
    exact = left.double() @ right.double()
    with multiply_fast():
        assert (left @ right - exact).norm() < 3e-6 * exact.norm()
        assert (left[0] @ right[0] - exact[0]).norm() < 3e-6 * exact[0].norm()


def test_the_setting_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "onednn_is_faster", lambda: True)
    before = MATMUL.fp32_precision
    with multiply_fast():
        assert MATMUL.fp32_precision == "bf16"
    assert MATMUL.fp32_precision == before
    monkeypatch.setattr(cpu_products, "onednn_is_faster", lambda: False)
    with multiply_fast():
        assert MATMUL.fp32_precision == before


def test_a_processor_that_rounds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Tensor.__matmul__

    def rounded(one: Tensor, other: Tensor) -> Tensor:
        if one.dtype == torch.double:
            return product(one, other)
        return product(one.bfloat16().float(), other.bfloat16().float())

    monkeypatch.setattr(Tensor, "__matmul__", rounded)
    assert not onednn_is_exact()


@pytest.mark.parametrize(
    ("vendor", "tiles", "exact", "faster"),
    [
        ("AuthenticAMD", False, True, True),
        ("AuthenticAMD", True, True, False),
        ("AuthenticAMD", False, False, False),
        ("GenuineIntel", False, True, False),
    ],
)
def test_only_where_it_is_faster_and_exact(
    vendor: str,
    tiles: bool,
    exact: bool,
    faster: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor : 0\nvendor_id : {vendor}\n")
    monkeypatch.setattr(cpu_products, "CPU_FACTS", facts)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(cpu_products, "onednn_is_exact", lambda: exact)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    onednn_is_faster.cache_clear()
    assert onednn_is_faster() is faster
    onednn_is_faster.cache_clear()
    monkeypatch.setattr(cpu_products, "CPU_FACTS", tmp_path / "missing")
    assert not is_amd()
