"""What a membership attack is: it scores how likely a model was trained on each image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor, nn

from keyhole.attacks.membership.target_training import (
    LabelledImages,
    ReportTrained,
    TargetTraining,
    changes_images,
    limit_threads,
)
from keyhole.data.image_set import normalise
from keyhole.defenses import ClientSide
from keyhole.errors import DoesNotFit
from keyhole.federation.augmentation import augment_images
from keyhole.registry import label_of, name_class, spell_part
from keyhole.seeds import derive, generator, seeded_globally

EVALUATED_AT_ONCE = 512
MORE_IMAGES_HINT = "pass fewer --members or --clients, or choose a larger data set"


@dataclass(frozen=True)
class MembershipProblem:
    """Everything that the attacker is given; it does not contain who is a member.

    Args:
        model: The target model.
        candidates: Images some of which the target model was trained on.
        public: Images on which it was not trained.
        training: How models are trained, as far as the attacker knows: without the defense for an
            attacker who does not know it.
        members: The number of images on which the target model was trained.
        seed: Seed of the attacker's own random numbers; not the seed of the target model.
    """

    model: nn.Module
    candidates: LabelledImages
    public: LabelledImages
    training: TargetTraining
    members: int
    seed: int = 0

    def useful_views(self, views: int) -> int:
        """The number of views, or 0 if the training neither augments nor changes images.

        Args:
            views: The number of views that are asked for.
        """
        training = self.training
        return views if training.local.augment or changes_images(training.defense) else 0

    def inputs(self, images: Tensor, view: int | None) -> Tensor:
        """Model inputs: a fresh view of the images, made as clients make it.

        Args:
            images: ``[n, C, H, W]`` in [0, 1].
            view: The number of the view; None: the images as they are.
        """
        training = self.training
        if view is not None:
            side = ClientSide(generator=generator(self.seed, "view", view))
            images = training.defense.on_images(images, side)
        inputs = normalise(images, training.mean, training.std)
        if view is None or not training.local.augment:
            return inputs
        with seeded_globally(derive(self.seed, "augmented", view)):
            return augment_images(inputs)

    def query(self, models: Sequence[nn.Module], images: LabelledImages, views: int) -> Tensor:
        """Logits ``[models, views, n, classes]`` in float64; every model sees the same views.

        Without views, or if they would all be alike, there is one: the images as they are.

        Args:
            models: The models, all of one architecture.
            images: The images to query them with.
            views: The number of fresh views of each image.
        """
        numbers: list[int | None] = [*range(self.useful_views(views))] or [None]
        logits = []
        with limit_threads(models[0]):
            for view in numbers:
                inputs = self.inputs(images.images, view)
                logits.append(torch.stack([compute_logits(model, inputs) for model in models]))
        return torch.stack(logits, dim=1)


@checked(frozen=True, kw_only=True)
class MembershipAttack(ABC):
    """An attack that gives every candidate a score: the higher, the more likely a member.

    Args:
        views: The number of fresh views of each image, made as clients make them, with which
            models are queried; 0: the image as it is.
    """

    views: Annotated[int, Field(ge=0)] = 0

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        name_class(cls)

    @property
    def own_models(self) -> int:
        """The number of models that the attacker trains itself."""
        return 0

    def incompatibilities(self, problem: MembershipProblem) -> list[str]:
        """Why this attack does not apply; empty if it does.

        Args:
            problem: What the attacker is given.
        """
        return []

    @abstractmethod
    def score(self, problem: MembershipProblem, report: ReportTrained) -> Tensor:
        """One score per candidate, ``[n]``.

        Args:
            problem: What the attacker is given.
            report: Called with the number of models trained since the last call.
        """

    @final
    def __call__(self, problem: MembershipProblem, report: ReportTrained | None = None) -> Tensor:
        """Scores the candidates, ``[n]`` in float64.

        Args:
            problem: What the attacker is given.
            report: Called with the number of models trained since the last call.

        Raises:
            DoesNotFit: The attack does not apply.
        """
        self.check(problem)
        return self.score(problem, report or (lambda _: None)).double().cpu()

    @final
    def check(self, problem: MembershipProblem) -> None:
        """Raises :class:`DoesNotFit` with every reason why this attack does not apply.

        Args:
            problem: What the attacker is given.
        """
        reasons = self.incompatibilities(problem)
        if reasons:
            raise DoesNotFit(f"membership attack {self.name!r}: {'; '.join(reasons)}")

    def knowledge(self, problem: MembershipProblem) -> dict[str, Any]:
        """What the attacker knew, queried and trained, as plain values for the record.

        Args:
            problem: What the attacker was given.
        """
        return {
            "recipe": True,
            "labels": True,
            "defense": str(problem.training.defense.spec),
            "views": problem.useful_views(self.views),
            "own_models": self.own_models,
            "public_images": len(problem.public),
        }

    def notes(self, problem: MembershipProblem) -> list[str]:
        """What a reader of the result should know about how this problem is attacked.

        Args:
            problem: What the attacker is given.
        """
        return []

    @property
    def label(self) -> str:
        """The attack's name with those of its parameters that are not the defaults."""
        return label_of(self)

    def __str__(self) -> str:
        return spell_part(self)


@torch.no_grad()
def compute_logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Logits ``[n, classes]`` in float64, in evaluation mode."""
    was_training = model.training
    model.eval()
    batches = torch.split(inputs, EVALUATED_AT_ONCE)
    logits = torch.cat([model(batch) for batch in batches]).double()
    model.train(was_training)
    if not logits.isfinite().all():
        raise DoesNotFit("the model's outputs are not finite, so it learned nothing: lower --lr")
    return logits


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit-scaled confidence ``phi = log p_y - log(1 - p_y)``, ``[..., n]`` from ``[..., n, K]``.

    As in Carlini et al. 2022, computed as ``z_y - log sum exp of the others``, which never
    saturates.

    >>> p = torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64)
    >>> round(float(confidence(p.log(), torch.tensor([0])).exp()), 6)
    4.0
    """
    at = labels.to(logits.device).expand(logits.shape[:-1])[..., None]
    own = logits.gather(-1, at).squeeze(-1)
    return own - logits.scatter(-1, at, -torch.inf).logsumexp(-1)


def cross_entropy(phi: Tensor) -> Tensor:
    """The loss of the true class from its logit-scaled confidence: ``log(1 + exp(-phi))``."""
    return torch.nn.functional.softplus(-phi)
