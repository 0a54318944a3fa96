"""Shadow models: a classifier learns from the attacker's own models how members are answered."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import (
    MORE_IMAGES_HINT,
    MembershipAttack,
    MembershipProblem,
    confidence,
    cross_entropy,
)
from keyhole.attacks.membership.target_training import ReportTrained
from keyhole.seeds import derive, generator

TOP_CONFIDENCES = 10
"""The number of highest confidences that the classifier sees."""
MIN_RECORDS = 20
"""Members and non-members of a class that a classifier of its own needs, each."""

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class ShadowModels(MembershipAttack):
    """Trains a classifier on how shadow models answer for images in and out of their training set.

    Shadow models are trained on random public images and queried with these and others. From the
    records (sorted confidences, loss of the true class, whether the answer is right) a classifier
    learns to tell members from non-members. Its log-odds for the target model are the scores.

    Args:
        shadows: The number of shadow models.
        classifier: Logistic regression, or a small network.
        per_class: Whether every class with enough records has its own classifier.
    """

    shadows: Annotated[int, Field(ge=1)] = 8
    classifier: Literal["logistic", "mlp"] = "logistic"
    per_class: bool = False

    name: ClassVar[str] = "shadow"
    summary: ClassVar[str] = "a classifier learns from shadow models how members are answered"
    paper: ClassVar[str] = "Shokri et al. 2017"

    @property
    def own_models(self) -> int:
        return self.shadows

    def incompatibilities(self, problem: MembershipProblem) -> list[str]:
        least = 2 * max(2, problem.training.clients)
        if len(problem.public) >= least:
            return []
        count = len(problem.public)
        return [
            f"it needs {least} public images or more, and there are {count}: {MORE_IMAGES_HINT}"
        ]

    def shadow_size(self, problem: MembershipProblem) -> int:
        """The number of images per shadow model: as many as the target model's, if possible.

        Args:
            problem: What the attacker is given.
        """
        return min(problem.members, len(problem.public) // 2)

    def notes(self, problem: MembershipProblem) -> list[str]:
        size = self.shadow_size(problem)
        if size == problem.members:
            return []
        return [
            f"shadow models are trained on {size} images, for lack of public ones; "
            f"the target model was trained on {problem.members}"
        ]

    def score(self, problem: MembershipProblem, report: ReportTrained) -> Tensor:
        records, labels, members = self.collect_records(problem, report)
        candidates = problem.candidates
        logits = problem.query([problem.model], candidates, self.views)[0]
        features = extract_features(logits, candidates.labels)
        candidate_labels = to_numpy(candidates.labels)
        scores = np.empty(len(features))
        common = self._fit_classifier(records, members, problem.seed)
        for label in np.unique(candidate_labels):
            rows, own = candidate_labels == label, labels == label
            enough = min(members[own].sum(), (~members[own]).sum()) >= MIN_RECORDS
            classifier = common
            if self.per_class and enough:
                classifier = self._fit_classifier(records[own], members[own], problem.seed)
            scores[rows] = log_odds(classifier, features[rows])
        return torch.from_numpy(scores)

    def collect_records(
        self, problem: MembershipProblem, report: ReportTrained
    ) -> tuple[Array, Array, Array]:
        """Features ``[r, F]``, classes ``[r]`` and membership ``[r]`` from all shadow models.

        Args:
            problem: What the attacker is given.
            report: Called with the number of models trained since the last call.
        """
        size, public = self.shadow_size(problem), problem.public
        seeds = [derive(problem.seed, "shadow", i) for i in range(self.shadows)]
        orders = [torch.randperm(len(public), generator=generator(s, "split")) for s in seeds]
        training_sets = [public.take(order[:size]) for order in orders]
        query_sets = [public.take(order[: 2 * size]) for order in orders]
        features: list[Array] = []
        labels: list[Array] = []
        for models in problem.training.train_models(training_sets, seeds, report):
            for model in models:
                images = query_sets[len(features)]
                logits = problem.query([model], images, self.views)[0]
                features.append(extract_features(logits, images.labels))
                labels.append(to_numpy(images.labels))
        first_half = np.arange(2 * size) < size
        members = np.tile(first_half, self.shadows)
        return np.concatenate(features), np.concatenate(labels), members

    def _fit_classifier(self, records: Array, members: Array, seed: int) -> Any:
        """Fits a classifier of members to standardised features."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        state = derive(seed, "classifier") % 2**32
        classifier = (
            LogisticRegression(max_iter=1000)
            if self.classifier == "logistic"
            else MLPClassifier((16,), solver="lbfgs", alpha=0.1, max_iter=500, random_state=state)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)  # not converged: good enough
            return make_pipeline(StandardScaler(), classifier).fit(records, members)


def extract_features(logits: Tensor, labels: Tensor) -> Array:
    """The classifier's features of each image, ``[n, F]`` from logits ``[views, n, K]``.

    Sorted confidences, loss and logit-scaled confidence of the true class, and whether the answer
    is right, averaged over views. With several views also the least loss and the deviation of the
    confidence.
    """
    phi = confidence(logits, labels)
    loss = cross_entropy(phi)
    right = (logits.argmax(-1) == labels.to(logits.device)).double()
    ranked = logits.softmax(-1).sort(-1, descending=True).values[..., :TOP_CONFIDENCES]
    columns = [*ranked.mean(0).unbind(-1), loss.mean(0), phi.mean(0), right.mean(0)]
    if len(logits) > 1:
        columns += [loss.amin(0), phi.std(0)]
    return np.asarray(torch.stack(columns, dim=-1).cpu())


def to_numpy(tensor: Tensor) -> Array:
    """A tensor's values as an array."""
    return np.asarray(tensor.cpu())


def log_odds(classifier: Any, features: Array) -> Array:
    """Log-odds of membership, which do not saturate as probabilities do."""
    if hasattr(classifier, "decision_function"):
        return np.asarray(classifier.decision_function(features))
    log = classifier.predict_log_proba(features)
    return np.asarray(log[:, 1] - log[:, 0])
