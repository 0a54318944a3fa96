"""How models are made from images: the one under attack, and the attacker's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from keyhole.attacks.membership.crowd import side_by_side
from keyhole.data.image_set import ImageSet
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.federation import Federation, LocalTraining
from keyhole.federation.together import Member, Together, why_not_together

Told = Callable[[int], None]
"""Called with how many more models have been trained."""

Weights = Mapping[str, Tensor]


class ModelKeeper(Protocol):
    """Where trained models are kept, so that an interrupted run need not train them again."""

    def load(self, name: str) -> Weights | None:
        """The weights kept by that name, if there are any."""

    def save(self, name: str, weights: Weights) -> None:
        """Keeps weights, as a whole or not at all."""


AT_ONCE = 16
"""Models that are trained side by side and held in memory, at most."""
SMALL = 1_000_000
"""Parameters below which a model gets one thread of a CPU: more would spend their time on waking
each other."""
LITTLE = 20_000
"""Values in a batch below which small models also gain from sharing operations on a CPU (measured:
LeNet with 8 px images trains twice as fast so, with 32 px images a third slower)."""


@dataclass(frozen=True)
class Labelled:
    """Images ``[n, C, H, W]`` in [0, 1] with their labels ``[n]``."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> Labelled:
        chosen = indices.to(self.images.device)
        return Labelled(self.images[chosen], self.labels[chosen])

    def beside(self, other: Labelled) -> Labelled:
        """These images and then the others."""
        return Labelled(
            torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels])
        )


@dataclass(frozen=True)
class Recipe:
    """What server, clients and attacker know of how a model is trained.

    ``network`` gives an untrained model by seed. One client trains alone, for all epochs of
    ``training``; several share the images equally, and their updates are averaged in each of
    ``rounds``. Every update goes through the doors of ``defense``.
    """

    network: Callable[[int], nn.Module]
    training: LocalTraining
    mean: tuple[float, ...]
    std: tuple[float, ...]
    defense: Defense = field(default_factory=NoDefense)
    clients: int = 1
    rounds: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    keeper: ModelKeeper | None = None
    """Keeps what is trained; None: nothing is kept."""

    def undefended(self) -> Recipe:
        """The recipe in the eyes of one who does not know that there is a defense."""
        return replace(self, defense=NoDefense())

    def trained(
        self, sets: Sequence[Labelled], seeds: Sequence[int], told: Told | None = None
    ) -> Iterator[list[nn.Module]]:
        """A model for each set, by its own first weights and draws; some models at a time."""
        told = told or (lambda _: None)
        for start in range(0, len(sets), AT_ONCE):
            now = slice(start, start + AT_ONCE)
            shares = [
                self.federation(s, seed) for s, seed in zip(sets[now], seeds[now], strict=True)
            ]
            models = [each.model for each in shares]
            with few_threads(models[0]):
                if self.clients == 1 and self.together(models[0], [f.member(1, 0) for f in shares]):
                    self.load_or_train(shares, self.run_side_by_side)
                    told(len(models))
                else:
                    for each in shares:
                        self.load_or_train([each], lambda alone: self.run(alone[0]))
                        told(1)
            yield [model.eval().requires_grad_(False) for model in models]

    def load_or_train(
        self, federations: Sequence[Federation], train: Callable[[Sequence[Federation]], None]
    ) -> None:
        """Gives models the weights that were kept of them, or trains them and keeps theirs.

        Models that train side by side are kept together: fewer of them would round otherwise.
        """
        if self.keeper is None:
            train(federations)
            return
        name = self.name_of(federations)
        kept = self.keeper.load(name)
        if kept is None:
            train(federations)
            trained = [federation.model.state_dict() for federation in federations]
            self.keeper.save(
                name, {f"{i}/{n}": t for i, each in enumerate(trained) for n, t in each.items()}
            )
            return
        for number, federation in enumerate(federations):
            prefix = f"{number}/"
            federation.model.load_state_dict(
                {n.removeprefix(prefix): t for n, t in kept.items() if n.startswith(prefix)}
            )

    def name_of(self, federations: Sequence[Federation]) -> str:
        """Tells these models from others by recipe, seeds, images and first weights."""
        digest = hashlib.sha256()
        facts = (str(self.defense), self.training, self.clients, self.rounds, self.mean, self.std)
        digest.update(repr(facts).encode())
        for federation in federations:
            data = federation.data
            digest.update(repr(federation.seed).encode())
            first = federation.model.state_dict()
            digest.update(repr([(n, t.dtype, tuple(t.shape)) for n, t in first.items()]).encode())
            for tensor in (data.pixels(range(len(data))), data.labels, *first.values()):
                digest.update(bytes_of(tensor))
        return digest.hexdigest()[:16]

    def run_side_by_side(self, federations: Sequence[Federation]) -> None:
        """Trains the only client of each federation, all of them as one tensor axis."""
        models = [each.model for each in federations]
        side_by_side(models, [each.member(1, 0) for each in federations], self.defense)

    def federation(self, members: Labelled, seed: int) -> Federation:
        """The clients who hold ``members``, before the first round."""
        if len(members) < self.clients:
            raise DoesNotFit(
                f"{len(members)} images cannot be shared by {self.clients} clients: "
                "pass fewer --clients, or more --members"
            )
        data = self.image_set(members)
        return Federation(
            model=self.defense.prepared(self.network(seed)).to(self.device),
            data=data,
            shares=[s.tolist() for s in torch.arange(len(members)).tensor_split(self.clients)],
            test=(data, [0]),
            training=self.training,
            defense=self.defense,
            seed=seed,
        )

    def run(self, federation: Federation) -> None:
        """All rounds of one federation."""
        clients = [federation.member(1, client) for client in federation.sampled(1)]
        if self.together(federation.model, clients):
            federation.together = Together()
        for number in range(1, self.rounds + 1):
            federation.round(number, keep_updates=False)

    def together(self, model: nn.Module, members: Sequence[Member]) -> bool:
        """Whether these train as one tensor axis: on a GPU, or where each has little to do."""
        images = members[0].images
        values = self.training.local_batch(len(images)) * images[0].numel()
        pays = self.device.type != "cpu" or (is_small(model) and values < LITTLE)
        fits = pays and Together().takes(model, members, self.defense)
        return fits and why_not_together(model, members) is None

    def image_set(self, held: Labelled) -> ImageSet:
        """Images in memory as a data set that clients read."""
        return ImageSet(
            name="members",
            pixels=lambda indices: held.images[list(indices)] * 255,
            labels=held.labels,
            classes=(),
            size=(held.images.shape[-2], held.images.shape[-1]),
            mean=self.mean,
            std=self.std,
        )


def bytes_of(tensor: Tensor) -> bytes:
    """A tensor's values as they lie in memory, whatever their type."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def is_small(model: nn.Module) -> bool:
    return sum(p.numel() for p in model.parameters()) < SMALL


@contextmanager
def few_threads(model: nn.Module) -> Iterator[None]:
    """One thread on the CPU inside the block where the model is small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_small(model) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def works_on_images(defense: Defense) -> bool:
    """Whether a defense changes images before clients train on them."""
    return type(defense).on_images is not Defense.on_images
