from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyhole.defenses import ClientSide, Pruning
from keyhole.update import Update

SCOPES = ["tensor", "update"]


@pytest.fixture
def update() -> Update:
    draws = torch.Generator().manual_seed(0)
    return Update(
        {
            "small": torch.randn(20, 50, generator=draws) * 0.01,
            "large": torch.randn(3000, generator=draws, dtype=torch.float64),
            "count": torch.tensor(3),
        },
        batch_size=4,
    )


def side(update: Update) -> ClientSide:
    """A client whose server sent such a model; ``count`` is an integer buffer of it."""
    return ClientSide(weights={n: torch.zeros_like(t) for n, t in update.change.items()})


@pytest.mark.parametrize("scope", SCOPES)
def test_ratio_0_leaves_the_update_bit_for_bit(update: Update, scope: str) -> None:
    kept = Pruning(ratio=0, scope=scope).on_update(update, side(update))
    for name, tensor in update.change.items():
        assert torch.equal(kept.change[name], tensor)
        assert kept.change[name].dtype == tensor.dtype
    assert kept.batch_size == 4


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, 0.99])
def test_each_tensor_keeps_its_share(update: Update, ratio: float) -> None:
    pruned = Pruning(ratio=ratio).on_update(update, side(update))
    for name in ("small", "large"):
        before, after = update.change[name], pruned.change[name]
        survivors = after != 0
        assert int(survivors.sum()) == round((1 - ratio) * before.numel())
        assert torch.equal(after[survivors], before[survivors])
        assert before[~survivors].abs().max() < before[survivors].abs().min()


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, 0.99])
def test_the_whole_update_keeps_its_share(update: Update, ratio: float) -> None:
    pruned = Pruning(ratio=ratio, scope="update").on_update(update, side(update))
    before = torch.cat([update.change[n].double().flatten() for n in ("small", "large")])
    after = torch.cat([pruned.change[n].double().flatten() for n in ("small", "large")])
    survivors = after != 0
    assert int(survivors.sum()) == round((1 - ratio) * 4000)
    assert before[~survivors].abs().max() < before[survivors].abs().min()
    assert torch.equal(after[survivors], before[survivors])


@given(
    st.lists(st.floats(0.5, 100, width=32), min_size=1, max_size=60, unique=True),
    st.floats(0, 0.999),
)
def test_never_more_than_the_share_is_lost(numbers: list[float], ratio: float) -> None:
    signs = torch.tensor([(-1.0) ** i for i in range(len(numbers))])
    before = torch.tensor(numbers) * signs
    after = Pruning(ratio=ratio).on_update(Update({"w": before})).change["w"]
    lost = int((after == 0).sum())
    assert ratio * len(numbers) - 1 < lost <= ratio * len(numbers) + 1e-9


@pytest.mark.parametrize("scope", SCOPES)
def test_equal_magnitudes_are_not_all_lost(scope: str) -> None:
    tied = Update({"w": torch.tensor([1.0, -1.0, 1.0, -1.0])})
    after = Pruning(ratio=0.5, scope=scope).on_update(tied).change["w"]
    assert int((after != 0).sum()) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_integers_and_the_given_update_are_left_alone(update: Update, scope: str) -> None:
    copy = {name: tensor.clone() for name, tensor in update.change.items()}
    pruned = Pruning(ratio=0.9, scope=scope).on_update(update, side(update))
    assert pruned.change["count"].item() == 3
    assert all(torch.equal(update.change[name], copy[name]) for name in copy)


def test_telemetry_counts_what_was_kept(update: Update) -> None:
    told = side(update)
    Pruning(ratio=0.75).on_update(update, told)
    assert told.telemetry == {"kept": 1000, "total": 4000}


@pytest.mark.parametrize("scope", SCOPES)
def test_an_update_of_integers_passes(scope: str) -> None:
    only = Update({"count": torch.tensor([3])})
    assert Pruning(scope=scope).on_update(only, side(only)).change["count"].tolist() == [3]


@pytest.mark.parametrize(
    "values", [{"ratio": 1}, {"ratio": -0.1}, {"ratio": float("nan")}, {"scope": "layer"}]
)
def test_values_it_cannot_take_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Pruning(**values)
