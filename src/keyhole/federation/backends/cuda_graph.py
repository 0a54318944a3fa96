"""Trains clients on a GPU; each training step is replayed from a CUDA graph.

A training step of a deep network is a thousand small operations, and launching them one by one
takes longer than computing them. Here they are recorded once and launched together. The result is
that of :func:`keyhole.federation.client.compute_local_update`, to float tolerance.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.defenses.base import Defense, Telemetry, uses_door
from keyhole.federation.backends.base import Backend
from keyhole.federation.client import RoundClient, update_from_change
from keyhole.federation.training import LocalTraining, augment_images
from keyhole.models.modes import is_partly_frozen, set_mode
from keyhole.seeds import generator as named_generator
from keyhole.update import Update, check_weights, subtract

WARM_UP_STEPS = 3
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8
"""torch's defaults."""


class CudaGraphTrainer(Backend):
    """Trains clients by recorded steps; recordings are kept from round to round.

    A single slot uses the channels-last layout, which is faster. Several slots do not: cuDNN's
    batch norm in that layout waits until all its blocks are on the device, and two of them at once
    may block each other for ever.

    Args:
        half: Whether activations are in bfloat16; weights and sums stay in float32.
        slots: How many clients take turns step by step, each on its own stream, so that small
            operations of several clients share the device.
    """

    def __init__(self, *, half: bool = False, slots: int = 1) -> None:
        self.half = half
        self.layout = torch.channels_last if half and slots == 1 else torch.contiguous_format
        self.slots = [StreamSlot() for _ in range(slots)]

    def supports(
        self, model: nn.Module, sizes: Sequence[int], training: LocalTraining, defense: Defense
    ) -> bool:
        """Returns whether steps can be recorded.

        The model must be on a GPU, clients must train all of it and share weights, and the defense
        must neither compute a gradient of its own nor change the model.

        Args:
            model: The global model.
            sizes: How many images each client has.
            training: How clients train.
            defense: Their defense.
        """
        del sizes
        plain = not uses_door(defense, "on_step") and not uses_door(defense, "on_model")
        trainable = plain and training.lr is not None and not is_partly_frozen(model)
        return trainable and next(model.parameters()).is_cuda

    def clients_at_once(self, model: nn.Module) -> int:
        """Returns the number of slots.

        Args:
            model: The global model.
        """
        return len(self.slots)

    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        check_weights(model.state_dict())
        results: list[tuple[Update, Telemetry]] = []
        width = len(self.slots)
        for start in range(0, len(clients), width):
            chunk = clients[start : start + width]
            runs = [
                ClientRun(
                    model, client, defense, slot.graphed_model(model, client.training, self), slot
                )
                for client, slot in zip(chunk, self.slots, strict=False)
            ]
            active = [run.steps() for run in runs]
            while active:
                active = [steps for steps in active if next(steps, None) is not None]
            if next(model.parameters()).is_cuda:
                torch.cuda.synchronize()
            results += [run.result() for run in runs]
        return results


class StreamSlot:
    """A CUDA stream, and the models whose steps were recorded on it."""

    def __init__(self) -> None:
        self.models: dict[object, GraphedModel] = {}
        self.stream: torch.cuda.Stream | None = None

    def graphed_model(
        self, model: nn.Module, training: LocalTraining, trainer: CudaGraphTrainer
    ) -> GraphedModel:
        """Returns the slot's copy of ``model`` for this kind of training, made on first use."""
        key = (training.mode, training.optimiser, training.momentum, training.clip)
        if key not in self.models:
            self.models[key] = GraphedModel.from_model(
                model, training, trainer.half, trainer.layout
            )
        return self.models[key]

    @contextmanager
    def use_stream(self, device: torch.device) -> Iterator[None]:
        """Runs the block on this slot's stream, after what was launched before."""
        if device.type != "cuda":
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(self.stream):
            yield


class ClientRun:
    """One client's training on one slot."""

    def __init__(
        self,
        model: nn.Module,
        client: RoundClient,
        defense: Defense,
        graphed: GraphedModel,
        slot: StreamSlot,
    ) -> None:
        self.model, self.client, self.defense = model, client, defense
        self.graphed, self.slot = graphed, slot
        self.side = client.side(model)

    def inputs(self, epoch: int) -> Tensor:
        """Returns the model's inputs of a local epoch."""
        self.side.images = self.client.images_for(epoch)
        return self.client.data.normalise(self.defense.on_images(self.side.images, self.side))

    def steps(self) -> Iterator[int]:
        """Takes one training step at a time and yields its number."""
        client, training = self.client, self.client.training
        device, last_epoch = client.images.device, 0
        with self.slot.use_stream(device):
            inputs = self.inputs(0)
            seed = int(torch.randint(2**62, (), generator=client.generator))
            draw = torch.Generator(device).manual_seed(seed)
            self.graphed.reset(self.model, training)
        batches = training.batches(len(inputs), named_generator(seed, "batches"))
        for number, (epoch, batch) in enumerate(batches):
            with self.slot.use_stream(device):
                if epoch > last_epoch:
                    inputs = self.inputs(epoch)
                last_epoch = epoch
                chosen = batch.to(device, non_blocking=True)
                x = inputs[chosen]
                x = augment_images(x, draw) if training.augment else x
                self.graphed.step(x, client.labels[chosen])
            yield number

    def result(self) -> tuple[Update, Telemetry]:
        """Returns the defended update and what the defense reports."""
        change = self.graphed.compute_change(self.model)
        update = update_from_change(change, self.client.training, len(self.client.images))
        return self.defense.on_update(update.check(), self.side), self.side.telemetry


@dataclass
class GraphedModel:
    """A copy of a model at fixed memory addresses, and one recorded step per batch shape.

    Args:
        local: The copy, which steps train.
        velocity: Running means of each weight's gradient.
        squares: Running means of the squared gradient; empty unless the optimiser is Adam.
        steps_taken: The number of steps since the last reset.
        training: Optimiser, momentum and clip.
        lr: The learning rate of the next step, a tensor that recorded steps read.
        half: Whether activations are in bfloat16.
        layout: The memory format of the weights and inputs.
        graphs: For each batch shape a recorded step, its inputs and its labels.
    """

    local: nn.Module
    velocity: list[Tensor]
    squares: list[Tensor]
    steps_taken: Tensor
    training: LocalTraining
    lr: Tensor
    half: bool
    layout: torch.memory_format
    graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]]

    @classmethod
    def from_model(
        cls, model: nn.Module, training: LocalTraining, half: bool, layout: torch.memory_format
    ) -> GraphedModel:
        """Copies a model; nothing is recorded yet.

        Args:
            model: The model.
            training: Optimiser, momentum, clip and mode.
            half: Whether activations are in bfloat16.
            layout: The memory format of the weights and inputs.
        """
        local = set_mode(copy.deepcopy(model), training.mode).requires_grad_(True)
        local = local.to(memory_format=layout)
        weights = list(local.parameters())
        velocity = [torch.zeros_like(w) for w in weights]
        squares = [torch.zeros_like(w) for w in weights] if training.optimiser == "adam" else []
        taken, rate = torch.zeros(2, device=weights[0].device, dtype=torch.double)
        return cls(local, velocity, squares, taken, training, rate, half, layout, {})

    @property
    def optimiser_state(self) -> list[Tensor]:
        """What a step changes besides the weights and buffers."""
        return [*self.velocity, *self.squares, self.steps_taken]

    @torch.no_grad()
    def reset(self, model: nn.Module, training: LocalTraining) -> None:
        """Copies the global weights and clears the optimiser's state.

        Args:
            model: The global model.
            training: Its learning rate is set.
        """
        assert training.lr is not None
        own, sent = self.local.state_dict(), model.state_dict()
        for name, tensor in own.items():
            tensor.copy_(sent[name])
        for tensor in self.optimiser_state:
            tensor.zero_()
        self.lr.fill_(training.lr)

    def compute_change(self, model: nn.Module) -> dict[str, Tensor]:
        """Returns what training has changed in the global weights.

        Args:
            model: The global model.
        """
        own, sent = self.local.state_dict(), model.state_dict()
        return {name: subtract(own[name], sent[name]).detach() for name in sent}

    def step(self, x: Tensor, y: Tensor) -> None:
        """Takes one step on a batch; records it first if the batch shape is new.

        Args:
            x: Inputs ``[n, C, H, W]``.
            y: Labels ``[n]``.
        """
        if x.shape not in self.graphs:
            self.graphs[x.shape] = self.record_step(x, y)
        graph, graph_x, graph_y = self.graphs[x.shape]
        graph_x.copy_(x)
        graph_y.copy_(y)
        graph.replay()

    def record_step(self, x: Tensor, y: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        """Runs a step a few times and records it; weights and state are put back.

        Args:
            x: Inputs ``[n, C, H, W]``.
            y: Labels ``[n]``.
        """
        x, y = x.clone(memory_format=self.layout), y.clone()
        weights_before = {name: tensor.clone() for name, tensor in self.local.state_dict().items()}
        state_before = [tensor.clone() for tensor in self.optimiser_state]
        torch.cuda.synchronize()
        warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(warm_up):
            for _ in range(WARM_UP_STEPS):
                self.run_step(x, y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run_step(x, y)
        with torch.no_grad():
            for name, tensor in self.local.state_dict().items():
                tensor.copy_(weights_before[name])
            for now, before in zip(self.optimiser_state, state_before, strict=True):
                now.copy_(before)
        return graph, x, y

    def run_step(self, x: Tensor, y: Tensor) -> None:
        """Takes one step without a graph.

        Args:
            x: Inputs ``[n, C, H, W]``.
            y: Labels ``[n]``.
        """
        weights = list(self.local.parameters())
        # Casts are not cached: a recorded step must cast the weights of its own time.
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            logits = self.local(x)
        loss = F.cross_entropy(logits.float() if self.half else logits, y)
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        with torch.no_grad():
            gradient = [
                torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)
            ]
            if self.training.clip is not None:
                norm = torch.stack(torch._foreach_norm(gradient)).norm()
                scale = (self.training.clip / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(
                    max=1
                )
                torch._foreach_mul_(gradient, scale)
            change = self.adam_change(gradient) if self.squares else self.sgd_change(gradient)
            torch._foreach_add_([w.detach() for w in weights], change)

    def sgd_change(self, gradient: list[Tensor]) -> list[Tensor] | tuple[Tensor, ...]:
        """Returns SGD's change of the weights, with momentum.

        Args:
            gradient: Of each weight.
        """
        torch._foreach_mul_(self.velocity, self.training.momentum)
        torch._foreach_add_(self.velocity, gradient)
        return torch._foreach_mul(self.velocity, -self.lr)

    def adam_change(self, gradient: list[Tensor]) -> list[Tensor] | tuple[Tensor, ...]:
        """Returns Adam's change of the weights (Kingma and Ba 2015).

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
        return change
