"""How a classifier withstands corrupted and unknown images: mCE, AURRA and AUPR.

``predict`` is anything that maps images ``[n, C, H, W]`` in [0, 1] to logits ``[n, classes]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.seeds import derive
from keyhole_studies.corruptions import SEVERITIES, Corruption

Predict = Callable[[Tensor], Tensor]
AT_ONCE = 64


def corruption_error(
    errors: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]] | None = None
) -> float:
    """mCE: the mean over corruptions of the mean error over severities.

    Args:
        errors: By corruption, one error per severity.
        reference: The errors of another model. Each corruption's sum is divided by the
            reference's, as in the standard mCE (where that is AlexNet): 1 is as good as it.

    >>> corruption_error({"fog": [0.2, 0.4], "jpeg": [0.1, 0.1]})
    0.2
    >>> corruption_error({"fog": [0.2, 0.4]}, {"fog": [0.4, 0.8]})
    0.5
    """
    if not errors or not all(errors.values()):
        raise DoesNotFit("a corruption error needs corruptions, each with one error per severity")
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

    The classifier answers first what it is most sure of. Equal confidences count as if answered in
    random order, so that the order of the images plays no part.

    Args:
        confidence: ``[n]``.
        correct: Whether each answer is right, ``[n]``.

    >>> round(aurra(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, True, False])), 4)
    0.8889
    """
    if confidence.shape != correct.shape or confidence.ndim != 1 or not len(confidence):
        raise DoesNotFit("AURRA needs one confidence and one answer, right or wrong, per image")
    _, group = torch.unique(-confidence.double(), return_inverse=True)
    sizes = torch.bincount(group).double()
    expected = torch.bincount(group, weights=correct.double()) / sizes
    answers = expected[group.sort().values]
    rate = torch.arange(1, len(answers) + 1, device=answers.device)
    return float((answers.cumsum(0) / rate).mean())


def aupr_out(in_scores: Tensor, out_scores: Tensor) -> float:
    """Area under precision and recall (average precision) of telling unknown images from known.

    Scores, such as :func:`strangeness`, are high for what looks unknown; unknown is positive.

    Args:
        in_scores: Of images of known classes.
        out_scores: Of images of unknown classes.

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

    Args:
        predict: Maps images to logits.
        images: ``[n, C, H, W]`` in [0, 1].
        labels: ``[n]``.
        corruptions: Which.
        generator: Draws the seed.
        severities: Which.
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
