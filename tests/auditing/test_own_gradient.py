"""One call on one's own gradient: what is handed in, what is assumed, and what is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import keyhole
from keyhole.attacks import InvertingGradients
from keyhole.auditing import gradient_search
from keyhole.auditing.client_mode import choose_mode, detect_batch_statistics
from keyhole.data import load
from keyhole.errors import BadUpdate, BadValue, DoesNotFit
from keyhole.metrics import assign_reconstructions, psnr
from keyhole.models import build
from keyhole.models.modes import set_mode
from keyhole.settings import ClientMode
from keyhole.update import Update

DIGITS = load("digits")
SHAPE = (1, 8, 8)
NORMALISED = {"mean": DIGITS.mean, "std": DIGITS.std}


def gradient_of(
    model: nn.Module, indices: tuple[int, ...] = (3,), mode: ClientMode = "train"
) -> list[Tensor]:
    set_mode(model, mode)
    loss = cross_entropy(model(DIGITS.normalise(DIGITS.images(indices))), labels(indices))
    return list(torch.autograd.grad(loss, list(model.parameters())))


def labels(indices: tuple[int, ...] = (3,)) -> Tensor:
    return DIGITS.labels[list(indices)]


def decibels(result: keyhole.GradientAttackResult, indices: tuple[int, ...] = (3,)) -> float:
    assert result.pixels is not None
    truth, seen = DIGITS.images(indices).double(), result.pixels.double()
    assert 0 <= float(seen.min()) <= float(seen.max()) <= 1
    return float(psnr(seen[assign_reconstructions(seen, truth)], truth, data_range=1.0).mean())


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), *middle[:1], nn.GELU(), nn.Conv2d(8, 8, 3, 2, 1)),
        *(nn.GELU(), nn.Flatten(), *middle[1:], nn.Linear(128, 10)),
    )


MLP = build("mlp", classes=10, channels=1, image_size=8)


def handed_in(kind: str) -> Any:
    found = gradient_of(MLP)
    names = [name for name, _ in MLP.named_parameters()]
    if kind == ".grad":
        for parameter, g in zip(MLP.parameters(), found, strict=True):
            parameter.grad = g
        return None
    by_name = dict(zip(names, found, strict=True))
    return {"list": found, "tuple": tuple(found), "by name": by_name}.get(
        kind, Update.from_gradient(found, model=MLP)
    )


@pytest.mark.parametrize("kind", ["list", "tuple", "by name", ".grad", "update"])
def test_a_gradient_is_handed_in_as_it_comes(kind: str) -> None:
    result = keyhole.attack_gradient(MLP, handed_in(kind), image_shape=SHAPE, **NORMALISED)
    assert result.attack == "linear"
    assert decibels(result) > 40
    assert result.confidence is not None
    assert float(result.confidence.min()) > 0.9
    assert [each.attack for each in result.tried] == ["linear"]
    assert not [note for note in result.notes if "client_mode" in note]


def test_a_batch_is_read_and_its_size_is_that_of_its_labels() -> None:
    indices = (3, 5, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    result = keyhole.attack_gradient(
        model, gradient_of(model, indices), image_shape=SHAPE, labels=labels(indices), **NORMALISED
    )
    assert result.pixels is not None
    assert 1 <= len(result.pixels) <= 3
    assert not [note for note in result.notes if "batch_size" in note]


def test_what_is_assumed_is_noted() -> None:
    result = keyhole.attack_gradient(MLP, gradient_of(MLP), image_shape=SHAPE)
    assert "batch_size was not given: a single image is assumed" in result.notes
    assert any("mean and std were not given" in note for note in result.notes)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("said", [True, False], ids=["said", "not said"])
def test_the_mode_of_batch_norms_is_told_by_the_gradient(mode: ClientMode, said: bool) -> None:
    model = network(nn.BatchNorm2d(8))
    found = keyhole.attack_gradient(
        model,
        gradient_of(model, (3, 5), mode),
        image_shape=SHAPE,
        labels=labels((3, 5)),
        attack="ig",
        iterations=200,
        client_mode=mode if said else None,
        **NORMALISED,
    )
    assert found.client_mode == mode
    assert decibels(found, (3, 5)) > 18
    which = "the batch's own" if mode == "train" else "their running"
    told = f"client_mode was not given: the gradient shows that batch norms used {which} statistics"
    assert (told in found.notes) is not said


def test_a_wrong_mode_makes_attacks_look_weak() -> None:
    model = network(nn.BatchNorm2d(8))
    settings = {"image_shape": SHAPE, "labels": labels(), "attack": "ig", "iterations": 100}
    seen = gradient_of(model, (3,), "eval")
    wrong = keyhole.attack_gradient(model, seen, client_mode="train", **settings, **NORMALISED)
    guessed = keyhole.attack_gradient(model, seen, **settings, **NORMALISED)
    assert decibels(guessed) > decibels(wrong) + 5


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_where_the_gradient_does_not_tell_the_lesser_loss_does(
    mode: ClientMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_search, "detect_batch_statistics", lambda *_: None)
    model = network(nn.BatchNorm2d(8))
    found = keyhole.attack_gradient(
        model,
        gradient_of(model, (3, 5), mode),
        image_shape=SHAPE,
        labels=labels((3, 5)),
        attack=InvertingGradients(iterations=20),
        **NORMALISED,
    )
    assert found.client_mode == mode
    assert any("statistics the loss of ig is less" in note for note in found.notes)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_dropout_is_found_out_by_trying(mode: ClientMode) -> None:
    model = network(nn.Identity(), nn.Dropout(0.3))
    found = keyhole.attack_gradient(
        model,
        gradient_of(model, mode=mode),
        image_shape=SHAPE,
        labels=labels(),
        iterations=150,
        **NORMALISED,
    )
    assert found.client_mode == mode
    assert found.attack.startswith("dia" if mode == "train" else "ig")
    assert decibels(found) > 30
    assert any("the model has dropout" in note for note in found.notes)


def test_labels_are_inferred_where_they_are_not_given() -> None:
    model = network()
    found = keyhole.attack_gradient(
        model, gradient_of(model), image_shape=SHAPE, iterations=150, **NORMALISED
    )
    assert found.labels is not None
    assert found.labels.tolist() == labels().tolist()
    assert decibels(found) > 25
    assert next(each.attack for each in found.tried if each.why_not) == "linear"


def test_an_attacker_who_knows_the_defense_uses_it() -> None:
    defense = "pruning(ratio=0.5)"
    update = keyhole.defenses.DEFENSES.parse(defense).on_update(
        Update.from_gradient(gradient_of(MLP), model=MLP)
    )
    settings = {"image_shape": SHAPE, "attack": "linear", **NORMALISED}
    knows = keyhole.attack_gradient(MLP, update, defense=defense, **settings)
    naive = keyhole.attack_gradient(MLP, update, **settings)
    assert decibels(knows) > decibels(naive) + 5


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"gradient": None}, BadUpdate, "no parameter has a gradient"),
        ({"gradient": [torch.zeros(1)]}, BadUpdate, "1 gradients for a model of 4 parameters"),
        ({"image_shape": (3, 8, 8)}, DoesNotFit, "does not take 3x8x8 images"),
        ({"mean": 0.5}, BadValue, "mean is given without std"),
        ({"mean": [0.5, 0.5], "std": [1, 1]}, DoesNotFit, "mean has 2 numbers for images of 1"),
        ({"labels": [1, 2], "batch_size": 3}, BadValue, "batch_size is 3, but there are 2 labels"),
        ({"attack": "april"}, DoesNotFit, "attack 'april' does not apply"),
        ({"attack": "liner"}, keyhole.KeyholeError, "did you mean linear"),
        ({"client_mode": "sleep"}, BadValue, "client-mode: choose one of train, eval"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused(
    values: dict[str, Any], error: type[Exception], words: str
) -> None:
    MLP.zero_grad()
    settings: dict[str, Any] = {"gradient": gradient_of(MLP), "image_shape": SHAPE, **values}
    with pytest.raises(error, match=words):
        keyhole.attack_gradient(MLP, **settings)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.Linear])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_statistics_show_in_gradients_of_any_size(kind: type, mode: ClientMode) -> None:
    torch.manual_seed(1)
    if kind is nn.Linear:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 300), nn.BatchNorm1d(300), nn.GELU(), nn.Linear(300, 10)
        )
    else:
        model = build("resnet18", classes=10, channels=1, image_size=8)
    update = Update.from_gradient(gradient_of(model, (3, 5, 7, 9), mode), model=model, batch_size=4)
    assert detect_batch_statistics(model, update) is (mode == "train")


def test_a_model_without_batch_norms_shows_nothing_of_them() -> None:
    assert detect_batch_statistics(MLP, Update.from_gradient(gradient_of(MLP), model=MLP)) is None
    assert choose_mode(batch_statistics=False, norms=True, drops=True) == "frozen-norm"
