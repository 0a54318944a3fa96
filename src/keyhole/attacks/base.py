"""What an attack is: it reads an observation, never the truth, and never grades itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.data import denormalise
from keyhole.data.image_set import normalise
from keyhole.defenses.base import Defense
from keyhole.defenses.capabilities import Capability
from keyhole.errors import DoesNotFit
from keyhole.registry import label_of, name_class, spell_part
from keyhole.threat import Observation, PublicKnowledge


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
    clients: Tensor | None = None
    """Which client of a secure sum each image is believed to come from, ``[n]``."""
    masks: tuple[Tensor, ...] | None = None
    """Dropout masks, one tensor a site, where they were looked for."""
    notes: tuple[str, ...] = ()
    """What a reader should know of how it was computed, a line each."""
    diagnostics: dict[str, float] = field(default_factory=dict)


class Attack(ABC):
    """An attack on what the server saw of one client, or of many.

    Subclasses are frozen dataclasses of hyperparameters and implement :meth:`incompatibilities`,
    :meth:`reads` and :meth:`reconstruct`; one that attacks many victims at once overrides
    :meth:`stream` as well.
    """

    name: ClassVar[str]
    """Of a class that declares none: where it is, ``package.module:Class``."""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """In words: what the model and the update must be like."""
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})
    """What it can use of what a known defense declares. A change of images is undone in whatever
    an attack reads, unless it leaves that capability out."""
    only_adaptive: ClassVar[bool] = False
    """Whether it is of use only to an attacker who knows the defense."""
    reads_images: ClassVar[bool] = True
    """Whether it looks for images, not for labels alone."""
    exact: ClassVar[bool] = True
    """Whether what it reads is right to the grey level where it reads at all."""
    recovers_inputs: ClassVar[bool] = False
    """Whether it finds the model's very inputs, whatever normalisation they are taken for."""
    reads_update: ClassVar[bool] = True
    """Whether it looks at the update, and not elsewhere."""
    altered_model: ClassVar[str | None] = None
    """What the server must change in the model before it sends it out; None: nothing."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        name_class(cls)

    @property
    def given(self) -> frozenset[str]:
        """Fields of Knowledge beyond the recipe that this attack must be told: ``labels``, ..."""
        return frozenset()

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        """The model as the server sends it out; only attacks that alter it override this."""
        return model

    def personalise(self, model: nn.Module, client: int, public: PublicKnowledge) -> nn.Module:
        """The altered model as one client of a secure sum gets it; the same for all, unless said.

        Args:
            model: What :meth:`alter` returned.
            client: The client's number within the sum.
            public: What the server knew when it altered the model.
        """
        return model

    @abstractmethod
    def incompatibilities(self, observation: Observation) -> list[str]:
        """Why this attack cannot be tried on ``observation``; empty where it can."""

    @abstractmethod
    def reads(self, observation: Observation) -> set[str]:
        """The parameters whose change the attack needs to see, where it applies."""

    @abstractmethod
    def reconstruct(self, observation: Observation) -> Reconstruction:
        """Reads the client's images or labels out of ``observation``."""

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        """One reconstruction for each observation, in order, as they get ready."""
        for observation in observations:
            yield self.reconstruct(observation)

    def other_versions(self, observation: Observation) -> list[Reconstruction]:
        """What other versions of the client's images show: here, each of its other updates."""
        alone = [replace(observation, update=u, earlier=()) for u in observation.earlier]
        return [self.reconstruct(each) for each in alone]

    def matching_capabilities(self, defense: Defense) -> frozenset[Capability]:
        """What this attack can use of what ``defense`` declares."""
        none_read = frozenset() if self.reads_images else frozenset({Capability.IMAGE_CHANGE})
        return (self.uses & defense.declares) - none_read

    def knows(self, defense: Defense) -> bool:
        """Whether an attacker who knows ``defense`` attacks otherwise than one who does not."""
        return bool(self.matching_capabilities(defense))

    @final
    def __call__(self, observation: Observation) -> Reconstruction:
        """Attacks one client; raises :class:`DoesNotFit` where the attack does not apply."""
        return next(self.on_many([observation]))

    @final
    @torch.no_grad()
    def on_many(
        self, observations: Sequence[Observation], checkpointer: Checkpointer | None = None
    ) -> Iterator[Reconstruction]:
        """Attacks several clients that trained the same model.

        A long attack keeps its state on the ``checkpointer`` and goes on from what it finds there.
        """
        for observation in observations:
            observation.update.check()
        reasons = self.incompatibilities(observations[0]) if observations else []
        if reasons:
            raise DoesNotFit(f"attack {self.name!r} does not apply: {'; '.join(reasons)}")
        for observation in observations:
            absent = sorted(self.reads(observation) - set(observation.update.change))
            if absent:
                raise DoesNotFit(
                    f"attack {self.name!r} reads {absent[0]!r}, which the update does not have"
                )
        found = self.stream(observations, checkpointer or NullCheckpointer())
        for observation, reconstruction in zip(observations, found, strict=True):
            yield self.undo_image_change(reconstruction, observation)

    def undo_image_change(self, found: Reconstruction, observation: Observation) -> Reconstruction:
        """What was read, with a known change of the images undone."""
        known = observation.knowledge
        defense = known.declared(Capability.IMAGE_CHANGE)
        change = None if defense is None else defense.image_change()
        if found.images is None or change is None or Capability.IMAGE_CHANGE not in self.uses:
            return found
        from keyhole.attacks.jigsaw.undo import undo  # solvers are imported only where needed

        all_found = [*(r.images for r in self.other_versions(observation)), found.images]
        seen = [
            denormalise(images, known.mean, known.std).clamp(0, 1)
            for images in all_found
            if images is not None and len(images)
        ]
        if not seen:
            return found
        restored = undo(change, seen, exact=self.exact)
        sure = found.confidence if restored.confidence is None else restored.confidence
        notes = (*found.notes, restored.note) if restored.note else found.notes
        return replace(
            found,
            images=normalise(restored.images, known.mean, known.std),
            confidence=None if sure is None or len(sure) != len(restored.images) else sure,
            notes=notes,
            frames=(),
        )

    @property
    def label(self) -> str:
        """Its name, with those of its parameters that are not the usual ones."""
        return label_of(self)

    def __str__(self) -> str:
        return spell_part(self)
