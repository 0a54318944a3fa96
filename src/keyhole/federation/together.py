"""Clients trained side by side: their weights are one more tensor axis (vmap over grad).

Small models leave a processor idle between small operations; ten clients at once fill it. The
result is that of one client after another, to float tolerance.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from keyhole.data.image_set import ImageSet
from keyhole.defenses.base import ClientSide, Defense, Memory, Telemetry
from keyhole.errors import one_line
from keyhole.federation.client import Later
from keyhole.federation.training import LocalTraining, augmented
from keyhole.models.modes import has_batch_norm, set_mode
from keyhole.seeds import generator as named_generator
from keyhole.seeds import seeded_globally
from keyhole.update import Update, check_weights, difference

Tensors = dict[str, Tensor]

STACKED = 1 << 26
"""Bytes of the weights of clients that train at once; training takes about ten times as many."""

SMALL = 32_768
"""Numbers in a weight, on average, up to which a processor trains clients faster together: LeNet
has 1,000, the small ViT 10,000; the MLP 94,000 and ResNet-18 180,000, which are slower so."""


@dataclass(frozen=True)
class Member:
    """A client of a round: its images in [0, 1], and where its draws come from."""

    images: Tensor
    labels: Tensor
    generator: torch.Generator
    memory: Memory
    data: ImageSet
    training: LocalTraining
    later: Later | None = None
    """Their versions for later local epochs, where they have several."""

    def images_of(self, epoch: int) -> Tensor:
        """The images of a local epoch, the first being 0."""
        return self.images if epoch == 0 or self.later is None else self.later(epoch)

    def side(self, model: nn.Module) -> ClientSide:
        """What a defense may use of this client."""
        return ClientSide(
            self.generator,
            model,
            self.images,
            self.labels,
            memory=self.memory,
            normalise=self.data.normalise,
        )


class Together:
    """Trains clients that take steps of one kind as one tensor axis."""

    def takes(self, model: nn.Module, members: Sequence[Member], defense: Defense) -> bool:
        """Whether these clients can be trained so: as many steps each, no gradient of their own.

        Where batches differ in size they are filled up, which batch statistics would notice.
        """
        sizes = [len(member.images) for member in members]
        return self.fits(model, sizes, members[0].training, defense)

    def fits(
        self, model: nn.Module, sizes: Sequence[int], recipe: LocalTraining, defense: Defense
    ) -> bool:
        """The same of clients that have so many images each."""
        own_gradient = type(defense).on_step is not Defense.on_step
        steps = {recipe.steps_of(size) for size in sizes}
        alike = len(set(sizes)) == 1 or not has_batch_statistics(model, recipe)
        shares_weights = recipe.lr is not None
        fits = len(sizes) > 1 and len(steps) == 1 and alike
        return fits and shares_weights and not own_gradient

    def room(self, model: nn.Module) -> int:
        """How many clients train at once: as many as their weights have room in memory."""
        first = next(model.parameters())
        room = STACKED
        if first.is_cuda:
            room = max(room, torch.cuda.get_device_properties(first.device).total_memory // 32)
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        return max(2, int(room // max(size, 1)))

    def __call__(
        self, model: nn.Module, members: Sequence[Member], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        """Every member's update through the doors of ``defense``, and what the defense reports."""
        check_weights(model.state_dict())
        sides = [member.side(model) for member in members]
        epochs = itertools.count()

        def inputs() -> list[Tensor]:
            epoch, shown = next(epochs), []
            for member, side in zip(members, sides, strict=True):
                side.images = member.images_of(epoch)
                shown.append(member.data.normalise(defense.on_images(side.images, side)))
            return shown

        first = inputs()
        local = model
        for side in sides:
            local = defense.on_model(model, side)
        updates = stacked_updates(
            local,
            first,
            [m.labels for m in members],
            training=members[0].training,
            seeds=[int(torch.randint(2**62, (), generator=m.generator)) for m in members],
            again=inputs,
        )
        return [
            (defense.on_update(update.check(), side), side.telemetry)
            for update, side in zip(updates, sides, strict=True)
        ]


def stacked_updates(
    model: nn.Module,
    inputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    *,
    training: LocalTraining,
    seeds: Sequence[int],
    again: Callable[[], list[Tensor]] | None = None,
) -> list[Update]:
    """What K clients change in ``model``, each by its own inputs ``[n, C, H, W]``.

    Batches are drawn as :func:`keyhole.federation.client.local_update` draws them; shorter ones
    are filled up with images that have no weight.
    """
    crowd = Crowd(model, len(inputs), training)
    crowd.train(inputs, labels, seeds, again)
    return [
        described(change, training, len(x))
        for change, x in zip(crowd.changes(), inputs, strict=True)
    ]


def described(change: Tensors, training: LocalTraining, images: int) -> Update:
    """A client's change of weights, with how it came about."""
    assert training.lr is not None
    return Update(
        change,
        steps=training.steps_of(images),
        lr=training.lr,
        batch_size=training.local_batch(images),
        examples=images,
    )


class Crowd:
    """The networks of K clients as one, with weights ``[K, ...]``."""

    def __init__(self, model: nn.Module, clients: int, training: LocalTraining) -> None:
        local = set_mode(copy.deepcopy(model), training.mode)
        weights, buffers = stack_module_state([local] * clients)
        self.leaves = {name: nn.Parameter(tensor.detach()) for name, tensor in weights.items()}
        self.buffers = {name: tensor.detach().clone() for name, tensor in buffers.items()}
        self.before = {name: t.detach().clone() for name, t in {**weights, **buffers}.items()}
        first = {id(p): name for name, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self.tied = {name: first[id(p)] for name, p in every}
        self.names = list(model.state_dict())
        self.training = training
        self.optimiser = training.optimiser_of(self.leaves.values())
        # Bound to the network, not to this object: a cycle would keep all weights in memory.
        self.gradients = vmap(grad(partial(weighted_loss, local)), randomness="different")

    def step(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> None:
        """One step of all clients; ``x [batch, K, C, H, W]`` is filled up beyond ``lengths``."""
        x, y = x.transpose(0, 1), y.transpose(0, 1)
        if self.training.augment:
            x = augmented(x.flatten(0, 1)).view_as(x)
        sizes = torch.tensor(lengths, device=x.device)[:, None]
        counts = (torch.arange(x.shape[1], device=x.device) < sizes).to(x) / sizes
        named = {name: leaf.detach() for name, leaf in self.leaves.items()}
        found = self.gradients(named, self.buffers, x, y, counts)
        clipped = each_clipped([found[name] for name in self.leaves], self.training.clip)
        for leaf, gradient in zip(self.leaves.values(), clipped, strict=True):
            leaf.grad = gradient
        self.optimiser.step()

    def train(
        self,
        inputs: Sequence[Tensor],
        labels: Sequence[Tensor],
        seeds: Sequence[int],
        again: Callable[[], list[Tensor]] | None = None,
    ) -> None:
        """All steps of all clients, whose batches are drawn as each would draw them alone.

        ``again`` gives the inputs of every epoch after the first; None: they stay the same.
        """
        draws = [
            self.training.batches(len(x), named_generator(seed, "batches"))
            for x, seed in zip(inputs, seeds, strict=True)
        ]
        epoch = 0
        with seeded_globally(seeds[0]):
            for chosen in zip(*draws, strict=True):
                now, batches = chosen[0][0], [indices for _, indices in chosen]
                if now > epoch and again is not None:
                    inputs = again()
                epoch = now
                self.step(
                    pad_sequence([x[b.to(x.device)] for x, b in zip(inputs, batches, strict=True)]),
                    pad_sequence([y[b.to(y.device)] for y, b in zip(labels, batches, strict=True)]),
                    [len(batch) for batch in batches],
                )

    def changes(self) -> list[Tensors]:
        """What each client has changed so far."""
        after = {**{name: leaf.detach() for name, leaf in self.leaves.items()}, **self.buffers}
        own = {name: self.tied.get(name, name) for name in self.names}
        moved = {name: difference(after[own[name]], self.before[own[name]]) for name in self.names}
        return [{n: t[client].clone() for n, t in moved.items()} for client in range(len(self))]

    def __len__(self) -> int:
        return len(next(iter(self.leaves.values())))


def weighted_loss(
    network: nn.Module, p: Tensors, b: Tensors, x: Tensor, y: Tensor, weight: Tensor
) -> Tensor:
    """The mean cross-entropy of one client's batch, under parameters ``p`` and buffers ``b``."""
    logits = functional_call(network, (p, b), (x,))
    return (F.cross_entropy(logits, y, reduction="none") * weight).sum()


def has_batch_statistics(model: nn.Module, training: LocalTraining) -> bool:
    return training.mode == "train" and has_batch_norm(model)


def each_clipped(gradients: list[Tensor], limit: float | None) -> list[Tensor]:
    """Gradients ``[K, ...]``, each client's scaled to the norm ``limit`` where it is longer."""
    if limit is None:
        return gradients
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    scale = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
    return [g * scale.view(-1, *(1 for _ in g.shape[1:])) for g in gradients]


def why_not_together(model: nn.Module, members: Sequence[Member]) -> str | None:
    """Why vmap cannot take the model, by one step that nothing comes of; None where it can."""
    recipe = LocalTraining(
        steps=1,
        lr=members[0].training.lr,
        mode=members[0].training.mode,
        batch_size=members[0].training.batch_size,
    )
    inputs = [m.data.normalise(m.images) for m in members]
    labels = [m.labels for m in members]
    try:
        stacked_updates(model, inputs, labels, training=recipe, seeds=list(range(len(members))))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return one_line(error)
    return None


def faster_together(model: nn.Module, members: Sequence[Member]) -> bool:
    """Whether one tensor axis tends to be faster, by rule: equal plans must train equally.

    A GPU has room for all clients at once. A processor gains where operations are so small that
    starting them takes most of the time: where weights have few numbers. False also where vmap
    cannot take the model.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    on_gpu = members[0].images.is_cuda
    small = sum(sizes) <= SMALL * len(sizes)
    return (on_gpu or small) and why_not_together(model, members) is None
