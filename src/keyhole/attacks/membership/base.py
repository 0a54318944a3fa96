"""Membership inference: which of these images was the model trained on?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from torch import Tensor, nn

from keyhole.attacks.membership.recipe import Labelled, Recipe, Told, few_threads, works_on_images
from keyhole.data.image_set import normalise
from keyhole.defenses import ClientSide
from keyhole.errors import DoesNotFit
from keyhole.federation.training import augmented
from keyhole.registry import parameters, spell
from keyhole.seeds import derive, generator, seeded_globally

EVALUATED_AT_ONCE = 512
FEWER = "pass fewer --members or --clients, or choose a larger data set"


@dataclass(frozen=True)
class Question:
    """All that the attacker is given; who is a member cannot be reached from here.

    ``candidates`` are images of which some were trained on, ``public`` ones were not.
    ``recipe`` is how models are trained as far as the attacker knows: one who does not know the
    defense has a recipe without it. ``members`` is how many images the model was trained on.
    """

    model: nn.Module
    candidates: Labelled
    public: Labelled
    recipe: Recipe
    members: int
    seed: int = 0
    """Of the attacker's own draws; the model was not trained by it."""

    def looks(self, views: int) -> int:
        """How many views are worth looking at: none where, by the recipe, all would be alike."""
        recipe = self.recipe
        return views if recipe.training.augment or works_on_images(recipe.defense) else 0

    def inputs(self, images: Tensor, view: int | None) -> Tensor:
        """What the model is fed: the images as they are, or a fresh view as clients make them."""
        recipe, shown = self.recipe, images
        if view is not None:
            draws = generator(self.seed, "view", view)
            shown = recipe.defense.on_images(images, ClientSide(generator=draws))
        fed = normalise(shown, recipe.mean, recipe.std)
        if view is None or not recipe.training.augment:
            return fed
        with seeded_globally(derive(self.seed, "augmented", view)):
            return augmented(fed)

    def outputs(self, models: Sequence[nn.Module], asked: Labelled, views: int) -> Tensor:
        """Logits ``[models, views, n, classes]`` in float64; every model sees the same views.

        Without views, or where they would be alike, there is one: the image as it is.
        """
        looks: list[int | None] = [*range(self.looks(views))] or [None]
        found = []
        with few_threads(models[0]):
            for look in looks:
                fed = self.inputs(asked.images, look)
                found.append(torch.stack([logits_of(model, fed) for model in models]))
        return torch.stack(found, dim=1)


@checked(frozen=True, kw_only=True)
class MembershipAttack(ABC):
    """An attack gives every candidate a score, higher where it rather believes in a member.

    ``views``: how many fresh views of each image, made as clients make them, the models are asked
    about; 0: the image as it is.
    """

    views: Annotated[int, Field(ge=0)] = 0

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]

    @property
    def trains(self) -> int:
        """How many models of its own the attacker trains."""
        return 0

    def misfits(self, question: Question) -> list[str]:
        """Why this attack cannot be tried; empty where it can."""
        return []

    @abstractmethod
    def score(self, question: Question, told: Told) -> Tensor:
        """One score a candidate, ``[n]``."""

    @final
    def __call__(self, question: Question, told: Told | None = None) -> Tensor:
        """Scores ``[n]`` in float64; raises :class:`DoesNotFit` where the attack does not apply."""
        self.check(question)
        return self.score(question, told or (lambda _: None)).double().cpu()

    @final
    def check(self, question: Question) -> None:
        """Raises :class:`DoesNotFit` with every reason why this attack cannot be tried."""
        reasons = self.misfits(question)
        if reasons:
            raise DoesNotFit(f"membership attack {self.name!r}: {'; '.join(reasons)}")

    def knowledge(self, question: Question) -> dict[str, Any]:
        """What was known, asked and trained, in plain words and values, for the record."""
        return {
            "recipe": True,
            "labels": True,
            "defense": str(question.recipe.defense),
            "views": question.looks(self.views),
            "own_models": self.trains,
            "public_images": len(question.public),
        }

    def notes(self, question: Question) -> list[str]:
        """What a reader should know of how this question is attacked."""
        return []

    @property
    def called(self) -> str:
        """Its name, with those of its parameters that are not the usual ones."""
        usual = parameters(type(self)())
        return spell(self.name, {k: v for k, v in parameters(self).items() if v != usual[k]})

    def __str__(self) -> str:
        return spell(self.name, parameters(self))


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Logits ``[n, classes]`` in float64, in evaluation mode."""
    was_training = model.training
    model.eval()
    found = torch.cat([model(some) for some in torch.split(inputs, EVALUATED_AT_ONCE)]).double()
    model.train(was_training)
    if not found.isfinite().all():
        raise DoesNotFit("the model's outputs are not finite, so it learned nothing: lower --lr")
    return found


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit-scaled confidence ``phi = log p_y - log(1 - p_y)``, ``[..., n]`` from ``[..., n, K]``.

    Carlini et al. 2022, computed as ``z_y - log sum exp of the others``: it never saturates.

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
