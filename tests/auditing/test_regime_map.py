"""What a verdict says of its regime: measured and silent, measured and read, never measured."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole import audit
from keyhole.auditing import regime_map
from keyhole.auditing.audit_regime import AuditRegime, read_audit_regime
from keyhole.auditing.finding import Finding
from keyhole.auditing.regime_map import MappedRegime, locate, read_map
from keyhole.metrics import summarise

RECIPE = {"batch_size": 8, "steps": 1, "weights": None, "gallery": 100, "client_mode": "train"}


def mapped(**values: Any) -> MappedRegime:
    usual: dict[str, Any] = {
        "model": "mlp",
        "network": "MLP",
        "norm": "",
        "weights": "fresh",
        "batch": 8,
        "local": "step",
        "server": "honest",
        "data": "cifar10",
        "read": 0,
        "images": 32,
        "by": "ig",
    }
    return MappedRegime(**{**usual, **values})


def finding(*, altered: str | None = None, model: str = "mlp", **recipe: Any) -> Finding:
    metrics = {name: summarise([0.0, 0.0], worst_is_high=True) for name in ("read", "ssim", "reid")}
    return Finding(
        key="k",
        model=model,
        data="faces",
        defense={"name": "none", "parameters": {}},
        attacker="naive",
        attack="ig",
        attack_parameters={},
        knowledge={"altered_model": altered, "server": "honest but curious"},
        victims=2,
        seconds=1.0,
        metrics=metrics,
        recipe={**RECIPE, **recipe},
    )


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({}, ("fresh", 8, "step")),
        ({"weights": "w.safetensors"}, ("trained", 8, "step")),
        ({"checkpoint_epoch": 3}, ("trained", 8, "step")),
        ({"warm_up": 2}, ("trained", 8, "step")),
        ({"steps": 5}, ("fresh", 8, "steps")),
        ({"epochs": 1, "local_batch_size": 2}, ("fresh", 2, "epoch")),
        ({"epochs": 1}, ("fresh", 8, "step")),
        ({"captured": "cap", "clients_did": "4 steps of sgd, lr 1 (batches of 2)"}, None),
        (
            {"captured": "cap", "clients_did": "9 steps of sgd, lr 1 (3 epochs in batches of 3)"},
            ("any", 3, "epoch"),
        ),
    ],
)
def test_a_recipe_tells_the_regime(recipe: dict[str, Any], expected: Any) -> None:
    found = read_audit_regime(finding(**recipe))
    assert found is not None
    assert (found.weights, found.batch, found.local) == (expected or ("any", 2, "epoch"))


def test_a_recipe_that_leaves_things_out_tells_none() -> None:
    partial = finding()
    partial.recipe.pop("steps")
    assert read_audit_regime(partial) is None
    assert locate([partial], [mapped()]) is None


def words(found: Finding, *regimes: MappedRegime) -> str:
    place = locate([found], regimes)
    assert place is not None
    return place.words


def test_where_nothing_was_ever_read_the_words_say_so() -> None:
    silent = words(finding(), mapped())
    assert silent == (
        "none of our attacks has read anything in this regime (32 images of cifar10, "
        "results/regimes)"
    )


def test_where_images_were_read_the_words_say_by_what() -> None:
    read = words(finding(), mapped(read=3))
    assert read == (
        "in this regime ig reads 3 of 32 images without a defense (cifar10, results/regimes)"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"model": "lenet"},
        {"weights": "70%"},
        {"batch": 32},
        {"local": "epoch"},
        {"server": "malicious"},
        {"norm": "frozen-norm"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_regime_says_nothing_of_this_one(other: dict[str, Any]) -> None:
    assert words(finding(), mapped(**other)) == "this regime was never measured (results/regimes)"


@pytest.mark.parametrize("recipe", [{"aggregate": 4}, {"repeats": 3}], ids=["sum", "repeats"])
def test_sums_and_repeated_updates_were_never_measured(recipe: dict[str, Any]) -> None:
    assert "never measured" in words(finding(**recipe), mapped())


def test_the_next_smaller_batch_counts() -> None:
    place = locate([finding(batch_size=20)], [mapped(batch=1, read=4), mapped(), mapped(batch=32)])
    assert place is not None
    assert [each.batch for each in place.here] == [8]


def test_trained_weights_stand_at_every_accuracy_together() -> None:
    two = mapped(weights="70%", read=2), mapped(weights="90%", read=0)
    place = locate([finding(weights="w.safetensors")], two)
    assert place is not None
    assert (place.read, place.images, len(place.here)) == (2, 64, 2)


def test_captured_weights_may_be_any() -> None:
    regime = AuditRegime("mlp", "train", "any", 8, "step", "honest")
    assert all(regime.has_weights(name) for name in ("fresh", "70%"))


def test_the_verdict_of_an_audit_quotes_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"model": "lenet", "data": "digits", "victims": 1, "image_size": 16}
    ig = "ig(iterations=1)"
    for regimes, said in (
        ((), "this regime was never measured"),
        ((mapped(model="lenet", batch=1),), "none of our attacks has read anything in this regime"),
    ):
        monkeypatch.setattr(regime_map, "read_map", lambda found=regimes: found)
        (verdict,) = audit(attacks=[ig], **options).verdicts
        assert verdict.status == "not broken"
        assert said in verdict.words


def test_the_shipped_map_holds_possible_numbers() -> None:
    for each in read_map():
        assert 0 <= each.read <= each.images
        assert each.local in ("step", "steps", "epoch")
        assert each.by
