"""What an attack is: it reads an observation, never the truth, and never grades itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from keyhole.attacks.checkpointer import Checkpointer, NullCheckpointer
from keyhole.attacks.returned_images import check_shape, fill_missing_values
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

    Args:
        images: Model inputs ``[n, C, H, W]``, neither clamped nor denormalised; n may be less
            than the batch where only some images could be read.
        labels: Labels ``[n]``.
        confidence: One value in [0, 1] per image: the attacker's own, from what it can check
            without the truth.
        loss_curve: Pairs of iteration and loss.
        frames: Pairs of iteration and ``images`` as they were then.
        clients: Which client of a secure sum each image is believed to be from, ``[n]``.
        masks: Dropout masks, one tensor per dropout layer, if the attack looked for them.
        notes: What a reader should know about how it was computed, one line each.
        diagnostics: Numbers that explain the result, such as condition, residual, iterations.
    """

    images: Tensor | None = None
    labels: Tensor | None = None
    confidence: Tensor | None = None
    loss_curve: tuple[tuple[int, float], ...] = ()
    frames: tuple[tuple[int, Tensor], ...] = ()
    clients: Tensor | None = None
    masks: tuple[Tensor, ...] | None = None
    notes: tuple[str, ...] = ()
    diagnostics: dict[str, float] = field(default_factory=dict)


class Attack(ABC):
    """An attack on what the server saw of one client, or of many.

    Subclasses are frozen dataclasses of hyperparameters and implement :meth:`incompatibilities`,
    :meth:`reads` and :meth:`reconstruct`; one that attacks many victims at once overrides
    :meth:`stream` as well.
    """

    name: ClassVar[str]
    """Defaults to where the class is, ``package.module:Class``."""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """What the model and the update must be like, in words."""
    uses: ClassVar[frozenset[Capability]] = frozenset({Capability.IMAGE_CHANGE})
    """What it can use of what a known defense declares. The base class undoes a declared change
    of the images, unless the attack leaves that capability out."""
    only_adaptive: ClassVar[bool] = False
    """Whether only an attacker who knows the defense can use it."""
    reads_images: ClassVar[bool] = True
    """Whether it looks for images, not only for labels."""
    exact: ClassVar[bool] = True
    """Whether what it reads is right to the grey level if it reads anything."""
    recovers_inputs: ClassVar[bool] = False
    """Whether it finds the model's inputs without assuming how they were normalised."""
    reads_update: ClassVar[bool] = True
    """Whether it reads the update; False: it reads something else."""
    most_rounds: ClassVar[int] = 3
    """Other rounds of a client that are shown to it, at most: the last ones."""
    altered_model: ClassVar[str | None] = None
    """What the server must change in the model before it sends it out, in words; None: nothing."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        name_class(cls)

    @property
    def given(self) -> frozenset[str]:
        """Fields of :class:`Knowledge` that the attack needs besides the recipe: ``labels``, ..."""
        return frozenset()

    def alter(self, model: nn.Module, public: PublicKnowledge | None = None) -> nn.Module:
        """Returns the model as the server sends it out; only malicious servers change it.

        Args:
            model: The global model; it is left as it is.
            public: What the server knows of the federation; None: nothing.
        """
        return model

    def personalise(self, model: nn.Module, client: int, public: PublicKnowledge) -> nn.Module:
        """Returns the altered model for one client of a secure sum; by default, all get the same.

        Args:
            model: What :meth:`alter` returned.
            client: The client's number within the sum.
            public: What the server knew when it altered the model.
        """
        return model

    @abstractmethod
    def incompatibilities(self, observation: Observation) -> list[str]:
        """Says why this attack cannot be tried; empty where it can.

        Args:
            observation: What the server saw of one client.
        """

    def concerns(self, model: nn.Module) -> bool:
        """Whether a report on this model should mention the attack where it does not apply.

        Args:
            model: The global model.
        """
        return True

    @abstractmethod
    def reads(self, observation: Observation) -> set[str]:
        """The names of the parameters whose change the attack needs to see.

        Args:
            observation: What the server saw of one client, to whom the attack applies.
        """

    @abstractmethod
    def reconstruct(self, observation: Observation) -> Reconstruction:
        """Reads the client's images or labels out of what the server saw.

        Args:
            observation: What the server saw of one client.
        """

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        """Yields one reconstruction per observation, in order, as they get ready.

        Args:
            observations: What the server saw of each client.
            checkpointer: Where a long attack saves its state and reports its progress.
        """
        for observation in observations:
            yield self.reconstruct(observation)

    def other_versions(self, observation: Observation) -> list[Reconstruction]:
        """Reads other versions of the client's images: here, from each of its other updates.

        Args:
            observation: What the server saw of one client.
        """
        return [
            self.reconstruct(replace(observation, update=update, earlier=()))
            for update in observation.earlier
        ]

    def matching_capabilities(self, defense: Defense) -> frozenset[Capability]:
        """What this attack can use of what a defense declares.

        Args:
            defense: The clients' defense.
        """
        useless = frozenset() if self.reads_images else frozenset({Capability.IMAGE_CHANGE})
        return (self.uses & defense.declares) - useless

    def knows(self, defense: Defense) -> bool:
        """Whether an attacker who knows the defense attacks differently.

        Args:
            defense: The clients' defense.
        """
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

        Args:
            observations: What the server saw of each client.
            checkpointer: Where a long attack saves its state, and from which it resumes.
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
        reconstructions = self.stream(observations, checkpointer or NullCheckpointer())
        for observation, reconstruction in zip(observations, reconstructions, strict=True):
            yield self.undo_image_change(self.check(reconstruction, observation), observation)

    def check(self, found: Reconstruction, observation: Observation) -> Reconstruction:
        """Returns what was read as it can be scored; raises where it is not images.

        Args:
            found: What the attack read.
            observation: What the server saw of the client.
        """
        if found.images is None:
            return found
        check_shape(self.name, found.images, observation.knowledge.shape)
        images, note = fill_missing_values(found.images)
        return found if note is None else replace(found, images=images, notes=(*found.notes, note))

    def undo_image_change(self, found: Reconstruction, observation: Observation) -> Reconstruction:
        """Undoes a known change of the images, such as a shuffling of blocks, in what was read.

        Args:
            found: What the attack read.
            observation: What the server saw of the client.
        """
        known = observation.knowledge
        defense = known.defense_with(Capability.IMAGE_CHANGE)
        change = None if defense is None else defense.image_change()
        if found.images is None or change is None or Capability.IMAGE_CHANGE not in self.uses:
            return found
        from keyhole.attacks.jigsaw.undo import undo  # solvers are imported only where needed

        all_found = [*(r.images for r in self.other_versions(observation)), found.images]
        versions = [
            denormalise(images, known.mean, known.std).clamp(0, 1)
            for images in all_found
            if images is not None and len(images)
        ]
        if not versions:
            return found
        restored = undo(change, versions, exact=self.exact)
        confidence = found.confidence if restored.confidence is None else restored.confidence
        if confidence is not None and len(confidence) != len(restored.images):
            confidence = None
        return replace(
            found,
            images=normalise(restored.images, known.mean, known.std),
            confidence=confidence,
            notes=(*found.notes, restored.note) if restored.note else found.notes,
            frames=(),
        )

    @property
    def label(self) -> str:
        """Its name, with those of its parameters that differ from their defaults."""
        return label_of(self)

    def __str__(self) -> str:
        return spell_part(self)
