"""What an attacker who knows the defense makes out of an update: which rows are noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from keyhole.attacks.noise import merge_rows, merge_updates
from keyhole.data import load
from keyhole.defenses import DEFENSES, Capability, ClientSide, Defense, Noise
from keyhole.defenses.noise_model import build_projection
from keyhole.defenses.spectra import find_high_bins
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("resnet18", classes=10, channels=1, image_size=(16, 16), seed=0).eval()


@pytest.fixture(scope="module")
def clean(model: nn.Module) -> Update:
    """Four steps of a small rate, in the units of the weights."""
    data = load("digits", image_size=16)
    logits = model.requires_grad_(True)(data.normalise(data.images([3])))
    names, weights = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(F.cross_entropy(logits, data.labels[[3]]), weights)
    return Update({n: -0.004 * g for n, g in zip(names, found, strict=True)}, steps=4, lr=0.001)


def seen(
    model: nn.Module, clean: Update, defense: Defense, *, times: int = 1, told: bool = True
) -> Observation:
    data = load("digits", image_size=16)
    updates = [
        defense.on_update(
            clean,
            ClientSide(generator(0, n), model, data.images([3]), data.labels[[3]]),
        )
        for n in range(times)
    ]
    knowledge = Knowledge(
        shape=data.shape,
        classes=10,
        mean=data.mean,
        std=data.std,
        defense=defense if told else None,
        rounds=times,
    )
    return Server(model).receive(updates[0], knowledge, earlier=updates[1:])


def truth(clean: Update, observation: Observation) -> dict[str, set[int]]:
    """The rows that a defense changed, weight by weight."""
    found = {}
    for name, tensor in observation.update.change.items():
        if tensor.dim() == 4:
            moved = (tensor - clean.change[name]).flatten(1).norm(dim=1)
            found[name] = set(moved.nonzero().flatten().tolist())
    return {name: rows for name, rows in found.items() if rows}


def test_who_is_not_told_believes_in_no_noise(model: nn.Module, clean: Update) -> None:
    gradient, beliefs = merge_updates(
        seen(model, clean, DEFENSES.parse("tip(beta=0.1)"), told=False)
    )
    assert not beliefs
    assert set(gradient) == set(clean.gradient())


@pytest.mark.parametrize("text", ["tip(beta=0.1)", "tip(beta=0.0057, ratio=0.3)", "tip(epsilon=1)"])
def test_the_rows_with_tips_noise_stand_out(model: nn.Module, clean: Update, text: str) -> None:
    observation = seen(model, clean, DEFENSES.parse(text))
    _, beliefs = merge_updates(observation)
    believed = {n: set(b.variance.nonzero().flatten().tolist()) for n, b in beliefs.items()}
    assert believed == truth(clean, observation)
    for name, belief in beliefs.items():
        trust = belief.trust(observation.update.gradient()[name])
        assert bool((trust[belief.variance > 0] < 1e-3).all())
        assert bool((trust[belief.variance == 0] == 1).all())


def test_the_noise_believed_in_is_as_strong_as_that_added(model: nn.Module, clean: Update) -> None:
    observation = seen(model, clean, DEFENSES.parse("tip(beta=0.05)"))
    gradient, beliefs = merge_updates(observation)
    for name, belief in beliefs.items():
        added = gradient[name] - clean.gradient()[name]
        noisy = belief.variance > 0
        measured = float(belief.energy(added)[noisy].mean())
        values = int(noisy.sum()) * added[0].numel()
        assert measured == pytest.approx(float(belief.variance.max()), rel=6 / values**0.5)


def test_agps_spared_rows_are_the_quiet_ones(model: nn.Module, clean: Update) -> None:
    defense = DEFENSES.parse("agp(sigma=0.01)")
    observation = seen(model, clean, defense)
    gradient, beliefs = merge_updates(observation)
    for name, belief in beliefs.items():
        added = gradient[name] - clean.gradient()[name]
        if added.dim() < 4 or added[0].numel() < 500:
            continue
        measured = added.double().flatten(1).square().mean(1)
        assert torch.allclose(measured, belief.variance, rtol=0.35), name


@pytest.mark.parametrize("text", ["dp(sigma=0.02)", "gaussian(sigma=0.02)"])
def test_noise_on_all_is_believed_to_be_on_all(model: nn.Module, clean: Update, text: str) -> None:
    _, beliefs = merge_updates(seen(model, clean, DEFENSES.parse(text)))
    assert set(beliefs) == {name for name, _ in model.named_parameters()}
    assert all(bool((b.variance == (0.02 / 0.004) ** 2).all()) for b in beliefs.values())


def test_more_signal_is_trusted_more() -> None:
    belief = Noise(torch.full((4,), 0.25, dtype=torch.double))
    draw = torch.Generator().manual_seed(0)
    trusts = [
        float(belief.trust(s * torch.randn(4, 5000, generator=draw)).mean()) for s in (0.5, 1, 4)
    ]
    # The rows' own variance is s^2, of which 0.25 is believed to be noise.
    assert trusts == pytest.approx([0.0, 0.75, 1 - 0.25 / 16], abs=0.02)


def test_what_was_clean_once_is_taken_from_then() -> None:
    truth = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    first, second = truth.clone(), truth.clone()
    first[0] += 9
    second[1] += 9
    first[2] += 2
    second[2] -= 2
    beliefs = [Noise(torch.tensor(v)) for v in ([81.0, 0.0, 4.0], [0.0, 81.0, 4.0])]
    merged, left = merge_rows([first, second], beliefs)
    torch.testing.assert_close(merged, truth)
    assert left.variance.tolist() == [0.0, 0.0, 2.0]


def test_many_looks_wear_the_noise_down(model: nn.Module, clean: Update) -> None:
    defense = DEFENSES.parse("tip(beta=0.1)")
    errors: list[float] = []
    for times in (1, 16):
        gradient, _ = merge_updates(seen(model, clean, defense, times=times))
        wrong = [(gradient[n] - g).norm() for n, g in clean.gradient().items() if n in gradient]
        errors.append(float(torch.stack(wrong).norm()))
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.1)


@pytest.mark.parametrize(("side", "radius"), [(3, 0.5), (5, 1.2), (4, 1.0)])
def test_the_projection_keeps_high_frequencies_and_no_others(side: int, radius: float) -> None:
    bins = find_high_bins(side, side, radius)
    kept = build_projection(bins)
    torch.testing.assert_close(kept @ kept, kept)
    torch.testing.assert_close(kept, kept.mT)
    kernel = torch.randn(side, side, dtype=torch.double)
    spectrum = torch.fft.fft2((kernel.flatten() @ kept).view(side, side))
    assert float(spectrum[~bins & ~bins.flip(0, 1).roll((1, 1), (0, 1))].abs().max()) < 1e-12


def test_what_every_defense_on_updates_hides_is_known() -> None:
    def doors(names: Sequence[str]) -> set[str]:
        return {n for n in names if type(DEFENSES[n]()).on_update is not Defense.on_update}

    silent = {"none", "flower-clipping", "share"}
    useful = {Capability.NOISE, Capability.VALUES}
    known = {d.name for d in DEFENSES if useful & d().declares}
    assert doors([d.name for d in DEFENSES]) - silent <= known


def test_a_layer_that_was_not_reported_is_passed_over(model: nn.Module, clean: Update) -> None:
    observation = seen(model, clean, DEFENSES.parse("tip(beta=0.1)"))
    kept = {n: t for n, t in observation.update.change.items() if "layer4" not in n}
    fewer = dataclasses.replace(observation.update, change=kept)
    _, beliefs = merge_updates(dataclasses.replace(observation, update=fewer))
    assert beliefs
    assert not any("layer4" in name for name in beliefs)
