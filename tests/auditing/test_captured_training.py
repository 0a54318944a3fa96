"""What a captured client tells of its training, and what has to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from keyhole.auditing import Stage
from keyhole.auditing.captured_training import infer_training
from keyhole.auditing.claimed_defenses import choose_defense
from keyhole.defenses import Dropout, Gaussian, NoDefense
from keyhole.optimisers import Adam, AdamW, LocalOptimiser, Sgd


def stage(**values: Any) -> Stage:
    return Stage(data="digits", **values)


TOLD: Mapping[str, Any] = {
    "lr": 0.1,
    "batch-size": 4,
    "num-examples": 4,
    "local-epochs": 1,
    "client-mode": "eval",
}


def test_a_recipe_that_is_told_needs_no_assumption() -> None:
    found = infer_training(TOLD, stage())
    assert (found.examples, found.steps, found.lr, found.batch_size) == (4, 1, 0.1, 4)
    assert (found.mode, found.notes) == ("eval", ())


@pytest.mark.parametrize("name", ["lr", "learning-rate", "learning_rate", "client-lr", "local-lr"])
def test_the_learning_rate_goes_by_many_names(name: str) -> None:
    told = {**TOLD, name: 0.25}
    if name != "lr":
        del told["lr"]
    assert infer_training(told, stage()).lr == 0.25


@pytest.mark.parametrize(
    ("gone", "word"),
    [
        ("lr", "learning rate is not known: taken as 1"),
        ("batch-size", "batch size is not known: taken as all"),
        ("num-examples", "how many images a client has is not known: taken as 4"),
        ("local-epochs", "how long clients train is not known: taken as one epoch"),
    ],
)
def test_what_is_assumed_is_said(gone: str, word: str) -> None:
    found = infer_training({k: v for k, v in TOLD.items() if k != gone}, stage())
    (note,) = found.notes
    assert word in note
    assert (found.examples, found.steps, found.batch_size) == (4, 1, 4)
    assert found.lr == (1.0 if gone == "lr" else 0.1)


def test_of_a_client_that_tells_nothing_everything_is_assumed() -> None:
    found = infer_training({}, stage())
    assert (found.examples, found.steps, found.lr, found.batch_size) == (1, 1, 1.0, 1)
    assert len(found.notes) == 4
    assert found.mode == "train"


@pytest.mark.parametrize("lr", [0, -0.1, None, "0.1"])
def test_a_learning_rate_that_cannot_be_is_not_believed(lr: object) -> None:
    found = infer_training({**TOLD, "lr": lr}, stage())
    assert found.lr == 1.0
    assert "learning rate is not known" in found.notes[0]


def test_what_the_user_says_wins() -> None:
    found = infer_training(TOLD, stage(lr=0.5, batch_size=2, steps=2, client_mode="train"))
    assert found.mode == "train"
    assert found.examples == 4
    assert found.steps * found.lr == pytest.approx(1.0)
    assert infer_training(TOLD, stage(lr=0.5, steps=3)).steps == 3


def test_a_mode_that_is_left_open_is_the_one_told() -> None:
    assert infer_training(TOLD, stage(client_mode=None)).mode == "eval"
    assert infer_training({**TOLD, "client-mode": "sleep"}, stage()).mode == "train"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"optimiser": "adam"}, Adam()),
        ({"optimizer": "AdamW", "weight-decay": 0.1}, AdamW(weight_decay=0.1)),
        ({"momentum": 0.9, "nesterov": True}, Sgd(momentum=0.9, nesterov=True)),
        ({"optimiser": "sgd(momentum=0.5)", "momentum": 0.9}, Sgd(momentum=0.5)),
    ],
)
def test_the_optimiser_is_believed(told: dict[str, Any], expected: LocalOptimiser) -> None:
    found = infer_training({**TOLD, **told, "local-steps": 2}, stage())
    assert found.optimiser == expected
    assert found.notes == ()
    assert infer_training({**TOLD, **told}, stage(optimiser="sgd")).optimiser == Sgd()


@pytest.mark.parametrize(
    "odd", ["lion", "sgd(momentum=7)", "x" * 999, "os:system", "[/b]", "a\nb", 3, None]
)
def test_an_optimiser_that_is_not_known_is_said_in_one_line(odd: Any) -> None:
    found = infer_training({**TOLD, "optimiser": odd, "local-steps": 3}, stage())
    assert found.optimiser is None
    (note,) = found.notes
    assert note.endswith("attacks take their updates for one large step of plain SGD")
    assert len(note) < 120
    assert "\n" not in note


def test_momentum_does_not_matter_in_a_single_step() -> None:
    assert infer_training({**TOLD, "momentum": 0.9, "optimiser": "sgd"}, stage()).notes == ()


def test_steps_of_several_batches_amount_to_the_same_training() -> None:
    found = infer_training(
        {**TOLD, "num-examples": 100, "batch-size": 10, "local-epochs": 2}, stage()
    )
    assert found.examples == 100
    assert found.steps * found.lr == pytest.approx(20 * 0.1)
    assert any("which image was in which of the 20 steps is not known" in n for n in found.notes)


def test_a_batch_larger_than_the_client_is_all_its_images() -> None:
    assert infer_training({**TOLD, "batch-size": 64}, stage()).batch_size == 4


def test_the_defense_is_the_users_then_the_messages_then_none() -> None:
    told = {"defense": "dropout(p=0.3)"}
    assert choose_defense(told, stage()) == Dropout(p=0.3)
    assert choose_defense(told, stage(defenses=("gaussian(sigma=0.2)",))) == Gaussian(sigma=0.2)
    assert choose_defense({}, stage()) == NoDefense()
    assert choose_defense({"defense": "homemade"}, stage()) == NoDefense()


def test_what_clients_did_is_told() -> None:
    told = {
        "lr": 0.01,
        "momentum": 0.9,
        "batch-size": 32,
        "num-examples": 600,
        "local-epochs": 1,
    }
    found = infer_training(told, stage())
    assert (found.steps, found.lr, found.batch_size) == (19, 0.01, 32)
    assert found.clients_did == "19 steps of sgd, lr 0.01, momentum 0.9 (1 epoch in batches of 32)"
    given = infer_training(told, stage(lr=0.5, steps=2, batch_size=300))
    assert given.clients_did == "2 steps of sgd, lr 0.5, momentum 0.9 (batches of 300)"


def test_an_optimiser_that_is_no_name_is_not_repeated() -> None:
    for odd in ("x" * 999, "[/b]", "a\nb", 3):
        did = infer_training({**TOLD, "optimiser": odd}, stage()).clients_did
        assert did == "1 step of unknown, lr 0.1 (1 epoch in batches of 4)"
