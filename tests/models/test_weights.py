"""Weights of models that a defense had added something to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.defenses import Mjp
from keyhole.errors import BadUpdate
from keyhole.models import build, load_weights
from keyhole.models.weights import fill_defense_weights, read_defense_weights


def plain() -> nn.Module:
    return build("vit-small", classes=5, channels=1, image_size=8)


@pytest.fixture
def trained() -> nn.Module:
    """A defended model that is not as it was made."""
    model = Mjp(gamma=0.5).prepare_model(plain())
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    return model


@pytest.fixture
def path(trained: nn.Module, tmp_path: Path) -> Path:
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def equal(one: nn.Module, other: nn.Module) -> bool:
    found, expected = one.state_dict(), other.state_dict()
    return set(found) == set(expected) and all(torch.equal(found[n], expected[n]) for n in found)


def test_what_a_defense_learnt_comes_back_with_the_model(trained: nn.Module, path: Path) -> None:
    model = build("vit-small", classes=5, channels=1, image_size=8, weights=path)
    prepared = Mjp(gamma=0.5).prepare_model(model)
    assert not equal(prepared, trained)
    whole = fill_defense_weights(prepared, read_defense_weights(path), str(path))
    assert equal(whole, trained)
    assert whole is not prepared
    assert type(whole) is type(prepared)


def test_spare_weights_are_those_of_the_defense_alone(path: Path) -> None:
    head = {f"puzzle.head.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")}
    assert set(read_defense_weights(path)) == {"puzzle.unknown", *head}


def test_a_model_that_is_not_defended_leaves_them_aside(trained: nn.Module, path: Path) -> None:
    model = plain()
    load_weights(model, path)
    assert all(torch.equal(trained.state_dict()[n], t) for n, t in model.state_dict().items())
    assert fill_defense_weights(model, read_defense_weights(path), "") is model


def test_a_defended_model_is_loaded_whole(trained: nn.Module, path: Path) -> None:
    model = Mjp(gamma=0.5).prepare_model(plain())
    load_weights(model, path)
    assert equal(model, trained)


def test_where_nothing_was_learnt_the_defense_starts_as_it_does(tmp_path: Path) -> None:
    save_file(plain().state_dict(), tmp_path / "plain.safetensors")
    prepared = Mjp(gamma=0.5).prepare_model(plain())
    assert read_defense_weights(tmp_path / "plain.safetensors") == {}
    assert fill_defense_weights(prepared, {}, "") is prepared


def test_what_another_defense_had_learnt_is_refused(path: Path) -> None:
    without_localiser = Mjp(gamma=0.5, dal="none").prepare_model(plain())
    with pytest.raises(BadUpdate, match=r"weights\.safetensors holds another model's weights"):
        fill_defense_weights(without_localiser, read_defense_weights(path), str(path))


def test_other_surplus_weights_are_refused_still(trained: nn.Module, tmp_path: Path) -> None:
    save_file({**trained.state_dict(), "puzzling": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(BadUpdate, match="puzzling not the model's"):
        load_weights(plain(), tmp_path / "w.safetensors")
