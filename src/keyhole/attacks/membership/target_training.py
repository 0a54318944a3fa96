"""How the target model and the attacker's shadow models are trained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from keyhole.data.image_set import ImageSet
from keyhole.defenses import Defense, NoDefense
from keyhole.defenses.base import uses_door
from keyhole.errors import DoesNotFit
from keyhole.federation import Federation, LocalTraining, average_updates
from keyhole.federation.backends.vmap import VmapTrainer, why_vmap_fails
from keyhole.federation.client import RoundClient

ReportTrained = Callable[[int], None]
"""Called with the number of models trained since the last call."""

Weights = Mapping[str, Tensor]


class ModelCache(Protocol):
    """Stores trained models, so that an interrupted run does not train them again."""

    def load(self, name: str) -> Weights | None:
        """The weights stored under a name; None if there are none."""

    def save(self, name: str, weights: Weights) -> None:
        """Stores weights atomically."""


MAX_STACKED = 16
"""The greatest number of models that are trained at once and held in memory."""
SMALL_MODEL = 1_000_000
"""Parameters below which a model gets one CPU thread: more would only wake each other."""
SMALL_BATCH = 20_000
"""Values per batch below which stacking small models pays on a CPU (measured: LeNet trains twice as
fast with 8 px images, and a third slower with 32 px images)."""


@dataclass(frozen=True)
class LabelledImages:
    """Images with their labels.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        labels: ``[n]``.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> LabelledImages:
        """The images with these numbers.

        Args:
            indices: The numbers, ``[m]``.
        """
        chosen = indices.to(self.images.device)
        return LabelledImages(self.images[chosen], self.labels[chosen])

    def concatenate(self, other: LabelledImages) -> LabelledImages:
        """These images followed by others.

        Args:
            other: The other images.
        """
        return LabelledImages(
            torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels])
        )


@dataclass(frozen=True)
class TargetTraining:
    """How a model is trained, as server, clients and attacker know it.

    Args:
        network: Makes an untrained model from a seed.
        local: A client's local training. A single client trains for all its epochs.
        mean: Mean of each channel, for the normalisation.
        std: Standard deviation of each channel.
        defense: The defense that clients apply.
        clients: The number of clients, which share the images equally.
        rounds: The number of rounds; the clients' updates are averaged after each.
        device: Where models are trained.
        cache: Stores trained models; None: they are not stored.
    """

    network: Callable[[int], nn.Module]
    local: LocalTraining
    mean: tuple[float, ...]
    std: tuple[float, ...]
    defense: Defense = field(default_factory=NoDefense)
    clients: int = 1
    rounds: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: ModelCache | None = None

    def undefended(self) -> TargetTraining:
        """The training as an attacker who does not know the defense assumes it."""
        return replace(self, defense=NoDefense())

    def train_models(
        self,
        sets: Sequence[LabelledImages],
        seeds: Sequence[int],
        report: ReportTrained | None = None,
    ) -> Iterator[list[nn.Module]]:
        """Trains one model per set; yields several models at a time.

        Args:
            sets: The training images of each model.
            seeds: The seed of each model.
            report: Called with the number of models trained since the last call.
        """
        report = report or (lambda _: None)
        for start in range(0, len(sets), MAX_STACKED):
            chunk = slice(start, start + MAX_STACKED)
            federations = [
                self.make_federation(images, seed)
                for images, seed in zip(sets[chunk], seeds[chunk], strict=True)
            ]
            models = [federation.model for federation in federations]
            with limit_threads(models[0]):
                if self.clients == 1 and self._can_stack(models[0], first_clients(federations)):
                    self._load_or_train(federations, self.train_stacked)
                    report(len(models))
                else:
                    for federation in federations:
                        self._load_or_train([federation], self._run_rounds)
                        report(1)
            yield [model.eval().requires_grad_(False) for model in models]

    def _load_or_train(
        self, federations: Sequence[Federation], train: Callable[[Sequence[Federation]], None]
    ) -> None:
        """Loads the models' weights from the cache, or trains the models and stores them.

        Models that train stacked are stored together, because smaller stacks round differently.
        """
        if self.cache is None:
            train(federations)
            return
        name = self._cache_name(federations)
        stored = self.cache.load(name)
        if stored is None:
            train(federations)
            states = [federation.model.state_dict() for federation in federations]
            weights = {f"{i}/{n}": t for i, state in enumerate(states) for n, t in state.items()}
            self.cache.save(name, weights)
            return
        for number, federation in enumerate(federations):
            prefix = f"{number}/"
            federation.model.load_state_dict(
                {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
            )

    def _cache_name(self, federations: Sequence[Federation]) -> str:
        """A digest of training, seeds, images and first weights."""
        digest = hashlib.sha256()
        facts = (str(self.defense), self.local, self.clients, self.rounds, self.mean, self.std)
        digest.update(repr(facts).encode())
        for federation in federations:
            data = federation.data
            digest.update(repr(federation.seed).encode())
            first = federation.model.state_dict()
            digest.update(repr([(n, t.dtype, tuple(t.shape)) for n, t in first.items()]).encode())
            for tensor in (data.pixels(range(len(data))), data.labels, *first.values()):
                digest.update(to_bytes(tensor))
        return digest.hexdigest()[:16]

    def train_stacked(self, federations: Sequence[Federation]) -> None:
        """Trains the only client of each federation, all of them along one tensor axis.

        Args:
            federations: Federations of one client each.
        """
        models = [federation.model for federation in federations]
        trained = VmapTrainer().train_models(
            models, first_clients(federations), defense=self.defense
        )
        for model, (update, _) in zip(models, trained, strict=True):
            model.load_state_dict(average_updates(model.state_dict(), [update]))

    def make_federation(self, members: LabelledImages, seed: int) -> Federation:
        """Clients that share images equally, before the first round.

        Args:
            members: The images on which the model is to be trained.
            seed: The seed of the model and of the clients.
        """
        if len(members) < self.clients:
            raise DoesNotFit(
                f"{len(members)} images cannot be shared by {self.clients} clients: "
                "pass fewer --clients, or more --members"
            )
        data = self._to_image_set(members)
        return Federation(
            model=self.defense.prepare_model(self.network(seed)).to(self.device),
            data=data,
            shares=[s.tolist() for s in torch.arange(len(members)).tensor_split(self.clients)],
            test=(data, [0]),
            training=self.local,
            defense=self.defense,
            seed=seed,
        )

    def _run_rounds(self, federations: Sequence[Federation]) -> None:
        """Runs all rounds of each federation."""
        for federation in federations:
            clients = [federation.make_client(1, n) for n in federation.sample_clients(1)]
            if self._can_stack(federation.model, clients):
                federation.backend = VmapTrainer()
            for number in range(1, self.rounds + 1):
                federation.run_round(number, keep_updates=False)

    def _can_stack(self, model: nn.Module, clients: Sequence[RoundClient]) -> bool:
        """Whether these clients train along one tensor axis: on a GPU, or if each does little."""
        images = clients[0].images
        values = self.local.batch_size_for(len(images)) * images[0].numel()
        pays = self.device.type != "cpu" or (is_small(model) and values < SMALL_BATCH)
        fits = pays and VmapTrainer().supports(
            model, [len(client.images) for client in clients], self.local, self.defense
        )
        return fits and why_vmap_fails(model, clients) is None

    def _to_image_set(self, members: LabelledImages) -> ImageSet:
        """Images in memory as a data set for clients."""
        return ImageSet(
            name="members",
            pixels=lambda indices: members.images[list(indices)] * 255,
            labels=members.labels,
            classes=(),
            size=(members.images.shape[-2], members.images.shape[-1]),
            mean=self.mean,
            std=self.std,
        )


def first_clients(federations: Sequence[Federation]) -> list[RoundClient]:
    """The first client of each federation in its first round."""
    return [federation.make_client(1, 0) for federation in federations]


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values in memory."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def is_small(model: nn.Module) -> bool:
    """Whether a model is too small to gain from several threads."""
    return sum(p.numel() for p in model.parameters()) < SMALL_MODEL


@contextmanager
def limit_threads(model: nn.Module) -> Iterator[None]:
    """Limits torch to one CPU thread inside the block if the model is small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_small(model) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def changes_images(defense: Defense) -> bool:
    """Whether a defense changes images before clients train on them."""
    return uses_door(defense, "on_images")
