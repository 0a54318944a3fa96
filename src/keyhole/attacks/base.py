"""What an attack is: it reads an observation, never the truth, and never grades itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from keyhole.attacks.undoing import UNDOING
from keyhole.attacks.workbench import Bare, Workbench
from keyhole.data import denormalise
from keyhole.data.image_set import normalise
from keyhole.errors import DoesNotFit
from keyhole.registry import parameters, spell, switched_off
from keyhole.threat import Observation


@dataclass(frozen=True)
class Reconstruction:
    """What the attacker believes it saw.

    ``images`` are model inputs ``[n, C, H, W]``, not clamped or denormalised; n may be less than
    the batch where only some images could be read. ``confidence`` (one value an image, in [0, 1])
    is the attacker's own, from what it can check without the truth. ``diagnostics`` are numbers
    that explain the result: condition, residual, iterations.
    """

    images: Tensor | None = None
    labels: Tensor | None = None
    confidence: Tensor | None = None
    loss_curve: tuple[tuple[int, float], ...] = ()
    """Iteration and loss."""
    frames: tuple[tuple[int, Tensor], ...] = ()
    """Iteration and ``images`` as they were then."""
    masks: tuple[Tensor, ...] | None = None
    """Dropout masks, one tensor a site, where they were looked for."""
    notes: tuple[str, ...] = ()
    """What a reader should know of how it was computed, a line each."""
    diagnostics: dict[str, float] = field(default_factory=dict)


class Attack(ABC):
    """An attack on what the server saw of one client, or of many.

    Subclasses are frozen dataclasses of hyperparameters and implement :meth:`misfits`,
    :meth:`reads` and :meth:`reconstruct`; one that attacks many victims at once overrides
    :meth:`stream` as well.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[str]
    """In words: what the model and the update must be like."""
    adapts_to: ClassVar[frozenset[str]] = frozenset()
    """Defenses that this attack acts upon when it knows of them."""
    only_adaptive: ClassVar[bool] = False
    """Whether it is of use only to an attacker who knows the defense."""
    reads_images: ClassVar[bool] = True
    """Whether it looks for images, not for labels alone."""
    undoes: ClassVar[bool] = True
    """Whether a known defense on images is undone in what it reads (see :mod:`undoing`)."""
    exact: ClassVar[bool] = True
    """Whether what it reads is right to the grey level where it reads at all."""
    recovers_inputs: ClassVar[bool] = False
    """Whether it finds the model's very inputs, whatever normalisation they are taken for."""
    reads_update: ClassVar[bool] = True
    """Whether it looks at the update, and not elsewhere."""
    altered_model: ClassVar[str | None] = None
    """What the server must change in the model before it sends it out; None: nothing."""

    @property
    def given(self) -> frozenset[str]:
        """Fields of Knowledge beyond the recipe that this attack must be told: ``labels``, ..."""
        return frozenset()

    def alter(self, model: nn.Module) -> nn.Module:
        """The model as the server sends it out; only attacks that alter it override this."""
        return model

    @abstractmethod
    def misfits(self, observation: Observation) -> list[str]:
        """Why this attack cannot be tried on ``observation``; empty where it can."""

    @abstractmethod
    def reads(self, observation: Observation) -> set[str]:
        """The parameters whose change the attack needs to see, where it applies."""

    @abstractmethod
    def reconstruct(self, observation: Observation) -> Reconstruction:
        """Reads the client's images or labels out of ``observation``."""

    def stream(
        self, observations: Sequence[Observation], bench: Workbench
    ) -> Iterator[Reconstruction]:
        """One reconstruction for each observation, in order, as they get ready."""
        for observation in observations:
            yield self.reconstruct(observation)

    def others(self, observation: Observation) -> list[Reconstruction]:
        """What other versions of the client's images show: here, each of its other updates."""
        alone = [replace(observation, update=u, earlier=()) for u in observation.earlier]
        return [self.reconstruct(each) for each in alone]

    def knows(self, defense: str) -> bool:
        """Whether an attacker who knows of ``defense`` gets more by this attack."""
        undoes = self.undoes and self.reads_images and not self.only_adaptive
        return defense in self.adapts_to or (undoes and defense in UNDOING)

    @final
    def __call__(self, observation: Observation) -> Reconstruction:
        """Attacks one client; raises :class:`DoesNotFit` where the attack does not apply."""
        return next(self.on_many([observation]))

    @final
    @torch.no_grad()
    def on_many(
        self, observations: Sequence[Observation], bench: Workbench | None = None
    ) -> Iterator[Reconstruction]:
        """Attacks several clients that trained the same model.

        A long attack keeps its state on the ``bench`` and goes on from what it finds there.
        """
        for observation in observations:
            observation.update.check()
        reasons = self.misfits(observations[0]) if observations else []
        if reasons:
            raise DoesNotFit(f"attack {self.name!r} does not apply: {'; '.join(reasons)}")
        for observation in observations:
            absent = sorted(self.reads(observation) - set(observation.update.change))
            if absent:
                raise DoesNotFit(
                    f"attack {self.name!r} reads {absent[0]!r}, which the update does not have"
                )
        found = self.stream(observations, bench or Bare())
        for observation, reconstruction in zip(observations, found, strict=True):
            yield self.undone(reconstruction, observation)

    def undone(self, found: Reconstruction, observation: Observation) -> Reconstruction:
        """What was read, less a known defense on the images (see :mod:`undoing`)."""
        known = observation.knowledge
        concerned = known.defense is not None and known.defense.name in UNDOING
        if found.images is None or known.defense is None or not (concerned and self.undoes):
            return found
        all_found = [*(r.images for r in self.others(observation)), found.images]
        seen = [
            denormalise(images, known.mean, known.std).clamp(0, 1)
            for images in all_found
            if images is not None and len(images)
        ]
        if not seen:
            return found
        undone = UNDOING[known.defense.name](seen, known.defense, self.exact)
        sure = found.confidence if undone.confidence is None else undone.confidence
        notes = (*found.notes, undone.note) if undone.note else found.notes
        return replace(
            found,
            images=normalise(undone.images, known.mean, known.std),
            confidence=None if sure is None or len(sure) != len(undone.images) else sure,
            notes=notes,
            frames=(),
        )

    @property
    def called(self) -> str:
        """Its name, with those of its parameters that are not the usual ones."""
        usual = parameters(type(self)())
        chosen = {k: v for k, v in parameters(self).items() if v != usual[k]}
        return spell(self.name, chosen, off=chosen)

    def __str__(self) -> str:
        return spell(self.name, parameters(self), off=switched_off(self))
