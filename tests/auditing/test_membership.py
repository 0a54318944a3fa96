from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership import Lira, LossThreshold, ShadowModels
from keyhole.auditing import MembershipPlan, MembershipResult, infer_membership
from keyhole.auditing.membership import list_attackers
from keyhole.auditing.membership_truth import draw_truth
from keyhole.data import ImageSet, load
from keyhole.defenses import ClientSide, Defense, Gaussian, NoDefense
from keyhole.errors import BadValue, DoesNotFit, KeyholeError, UnknownName
from keyhole.settings import make_settings
from keyhole.threat import Attacker

SMALL: dict[str, Any] = {
    "model": "mlp",
    "members": 40,
    "public": 100,
    "epochs": 8,
    "batch_size": 20,
    "lr": 0.003,
}
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Negative(Defense):
    """Light for dark: a clean image is a stranger to the model."""

    name: ClassVar[str] = "negative"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        side = side or ClientSide()
        return 1 - images + 0.05 * torch.randn(images.shape, generator=side.generator)


def plan(**values: Any) -> MembershipPlan:
    return make_settings(MembershipPlan, {**SMALL, **values})


def random_labels() -> ImageSet:
    """Digits whose labels say nothing: whatever a model knows, it knows by heart."""
    digits = load("digits")
    labels = torch.randint(10, (len(digits),), generator=torch.Generator().manual_seed(0))
    return replace(digits, labels=labels)


@pytest.fixture(scope="module")
def result() -> MembershipResult:
    settings = plan(attacks="loss,shadow,lira", shadows=4, epochs=20, at=(1,))
    return infer_membership(settings, data=random_labels())


def test_what_was_learned_by_heart_is_found(result: MembershipResult) -> None:
    early, late = result.trials
    assert (early.epochs, late.epochs) == (1, 20)
    assert late.train_accuracy > 0.95
    assert late.test_accuracy < 0.3
    assert late.gap == late.train_accuracy - late.test_accuracy > early.gap
    assert late.train_loss < late.test_loss
    loss, shadow, lira = late.inferences
    assert min(loss.auc, shadow.auc, lira.auc) > 0.9
    assert early.inferences[0].auc < loss.auc - 0.1
    assert late.worst.auc == max(i.auc for i in late.inferences)


def test_an_overfitted_lenet_gives_digits_away_and_one_that_saw_them_once_does_not() -> None:
    settings = MembershipPlan(members=300, epochs=60, at=(1,), attacks=("loss",))
    once, often = infer_membership(settings).trials
    assert often.gap > 0.05 > once.gap
    assert often.inferences[0].auc_low > 0.52
    assert once.inferences[0].auc == pytest.approx(0.5, abs=0.06)


def test_the_result_is_plain_and_complete(result: MembershipResult) -> None:
    found = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert found["plan"]["members"] == found["members"] == found["others"] == 40
    assert found["public"] == 100
    assert found["versions"]["keyhole"]
    trial = found["trials"][-1]
    assert trial["defense"] == {"name": "none", "parameters": {}}
    assert trial["gap"] == pytest.approx(trial["train_accuracy"] - trial["test_accuracy"])
    for inference in trial["inferences"]:
        assert inference["attacker"] == "naive"
        assert inference["auc_low"] <= inference["auc"] <= inference["auc_high"]
        assert [r["limit"] for r in inference["rates"]] == [0.001, 0.01]
        assert [r["resolved"] for r in inference["rates"]] == [False, False]
        assert inference["rates"][0]["resolution"] == 1 / 40
        assert inference["roc"][0] == [0, 0]
        assert inference["roc"][-1] == [1, 1]
        assert len(inference["roc"]) <= 200
        assert inference["knowledge"]["defense"] is None
    assert [i["knowledge"]["own_models"] for i in trial["inferences"]] == [0, 4, 4]


def test_only_who_knows_the_defense_sees_through_it() -> None:
    settings = plan(attacks="loss,lira", shadows=4, epochs=20, views=4)
    found = infer_membership(settings, data=random_labels(), defenses=[Negative()])
    rows = found.trials[0].inferences
    assert [(i.attack, i.attacker) for i in rows] == [
        ("loss", "naive"),
        ("loss(views=4)", "adaptive"),
        ("lira(shadows=4)", "naive"),
        ("lira(views=4, shadows=4)", "adaptive"),
    ]
    assert max(rows[0].auc, rows[2].auc) < 0.8 < 0.9 < min(rows[1].auc, rows[3].auc)
    assert rows[2].knowledge["defense"] is None
    assert rows[3].knowledge["defense"] == "negative"
    assert (rows[2].knowledge["views"], rows[3].knowledge["views"]) == (0, 4)
    assert found.trials[0].worst.attacker is Attacker.ADAPTIVE


@pytest.mark.parametrize(
    ("defense", "views", "adaptive"),
    [
        (NoDefense(), 8, []),
        (Negative(), 8, ["loss(views=8)", "shadow(views=8)", "lira(views=3)"]),
        (Negative(), 0, ["shadow", "lira(views=3)"]),
        (Gaussian(), 8, ["shadow", "lira(views=3)"]),
    ],
    ids=["none", "images", "images, clean", "update"],
)
def test_who_knows_the_defense_is_added_where_that_tells(
    defense: Defense, views: int, adaptive: list[str]
) -> None:
    rows = list_attackers([LossThreshold(), ShadowModels(), Lira(views=3)], defense, views)
    naive = [a.label for who, a in rows if who is Attacker.NAIVE]
    assert naive == ["loss", "shadow", "lira(views=3)"]
    assert [a.label for who, a in rows if who is Attacker.ADAPTIVE] == adaptive


def test_the_same_plan_gives_the_same_findings_and_another_seed_others() -> None:
    def rates(**values: Any) -> list[Any]:
        found = infer_membership(plan(attacks="loss,lira", shadows=4, epochs=3, **values))
        return [(t.train_accuracy, *(i.roc for i in t.inferences)) for t in found.trials]

    assert rates() == rates()
    assert rates() != rates(seed=1)


def test_a_model_stands_after_some_epochs_where_it_passes_on_its_way() -> None:
    settings = plan(attacks="loss", epochs=4, at=(2, 3, 9))
    assert settings.attacked_epochs == [2, 3, 4]
    on_its_way = infer_membership(settings).trials[0]
    alone = infer_membership(plan(attacks="loss", epochs=2)).trials[0]
    assert on_its_way.inferences[0].roc == alone.inferences[0].roc
    assert on_its_way.train_loss == alone.train_loss
    short, long = (list(settings.build_training(e).batches(40, torch.Generator())) for e in (2, 4))
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in zip(short, long, strict=False))


def test_several_clients_share_the_members_and_their_global_model_is_attacked() -> None:
    settings = plan(attacks="loss", clients=4, epochs=20, local_epochs=2, at=(3,))
    assert (settings.count_rounds(20), settings.build_training(20).epochs) == (10, 2)
    assert (settings.count_rounds(1), settings.build_training(1).epochs) == (1, 1)
    found = infer_membership(settings, data=random_labels())
    assert [trial.epochs for trial in found.trials] == [4, 20]
    early, late = (trial.inferences[0].auc for trial in found.trials)
    assert late > max(0.8, early)


def test_members_others_and_public_images_are_strangers_to_each_other() -> None:
    photos = load("photos", image_size=16)
    assert photos.groups is not None
    owner = {
        image.numpy().tobytes(): int(g)
        for image, g in zip(photos.images(range(len(photos))), photos.groups, strict=True)
    }
    truth = draw_truth(photos, plan(members=7), CPU)
    parts = [truth.members, truth.others, truth.public]
    groups = [{owner[i.numpy().tobytes()] for i in part.images} for part in parts]
    assert [len(part) for part in parts[:2]] == [7, 7]
    assert all(groups)
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    assert not groups[1] & groups[2]


def test_candidates_are_shuffled_and_the_judge_can_tell_them_apart() -> None:
    digits = load("digits")
    truth = draw_truth(digits, plan(), CPU)
    assert len(truth.public) == 100
    candidates = truth.candidates
    assert not torch.equal(candidates.images[:40], truth.members.images)
    sums = candidates.images.sum((1, 2, 3))
    members, others = truth.split_scores(sums)
    assert sorted(members.tolist()) == sorted(truth.members.images.sum((1, 2, 3)).tolist())
    assert sorted(others.tolist()) == sorted(truth.others.images.sum((1, 2, 3)).tolist())


class Counter:
    """Watches, and adds up what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.shown: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def show(self, what: str) -> None:
        self.shown.append(what)

    def advance(self, units: int) -> None:
        self.done += units

    def iterate(self, done: int, total: int, text: str) -> None:
        raise AssertionError("nothing here iterates")


def test_progress_counts_every_model_that_is_trained() -> None:
    watch = Counter()
    settings = plan(
        attacks="loss,shadow,lira", shadows=4, epochs=2, at=(1,), defenses="none,gaussian"
    )
    infer_membership(settings, progress=watch)
    assert watch.total == watch.done == 2 * (1 + 4 + 4) + 2 * (1 + 8 + 8)
    assert "gaussian(sigma=0.001): lira (adaptive)" in watch.shown


def test_shadow_models_are_as_many_as_the_attack_or_else_the_plan_says() -> None:
    attacks = plan(attacks="loss,shadow(shadows=3),lira", shadows=6).build_attacks()
    assert [attack.own_models for attack in attacks] == [0, 3, 6]
    assert [attack.own_models for attack in plan(attacks="loss,shadow,lira").build_attacks()] == [
        0,
        8,
        16,
    ]


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"members": 900}, DoesNotFit, "1797 images: too few for 900 members .*--members"),
        ({"members": 1}, BadValue, "members: .* got 1"),
        ({"attacks": "loss,lra"}, UnknownName, "membership attack 'lra': did you mean lira"),
        ({"attacks": "lira", "shadows": 3}, BadValue, "lira: shadows: .* got 3"),
        ({"attacks": "shadow", "public": 3}, DoesNotFit, "needs 4 public images or more"),
        ({"defenses": "gausian"}, UnknownName, "did you mean gaussian"),
        ({"defenses": "mjp"}, DoesNotFit, "'mjp' does not fit the model"),
        ({"model": "lenett"}, UnknownName, "did you mean lenet"),
        ({"clients": 50, "attacks": "loss"}, DoesNotFit, "cannot be shared by 50 clients"),
        ({"views": -1}, BadValue, "views: .* got -1"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line_before_anything_is_trained(
    values: dict[str, Any], error: type[Exception], words: str
) -> None:
    watch = Counter()
    with pytest.raises(error, match=words) as raised:
        infer_membership(plan(**values), progress=watch)
    assert "\n" not in str(raised.value)
    assert watch.done == 0


def test_a_model_that_diverges_is_told_in_one_line() -> None:
    with pytest.raises(KeyholeError, match=r"learning rate|lower --lr"):
        infer_membership(plan(attacks="loss", optimiser="sgd", lr=1e20))


@pytest.mark.slow
def test_lira_finds_more_members_without_false_alarms_than_the_loss_does(data_dir: Any) -> None:
    settings = MembershipPlan(
        data="cifar10", members=500, epochs=60, lr=0.003, shadows=16, attacks=("loss", "lira")
    )
    (trial,) = infer_membership(settings, data_dir=str(data_dir)).trials
    loss, lira = trial.inferences
    assert loss.auc_low > 0.55
    assert lira.auc > loss.auc
    assert lira.rates[1].rate > 2 * loss.rates[1].rate
