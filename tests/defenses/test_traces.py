"""What a defense that acted leaves in an update, one kind of trace at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from keyhole.defenses import (
    LevelsTrace,
    Noise,
    NoiseTrace,
    NormTrace,
    PrecisionTrace,
    Sighting,
    ZerosTrace,
)
from keyhole.defenses.noise_trace import LEAST
from keyhole.seeds import generator
from keyhole.update import Update

SIGMA = 0.01


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))


def draw(model: nn.Module, sigma: float, seed: int = 0, skip: str = "") -> dict[str, Tensor]:
    noise = generator(seed, "noise")
    return {
        name: torch.randn(p.shape, generator=noise) * (0 if name == skip else sigma)
        for name, p in model.named_parameters()
    }


def signal(model: nn.Module, dead: float = 0.5, size: float = 1.0) -> dict[str, Tensor]:
    """A gradient of which a share of the rows is zero, as a ReLU leaves it."""
    found, numbers = {}, generator(1, "signal")
    for name, p in model.named_parameters():
        live = (torch.rand(len(p), generator=numbers) >= dead).float()
        values = torch.randn(p.shape, generator=numbers) * size
        found[name] = values * live.view(-1, *[1] * (p.dim() - 1))
    return found


def declared(model: nn.Module, sigma: float = SIGMA) -> NoiseTrace:
    noise = {
        name: Noise(torch.full((len(p),), sigma**2).double(), sigma=sigma)
        for name, p in model.named_parameters()
    }
    return NoiseTrace(noise)


def add(one: dict[str, Tensor], two: dict[str, Tensor]) -> Update:
    return Update({name: one[name] + two[name] for name in one})


def test_noise_of_the_declared_size_passes_and_is_measured(model: nn.Module) -> None:
    clean = signal(model)
    sent = add(clean, draw(model, SIGMA))
    with_reference = declared(model).check(Sighting(sent, model, Update(clean)))
    assert with_reference.passed is True
    assert with_reference.found == pytest.approx(SIGMA, rel=0.05)
    assert with_reference.expected == pytest.approx(SIGMA)
    assert declared(model).check(Sighting(sent, model)).passed is not False


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("times", [0.0, 1e-3, 0.1])
def test_noise_that_is_too_weak_is_found(model: nn.Module, times: float, known: bool) -> None:
    clean = signal(model)
    sent = add(clean, draw(model, times * SIGMA))
    check = declared(model).check(Sighting(sent, model, Update(clean) if known else None))
    assert check.passed is False
    assert "too little in" in check.words
    if known:
        assert check.found == pytest.approx(times * SIGMA, rel=0.05)


@pytest.mark.parametrize("known", [True, False])
def test_one_tensor_without_noise_is_named(model: nn.Module, known: bool) -> None:
    clean = signal(model)
    sent = add(clean, draw(model, SIGMA, skip="2.weight"))
    check = declared(model).check(Sighting(sent, model, Update(clean) if known else None))
    assert check.passed is False
    assert check.words.endswith("too little in 1 of 4 tensors: 2.weight")


def test_a_strong_signal_without_reference_proves_nothing(model: nn.Module) -> None:
    sent = add(signal(model, dead=0, size=100), draw(model, 0))
    check = declared(model).check(Sighting(sent, model))
    assert check.passed is None
    assert "too strong to see it" in check.words


def test_clipping_before_the_noise_is_no_lack_of_noise(model: nn.Module) -> None:
    clean = signal(model)
    shorter = {name: 0.01 * tensor for name, tensor in clean.items()}
    sent = add(shorter, draw(model, SIGMA))
    check = declared(model).check(Sighting(sent, model, Update(clean)))
    assert check.passed is True
    assert check.found == pytest.approx(SIGMA, rel=0.05)


@pytest.mark.parametrize("strength", [LEAST, 1.0])
def test_enough_noise_never_alarms(model: nn.Module, strength: float) -> None:
    """Each of 300 updates could alarm with a probability of a millionth."""
    for seed in range(300):
        clean = signal(model, dead=1.0)
        seen = Sighting(add(clean, draw(model, strength * SIGMA, seed)), model, Update(clean))
        assert declared(model).check(seen).passed is not False


def test_the_order_of_rows_tells_where_noise_is_if_the_signal_is_known(model: nn.Module) -> None:
    """A model of the noise that guessed the rows under a strong signal may have missed them."""
    clean, noise = signal(model, dead=0, size=100), draw(model, 0)
    noise["0.weight"][:5] = torch.randn(5, 40, generator=generator(3)) * SIGMA
    guess = torch.zeros(30, dtype=torch.double)
    guess[10:15] = SIGMA**2
    trace = NoiseTrace({"0.weight": Noise(guess, share=5 / 30)})
    seen = Sighting(add(clean, noise), model, Update(clean))
    assert trace.check(seen).passed is True
    quiet = Sighting(add(clean, draw(model, 0)), model, Update(clean))
    assert trace.check(quiet).passed is False


def test_a_norm_is_bounded_noise_apart(model: nn.Module) -> None:
    clean = Update(signal(model))
    length = clean.norm()
    assert NormTrace(length).check(Sighting(clean, model)).passed is True
    assert NormTrace(length / 1.01).check(Sighting(clean, model)).passed is False
    noisy = add(signal(model), draw(model, 1.0))
    assert NormTrace(length).check(Sighting(noisy, model)).passed is False
    assert NormTrace(length, sigma=1.0).check(Sighting(noisy, model)).passed is True


@pytest.mark.parametrize("scope", ["tensor", "update"])
def test_zeros_are_counted(model: nn.Module, scope: str) -> None:
    change = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    for tensor in change.values():
        tensor.view(-1)[: int(0.9 * tensor.numel())] = 0
    seen = Sighting(Update(change), model)
    assert ZerosTrace(0.9, scope).check(seen).passed is True  # type: ignore[arg-type]
    check = ZerosTrace(0.95, scope).check(seen)  # type: ignore[arg-type]
    assert check.passed is False
    assert check.words.startswith("90.0% zeros, 9")


@pytest.mark.parametrize("exact", [True, False])
def test_levels_are_counted_even_after_rounding(model: nn.Module, exact: bool) -> None:
    own = dict(model.named_parameters())
    levels = {n: (t * 4).round() * 0.01 for n, t in signal(model, dead=0).items()}
    if not exact:  # the client sent weights, and the server took the difference
        levels = {n: (own[n].detach() + t) - own[n].detach() for n, t in levels.items()}
        assert len(levels["0.weight"].unique()) > 64  # type: ignore[no-untyped-call]
    seen = Sighting(Update(levels), model, exact=exact)
    assert LevelsTrace(64).check(seen).passed is True
    assert LevelsTrace(4).check(seen).passed is False
    smooth = Sighting(Update(signal(model, dead=0)), model, exact=exact)
    assert LevelsTrace(64).check(smooth).passed is False


def test_tensors_that_are_too_small_to_count_tell_nothing(model: nn.Module) -> None:
    seen = Sighting(Update(signal(model)), model)
    assert LevelsTrace(10_000).check(seen).passed is None


@pytest.mark.parametrize("exact", [True, False])
def test_values_of_half_precision_are_recognised(model: nn.Module, exact: bool) -> None:
    own = dict(model.named_parameters())
    short = {n: t.half().float() for n, t in signal(model, dead=0).items()}
    if not exact:
        short = {n: (own[n].detach() + t) - own[n].detach() for n, t in short.items()}
    trace = PrecisionTrace(torch.float16)
    assert trace.check(Sighting(Update(short), model, exact=exact)).passed is True
    long = Sighting(Update(signal(model, dead=0)), model, exact=exact)
    assert trace.check(long).passed is False
