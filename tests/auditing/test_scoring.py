import pytest
import torch

from keyhole.attacks import Reconstruction
from keyhole.auditing import run_plan
from keyhole.auditing.plan import Plan, Stage
from keyhole.auditing.resolve import resolve_stage
from keyhole.auditing.scoring import Judge


@pytest.fixture(scope="module")
def resolved():
    return resolve_stage(Stage(data="faces", victims=3, batch_size=2), seed=0)


@pytest.fixture(scope="module")
def judge(resolved):
    return Judge(resolved)


def inputs(resolved, judge, victim):
    return resolved.data.normalise(judge.truth(victim)).double()


def test_a_perfect_reconstruction_is_read_whatever_its_order(resolved, judge):
    scored = judge.score(1, Reconstruction(images=inputs(resolved, judge, 1).flip(0)))
    assert scored.scores["read"] == [1.0, 1.0]
    assert min(scored.scores["psnr"]) > 120
    assert torch.allclose(scored.images, judge.truth(1).double(), atol=1e-6)


def test_an_image_that_was_not_returned_is_scored_as_the_mean_colour(resolved, judge):
    scored = judge.score(0, Reconstruction(images=inputs(resolved, judge, 0)[1:]))
    assert scored.scores["read"] == [0.0, 1.0]
    assert float(scored.images[0].std()) == pytest.approx(0, abs=1e-9)


def test_an_attack_that_found_nothing_reads_nothing(judge):
    scored = judge.score(0, Reconstruction())
    assert scored.scores["read"] == [0.0, 0.0]


def test_the_wrong_face_is_not_read_however_sharp(resolved, judge):
    scored = judge.score(0, Reconstruction(images=inputs(resolved, judge, 2)))
    assert scored.scores["read"] == [0.0, 0.0]
    assert scored.scores["reid"] == [0.0, 0.0]


def test_values_outside_the_range_are_clamped(resolved, judge):
    loud = inputs(resolved, judge, 0) * 100
    images = judge.score(0, Reconstruction(images=loud)).images
    assert 0 <= float(images.min()) <= float(images.max()) <= 1


@pytest.mark.parametrize(("guess", "share"), [([0, 0], 1.0), ([0, 1], 0.5), ([1, 1], 0.0)])
def test_labels_are_compared_as_multisets(judge, guess, share):
    scored = judge.score(0, Reconstruction(labels=torch.tensor(guess)))
    assert scored.scores == {"labels": [share]}


def test_images_that_were_sought_and_not_found_count_as_unread(judge):
    """Otherwise the share read would be one of those clients alone whose images were found."""
    scored = judge.score(0, Reconstruction(labels=torch.tensor([0, 0])), sought=True)
    assert scored.scores["labels"] == [1.0]
    assert scored.scores["read"] == [0.0, 0.0]
    assert len(scored.scores["psnr"]) == 2


def test_an_audit_counts_the_images_of_every_client():
    """``decode`` finds labels, but no images where there are as many as classes."""
    stage = Stage(model="lenet", data="digits", victims=2, batch_size=10, attacks=("decode",))
    (finding,) = run_plan(Plan(stage=(stage,))).findings
    assert finding.metrics["read"].per_image == (0.0,) * 20
    assert len(finding.metrics["labels"].per_image) == 2


def test_equal_images_get_the_capped_psnr(judge):
    truth = judge.truth(0)
    assert judge.compare(truth, truth, 0)["psnr"] == [200.0, 200.0]


def test_null_baselines_see_nothing(judge):
    baselines = judge.baselines()
    assert set(baselines) == {"noise", "mean image", "nearest public image"}
    assert all(scores["reid"] == 0 for scores in baselines.values())
    assert max(scores["ssim"] for scores in baselines.values()) < 0.5


def test_lpips_of_small_images_is_reported_as_unavailable(judge):
    assert "too small" in judge.unavailable["lpips"]
