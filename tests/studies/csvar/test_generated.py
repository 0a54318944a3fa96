"""Generated images: nearest true image, class mean, recognition, null baselines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.metrics.image import psnr, ssim
from keyhole.seeds import generator
from keyhole_studies.csvar.generated import (
    Classifier,
    classify_as,
    judge_generated,
    measure_likeness,
)


@pytest.fixture(scope="module")
def digits() -> dict[int, Tensor]:
    """Digits 8x8 by class."""
    data = load("digits")
    images = data.images(range(len(data)))
    return {c: images[data.labels == c] for c in range(10)}


def by_nearest_mean(means: Tensor) -> Classifier:
    """A classifier: the logit of a class is minus the distance to its mean image."""
    return lambda images: -torch.cdist(images.flatten(1), means.flatten(1))


def test_a_true_image_is_its_own_nearest(digits: dict[int, Tensor]) -> None:
    found = measure_likeness(digits[3][4:6], digits[3], target=3)
    assert torch.allclose(found.nearest_ssim, torch.ones(2, dtype=torch.double))
    assert torch.isinf(found.nearest_psnr).all()


def test_nearest_is_the_best_of_all_pairs(digits: dict[int, Tensor]) -> None:
    drawn, truth = digits[8][:3], digits[3][:5]
    found = measure_likeness(drawn, truth, target=3)
    for i, image in enumerate(drawn):
        one_by_one = [
            (
                float(ssim(image[None], t[None], data_range=1.0)),
                float(psnr(image[None], t[None], data_range=1.0)),
            )
            for t in truth
        ]
        assert float(found.nearest_ssim[i]) == pytest.approx(max(s for s, _ in one_by_one))
        assert float(found.nearest_psnr[i]) == pytest.approx(max(p for _, p in one_by_one))


def test_the_class_mean_scores_one_against_itself(digits: dict[int, Tensor]) -> None:
    centre = digits[0].mean(0, keepdim=True)
    assert float(measure_likeness(centre, digits[0], target=0).mean_ssim) == pytest.approx(1.0)
    assert float(measure_likeness(digits[1][:1], digits[0], target=0).mean_ssim) < 0.9


def test_recognition_asks_the_classifier_about_the_target(digits: dict[int, Tensor]) -> None:
    classifier = by_nearest_mean(torch.stack([digits[c].mean(0) for c in range(10)]))
    right = classify_as(3, digits[3], classifier)
    wrong = classify_as(3, digits[0], classifier)
    assert right.mean() > 0.8
    assert wrong.mean() < 0.05


def test_nothing_is_said_of_recognition_without_a_classifier(digits: dict[int, Tensor]) -> None:
    assert "recognised" not in measure_likeness(digits[3][:1], digits[3], target=3).means()


def test_true_images_beat_both_null_baselines(digits: dict[int, Tensor]) -> None:
    classifier = by_nearest_mean(torch.stack([digits[c].mean(0) for c in range(10)]))
    others = torch.cat([digits[c] for c in range(10) if c != 3])
    judgement = judge_generated(
        digits[3][:20],
        digits[3][20:],
        others,
        target=3,
        generator=generator(0, "null"),
        classifier=classifier,
    )
    means = judgement.means()
    for measure in ("nearest_ssim", "nearest_psnr", "mean_ssim", "recognised"):
        assert means["generated"][measure] > means["others"][measure]
        assert means["generated"][measure] > means["noise"][measure]
    assert len(judgement.noise.nearest_ssim) == len(judgement.others.nearest_ssim) == 20


def test_baselines_repeat_by_seed(digits: dict[int, Tensor]) -> None:
    def run(seed: int) -> dict[str, dict[str, float]]:
        draw = generator(seed, "null")
        found, truth, others = digits[1][:4], digits[1][4:9], digits[2]
        return judge_generated(found, truth, others, target=1, generator=draw).means()

    assert run(0) == run(0) != run(1)


def test_nothing_to_compare_is_an_error(digits: dict[int, Tensor]) -> None:
    with pytest.raises(DoesNotFit, match="0 images"):
        measure_likeness(digits[3][:0], digits[3], target=3)
