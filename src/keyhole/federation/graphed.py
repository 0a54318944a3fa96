"""Clients on a GPU, each step of theirs replayed from a CUDA graph.

A training step of a deep network is a thousand small operations, and sending them one by one takes
longer than computing them. Here they are recorded once and sent together. The result is that of
:func:`keyhole.federation.client.local_update`, to float tolerance.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses.base import Defense, Telemetry
from keyhole.federation.together import Member, described
from keyhole.federation.training import LocalTraining, augmented
from keyhole.models.modes import set_mode
from keyhole.seeds import generator as named_generator
from keyhole.update import Update, check_weights, difference

WARM_UP = 3
ADAM = (0.9, 0.999), 1e-8
"""Adam's decays and the constant that it divides by at least, as in torch."""


class Graphed:
    """Trains members by recorded steps; recordings are kept from round to round.

    ``lanes`` members take turns, step by step, each on a stream of its own: small operations of
    several clients share the device. ``half``: activations in bfloat16, weights and sums in float32
    still.

    A lane alone lays images out channels last, which is faster. Several do not: cuDNN's batch norm
    of that layout waits until all its blocks are on the device, and two of them at once may each
    keep the other's blocks off it, for ever.
    """

    def __init__(self, *, half: bool = False, lanes: int = 1) -> None:
        self.half = half
        self.layout = torch.channels_last if half and lanes == 1 else torch.contiguous_format
        self.lanes = [Lane() for _ in range(lanes)]

    def takes(self, model: nn.Module, members: Sequence[Member], defense: Defense) -> bool:
        """Whether this model can be trained so: on a GPU, no gradient or model of its own."""
        return self.fits(model, [], members[0].training, defense)

    def fits(
        self, model: nn.Module, sizes: Sequence[int], recipe: LocalTraining, defense: Defense
    ) -> bool:
        """The same of clients that have so many images each."""
        del sizes
        plain = (
            type(defense).on_step is Defense.on_step and type(defense).on_model is Defense.on_model
        )
        return plain and recipe.lr is not None and next(model.parameters()).is_cuda

    def room(self, model: nn.Module) -> int:
        """How many clients train at once."""
        return len(self.lanes)

    def __call__(
        self, model: nn.Module, members: Sequence[Member], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        """Every member's update through the doors of ``defense``, and what the defense reports."""
        check_weights(model.state_dict())
        found: list[tuple[Update, Telemetry]] = []
        width = len(self.lanes)
        for start in range(0, len(members), width):
            some = members[start : start + width]
            runs = [
                Run(model, member, defense, lane.stage(model, member.training, self), lane)
                for member, lane in zip(some, self.lanes, strict=False)
            ]
            under_way = [run.steps() for run in runs]
            while under_way:
                under_way = [steps for steps in under_way if next(steps, None) is not None]
            if next(model.parameters()).is_cuda:
                torch.cuda.synchronize()
            found += [run.finished() for run in runs]
        return found


class Lane:
    """A stream, and the recordings made on it."""

    def __init__(self) -> None:
        self.stages: dict[object, Stage] = {}
        self.stream: torch.cuda.Stream | None = None

    def stage(self, model: nn.Module, recipe: LocalTraining, way: Graphed) -> Stage:
        key = (recipe.mode, recipe.optimiser, recipe.momentum, recipe.clip)
        if key not in self.stages:
            self.stages[key] = Stage.of(model, recipe, way.half, way.layout)
        return self.stages[key]

    @contextmanager
    def taken(self, device: torch.device) -> Iterator[None]:
        """Work inside the block goes to this lane's stream, after what was sent before."""
        if device.type != "cuda":
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(self.stream):
            yield


class Run:
    """One member on one lane."""

    def __init__(
        self, model: nn.Module, member: Member, defense: Defense, stage: Stage, lane: Lane
    ) -> None:
        self.model, self.member, self.defense = model, member, defense
        self.stage, self.lane = stage, lane
        self.side = member.side(model)

    def inputs(self, epoch: int) -> Tensor:
        self.side.images = self.member.images_of(epoch)
        return self.member.data.normalise(self.defense.on_images(self.side.images, self.side))

    def steps(self) -> Iterator[int]:
        """Takes one step of the training at a time; yields its number."""
        member, recipe = self.member, self.member.training
        device, epoch = member.images.device, 0
        with self.lane.taken(device):
            inputs = self.inputs(0)
            seed = int(torch.randint(2**62, (), generator=member.generator))
            draw = torch.Generator(device).manual_seed(seed)
            self.stage.begin(self.model, recipe)
        batches = recipe.batches(len(inputs), named_generator(seed, "batches"))
        for number, (now, batch) in enumerate(batches):
            with self.lane.taken(device):
                if now > epoch:
                    inputs = self.inputs(now)
                epoch = now
                chosen = batch.to(device, non_blocking=True)
                x = inputs[chosen]
                x = augmented(x, draw) if recipe.augment else x
                self.stage.step(x, member.labels[chosen])
            yield number

    def finished(self) -> tuple[Update, Telemetry]:
        change = self.stage.change(self.model)
        update = described(change, self.member.training, len(self.member.images))
        return self.defense.on_update(update.check(), self.side), self.side.telemetry


@dataclass
class Stage:
    """A copy of the model in places that never move, and its steps by batch shape."""

    local: nn.Module
    velocity: list[Tensor]
    squares: list[Tensor]
    """Mean squares of the gradient, for Adam."""
    taken: Tensor
    """Steps taken since the beginning."""
    recipe: LocalTraining
    lr: Tensor
    half: bool
    layout: torch.memory_format
    graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]]

    @classmethod
    def of(
        cls, model: nn.Module, recipe: LocalTraining, half: bool, layout: torch.memory_format
    ) -> Stage:
        local = set_mode(copy.deepcopy(model), recipe.mode).requires_grad_(True)
        local = local.to(memory_format=layout)
        weights = list(local.parameters())
        still = [torch.zeros_like(w) for w in weights]
        squares = [torch.zeros_like(w) for w in weights] if recipe.optimiser == "adam" else []
        taken, rate = torch.zeros(2, device=weights[0].device, dtype=torch.double)
        return cls(local, still, squares, taken, recipe, rate, half, layout, {})

    @property
    def moving(self) -> list[Tensor]:
        """What a step changes besides the weights and statistics."""
        return [*self.velocity, *self.squares, self.taken]

    @torch.no_grad()
    def begin(self, model: nn.Module, recipe: LocalTraining) -> None:
        """The global weights, at rest."""
        assert recipe.lr is not None
        own, sent = self.local.state_dict(), model.state_dict()
        for name, tensor in own.items():
            tensor.copy_(sent[name])
        for tensor in self.moving:
            tensor.zero_()
        self.lr.fill_(recipe.lr)

    def change(self, model: nn.Module) -> dict[str, Tensor]:
        own, sent = self.local.state_dict(), model.state_dict()
        return {name: difference(own[name], sent[name]).detach() for name in sent}

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step on a batch: replayed if one of its shape was recorded."""
        if x.shape not in self.graphs:
            self.graphs[x.shape] = self.record(x, y)
        graph, held_x, held_y = self.graphs[x.shape]
        held_x.copy_(x)
        held_y.copy_(y)
        graph.replay()

    def record(self, x: Tensor, y: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """Runs a step a few times and records it; weights and statistics are put back."""
        x, y = x.clone(memory_format=self.layout), y.clone()
        state = {name: tensor.clone() for name, tensor in self.local.state_dict().items()}
        moving = [tensor.clone() for tensor in self.moving]
        torch.cuda.synchronize()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.advance(x, y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance(x, y)
        with torch.no_grad():
            for name, tensor in self.local.state_dict().items():
                tensor.copy_(state[name])
            for now, before in zip(self.moving, moving, strict=True):
                now.copy_(before)
        return graph, x, y

    def advance(self, x: Tensor, y: Tensor) -> None:
        weights = list(self.local.parameters())
        # Casts are not cached: a recorded step must make them anew from the weights of its time.
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            logits = self.local(x)
        loss = F.cross_entropy(logits.float() if self.half else logits, y)
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        with torch.no_grad():
            gradient = [
                torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)
            ]
            if self.recipe.clip is not None:
                norm = torch.stack(torch._foreach_norm(gradient)).norm()
                scale = (self.recipe.clip / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(
                    max=1
                )
                torch._foreach_mul_(gradient, scale)
            moved = self.by_adam(gradient) if self.squares else self.by_momentum(gradient)
            torch._foreach_add_([w.detach() for w in weights], moved)

    def by_momentum(self, gradient: list[Tensor]) -> list[Tensor] | tuple[Tensor, ...]:
        """How SGD moves the weights."""
        torch._foreach_mul_(self.velocity, self.recipe.momentum)
        torch._foreach_add_(self.velocity, gradient)
        return torch._foreach_mul(self.velocity, -self.lr)

    def by_adam(self, gradient: list[Tensor]) -> list[Tensor] | tuple[Tensor, ...]:
        """How Adam does (Kingma and Ba 2015), with the usual constants."""
        (first, second), tiny = ADAM
        self.taken += 1
        torch._foreach_lerp_(self.velocity, gradient, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradient, gradient, 1 - second)
        below = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(below, (1 - second**self.taken).sqrt())
        torch._foreach_add_(below, tiny)
        moved = torch._foreach_div(self.velocity, below)
        torch._foreach_mul_(moved, -self.lr / (1 - first**self.taken))
        return moved
