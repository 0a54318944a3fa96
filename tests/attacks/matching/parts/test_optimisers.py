"""Batched optimisers and schedules against torch's, one victim at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keyhole.attacks.matching.parts.optimisers import (
    LBFGS,
    Adam,
    CosineDecay,
    Optimiser,
    Plateau,
    Schedule,
    StepDecay,
)

VICTIMS, STEPS = 3, 12
CPU = torch.device("cpu")
Loss = Callable[[int, dict[str, Tensor]], Tensor]


def start(dtype: torch.dtype = torch.double) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"pixels": (2, 3), "masks": (4,)}
    return {
        name: torch.randn(VICTIMS, *shape, generator=draw, dtype=torch.double).to(dtype)
        for name, shape in shapes.items()
    }


def quadratic(victim: int, values: dict[str, Tensor]) -> Tensor:
    """An ill-conditioned bowl, another one for each victim."""
    x = torch.cat([value.flatten() for value in values.values()])
    scale = torch.linspace(1, 30, len(x), dtype=x.dtype) * (1 + victim)
    return (scale * (x - victim).square()).sum() / 20 + (x[1:] * x[:-1]).sum() / 50


def valley(victim: int, values: dict[str, Tensor]) -> Tensor:
    """A bent valley, as Rosenbrock's."""
    x = torch.cat([value.flatten() for value in values.values()])
    return ((1 - x[:-1]).square() + (1 + victim) * (x[1:] - x[:-1].square()).square()).sum() / 10


def batched(
    optimiser: Optimiser,
    loss: Loss,
    values: dict[str, Tensor],
    steps: int,
    rates: Tensor | None = None,
) -> list[dict[str, Tensor]]:
    """The values after each step."""
    lr = torch.ones(len(values["pixels"])).to(values["pixels"]) if rates is None else rates
    values = {name: value.clone() for name, value in values.items()}
    state, path = optimiser.start(values), []
    for _ in range(steps):
        tracked = {name: value.clone().requires_grad_() for name, value in values.items()}
        total = torch.stack(
            [loss(v, {n: t[v] for n, t in tracked.items()}) for v in range(len(lr))]
        ).sum()
        found = torch.autograd.grad(total, list(tracked.values()))
        optimiser.step(values, dict(zip(values, found, strict=True)), state, lr)
        path.append({name: value.clone() for name, value in values.items()})
    return path


def alone(
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
    loss: Loss,
    values: dict[str, Tensor],
    steps: int,
    victim: int,
    signed: tuple[str, ...] = (),
) -> list[dict[str, Tensor]]:
    """The same with torch's optimiser for one victim."""
    own = {name: value[victim].clone().requires_grad_() for name, value in values.items()}
    optimiser, path = make(list(own.values())), []

    def closure() -> Tensor:
        optimiser.zero_grad()
        result = loss(victim, own)
        result.backward()
        for name in signed:
            assert own[name].grad is not None
            own[name].grad.sign_()
        return result

    for _ in range(steps):
        optimiser.step(closure)
        path.append({name: value.detach().clone() for name, value in own.items()})
    return path


def check_path(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]], v: int) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name][v], value, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("signed", [(), ("pixels",), ("pixels", "masks")], ids=str)
@pytest.mark.parametrize("loss", [quadratic, valley])
def test_adam_is_torchs_for_every_victim(loss: Loss, signed: tuple[str, ...]) -> None:
    path = batched(Adam(lr=0.05, signed=signed), loss, start(), STEPS)
    for victim in range(VICTIMS):
        expected = alone(
            lambda p: torch.optim.Adam(p, lr=0.05), loss, start(), STEPS, victim, signed
        )
        check_path(path, expected, victim)


def test_adams_other_settings_are_torchs() -> None:
    path = batched(Adam(lr=0.2, beta1=0.5, beta2=0.9, eps=1e-3), valley, start(), STEPS)
    for victim in range(VICTIMS):
        expected = alone(
            lambda p: torch.optim.Adam(p, lr=0.2, betas=(0.5, 0.9), eps=1e-3),
            *(valley, start(), STEPS, victim),
        )
        check_path(path, expected, victim)


@pytest.mark.parametrize("loss", [quadratic, valley])
@pytest.mark.parametrize("lr", [1.0, 0.3])
@pytest.mark.parametrize("history", [20, 3])
def test_lbfgs_is_torchs_for_every_victim(loss: Loss, lr: float, history: int) -> None:
    path = batched(LBFGS(lr=lr, history=history), loss, start(), STEPS)
    for victim in range(VICTIMS):
        expected = alone(
            lambda p: torch.optim.LBFGS(p, lr=lr, max_iter=1, history_size=history),
            *(loss, start(), STEPS, victim),
        )
        check_path(path, expected, victim)


def test_lbfgs_finds_the_bottom() -> None:
    path = batched(LBFGS(), quadratic, start(), 60)
    for victim in range(VICTIMS):
        last = {n: value[victim].requires_grad_() for n, value in path[-1].items()}
        slope = torch.autograd.grad(quadratic(victim, last), list(last.values()))
        assert max(float(g.abs().max()) for g in slope) < 1e-6


def test_lbfgs_stays_at_the_bottom() -> None:
    values = {"pixels": torch.zeros(VICTIMS, 5)}
    path = batched(LBFGS(), lambda v, x: x["pixels"].square().sum(), values, 5)
    assert not path[-1]["pixels"].any()


@pytest.mark.parametrize("optimiser", [Adam(lr=0.1), LBFGS()], ids=str)
def test_victims_do_not_feel_each_other(optimiser: Optimiser) -> None:
    together = batched(optimiser, valley, start(), STEPS)
    for victim in range(VICTIMS):
        only = {name: value[victim : victim + 1] for name, value in start().items()}
        by_itself = batched(optimiser, lambda _, x, v=victim: valley(v, x), only, STEPS)
        for one, other in zip(together, by_itself, strict=True):
            for name in one:
                torch.testing.assert_close(one[name][victim], other[name][0])


@pytest.mark.parametrize("optimiser", [Adam(lr=0.1), LBFGS()], ids=str)
def test_a_victim_whose_gradient_is_not_finite_harms_no_other(optimiser: Optimiser) -> None:
    def poisoned(victim: int, values: dict[str, Tensor]) -> Tensor:
        factor = math.nan if victim == 1 else 1.0
        return factor * valley(victim, values)

    for one, other in zip(
        batched(optimiser, poisoned, start(), STEPS),
        batched(optimiser, valley, start(), STEPS),
        strict=True,
    ):
        for name in one:
            torch.testing.assert_close(one[name][[0, 2]], other[name][[0, 2]])


@pytest.mark.parametrize("optimiser", [Adam(lr=0.1), LBFGS()], ids=str)
def test_a_rate_of_zero_moves_nothing(optimiser: Optimiser) -> None:
    path = batched(optimiser, valley, start(), 1, torch.tensor([0.0, 1.0, 0.5]))
    moved = path[0]["pixels"] - start()["pixels"]
    assert not moved[0].any()
    assert moved[1].any()


@pytest.mark.parametrize("optimiser", [Adam(), LBFGS()], ids=str)
def test_all_state_has_a_victim_axis_and_is_changed_in_place(optimiser: Optimiser) -> None:
    values = start()
    state = optimiser.start(values)
    places = {name: tensor.data_ptr() for name, tensor in (state | values).items()}
    for _ in range(3):
        optimiser.step(values, start(), state, torch.ones(VICTIMS))
    assert {name: tensor.data_ptr() for name, tensor in (state | values).items()} == places
    assert all(len(tensor) == VICTIMS for tensor in state.values())


def follow(schedule: Schedule, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Rates and ends, ``[steps, victims]``, along ``losses``."""
    state = schedule.start(losses.shape[1], CPU)
    rates, ends = [], []
    for step, loss in enumerate(losses):
        progress = torch.full_like(loss, (step + 1) / len(losses))
        lr, done = schedule.step(loss, progress, state)
        rates.append(lr.clone())
        ends.append(done.clone())
    return torch.stack(rates), torch.stack(ends)


@pytest.mark.parametrize("patience", [0, 3, 7])
def test_the_plateau_is_torchs_for_every_victim(patience: int) -> None:
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(80, 5, generator=draw)
    trend = torch.linspace(1, 0.2, 80)[:, None] ** torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0])
    losses = trend * (1 + torch.tensor([0.0, 1e-5, 1e-3, 0.1, 1.0]) * noise)
    rates, _ = follow(Plateau(patience=patience, drops=None), losses)
    assert rates.unique().numel() > 4
    for victim in range(5):
        weight = torch.zeros(1, requires_grad=True)
        optimiser = torch.optim.SGD([weight], lr=1.0)
        torchs = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimiser, mode="min", factor=0.1, patience=patience, threshold=1e-4, eps=0.0
        )
        for step in range(80):
            torchs.step(float(losses[step, victim]))
            expected = optimiser.param_groups[0]["lr"]
            assert float(rates[step, victim]) == pytest.approx(expected, rel=1e-4)


def test_a_victim_is_done_after_so_many_drops() -> None:
    flat, falling = torch.ones(20), torch.linspace(1, 0, 20)
    rates, ends = follow(Plateau(patience=3, drops=2), torch.stack([flat, falling], 1))
    assert ends[:, 0].nonzero()[0].item() == 8  # the best is the first; drops at steps 4 and 8
    assert float(rates[8, 0]) == pytest.approx(0.01)
    assert not ends[:, 1].any()
    assert not follow(Plateau(patience=3, drops=None), flat[:, None])[1].any()


def test_a_victim_gives_up_after_so_many_steps_without_progress() -> None:
    losses = torch.ones(20, 2)
    losses[10, 1] = 0.999_99  # too little to keep the rate, enough not to give up
    _, ends = follow(Plateau(patience=100, drops=None, give_up=6), losses)
    assert ends[:, 0].nonzero()[0].item() == 7
    assert ends[:, 1].nonzero()[0].item() == 7
    losses[5, 1] = 0.999_995
    _, ends = follow(Plateau(patience=100, drops=None, give_up=6), losses)
    assert ends[:, 1].nonzero()[0].item() == 17


def test_steps_divide_the_rate_on_the_way() -> None:
    rates, ends = follow(StepDecay(), torch.ones(8, 2))
    assert rates[:, 0].tolist() == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3])
    assert torch.equal(rates[:, 0], rates[:, 1])
    assert not ends.any()
    assert follow(StepDecay(at=()), torch.ones(4, 1))[0].flatten().tolist() == [1, 1, 1, 1]
    halves = follow(StepDecay(at=(0.5,), factor=0.5), torch.ones(4, 1))[0]
    assert halves.flatten().tolist() == [1, 0.5, 0.5, 0.5]


def test_victims_on_different_stretches_of_the_way_have_their_own_rates() -> None:
    rate, _ = StepDecay().step(torch.ones(3), torch.tensor([0.1, 0.5, 0.9]), {})
    assert rate.tolist() == pytest.approx([1, 0.1, 1e-3])
    rate, _ = CosineDecay().step(torch.ones(3), torch.tensor([0.0, 0.5, 1.0]), {})
    assert rate.tolist() == pytest.approx([1, 0.5, 0], abs=1e-6)


def test_the_cosine_falls_from_one_to_zero_after_its_warm_up() -> None:
    at = torch.linspace(0, 1, 21)
    rate, done = CosineDecay(warm_up=0.2).step(torch.ones(21), at, {})
    expected = [
        0.5 * (1 + math.cos(math.pi * t)) * min(1.0, t / 0.2) for t in (i / 20 for i in range(21))
    ]
    assert rate.tolist() == pytest.approx(expected, abs=1e-6)
    assert not done.any()
