"""A client's look at its own update before it leaves: would the cheap attacks read it?

The client knows its images, so it can score what the server could see::

    guard = Guard(model=model, data=images, threshold=0.5)
    if guard(update, images, labels).leaks: ...
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from keyhole import metrics
from keyhole.attacks import CLOSED_FORM, Attack
from keyhole.audit.scene import attackers
from keyhole.audit.scoring import READ_SSIM, to_pixels
from keyhole.data import ImageSet
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import BadUpdate
from keyhole.models.modes import ClientMode
from keyhole.models.weights import fill
from keyhole.threat import Attacker, Knowledge, Server
from keyhole.update import Update

log = logging.getLogger("keyhole")


@dataclass(frozen=True)
class SelfCheck:
    """What the cheap attacks saw of one update."""

    leaks: bool
    attack: str | None
    """The attack that saw most."""
    ssim: tuple[float, ...]
    """How well it saw each image."""
    threshold: float
    tried: tuple[str, ...]
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Guard:
    """Attacks a client's own update by everything that takes a second, and scores it.

    An update leaks if an image is seen with an SSIM of ``threshold`` or more, and better than a
    plain grey picture would show it. ``defense`` is what the update went through: the guard's
    attackers know it.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: ImageSet,
        threshold: float = READ_SSIM,
        defense: Defense | None = None,
        mode: ClientMode = "train",
    ) -> None:
        self.data, self.threshold, self.mode = data, threshold, mode
        self.defense = defense or NoDefense()
        self.model = self.defense.prepared(model)
        self.attacks: list[Attack] = [
            member() for member in CLOSED_FORM if member.altered_model is None
        ]

    @torch.no_grad()
    def __call__(self, update: Update, images: Tensor, labels: Tensor) -> SelfCheck:
        """Checks ``update``, which came of ``images`` in [0, 1] and their labels."""
        server = Server(self.model)
        tried: list[str] = []
        best: tuple[str | None, list[float]] = (None, [])
        for attack in (a for a in self.attacks if a.reads_images):
            for attacker in attackers(attack, self.defense):
                told = self.knowledge(attack, attacker, labels)
                seen = server.receive(update, told)
                if attack.misfits(seen):
                    continue
                name = f"{attack.name} ({attacker.value})"
                scores = self.scores(attack(seen).images, images)
                tried.append(name)
                if max(scores) > max(best[1], default=-1.0):
                    best = (name, scores)
        null = metrics.ssim(flat(images), images, data_range=1.0).tolist()
        read = [
            s >= self.threshold and s > n
            for s, n in zip(best[1], null if best[1] else [], strict=True)
        ]
        return SelfCheck(
            leaks=any(read),
            attack=best[0],
            ssim=tuple(round(s, 4) for s in best[1]),
            threshold=self.threshold,
            tried=tuple(tried),
            words=words(best[0], read, tried),
        )

    def knowledge(self, attack: Attack, attacker: Attacker, labels: Tensor) -> Knowledge:
        return Knowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            mean=self.data.mean,
            std=self.data.std,
            batch_size=len(labels),
            labels=labels.clone() if "labels" in attack.given else None,
            client_mode=self.mode,
            defense=None if attacker is Attacker.NAIVE else self.defense.spec,
        )

    def scores(self, found: Tensor | None, truth: Tensor) -> list[float]:
        """The SSIM of each of the client's images; what was not found is grey."""
        if found is None or not len(found):
            return [-1.0] * len(truth)
        wide = truth.double().cpu()
        pixels = torch.cat([to_pixels(found.cpu(), self.data), flat(wide)[:1]])
        chosen = metrics.match(pixels[:-1], wide)
        scores: list[float] = metrics.ssim(pixels[chosen], wide, data_range=1.0).tolist()
        return scores


def flat(images: Tensor) -> Tensor:
    """What shows nothing: each image's place filled with the mean colour of all."""
    return images.mean((0, 2, 3), keepdim=True).expand_as(images)


def words(attack: str | None, read: Sequence[bool], tried: Sequence[str]) -> str:
    if not tried:
        return "no cheap attack applies to this update; that does not make it safe"
    if any(read):
        return f"{attack} reads {sum(read)} of {len(read)} images out of this update"
    return f"not read by the attacks tried: {', '.join(tried)}"


ClientData = tuple[nn.Module, ImageSet, Tensor, Tensor]
"""A node's model, the image set it is from, its images in [0, 1] and their labels."""


def guard_mod(
    threshold: float = READ_SSIM,
    *,
    client: Callable[[Any], ClientData],
    defense: Defense | None = None,
    warn: bool = False,
) -> Any:
    """A Flower client mod that withholds an update which would leak, or only warns.

    ``client`` gives a node's own model and images from its context. Put the mod outermost, so that
    it sees the update as the server would: ``ClientApp(mods=[guard_mod(...), as_mod(...)])``.
    """
    from keyhole.federation.flower import before_upload

    def check(update: Update, weights: dict[str, Tensor], context: Any) -> str | None:
        model, data, images, labels = client(context)
        fill(model, weights, "the server's message")
        own = {name for name, _ in model.named_parameters()}
        change = {name: tensor for name, tensor in update.change.items() if name in own}
        guard = Guard(model=model, data=data, threshold=threshold, defense=defense)
        found = guard(Update(change, examples=len(images)), images, labels)
        if not found.leaks:
            return None
        log.warning("keyhole: %s", found.words)
        return None if warn else found.words

    return before_upload(check)


def weights_change(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """What training changed, from two sets of weights of the same model."""
    strangers = sorted(set(before) ^ set(after))
    if strangers:
        raise BadUpdate(f"the two files hold different models: {strangers[0]!r} is in one only")
    for name, tensor in after.items():
        if tensor.shape != before[name].shape:
            raise BadUpdate(f"the two files hold different models: {name!r} differs in shape")
    return {name: after[name] - before[name] for name in after}
