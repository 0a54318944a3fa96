"""How a classifier stands corrupted, hard and unknown images: mCE, AURRA and AUPR.

``predict`` is anything that maps images ``[n, C, H, W]`` in [0, 1] to logits ``[n, classes]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from keyhole.data import ImageSet
from keyhole.errors import DoesNotFit
from keyhole.metrics.corruptions import SEVERITIES, Corruption
from keyhole.seeds import derive

Predict = Callable[[Tensor], Tensor]
AT_ONCE = 64


@dataclass(frozen=True)
class HardScore:
    """Accuracy on hard images, and how well confidence tells where it fails."""

    accuracy: float
    aurra: float


def corruption_error(
    errors: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]] | None = None
) -> float:
    """mCE: the mean over corruptions of the mean error over severities.

    With a ``reference`` model's errors each corruption's sum is divided by the reference's, as in
    the standard mCE (where that is AlexNet): 1 is as good as the reference.

    >>> corruption_error({"fog": [0.2, 0.4], "jpeg": [0.1, 0.1]})
    0.2
    >>> corruption_error({"fog": [0.2, 0.4]}, {"fog": [0.4, 0.8]})
    0.5
    """
    if not errors or not all(errors.values()):
        raise DoesNotFit("a corruption error needs corruptions, each with an error a severity")
    means = {name: sum(values) / len(values) for name, values in errors.items()}
    if reference is not None:
        for name, values in errors.items():
            if len(reference.get(name, ())) != len(values) or not sum(reference[name]) > 0:
                raise DoesNotFit(
                    f"the reference has no errors for {name!r} at the same {len(values)} severities"
                )
            means[name] = sum(values) / sum(reference[name])
    return sum(means.values()) / len(means)


def aurra(confidence: Tensor, correct: Tensor) -> float:
    """Area under the curve of accuracy over response rate: the mean running accuracy.

    The classifier answers first what it is most sure of. Equal confidences, ``[n]`` each, count as
    if answered in random order, so that the order of the images plays no part.

    >>> round(aurra(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, True, False])), 4)
    0.8889
    """
    if confidence.shape != correct.shape or confidence.ndim != 1 or not len(confidence):
        raise DoesNotFit("AURRA needs one confidence and one answer, right or wrong, an image")
    _, group = torch.unique(-confidence.double(), return_inverse=True)
    sizes = torch.bincount(group).double()
    expected = torch.bincount(group, weights=correct.double()) / sizes
    answers = expected[group.sort().values]
    rate = torch.arange(1, len(answers) + 1, device=answers.device)
    return float((answers.cumsum(0) / rate).mean())


def aupr_out(in_scores: Tensor, out_scores: Tensor) -> float:
    """Area under precision and recall (average precision) of telling unknown images from known.

    Scores, such as :func:`strangeness`, are high for what looks unknown; unknown is positive.

    >>> aupr_out(torch.tensor([0.1, 0.2]), torch.tensor([0.8]))
    1.0
    """
    if not len(in_scores) or not len(out_scores):
        raise DoesNotFit("AUPR needs known and unknown images")
    unknown = torch.cat([torch.zeros(len(in_scores)), torch.ones(len(out_scores))])
    scores = torch.cat([in_scores.cpu(), out_scores.cpu()])
    return float(average_precision_score(unknown.numpy(), scores.numpy()))


def strangeness(logits: Tensor) -> Tensor:
    """``-max softmax``, ``[n]``: how unlike the known classes an image looks."""
    return -logits.double().softmax(1).amax(1)


def evaluate_corruptions(
    predict: Predict,
    images: Tensor,
    labels: Tensor,
    corruptions: Iterable[Corruption],
    generator: torch.Generator,
    *,
    severities: Sequence[int] = SEVERITIES,
) -> dict[str, list[float]]:
    """The error, as a share, under each corruption at each severity.

    Each corruption draws from a seed of its own, so that equally seeded calls show the same
    corrupted images to every model, whichever other corruptions they ask for; severities of one
    corruption share their draws. Images are corrupted on the generator's device.
    """
    if len(images) != len(labels) or not len(images):
        raise DoesNotFit(f"{len(images)} images and {len(labels)} labels cannot be scored")
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

    def error(corruption: Corruption, severity: int) -> float:
        draws = torch.Generator(generator.device).manual_seed(derive(seed, corruption.name))
        wrong = 0
        for start in range(0, len(images), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            with torch.no_grad():
                found = predict(corruption(images[some], severity, draws)).argmax(1)
            wrong += int((found.cpu() != labels[some].cpu()).sum())
        return wrong / len(images)

    return {c.name: [error(c, severity) for severity in severities] for c in corruptions}


def score_hard(predict: Predict, hard: ImageSet, classes: Sequence[str]) -> HardScore:
    """Accuracy and AURRA on hard images of known classes (as ImageNet-A's).

    ``classes`` names the logits in order; only those that ``hard`` has are answers, as ImageNet-A
    takes 200 of 1,000.
    """
    answers = columns(hard, classes)
    logits = torch.cat([batch[:, answers] for batch in in_batches(predict, hard)])
    right = logits.argmax(1) == hard.labels
    return HardScore(float(right.double().mean()), aurra(-strangeness(logits), right))


def score_unknown(
    predict: Predict, known: ImageSet, unknown: ImageSet, classes: Sequence[str]
) -> float:
    """AUPR of telling ``unknown`` images (as ImageNet-O's) from ordinary ones of known classes.

    ``classes`` names the logits in order; the softmax runs over those that ``known`` has.
    """
    answers = columns(known, classes)
    ordinary, strange = (
        torch.cat([strangeness(batch[:, answers]) for batch in in_batches(predict, data)])
        for data in (known, unknown)
    )
    return aupr_out(ordinary, strange)


def columns(data: ImageSet, classes: Sequence[str]) -> Tensor:
    """For each class of ``data`` the logit of that name."""
    places = {name: column for column, name in enumerate(classes)}
    strangers = [name for name in data.classes if name not in places]
    if strangers:
        raise DoesNotFit(
            f"the model knows no class {strangers[0]!r} of {data.name}: name the folders of "
            "images as the model's classes are named"
        )
    return torch.tensor([places[name] for name in data.classes])


def in_batches(predict: Predict, data: ImageSet) -> Iterator[Tensor]:
    """The logits of all images, some at a time, on the CPU."""
    for start in range(0, len(data), AT_ONCE):
        with torch.no_grad():
            yield predict(data.images(range(len(data))[start : start + AT_ONCE])).cpu()
