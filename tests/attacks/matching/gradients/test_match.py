from __future__ import annotations

import pytest
import torch

from keyhole.attacks.matching.gradients.match import BuiltMatch, Targets, gradient_norm

LIKE = torch.zeros(1)


def test_gradients_are_stacked_victim_by_victim() -> None:
    gradients = [{"w": torch.randn(3, 4), "b": torch.randn(3)} for _ in range(5)]
    targets = Targets.stack(gradients, LIKE)
    assert targets.tensors["w"].shape == (5, 3, 4)
    assert torch.equal(targets.tensors["b"][2], gradients[2]["b"])
    torch.testing.assert_close(targets.squares["w"][1], gradients[1]["w"].square().sum())


def test_what_one_victim_did_not_report_is_left_out() -> None:
    targets = Targets.stack([{"w": torch.ones(2), "b": torch.ones(1)}, {"w": torch.ones(2)}], LIKE)
    assert list(targets.tensors) == ["w"]


@pytest.mark.parametrize("factor", [1e-38, 1e-20, 1.0, 1e20])
def test_unit_targets_have_length_one_and_the_same_direction(factor: float) -> None:
    gradient = {"w": torch.randn(3, 4), "b": torch.randn(3)}
    scaled = {name: tensor * factor for name, tensor in gradient.items()}
    targets = Targets.stack([scaled], LIKE, unit=True)
    total = sum(square[0] for square in targets.squares.values())
    assert float(total) == pytest.approx(1, rel=1e-5)
    whole = gradient_norm(gradient, ["w", "b"])
    torch.testing.assert_close(targets.tensors["w"][0], gradient["w"] / whole, rtol=1e-4, atol=1e-4)


def test_an_empty_gradient_stays_empty() -> None:
    targets = Targets.stack([{"w": torch.zeros(3)}], LIKE, unit=True)
    assert not targets.tensors["w"].any()


def test_targets_take_the_models_type() -> None:
    for dtype in (torch.float16, torch.float64):
        targets = Targets.stack([{"w": torch.ones(3, dtype=dtype)}], LIKE)
        assert targets.tensors["w"].dtype == torch.float32


def test_products_are_sums_over_one_victims_entries() -> None:
    gradient, target = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    match = BuiltMatch({"w": gradient, "unseen": torch.ones(2, 1)}, Targets({"w": target}))
    assert match.names == ["w"]
    dot, square = match.products("w")
    torch.testing.assert_close(dot, torch.stack([(gradient[i] * target[i]).sum() for i in (0, 1)]))
    torch.testing.assert_close(square, gradient.square().sum((1, 2)))


def test_some_victims_are_selected() -> None:
    targets = Targets({"w": torch.randn(4, 3)})
    kept = targets.select(torch.tensor([3, 1]))
    assert torch.equal(kept.tensors["w"], targets.tensors["w"][[3, 1]])
    assert torch.equal(kept.squares["w"], targets.squares["w"][[3, 1]])
