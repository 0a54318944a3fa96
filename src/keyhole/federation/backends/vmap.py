"""Trains clients side by side: their weights are one more tensor axis (vmap over grad).

Small models leave a processor idle between small operations; ten clients at once keep it busy. The
result is that of one client after another, to float tolerance.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from keyhole.defenses.base import Defense, Telemetry, uses_door
from keyhole.errors import one_line
from keyhole.federation.augmentation import augment_images
from keyhole.federation.backends.base import Backend
from keyhole.federation.client import RoundClient, update_from_change
from keyhole.federation.precision import autocast
from keyhole.federation.training import LocalTraining
from keyhole.models.modes import has_batch_norm, is_partly_frozen, set_mode
from keyhole.seeds import generator as named_generator
from keyhole.seeds import seeded_globally
from keyhole.settings import Precision
from keyhole.update import Update, check_weights, subtract

Tensors = dict[str, Tensor]

STACKED_BYTES = 1 << 26
"""Bytes of weights that train at once on a CPU; training takes about ten times as many."""

SMALL_WEIGHT = 32_768
"""Mean size of a weight tensor up to which a CPU trains clients faster when they are stacked.

LeNet has 1,000 and the small ViT 10,000; the MLP with 94,000 and ResNet-18 with 180,000 are slower.
"""


class VmapTrainer(Backend):
    """Trains clients that take equally many steps as one tensor axis."""

    def supports(
        self, model: nn.Module, sizes: Sequence[int], training: LocalTraining, defense: Defense
    ) -> bool:
        """Returns whether clients with ``sizes`` images each can be stacked.

        They must take equally many steps, train all of the model and share weights, and the
        defense must not compute a gradient of its own. Shorter batches are padded, which batch
        statistics would notice.
        """
        if is_partly_frozen(model):
            return False
        steps = {training.count_steps(size) for size in sizes}
        may_pad = len(set(sizes)) == 1 or not uses_batch_statistics(model, training)
        stackable = len(sizes) > 1 and len(steps) == 1 and may_pad
        return stackable and training.lr is not None and not uses_door(defense, "on_step")

    def clients_at_once(self, model: nn.Module) -> int:
        """Returns for how many clients' weights there is memory."""
        first = next(model.parameters())
        room = STACKED_BYTES
        if first.is_cuda:
            room = max(room, torch.cuda.get_device_properties(first.device).total_memory // 32)
        size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        return max(2, int(room // max(size, 1)))

    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        check_weights(model.state_dict())
        return self.train_models([model] * len(clients), clients, defense=defense)

    def train_models(
        self, models: Sequence[nn.Module], clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        """Does the same where every client starts from weights of its own.

        Args:
            models: The model that each client starts from.
            clients: The clients, as many as models.
            defense: The defense of every client.
        """
        sides = [client.side(model) for client, model in zip(clients, models, strict=True)]
        epochs = itertools.count()

        def next_inputs() -> list[Tensor]:
            epoch, inputs = next(epochs), []
            for client, side in zip(clients, sides, strict=True):
                side.images = client.images_for(epoch)
                inputs.append(client.data.normalise(defense.on_images(side.images, side)))
            return inputs

        first = next_inputs()
        stacked = StackedClients(
            [defense.on_model(model, side) for model, side in zip(models, sides, strict=True)],
            clients[0].training,
        )
        seeds = [int(torch.randint(2**62, (), generator=c.generator)) for c in clients]
        stacked.train(first, [client.labels for client in clients], seeds, next_inputs)
        updates = stacked.updates([len(images) for images in first])
        return [
            (defense.on_update(update.check(), side), side.telemetry)
            for update, side in zip(updates, sides, strict=True)
        ]


def train_stacked(
    models: Sequence[nn.Module],
    inputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    *,
    training: LocalTraining,
    seeds: Sequence[int],
) -> list[Update]:
    """Trains K ``models``, each on its own inputs ``[n, C, H, W]``; returns K updates.

    The models differ in their weights alone. Batches are those that
    :func:`keyhole.federation.client.compute_local_update` draws; shorter ones are padded with
    images that have no weight.
    """
    stacked = StackedClients(models, training)
    stacked.train(inputs, labels, seeds)
    return stacked.updates([len(x) for x in inputs])


class StackedClients:
    """The networks of K clients as one network with weights ``[K, ...]``."""

    def __init__(self, models: Sequence[nn.Module], training: LocalTraining) -> None:
        model = models[0]
        local = set_mode(copy.deepcopy(model), training.mode)
        weights, buffers = stack_module_state(list(models))
        self.leaves = {name: nn.Parameter(tensor.detach()) for name, tensor in weights.items()}
        self.buffers = {name: tensor.detach().clone() for name, tensor in buffers.items()}
        self.before = {name: t.detach().clone() for name, t in {**weights, **buffers}.items()}
        first = {id(p): name for name, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self.tied = {name: first[id(p)] for name, p in every}
        self.names = list(model.state_dict())
        self.training = training
        self.optimiser = training.make_optimiser(self.leaves.values())
        # Bound to the network, not to this object: a cycle would keep all weights in memory.
        self.gradients = vmap(
            grad(partial(weighted_loss, local, training.precision)), randomness="different"
        )

    def step(self, x: Tensor, y: Tensor, lengths: Sequence[int]) -> None:
        """Takes one step of all clients; ``x [batch, K, C, H, W]`` is padded beyond ``lengths``."""
        x, y = x.transpose(0, 1), y.transpose(0, 1)
        if self.training.augment:
            x = augment_images(x.flatten(0, 1)).view_as(x)
        sizes = torch.tensor(lengths, device=x.device)[:, None]
        image_weights = (torch.arange(x.shape[1], device=x.device) < sizes).to(x) / sizes
        named = {name: leaf.detach() for name, leaf in self.leaves.items()}
        found = self.gradients(named, self.buffers, x, y, image_weights)
        clipped = clip_per_client([found[name] for name in self.leaves], self.training.clip)
        for leaf, gradient in zip(self.leaves.values(), clipped, strict=True):
            leaf.grad = gradient
        self.optimiser.step()

    def train(
        self,
        inputs: Sequence[Tensor],
        labels: Sequence[Tensor],
        seeds: Sequence[int],
        next_inputs: Callable[[], list[Tensor]] | None = None,
    ) -> None:
        """Takes all steps of all clients, with the batches that each would draw alone.

        ``next_inputs`` returns the inputs of every epoch after the first; None means that they
        stay the same.
        """
        draws = [
            self.training.batches(len(x), named_generator(seed, "batches"))
            for x, seed in zip(inputs, seeds, strict=True)
        ]
        last_epoch = 0
        with seeded_globally(seeds[0]):
            for chosen in zip(*draws, strict=True):
                epoch, batches = chosen[0][0], [indices for _, indices in chosen]
                if epoch > last_epoch and next_inputs is not None:
                    inputs = next_inputs()
                last_epoch = epoch
                self.step(
                    pad_sequence([x[b.to(x.device)] for x, b in zip(inputs, batches, strict=True)]),
                    pad_sequence([y[b.to(y.device)] for y, b in zip(labels, batches, strict=True)]),
                    [len(batch) for batch in batches],
                )

    def updates(self, examples: Sequence[int]) -> list[Update]:
        """Returns what each client, with so many images, has changed so far."""
        after = {**{name: leaf.detach() for name, leaf in self.leaves.items()}, **self.buffers}
        own = {name: self.tied.get(name, name) for name in self.names}
        change = {name: subtract(after[own[name]], self.before[own[name]]) for name in self.names}
        return [
            update_from_change(
                {name: tensor[client].clone() for name, tensor in change.items()},
                self.training,
                count,
            )
            for client, count in enumerate(examples)
        ]


def weighted_loss(
    network: nn.Module,
    precision: Precision | None,
    p: Tensors,
    b: Tensors,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
) -> Tensor:
    """Returns the mean cross-entropy of one client's batch, given parameters and buffers."""
    with autocast(precision, x.device):
        logits = functional_call(network, (p, b), (x,))
    logits = logits.float() if precision == "bf16" else logits
    return (F.cross_entropy(logits, y, reduction="none") * weight).sum()


def uses_batch_statistics(model: nn.Module, training: LocalTraining) -> bool:
    return training.mode == "train" and has_batch_norm(model)


def clip_per_client(gradients: list[Tensor], limit: float | None) -> list[Tensor]:
    """Scales each client's gradient, of ``[K, ...]``, to the norm ``limit`` where it is longer."""
    if limit is None:
        return gradients
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    scale = (limit / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
    return [g * scale.view(-1, *(1 for _ in g.shape[1:])) for g in gradients]


def why_vmap_fails(model: nn.Module, clients: Sequence[RoundClient]) -> str | None:
    """Tries one step and returns why vmap cannot run the model; None if it can."""
    one_step = LocalTraining(
        steps=1,
        lr=clients[0].training.lr,
        mode=clients[0].training.mode,
        batch_size=clients[0].training.batch_size,
        precision=clients[0].training.precision,
    )
    inputs = [client.data.normalise(client.images) for client in clients]
    labels = [client.labels for client in clients]
    try:
        models, seeds = [model] * len(clients), range(len(clients))
        train_stacked(models, inputs, labels, training=one_step, seeds=seeds)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return one_line(error)
    return None


def vmap_is_faster(model: nn.Module, clients: Sequence[RoundClient]) -> bool:
    """Returns whether stacking tends to be faster, by a fixed rule: equal plans train equally.

    A GPU has room for all clients at once. A CPU gains where weights are so small that starting
    operations takes most of the time. False also where vmap cannot run the model.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    on_gpu = clients[0].images.is_cuda
    small = sum(sizes) <= SMALL_WEIGHT * len(sizes)
    return (on_gpu or small) and why_vmap_fails(model, clients) is None
