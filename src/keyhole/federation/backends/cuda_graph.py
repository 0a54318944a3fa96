"""Trains clients on a GPU; each training step is replayed from a CUDA graph.

A training step of a deep network is a thousand small operations, and launching them one by one
takes longer than computing them. Here they are recorded once and launched together. The result is
that of :func:`keyhole.federation.client.compute_local_update`, to float tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor, nn

from keyhole.defenses import NoDefense
from keyhole.defenses.base import Defense, Telemetry, uses_door
from keyhole.errors import one_line
from keyhole.federation.augmentation import Augmentation
from keyhole.federation.backends.base import Backend
from keyhole.federation.backends.epoch_feed import EpochFeed
from keyhole.federation.backends.graphed_model import GraphedModel, can_record
from keyhole.federation.backends.recorder import WARM_UP
from keyhole.federation.client import RoundClient, update_from_change
from keyhole.federation.training import LocalTraining
from keyhole.models.modes import is_partly_frozen
from keyhole.seeds import derive
from keyhole.seeds import generator as named_generator
from keyhole.update import Update, check_weights


class CudaGraphTrainer(Backend):
    """Trains clients by recorded steps; recordings are kept from round to round.

    A single slot uses the channels-last layout in bfloat16 and TF32, which is faster. Several slots
    do not: cuDNN's batch norm in that layout waits until all its blocks are on the device, and two
    of them at once may block each other for ever.

    Args:
        slots: How many clients take turns step by step, each on its own stream, so that small
            operations of several clients share the device.
        compiled: Whether networks are compiled by ``torch.compile`` before they are recorded.
    """

    def __init__(self, *, slots: int = 1, compiled: bool = False) -> None:
        self.compiled = compiled
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
        recordable = trainable and can_record(training.read_optimiser())
        return recordable and next(model.parameters()).is_cuda

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
                ClientRun(model, client, defense, self.graphed_model(slot, model, client), slot)
                for client, slot in zip(chunk, self.slots, strict=False)
            ]
            active = [run.steps() for run in runs]
            while active:
                active = [steps for steps in active if next(steps, None) is not None]
            for run in runs:
                run.slot.finish()
            results += [run.result() for run in runs]
        return results

    def graphed_model(
        self, slot: StreamSlot, model: nn.Module, client: RoundClient
    ) -> GraphedModel:
        """Returns the slot's copy of ``model`` for this kind of training, made on first use.

        Args:
            slot: The slot.
            model: The global model.
            client: A client of this training.
        """
        training = client.training
        how = (training.optimiser, training.momentum, training.clip)
        key = (training.mode, training.precision, *how)
        if key not in slot.models:
            alone = len(self.slots) == 1
            last = alone and training.precision in ("bf16", "tf32")
            layout = torch.channels_last if last else torch.contiguous_format
            slot.models[key] = GraphedModel(model, training, layout, compiled=self.compiled)
        return slot.models[key]


class StreamSlot:
    """A CUDA stream, and the models whose steps were recorded on it."""

    def __init__(self) -> None:
        self.models: dict[object, GraphedModel] = {}
        self.stream: torch.cuda.Stream | None = None

    @contextmanager
    def use_stream(self, device: torch.device, *, wait: bool = False) -> Iterator[None]:
        """Runs the block on this slot's stream.

        Args:
            device: The model's device; on a CPU there are no streams.
            wait: Whether the stream first waits for what the default stream was told to do.
        """
        if device.type != "cuda":
            yield
            return
        if self.stream is None:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if wait:
            self.stream.wait_stream(torch.cuda.default_stream(device))
        with torch.cuda.stream(self.stream):
            yield

    def finish(self) -> None:
        """Lets the default stream wait for this one."""
        if self.stream is not None:
            torch.cuda.default_stream(self.stream.device).wait_stream(self.stream)


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
        self.device = client.images.device
        self.draws: Tensor | None = None

    def inputs(self, epoch: int) -> Tensor:
        """Returns the model's inputs of a local epoch."""
        self.side.images = self.client.images_for(epoch)
        return self.client.data.normalise(self.defense.on_images(self.side.images, self.side))

    def steps(self) -> Iterator[int]:
        """Takes one training step at a time and yields its number."""
        client, training = self.client, self.client.training
        changes = client.images_by_epoch is not None or uses_door(self.defense, "on_images")
        number = 0
        with self.slot.use_stream(self.device, wait=True):
            inputs = self.inputs(0)
            seed = int(torch.randint(2**62, (), generator=client.generator))
            draw = torch.Generator(self.device).manual_seed(seed)
            self.seed_draws(derive(seed, "dropout") if training.augment else seed)
            self.graphed.reset(self.model, training)
            feed = self.graphed.load(inputs, client.labels)
        batches = training.batches(len(inputs), named_generator(seed, "batches"))
        for epoch, group in groupby(batches, key=lambda pair: pair[0]):
            chosen = [batch for _, batch in group]
            with self.slot.use_stream(self.device, wait=True):
                if epoch > 0 and changes:
                    feed = self.graphed.load(self.inputs(epoch), client.labels)
                self.begin_epoch(feed, chosen, draw)
            for batch in chosen:
                with self.slot.use_stream(self.device), self.own_draws():
                    self.graphed.step_from_feed(len(batch))
                yield number
                number += 1

    def begin_epoch(
        self, feed: EpochFeed, batches: Sequence[Tensor], draw: torch.Generator
    ) -> None:
        """Puts the order of the images, and the draws of their augmentation, on the device."""
        height, width = feed.inputs.shape[-2:]
        drawn = None
        if self.client.training.augment:
            parts = [
                Augmentation.draw(len(batch), height, width, self.device, draw) for batch in batches
            ]
            drawn = Augmentation.concatenate(parts)
        feed.begin_epoch(torch.cat(list(batches)), drawn)

    def seed_draws(self, seed: int) -> None:
        """Seeds what the network itself draws, such as dropout."""
        self.draws = torch.Generator(self.device).manual_seed(seed).get_state()

    @contextmanager
    def own_draws(self) -> Iterator[None]:
        """Inside the block torch's global generator is this client's own."""
        assert self.draws is not None
        before = get_draws(self.device)
        set_draws(self.device, self.draws)
        try:
            yield
        finally:
            self.draws = get_draws(self.device)
            set_draws(self.device, before)

    def result(self) -> tuple[Update, Telemetry]:
        """Returns the defended update and what the defense reports."""
        change = self.graphed.compute_change(self.model)
        update = update_from_change(change, self.client.training, len(self.client.images))
        return self.defense.on_update(update.check(), self.side), self.side.telemetry


def get_draws(device: torch.device) -> Tensor:
    """Returns the state of torch's global generator of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_draws(device: torch.device, state: Tensor) -> None:
    """Sets the state of torch's global generator of a device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def why_recording_fails(
    model: nn.Module, client: RoundClient, trainer: CudaGraphTrainer
) -> str | None:
    """Tries a few steps on one batch; returns why they cannot be recorded, or None.

    Args:
        model: The global model, on a GPU.
        client: A client, of which a copy is tried: it leaves no trace.
        trainer: What will train the clients.
    """
    size = client.training.batch_size_for(len(client.images))
    few = replace(client.training, steps=WARM_UP + 1, epochs=None)
    tried = RoundClient(
        images=client.images[:size],
        labels=client.labels[:size],
        generator=named_generator(0, "trial"),
        memory={},
        data=client.data,
        training=few,
    )
    try:
        trainer.train(model, [tried], defense=NoDefense())
    except RuntimeError as error:
        return one_line(error)
    return None
