"""Federated descent on the problem, uploads under TIP; constants are observed on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from keyhole.defenses import ClientSide, Defense
from keyhole.seeds import generator
from keyhole.update import Update
from keyhole_studies.tip_theorem.bounds import Constants, Reading
from keyhole_studies.tip_theorem.problem import SIDE, Problem

WEIGHT = "0.weight"


@dataclass
class Track:
    """One run: ``F - F*`` at the start and after every round, and what was observed on the way."""

    gaps: list[float]
    variances: Tensor
    """The greatest variance of a batch's gradient, client by client ``[J]``."""
    second_moment: float = 0.0
    """The greatest expected squared norm of a batch's gradient."""
    betas: list[float] = field(default_factory=list)
    """Of every round."""
    noise_energies: list[float] = field(default_factory=list)
    """The mean squared norm of an upload's noise, round by round."""


def descend(
    problem: Problem,
    known: Constants,
    defense: Defense,
    *,
    least: float,
    rounds: int,
    batch: int,
    seed: int,
    start: float = 0.0,
    reading: Reading = "corrected",
) -> Track:
    """Runs FedAvg as the theorem has it, from weights of norm ``start``.

    All J clients take E steps of ``eta_t`` on batches drawn with replacement; the updates of N of
    them, drawn without, are averaged.

    Args:
        problem: What is minimised.
        known: J, N, E and the rates.
        defense: What a client's update passes through.
        least: F*.
        rounds: How many.
        batch: Images in a step.
        seed: Of batches, clients and noise.
        start: The norm of the first weights.
        reading: Whose phi the rates follow.
    """
    draw = generator(seed, "descent")
    model = problem.make_model()
    weights = problem.first_weights(start)
    track = Track([float(problem.value(weights)) - least], torch.zeros(problem.clients))
    for number in range(rounds):
        rates = [known.rate(number * known.E + step, reading) for step in range(known.E)]
        change = train_clients(problem, weights, rates, batch, draw, track) - weights
        heard = torch.randperm(problem.clients, generator=draw)[: known.N].tolist()
        set_weights(model, weights)
        sent, sides = [], []
        for client in heard:
            side = make_side(problem, model, client, generator(seed, "noise", number, client))
            sent.append(upload(change[client], rates, batch, defense, side))
            sides.append(side)
        weights = weights + torch.stack(sent).mean(0)
        track.gaps.append(float(problem.value(weights)) - least)
        track.betas.append(max(float(side.telemetry.get("beta", 0.0)) for side in sides))
        norms = [float(side.telemetry.get("noise_norm", 0.0)) for side in sides]
        track.noise_energies.append(sum(norm**2 for norm in norms) / len(norms))
    return track


def train_clients(
    problem: Problem,
    weights: Tensor,
    rates: list[float],
    batch: int,
    draw: torch.Generator,
    track: Track,
) -> Tensor:
    """Every client's weights ``[J, K, D]`` after its steps; notes the moments of its gradients."""
    local = weights.expand(problem.clients, -1, -1)
    for rate in rates:
        variance, norm = problem.moments(local)
        track.variances = torch.maximum(track.variances, variance / batch)
        track.second_moment = max(track.second_moment, float((variance / batch + norm).max()))
        picks = torch.randint(problem.inputs.shape[1], (problem.clients, batch), generator=draw)
        local = local - rate * problem.gradients(local, picks)
    return local


def upload(
    change: Tensor, rates: list[float], batch: int, defense: Defense, side: ClientSide
) -> Tensor:
    """Sends a change ``[K, D]`` through the defense; returns it as the server sees it."""
    kernels = {WEIGHT: change.view(-1, 1, SIDE, SIDE)}
    update = Update(kernels, steps=len(rates), lr=sum(rates) / len(rates), batch_size=batch)
    return defense.on_update(update, side).change[WEIGHT].view_as(change)


def make_side(problem: Problem, model: nn.Module, client: int, draw: torch.Generator) -> ClientSide:
    """What a defense sees of a client."""
    images = problem.inputs[client].view(-1, 1, SIDE, SIDE)
    return ClientSide(draw, model, images, problem.labels[client])


@torch.no_grad()
def set_weights(model: nn.Module, weights: Tensor) -> None:
    model.get_parameter(WEIGHT).copy_(weights.view(-1, 1, SIDE, SIDE))
