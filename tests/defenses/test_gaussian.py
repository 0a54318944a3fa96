from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from keyhole.defenses import ClientSide, Gaussian
from keyhole.update import Update


def update(seed: int = 0) -> Update:
    draws = torch.Generator().manual_seed(seed)
    return Update(
        {
            "w": torch.randn(40, 50, generator=draws),
            "d": torch.randn(30, generator=draws, dtype=torch.float64),
            "count": torch.tensor(3),
        },
        steps=2,
        lr=0.5,
    )


def side(seed: int = 1) -> ClientSide:
    """A client whose server sent such a model; ``count`` is an integer buffer of it."""
    drawn = torch.Generator().manual_seed(seed)
    return ClientSide(drawn, weights={n: torch.zeros_like(t) for n, t in update().change.items()})


def alone(seed: int = 1) -> ClientSide:
    """A client that knows of no model."""
    return ClientSide(torch.Generator().manual_seed(seed))


def test_sigma_0_leaves_the_update_bit_for_bit() -> None:
    clear = update()
    protected = Gaussian(sigma=0).on_update(clear, side())
    for name, tensor in clear.change.items():
        assert torch.equal(protected.change[name], tensor)
        assert protected.change[name].dtype == tensor.dtype
    assert (protected.steps, protected.lr) == (2, 0.5)


@given(sigma=st.floats(1e-6, 1e3), seed=st.integers(0, 2**32))
def test_the_noise_has_the_strength_it_says(sigma: float, seed: int) -> None:
    silent = Update({"w": torch.zeros(100, 100)})
    noise = Gaussian(sigma=sigma).on_update(silent, alone(seed)).change["w"]
    spread = 1 / math.sqrt(2 * noise.numel())
    assert noise.std().item() == pytest.approx(sigma, rel=5 * spread)
    assert abs(noise.mean().item()) < 5 * sigma / math.sqrt(noise.numel())


def test_the_noise_is_gaussian() -> None:
    noise = Gaussian(sigma=2).on_update(Update({"w": torch.zeros(200_000)}), alone()).change["w"]
    unit = noise / 2
    assert (unit.abs() < 1).double().mean().item() == pytest.approx(0.6827, abs=0.005)
    assert unit.pow(4).mean().item() == pytest.approx(3, abs=0.1)


def test_noise_is_added_to_the_update() -> None:
    clear = update()
    silent = clear.map(lambda name, tensor: torch.zeros_like(tensor))
    noise = Gaussian(sigma=0.1).on_update(silent, side())
    noisy = Gaussian(sigma=0.1).on_update(clear, side())
    for name in ("w", "d"):
        assert torch.allclose(noisy.change[name], clear.change[name] + noise.change[name])
    assert not torch.equal(noise.change["w"].flatten()[:30], noise.change["d"].float())


def test_integer_buffers_get_no_noise() -> None:
    assert Gaussian(sigma=5).on_update(update(), side()).change["count"].item() == 3


def test_the_given_update_is_left_alone() -> None:
    clear = update()
    Gaussian(sigma=5, clip=0.1).on_update(clear, side())
    assert all(torch.equal(t, update().change[n]) for n, t in clear.change.items())


def test_the_generator_decides_the_noise() -> None:
    one, same, other = (Gaussian().on_update(update(), side(s)).change["w"] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_global_generator_plays_no_part(same_rng: Callable[[], bool]) -> None:
    Gaussian().on_update(update(), side())
    assert same_rng()


def test_two_uploads_without_a_generator_do_not_share_their_noise() -> None:
    first, second = (
        Gaussian(sigma=1).on_update(Update({"w": torch.zeros(9)})).change["w"] for _ in range(2)
    )
    assert not torch.equal(first, second)


@given(clip=st.floats(1e-4, 1e4), scale=st.floats(1e-4, 1e4))
def test_a_long_update_is_cut_to_the_clip_norm(clip: float, scale: float) -> None:
    clear = update().map(lambda name, tensor: tensor * scale)
    cut = Gaussian(sigma=0, clip=clip).on_update(clear, side())
    assert cut.norm() == pytest.approx(min(clip, clear.norm()), rel=1e-5)
    ratio = cut.change["w"] / clear.change["w"]
    assert ratio.max().item() == pytest.approx(ratio.min().item(), rel=1e-5)


def test_a_short_update_is_not_cut_at_all() -> None:
    clear, told = update(), side()
    kept = Gaussian(sigma=0, clip=clear.norm() * 1.01).on_update(clear, told)
    assert torch.equal(kept.change["w"], clear.change["w"])
    assert told.telemetry["clip_scale"] == 1.0


def test_an_empty_update_can_be_clipped() -> None:
    zero = Update({"w": torch.zeros(3)})
    assert Gaussian(sigma=0, clip=1).on_update(zero, alone()).change["w"].tolist() == [0, 0, 0]


def test_noise_comes_after_the_clip() -> None:
    clear = update()
    noisy = Gaussian(sigma=1, clip=1e-6).on_update(clear, side())
    assert noisy.change["w"].std().item() == pytest.approx(1, abs=0.1)


def test_telemetry_tells_norms_and_scale() -> None:
    clear, told = update(), side()
    noisy = Gaussian(sigma=0.3, clip=1.0).on_update(clear, told)
    assert told.telemetry["update_norm"] == pytest.approx(clear.norm())
    assert told.telemetry["clip_scale"] == pytest.approx(1 / clear.norm())
    cut = Gaussian(sigma=0, clip=1.0).on_update(clear, side())
    noise = noisy.map(lambda name, tensor: tensor - cut.change[name])
    assert told.telemetry["noise_norm"] == pytest.approx(noise.norm(), rel=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        *({"sigma": sigma} for sigma in (-1, math.nan, math.inf)),
        *({"clip": clip} for clip in (0, -1, math.nan, math.inf)),
    ],
)
def test_values_it_cannot_take_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Gaussian(**values)
