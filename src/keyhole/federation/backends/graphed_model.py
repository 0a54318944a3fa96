"""A model at fixed memory addresses, whose training steps are recorded and replayed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.federation.backends.epoch_feed import EpochFeed
from keyhole.federation.backends.recorder import Recorder
from keyhole.federation.precision import autocast
from keyhole.federation.training import LocalTraining
from keyhole.models.modes import set_mode
from keyhole.optimisers import Adam, LocalOptimiser, Sgd
from keyhole.update import subtract

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8
"""torch's defaults."""

CAST_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights autocast would cast in every step."""


def can_record(optimiser: LocalOptimiser) -> bool:
    """Whether an optimiser's steps can be recorded: plain Adam, or SGD with momentum alone."""
    if isinstance(optimiser, Sgd):
        return optimiser == Sgd(momentum=optimiser.momentum)
    return optimiser == Adam()


class GraphedModel:
    """A copy of a model, its optimiser, and one recorded step per batch size.

    In bfloat16, ``local`` holds the weights of linear and convolutional layers in bfloat16; the
    float32 weights, which the optimiser changes, lie in :attr:`weights` and are cast all together
    at the beginning of a step.

    Args:
        model: The model that is copied.
        training: Optimiser, momentum, clip, mode and precision.
        layout: The memory format of the weights and inputs.
        compiled: Whether full batches go through ``torch.compile``; every other size would have to
            be compiled again.
    """

    def __init__(
        self,
        model: nn.Module,
        training: LocalTraining,
        layout: torch.memory_format = torch.contiguous_format,
        *,
        compiled: bool = False,
    ) -> None:
        local = set_mode(copy.deepcopy(model), training.mode).requires_grad_(True)
        self.local = local.to(memory_format=layout)
        self.training, self.layout = training, layout
        self.computed = list(self.local.parameters())
        self.device = self.computed[0].device
        self.float_weights = cast_weights(self.local) if training.precision == "bf16" else {}
        self.weights = [self.float_weights.get(id(p), p.detach()) for p in self.computed]
        self.velocity = [torch.zeros_like(w) for w in self.weights]
        adam = isinstance(training.read_optimiser(), Adam)
        self.squares = [torch.zeros_like(w) for w in self.weights] if adam else []
        self.steps_taken = torch.zeros((), device=self.device, dtype=torch.double)
        exact = torch.double if self.computed[0].dtype == torch.double else torch.float32
        self.lr = torch.zeros((), device=self.device, dtype=exact)
        """The learning rate of the next step."""
        self.network = torch.compile(self.local, dynamic=False) if compiled else self.local
        self.recorder = Recorder(self.device)
        self.feed: EpochFeed | None = None
        self.batches: dict[torch.Size, tuple[Tensor, Tensor]] = {}

    def tensors(self) -> dict[str, Tensor]:
        """Returns the weights, those that are cast in float32, and buffers by name."""
        own = self.local.state_dict(keep_vars=True)
        return {name: self.float_weights.get(id(t), t.detach()) for name, t in own.items()}

    @torch.no_grad()
    def reset(self, model: nn.Module, training: LocalTraining) -> None:
        """Copies the global weights and clears the optimiser's state.

        Args:
            model: The global model.
            training: Its learning rate is set.
        """
        assert training.lr is not None
        sent = model.state_dict()
        own = self.tensors()
        torch._foreach_copy_(list(own.values()), [sent[name] for name in own])
        for tensor in (*self.velocity, *self.squares, self.steps_taken):
            tensor.zero_()
        self.lr.fill_(training.lr)

    def compute_change(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns what training has changed in the global weights.

        Args:
            model: The global model.
        """
        own, sent = self.tensors(), model.state_dict()
        return {name: subtract(own[name], sent[name]).detach() for name in sent}

    def load(self, inputs: Tensor, labels: Tensor) -> EpochFeed:
        """Takes over a client's inputs, from which :meth:`step_from_feed` takes batches.

        Args:
            inputs: The model's inputs ``[n, C, H, W]``, already normalised.
            labels: Their classes ``[n]``.
        """
        if self.feed is None or not self.feed.fits(inputs):
            before = 0 if self.feed is None else len(self.feed.labels)
            room = len(inputs) if len(inputs) <= before or not before else 2 * len(inputs)
            self.recorder.forget()
            self.feed = EpochFeed(inputs, labels, room)
        self.feed.load(inputs, labels)
        return self.feed

    def step_from_feed(self, size: int) -> None:
        """Takes one step on the next batch of what :meth:`load` took over.

        Args:
            size: The number of images.
        """
        feed = self.feed
        assert feed is not None
        self.recorder.run((size, feed.augments), lambda: self.run_step(*feed.next_batch(size)))

    def step(self, x: Tensor, y: Tensor) -> None:
        """Takes one step on a batch.

        Args:
            x: Inputs ``[n, C, H, W]``.
            y: Labels ``[n]``.
        """
        if x.shape not in self.batches:
            self.batches[x.shape] = (torch.empty_like(x), torch.empty_like(y))
        own_x, own_y = self.batches[x.shape]
        own_x.copy_(x)
        own_y.copy_(y)
        self.recorder.run(x.shape, lambda: self.run_step(own_x, own_y))

    def run_step(self, x: Tensor, y: Tensor) -> None:
        """Takes one step, operation by operation.

        Args:
            x: Inputs ``[n, C, H, W]``.
            y: Labels ``[n]``.
        """
        half = self.training.precision == "bf16"
        if self.float_weights:
            copies = [p.detach() for p in self.computed if id(p) in self.float_weights]
            torch._foreach_copy_(copies, list(self.float_weights.values()))
        network = self.network if len(x) == self.training.batch_size else self.local
        with autocast(self.training.precision, x.device):
            logits = network(x.contiguous(memory_format=self.layout))
        loss = F.cross_entropy(logits.float() if half else logits, y)
        found = torch.autograd.grad(loss, self.computed, allow_unused=True)
        with torch.no_grad():
            gradient = self.float_gradient(found)
            if self.training.clip is not None:
                norm = torch.stack(torch._foreach_norm(gradient)).norm()
                least = torch.finfo(norm.dtype).tiny
                scale = (self.training.clip / norm.clamp(min=least)).clamp(max=1)
                torch._foreach_mul_(gradient, scale)
            if self.squares:
                self.step_adam(gradient)
            else:
                self.step_sgd(gradient)

    def float_gradient(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Returns the gradient with the weights' types and strides; zeros for what is not used.

        Args:
            found: As autograd returns it.
        """
        gradient, copies, sources = [], [], []
        for weight, own in zip(self.weights, found, strict=True):
            if own is None:
                gradient.append(torch.zeros_like(weight))
            elif own.dtype == weight.dtype and own.stride() == weight.stride():
                gradient.append(own)
            else:
                gradient.append(torch.empty_like(weight))
                copies.append(gradient[-1])
                sources.append(own)
        if copies:
            torch._foreach_copy_(copies, sources)
        return gradient

    def step_sgd(self, gradient: list[Tensor]) -> None:
        """Takes a step of SGD with momentum.

        Args:
            gradient: Of each weight.
        """
        optimiser = self.training.read_optimiser()
        assert isinstance(optimiser, Sgd)
        momentum = optimiser.momentum
        if all(weight.dtype == torch.float32 for weight in self.weights):
            torch._fused_sgd_(
                self.weights,
                gradient,
                self.velocity if momentum else [],
                weight_decay=0.0,
                momentum=momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
            return
        torch._foreach_mul_(self.velocity, momentum)
        torch._foreach_add_(self.velocity, gradient)
        torch._foreach_add_(self.weights, torch._foreach_mul(self.velocity, -self.lr))

    def step_adam(self, gradient: list[Tensor]) -> None:
        """Takes a step of Adam (Kingma and Ba 2015).

        Args:
            gradient: Of each weight.
        """
        first, second = ADAM_BETAS
        self.steps_taken += 1
        torch._foreach_lerp_(self.velocity, gradient, 1 - first)
        torch._foreach_mul_(self.squares, second)
        torch._foreach_addcmul_(self.squares, gradient, gradient, 1 - second)
        denominator = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(denominator, (1 - second**self.steps_taken).sqrt())
        torch._foreach_add_(denominator, ADAM_EPSILON)
        change = torch._foreach_div(self.velocity, denominator)
        torch._foreach_mul_(change, -self.lr / (1 - first**self.steps_taken))
        torch._foreach_add_(self.weights, change)


def cast_weights(model: nn.Module) -> dict[int, Tensor]:
    """Turns the weights of :data:`CAST_LAYERS` into bfloat16; returns the float32 ones by id.

    Subclasses are left alone: they may compute with their weights in other ways.
    """
    before = {}
    for module in model.modules():
        if type(module) not in CAST_LAYERS:
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in before and parameter.dtype == torch.float32:
                before[id(parameter)] = parameter.detach()
                parameter.data = parameter.detach().to(torch.bfloat16)
    return before
