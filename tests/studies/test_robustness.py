from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole_studies.corruptions import CORRUPTIONS
from keyhole_studies.robustness import (
    aupr_out,
    aurra,
    corruption_error,
    evaluate_corruptions,
    strangeness,
)

ERRORS = {"fog": [0.1, 0.2, 0.6], "jpeg": [0.3, 0.3, 0.3]}
REFERENCE = {"fog": [0.2, 0.4, 1.2], "jpeg": [0.1, 0.1, 0.1], "snow": [0.5, 0.5, 0.5]}


def test_the_corruption_error_is_a_mean_of_means() -> None:
    assert corruption_error(ERRORS) == pytest.approx((0.3 + 0.3) / 2)


def test_a_reference_scales_each_corruption_by_its_own() -> None:
    assert corruption_error(ERRORS, REFERENCE) == pytest.approx((0.5 + 3) / 2)
    assert corruption_error(ERRORS, ERRORS) == 1.0


@pytest.mark.parametrize(
    "reference",
    [{"fog": [0.1] * 3}, {**REFERENCE, "jpeg": [0.1]}, {**REFERENCE, "jpeg": [0.0] * 3}],
)
def test_a_reference_that_was_scored_otherwise_is_refused(
    reference: dict[str, list[float]],
) -> None:
    with pytest.raises(DoesNotFit, match="no errors for 'jpeg' at the same 3"):
        corruption_error(ERRORS, reference)


@pytest.mark.parametrize("errors", [{}, {"fog": []}])
def test_an_error_of_nothing_is_refused(errors: dict[str, list[float]]) -> None:
    with pytest.raises(DoesNotFit, match="needs corruptions"):
        corruption_error(errors)


def running_accuracy(confidence: list[float], correct: list[bool]) -> float:
    """Word for word: answer in order of confidence, average the accuracy so far."""
    order = sorted(range(len(correct)), key=lambda i: -confidence[i])
    so_far = [
        np.mean([correct[i] for i in order[:answered]]) for answered in range(1, len(order) + 1)
    ]
    return float(np.mean(so_far))


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_aurra_is_the_mean_running_accuracy(correct: list[bool], random) -> None:
    confidence = [i / len(correct) for i in range(len(correct))]
    random.shuffle(confidence)
    found = aurra(torch.tensor(confidence), torch.tensor(correct))
    assert found == pytest.approx(running_accuracy(confidence, correct))


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1))
def test_the_order_of_the_images_plays_no_part_in_aurra(answers: list[tuple[float, bool]]) -> None:
    confidence, correct = (torch.tensor(column) for column in zip(*answers, strict=True))
    assert aurra(confidence, correct) == pytest.approx(aurra(confidence.flip(0), correct.flip(0)))


def test_equal_confidences_count_as_answered_in_random_order() -> None:
    confidence = torch.tensor([0.9, 0.5, 0.5, 0.5, 0.1])
    correct = torch.tensor([False, True, False, True, True])
    draws = np.random.default_rng(0)
    tried = []
    for _ in range(4000):
        jitter = confidence.numpy() + 1e-3 * draws.random(5)
        tried.append(running_accuracy(jitter.tolist(), correct.tolist()))
    assert aurra(confidence, correct) == pytest.approx(np.mean(tried), abs=0.01)


def test_confidence_that_knows_when_it_fails_earns_more() -> None:
    correct = torch.tensor([True] * 5 + [False] * 5)
    knows, ignores, errs = torch.linspace(1, 0, 10), torch.ones(10), torch.linspace(0, 1, 10)
    scores = [aurra(confidence, correct) for confidence in (errs, ignores, knows)]
    assert scores == sorted(scores)
    assert scores[1] == pytest.approx(0.5)


def test_aurra_of_nothing_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="AURRA needs"):
        aurra(torch.zeros(0), torch.zeros(0))


def test_aupr_is_scikit_learns_with_the_unknown_positive() -> None:
    known, unknown = torch.randn(80), torch.randn(20) + 1
    labels = [0] * 80 + [1] * 20
    scores = torch.cat([known, unknown]).numpy()
    assert aupr_out(known, unknown) == pytest.approx(average_precision_score(labels, scores))
    assert roc_auc_score(labels, scores) > 0.5, "the shift makes them easier to tell"
    assert aupr_out(known, unknown) > aupr_out(known, unknown - 2)


def test_aupr_of_chance_is_the_share_of_the_unknown() -> None:
    assert aupr_out(torch.zeros(30), torch.zeros(10)) == pytest.approx(0.25)


def test_aupr_without_unknown_images_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="known and unknown"):
        aupr_out(torch.zeros(3), torch.zeros(0))


def test_strangeness_is_the_least_for_sharp_logits() -> None:
    logits = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 99.0]])
    expected = [-0.5, -1 / (1 + np.exp(-3.0)), -1.0]
    assert strangeness(logits).tolist() == pytest.approx(expected)


PHOTOS = load("photos", image_size=32).images(range(50))
IMAGES = torch.cat([PHOTOS, 1 - PHOTOS[:20]])
LABELS = (IMAGES.mean((1, 2, 3)) > 0.5).long()


def by_brightness(images: Tensor) -> Tensor:
    bright = images.mean((1, 2, 3))
    return torch.stack([1 - bright, bright], dim=1)


def scored(*names: str, severities: tuple[int, ...] = (1, 5), seed: int = 0):
    chosen = [CORRUPTIONS[name] for name in names]
    draws = torch.Generator().manual_seed(seed)
    return evaluate_corruptions(by_brightness, IMAGES, LABELS, chosen, draws, severities=severities)


def test_brightness_misleads_what_looks_at_brightness_and_contrast_does_not() -> None:
    errors = scored("brightness", "contrast")
    assert errors["brightness"][1] > errors["brightness"][0] > 0
    assert errors["contrast"] == [0.0, 0.0]
    assert corruption_error(errors) == pytest.approx(sum(errors["brightness"]) / 4)


def test_a_corruptions_error_is_that_of_the_images_it_makes() -> None:
    errors = scored("brightness", severities=(4,))
    spoilt = CORRUPTIONS["brightness"](IMAGES, 4, torch.Generator())
    wrong = by_brightness(spoilt).argmax(1) != LABELS
    assert errors == {"brightness": [pytest.approx(float(wrong.double().mean()))]}


def test_other_corruptions_asked_for_change_nothing() -> None:
    seen: list[Tensor] = []

    def predict(images: Tensor) -> Tensor:
        seen.append(images)
        return by_brightness(images)

    for names in (["snow"], ["fog", "snow"]):
        chosen = [CORRUPTIONS[name] for name in names]
        draws = torch.Generator().manual_seed(0)
        evaluate_corruptions(predict, IMAGES[:3], LABELS[:3], chosen, draws, severities=(2,))
    alone, _, beside_fog = seen
    assert torch.equal(alone, beside_fog)


def test_corruptions_do_not_share_their_draws() -> None:
    seen: list[Tensor] = []

    def predict(images: Tensor) -> Tensor:
        seen.append(images - 0.5)
        return by_brightness(images)

    chosen = [CORRUPTIONS["gaussian-noise"], CORRUPTIONS["speckle-noise"]]
    grey, draws = torch.full((1, 1, 32, 32), 0.5), torch.Generator().manual_seed(0)
    evaluate_corruptions(predict, grey, LABELS[:1], chosen, draws, severities=(1, 2))
    weak, strong, other = (noise.flatten() for noise in seen[:3])
    correlations = torch.corrcoef(torch.stack([weak, strong, other]))
    assert float(correlations[0, 1]) > 0.99, "severities share them"
    assert float(correlations[0, 2].abs()) < 0.2


def test_the_seed_decides_what_is_drawn() -> None:
    names, severities = ("impulse-noise", "fog"), (1, 2, 3, 4, 5)
    once, again, otherwise = (scored(*names, severities=severities, seed=s) for s in (0, 0, 1))
    assert once == again != otherwise


def test_images_and_labels_must_go_together() -> None:
    with pytest.raises(DoesNotFit, match="70 images and 3 labels"):
        evaluate_corruptions(by_brightness, IMAGES, LABELS[:3], [], torch.Generator())
