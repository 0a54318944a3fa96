"""Shadow models: a classifier learns from models of the attacker's own what members look like."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import (
    FEWER,
    MembershipAttack,
    Question,
    confidence,
    cross_entropy,
)
from keyhole.attacks.membership.recipe import Told
from keyhole.seeds import derive, generator

SORTED = 10
"""Confidences that the classifier sees, from the highest down."""
ENOUGH = 20
"""Records of a kind below which a class has no classifier of its own."""

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class ShadowModels(MembershipAttack):
    """Each of ``shadows`` models is trained on random public images and asked about others, too.

    From these records (sorted confidences, loss of the true class, whether it is right) a
    classifier learns to tell members from non-members, one for all classes or one for each; its
    log-odds for the model under attack are the scores.
    """

    shadows: Annotated[int, Field(ge=1)] = 8
    classifier: Literal["logistic", "mlp"] = "logistic"
    per_class: bool = False

    name: ClassVar[str] = "shadow"
    summary: ClassVar[str] = "a classifier learns from shadow models how members are answered"
    paper: ClassVar[str] = "Shokri et al. 2017"

    @property
    def trains(self) -> int:
        return self.shadows

    def misfits(self, question: Question) -> list[str]:
        least = 2 * max(2, question.recipe.clients)
        if len(question.public) >= least:
            return []
        count = len(question.public)
        return [f"it needs {least} public images or more, and there are {count}: {FEWER}"]

    def size(self, question: Question) -> int:
        """Images that a shadow model is trained on: as many as the model under attack if it can."""
        return min(question.members, len(question.public) // 2)

    def notes(self, question: Question) -> list[str]:
        size = self.size(question)
        if size == question.members:
            return []
        return [
            f"shadow models are trained on {size} images, for want of public ones; "
            f"the model under attack had {question.members}"
        ]

    def score(self, question: Question, told: Told) -> Tensor:
        records, labels, members = self.records(question, told)
        asked = question.candidates
        logits = question.outputs([question.model], asked, self.views)[0]
        found = features(logits, asked.labels)
        own = labels_of(asked.labels)
        scores = np.empty(len(found))
        everyone = self.fitted(records, members, question.seed)
        for label in np.unique(own):
            at, known = own == label, labels == label
            enough = min(members[known].sum(), (~members[known]).sum()) >= ENOUGH
            alone = self.per_class and enough
            judge = (
                self.fitted(records[known], members[known], question.seed) if alone else everyone
            )
            scores[at] = log_odds(judge, found[at])
        return torch.from_numpy(scores)

    def records(self, question: Question, told: Told) -> tuple[Array, Array, Array]:
        """Features ``[r, F]``, classes ``[r]`` and membership ``[r]`` of the shadows' images."""
        size, public = self.size(question), question.public
        seeds = [derive(question.seed, "shadow", i) for i in range(self.shadows)]
        orders = [torch.randperm(len(public), generator=generator(s, "split")) for s in seeds]
        inside = [public.take(order[:size]) for order in orders]
        shown = [public.take(order[: 2 * size]) for order in orders]
        found: list[Array] = []
        labels: list[Array] = []
        for models in question.recipe.trained(inside, seeds, told):
            for model in models:
                asked = shown[len(found)]
                logits = question.outputs([model], asked, self.views)[0]
                found.append(features(logits, asked.labels))
                labels.append(labels_of(asked.labels))
        inside_first = np.arange(2 * size) < size
        members = np.tile(inside_first, self.shadows)
        return np.concatenate(found), np.concatenate(labels), members

    def fitted(self, records: Array, members: Array, seed: int) -> Any:
        """A classifier over standardised features."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        state = derive(seed, "classifier") % 2**32
        judge = (
            LogisticRegression(max_iter=1000)
            if self.classifier == "logistic"
            else MLPClassifier((16,), solver="lbfgs", alpha=0.1, max_iter=500, random_state=state)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)  # not converged: good enough
            return make_pipeline(StandardScaler(), judge).fit(records, members)


def features(logits: Tensor, labels: Tensor) -> Array:
    """What the classifier sees of each image, ``[n, F]`` from logits ``[views, n, K]``.

    Sorted confidences, loss and logit-scaled confidence of the true class, whether it is right:
    means over the views; the spread and the best of the views where there are several.
    """
    phi = confidence(logits, labels)
    loss = cross_entropy(phi)
    right = (logits.argmax(-1) == labels.to(logits.device)).double()
    ranked = logits.softmax(-1).sort(-1, descending=True).values[..., :SORTED]
    columns = [*ranked.mean(0).unbind(-1), loss.mean(0), phi.mean(0), right.mean(0)]
    if len(logits) > 1:
        columns += [loss.amin(0), phi.std(0)]
    return np.asarray(torch.stack(columns, dim=-1).cpu())


def labels_of(labels: Tensor) -> Array:
    return np.asarray(labels.cpu())


def log_odds(judge: Any, found: Array) -> Array:
    """Log-odds of membership, which do not saturate as probabilities do."""
    if hasattr(judge, "decision_function"):
        return np.asarray(judge.decision_function(found))
    log = judge.predict_log_proba(found)
    return np.asarray(log[:, 1] - log[:, 0])
