from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.attacks.matching.gradients import layer_recorder, softmax
from keyhole.attacks.matching.gradients.layer_recorder import LayerRecorder
from keyhole.attacks.matching.gradients.softmax import is_large_softmax, softmax_rows


def second_derivative(function: Callable[[Tensor], Tensor], layout: str) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    x, weight, other = (torch.randn(6, 5, 9, dtype=torch.double, generator=draw) for _ in range(3))
    x = (x.mT.contiguous().mT if layout == "strided" else x).requires_grad_()
    (first,) = torch.autograd.grad((function(x).square() * weight).sum(), x, create_graph=True)
    loss = (first * other).sum() + first.square().sum()
    derivative: Tensor = torch.autograd.grad(loss, x)[0]
    return derivative


@pytest.mark.parametrize("layout", ["plain", "strided"])
@pytest.mark.parametrize("block", [1, 20, 1 << 16])
def test_second_derivatives_are_torchs_own(
    layout: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "BLOCK", block)
    ours = second_derivative(softmax_rows, layout)
    assert torch.allclose(ours, second_derivative(lambda x: x.softmax(-1), layout), rtol=1e-12)


def test_attention_is_matched_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the recorder, on a layer that would be too small."""
    model = nn.Linear(3, 4)
    x = torch.randn(6, 3)
    expected = model(x).softmax(dim=-1)
    taken: list[Tensor] = []

    def take(rows: Tensor) -> Tensor:
        taken.append(rows)
        return softmax_rows(rows)

    monkeypatch.setattr(softmax, "LARGE", 1)
    monkeypatch.setattr(layer_recorder, "softmax_rows", take)
    names = {id(p): name for name, p in model.named_parameters()}
    with LayerRecorder(6, names=names):
        scores = model(x)
        found = [scores.softmax(dim=-1), scores.softmax(-1), F.softmax(scores, dim=1)]
        assert F.softmax(scores, -1, dtype=torch.double).dtype == torch.double
        assert scores.softmax(0).shape == expected.shape
    assert all(torch.equal(one, expected) for one in found)
    assert len(taken) == 3


def test_only_large_rows_are_taken() -> None:
    assert is_large_softmax(torch.empty(1 << 12, 64), -1)
    assert is_large_softmax(torch.empty(1 << 12, 64), 1)
    assert not is_large_softmax(torch.empty(1 << 12, 64), 0)
    assert not is_large_softmax(torch.empty(64, 64), -1)
    assert not is_large_softmax(torch.empty(1 << 12, 64), None)
    assert not is_large_softmax(torch.empty(1 << 12, 64, device="meta"), -1)
