"""Partitions: which client holds which images."""

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

Shares = list[list[int]]
"""The image indices of each client; no image has two owners."""


class Partition(ABC):
    """A way to distribute images among clients."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        """Distributes ``images``, indices into ``data``, among ``clients`` clients."""

    def __call__(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        """Calls :meth:`split`; raises :class:`DoesNotFit` if a client would get no image."""
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


def shuffle(images: Sequence[int], draw: torch.Generator) -> list[int]:
    return [images[i] for i in torch.randperm(len(images), generator=draw).tolist()]


def split_evenly(images: Sequence[int], clients: int) -> Shares:
    """Gives each client every ``clients``-th image."""
    return [list(images[number::clients]) for number in range(clients)]


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """All clients draw at random from the same images."""

    name: ClassVar[str] = "iid"
    summary: ClassVar[str] = "images at random, equally many per client"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        return split_evenly(shuffle(images, draw), clients)


@dataclass(frozen=True, kw_only=True)
class Balanced(Partition):
    """Every client gets as many images of each class as the others, give or take one."""

    name: ClassVar[str] = "balanced"
    summary: ClassVar[str] = "equally many images of every class per client"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        mixed = shuffle(images, draw)
        by_class = sorted(mixed, key=lambda i: int(data.labels[i]))
        return split_evenly(by_class, clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each class is distributed in proportions drawn from Dirichlet(alpha): small is skewed.

    Every client gets one image before the rest is distributed.
    """

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5

    name: ClassVar[str] = "dirichlet"
    summary: ClassVar[str] = "class proportions differ between clients, more so for small alpha"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=draw)))
        mixed = shuffle(images, draw)
        shares: Shares = [[image] for image in mixed[:clients]]
        labels = data.labels[mixed[clients:]].tolist()
        for label in sorted(set(labels)):
            of_class = [i for i, y in zip(mixed[clients:], labels, strict=True) if y == label]
            portions = rng.dirichlet([self.alpha] * clients)
            cuts = np.round(np.cumsum(portions)[:-1] * len(of_class)).astype(int)
            for share, part in zip(shares, np.split(np.array(of_class), cuts), strict=True):
                share.extend(part.tolist())
        return shares


@dataclass(frozen=True, kw_only=True)
class ByUser(Partition):
    """All images of a user go to one client; users are distributed evenly among clients."""

    name: ClassVar[str] = "by-user"
    summary: ClassVar[str] = "whole users (folders USER/CLASS/IMAGE) to clients"

    def split(
        self, data: ImageSet, images: Sequence[int], clients: int, draw: torch.Generator
    ) -> Shares:
        users = data.users if data.users is not None else data.groups
        if users is None:
            raise DoesNotFit(
                f"data set {data.name!r} does not say which user an image belongs to: name a "
                "folder USER/CLASS/IMAGE, or another --partition"
            )
        owner = users[list(images)].tolist()
        names = sorted(set(owner))
        if clients > len(names):
            raise DoesNotFit(
                f"data set {data.name!r} has {len(names)} users, too few for {clients} clients: "
                "pass fewer --clients"
            )
        client = {user: number % clients for number, user in enumerate(shuffle(names, draw))}
        shares: Shares = [[] for _ in range(clients)]
        for image, user in zip(images, owner, strict=True):
            shares[client[user]].append(image)
        return shares
