from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks.matching.gradients.factor_plan import DoesNotFactor
from keyhole.attacks.matching.gradients.factor_probe import probe_factors
from keyhole.attacks.matching.gradients.factored import FactoredMatch, FactoredMatcher
from keyhole.attacks.matching.gradients.factors import Factors
from keyhole.attacks.matching.gradients.low_rank import LowRankTargets, factor_targets, find_range
from keyhole.attacks.matching.gradients.match import Targets

VICTIMS = 3


def add_head(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, 10))


def test_each_victim_has_its_own_masks() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))
    model = model.double().requires_grad_(False)
    images = torch.randn(VICTIMS, 2, 1, 8, 8, dtype=torch.double, requires_grad=True)
    labels = torch.eye(10, dtype=torch.double)[torch.tensor([[1, 2], [3, 3], [4, 0]])]
    mask = torch.rand(VICTIMS, 2, 8, dtype=torch.double)
    zeros = {n: torch.zeros(VICTIMS, *p.shape) for n, p in model.named_parameters()}
    matcher = FactoredMatcher(model, probe_factors(model, (1, 8, 8)), LowRankTargets(zeros, {}, {}))
    match = matcher(images, labels, (mask,))
    hidden = images.flatten(2) @ model[1].weight.T + model[1].bias
    dropped = hidden * mask / 0.5
    logits = dropped @ model[3].weight.T + model[3].bias
    slope = (logits.softmax(-1) - labels) / 2
    torch.testing.assert_close(match.gradient("3.weight"), slope.mT @ dropped)
    inner = slope @ model[3].weight * mask / 0.5
    torch.testing.assert_close(match.gradient("1.weight"), inner.mT @ images.flatten(2))


class Twice(nn.Module):
    """Uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(x.flatten(1)).tanh()))


class Matrix(nn.Module):
    """Multiplies by a matrix that is in no layer."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.matrix, self.head = nn.Parameter(torch.randn(shape)), nn.Linear(shape[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) @ self.matrix)


class Mixed(nn.Module):
    """Takes the mean over the whole batch: samples see each other, and victims would."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(x - x.mean(0))


class Unused(nn.Module):
    """Has a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.head = nn.Linear(3, 3), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Picky(nn.Module):
    """Takes few images, and complains at length."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise RuntimeError(f"{len(x)} images are too many\nTry fewer")
        return self.head(x.flatten(1))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a forward pass that fails": (Picky, "4 images are too many"),
    "a layer used twice": (Twice, "'inner.bias' is used more than once"),
    "a matrix in no layer": (lambda: Matrix(64, 12), "'matrix' is used outside linear, conv and"),
    "padding by name": (
        lambda: add_head(nn.Conv2d(1, 4, 3, padding="same"), features=256),
        "'0.weight' pads by name",
    ),
    "samples that see each other": (Mixed, "does not follow from its layer"),
    "a transposed convolution": (
        lambda: add_head(nn.ConvTranspose2d(1, 4, 3), features=400),
        "fails",
    ),
    "a convolution over one axis": (
        lambda: add_head(nn.Flatten(2), nn.Conv1d(1, 4, 3), features=248),
        "'1.weight' is used outside",
    ),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_does_not_factor_says_why(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(DoesNotFactor) as raised:
        probe_factors(make().requires_grad_(False), (1, 8, 8))
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_layer_without_a_part_in_the_logits_is_left_out() -> None:
    model = Unused().requires_grad_(False)
    zeros = {n: torch.zeros(VICTIMS, *p.shape) for n, p in model.head.named_parameters("head")}
    matcher = FactoredMatcher(model, probe_factors(model, (1, 8, 8)), LowRankTargets(zeros, {}, {}))
    images = torch.randn(VICTIMS, 2, 1, 8, 8, requires_grad=True)
    match = matcher(images, torch.eye(10)[torch.tensor([[1, 2], [3, 3], [4, 0]])], None)
    assert set(match.names) == {"head.weight", "head.bias"}


def test_shifts_that_the_next_norm_takes_away_are_no_reason_to_refuse() -> None:
    """Their gradients are 0, and what is computed of them is rounding."""
    torch.manual_seed(0)
    channels, layers = 1, []
    for _ in range(4):
        layers += [nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16)]
        channels = 16
    model = add_head(*layers, features=1024).requires_grad_(False)
    assert probe_factors(model, (1, 8, 8)).standalone == {}


def low_rank(rank: int, *, fan_out: int = 160, fan_in: int = 120) -> Tensor:
    left, right = torch.randn(VICTIMS, fan_out, rank), torch.randn(VICTIMS, rank, fan_in)
    return (left.double() @ right.double()).float()


def test_targets_of_low_rank_are_kept_as_factors() -> None:
    target = low_rank(2)
    thin = factor_targets(Targets({"w": target}), {"w": 2}, needs_full_gradients=False)
    assert "w" not in thin.tensors
    left, right = thin.factors["w"]
    assert (left.shape, right.shape) == ((VICTIMS, 160, 6), (VICTIMS, 6, 120))
    assert (left @ right - target).norm() < 1e-5 * target.norm()
    torch.testing.assert_close(thin.squares["w"], target.square().sum((1, 2)))


@pytest.mark.parametrize("shape", [(160, 120), (160, 8, 5, 3)])
def test_products_with_thin_targets_are_those_with_whole_ones(shape: tuple[int, ...]) -> None:
    target = low_rank(2).view(VICTIMS, *shape)
    factors = Factors(torch.randn(VICTIMS, 3, 120), torch.randn(VICTIMS, 3, 160), torch.Size(shape))
    matches = {
        whole: FactoredMatch(
            {},
            {"w": factors},
            factor_targets(Targets({"w": target}), {"w": 2}, needs_full_gradients=whole),
        )
        for whole in (True, False)
    }
    assert "w" in matches[False].target_factors
    assert "w" not in matches[True].target_factors
    gradient = matches[True].gradient("w")
    assert gradient.shape == (VICTIMS, *shape)
    direct = (gradient * target).flatten(1).sum(1), gradient.square().flatten(1).sum(1)
    for match in matches.values():
        torch.testing.assert_close(match.products("w"), direct, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(match.target_square("w"), target.square().flatten(1).sum(1))


def test_noisy_targets_stay_whole() -> None:
    target = low_rank(2)
    noisy = target + 1e-3 * target.std() * torch.randn_like(target)
    thin = factor_targets(Targets({"w": noisy}), {"w": 2}, needs_full_gradients=False)
    assert thin.factors == {}
    assert thin.tensors["w"] is noisy


def test_targets_whose_factors_would_be_no_smaller_stay_whole() -> None:
    thin = factor_targets(Targets({"w": low_rank(2)}), {"w": 40}, needs_full_gradients=False)
    assert thin.factors == {}


def test_small_targets_stay_whole() -> None:
    thin = factor_targets(
        Targets({"w": low_rank(2, fan_out=40, fan_in=60)}), {"w": 2}, needs_full_gradients=False
    )
    assert thin.factors == {}


def test_targets_that_were_not_reported_are_passed_over() -> None:
    thin = factor_targets(
        Targets({"w": low_rank(2)}), {"w": 2, "absent": 1}, needs_full_gradients=False
    )
    assert list(thin.factors) == ["w"]


def test_an_empty_target_is_kept_as_factors() -> None:
    found = find_range(torch.zeros(VICTIMS, 160, 120), 5)
    assert found is not None
    assert not (found[0] @ found[1]).any()


def test_some_victims_are_selected_with_their_factors() -> None:
    target, other = low_rank(2), torch.randn(VICTIMS, 7)
    thin = factor_targets(Targets({"w": target, "b": other}), {"w": 2}, needs_full_gradients=False)
    kept = thin.select(torch.tensor([2, 0]))
    assert isinstance(kept, LowRankTargets)
    assert torch.equal(kept.tensors["b"], other[[2, 0]])
    assert torch.equal(kept.squares["w"], thin.squares["w"][[2, 0]])
    left, right = kept.factors["w"]
    assert (left @ right - target[[2, 0]]).norm() < 1e-5 * target.norm()


@pytest.mark.parametrize(("columns", "cheaper"), [(1, False), (500, True)])
def test_the_cheaper_way_to_a_product_is_taken(columns: int, cheaper: bool) -> None:
    inputs, outputs = torch.randn(VICTIMS, columns, 120), torch.randn(VICTIMS, columns, 160)
    factors = Factors(inputs, outputs, torch.Size((160, 120)))
    assert factors.build_is_cheaper is cheaper
    target = torch.randn(VICTIMS, 160, 120)
    gradient = factors.build()
    torch.testing.assert_close(gradient, torch.einsum("nkc,nkq->ncq", outputs, inputs))
    dot, square = (gradient * target).sum((1, 2)), gradient.square().sum((1, 2))
    torch.testing.assert_close(factors.dot(target), dot, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(factors.squared_norm(), square, rtol=1e-4, atol=1e-2)
