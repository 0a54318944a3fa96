"""Which client holds which images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.data.image_set import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.registry import Registry

Shares = list[list[int]]
"""Image indices, client by client; no image has two owners."""


class Partition(ABC):
    """A way to share images out among clients."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        """Shares ``images``, indices into ``data``, out among ``clients``."""

    def __call__(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        """As :meth:`split`; raises :class:`DoesNotFit` where a client would get nothing."""
        if clients > len(images):
            raise DoesNotFit(
                f"data set {data.name!r} has {len(images)} images to train on, too few for "
                f"{clients} clients: pass fewer --clients"
            )
        shares = self.split(data, images, clients, draw)
        empty = [number for number, share in enumerate(shares) if not share]
        if empty:
            raise DoesNotFit(
                f"partition {self.name!r} leaves client {empty[0]} without images: pass fewer "
                "--clients or another --partition"
            )
        return shares


def shuffled(images: Sequence[int], draw: torch.Generator) -> list[int]:
    return [images[i] for i in torch.randperm(len(images), generator=draw).tolist()]


def dealt(images: Sequence[int], clients: int) -> Shares:
    """One after another, like cards."""
    return [list(images[number::clients]) for number in range(clients)]


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Every client draws from the same bag."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "images at random, equally many for all"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        return dealt(shuffled(images, draw), clients)


@dataclass(frozen=True, kw_only=True)
class Balanced(Partition):
    """Every client gets as many images of each class as the others, give or take one."""

    name: ClassVar[str] = "balanced"
    summary: ClassVar[str] = "equally many images of every class for all"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        mixed = shuffled(images, draw)
        by_class = sorted(mixed, key=lambda i: int(data.labels[i]))
        return dealt(by_class, clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is shared out in proportions drawn from Dirichlet(alpha): small is skewed.

    Every client gets one image before the rest is shared out.
    """

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "classes skewed from client to client, the more so the smaller alpha"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=draw)))
        mixed = shuffled(images, draw)
        shares: Shares = [[image] for image in mixed[:clients]]
        labels = data.labels[mixed[clients:]].tolist()
        for label in sorted(set(labels)):
            members = [i for i, y in zip(mixed[clients:], labels, strict=True) if y == label]
            portions = rng.dirichlet([self.alpha] * clients)
            cuts = np.round(np.cumsum(portions)[:-1] * len(members)).astype(int)
            for share, part in zip(shares, np.split(np.array(members), cuts), strict=True):
                share.extend(part.tolist())
        return shares


@dataclass(frozen=True, kw_only=True)
class ByUser(Partition):
    """Whole users to clients: the first ones a user each, the others are dealt out after them."""

    name: ClassVar[str] = "by-user"
    summary: ClassVar[str] = "whole users (folders USER/CLASS/IMAGE) to clients"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        users = data.users if data.users is not None else data.groups
        if users is None:
            raise DoesNotFit(
                f"data set {data.name!r} does not say whose image is whose: name a folder "
                "USER/CLASS/IMAGE, or another --partition"
            )
        owner = users[list(images)].tolist()
        names = sorted(set(owner))
        if clients > len(names):
            raise DoesNotFit(
                f"data set {data.name!r} has {len(names)} users, too few for {clients} clients: "
                "pass fewer --clients"
            )
        client = {user: number % clients for number, user in enumerate(shuffled(names, draw))}
        shares: Shares = [[] for _ in range(clients)]
        for image, user in zip(images, owner, strict=True):
            shares[client[user]].append(image)
        return shares


PARTITIONS: Registry[Partition] = Registry("partition", [Iid, Balanced, Dirichlet, ByUser])
