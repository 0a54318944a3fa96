"""The published attacks, end to end on handwritten digits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import ATTACKS, ITERATIVE, GradViT, Matching
from keyhole.attacks.matching.parts.objectives import Cosine, SquaredError
from keyhole.attacks.matching.parts.optimisers import LBFGS, Adam
from keyhole.attacks.matching.parts.priors import (
    BatchNormStatistics,
    DropRate,
    PatchSeams,
    PositionCosine,
    TotalVariation,
)
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.defenses import Dropout
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.models.anatomy import find_patch_embedding

Clients = Callable[..., list[Any]]
EVERY = pytest.mark.parametrize("attack", ITERATIVE, ids=lambda a: a.name)


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    return build("mlp", classes=10, channels=1, image_size=8)


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    model = build("vit-small", classes=10, channels=1, image_size=8)
    model.blocks = model.blocks[:1]
    return model


def decibels(clients: Clients, model: nn.Module, text: str, *indices: int) -> list[float]:
    seen = clients(model, [[index] for index in indices])
    found = ATTACKS.parse(text).on_many([client.observation for client in seen])
    return [client.decibels(f.images) for client, f in zip(seen, found, strict=True)]


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("dlg(iterations=60, trials=3)", 60),
        ("idlg(iterations=40)", 60),
        ("ig(iterations=100)", 35),
        ("gradinversion(iterations=100)", 30),
    ],
)
def test_an_undefended_mlp_is_read(clients: Clients, mlp: nn.Module, text: str, least: int) -> None:
    assert min(decibels(clients, mlp, text, 14, 25)) > least


@pytest.mark.parametrize("name", ["dlg", "idlg"])
def test_labels_are_found_with_the_image(clients: Clients, mlp: nn.Module, name: str) -> None:
    seen = clients(mlp, [[3], [14], [25]])
    attack = ATTACKS.parse(f"{name}(iterations=40, trials=3)")
    unlabelled = [
        replace(c.observation, knowledge=replace(c.observation.knowledge, labels=None))
        for c in seen
    ]
    for client, found in zip(seen, attack.on_many(unlabelled), strict=True):
        assert found.labels is not None
        assert found.labels.tolist() == client.labels.tolist()
        assert client.decibels(found.images) > 40


def test_dropout_hides_the_image_from_those_who_neither_know_nor_seek_its_masks(
    clients: Clients, mlp: nn.Module
) -> None:
    client = clients(mlp, [[14]], Dropout(p=0.5))[0]
    ig, wiig, dia = (
        ATTACKS.parse(f"{name}(iterations=100)")(client.observation)
        for name in ("ig", "wiig", "dia")
    )
    assert client.decibels(ig.images) < 20
    assert client.decibels(wiig.images) > 35
    assert client.decibels(dia.images) > 30
    assert dia.masks is not None
    last, true = dia.masks[2], client.masks[2]
    assert ((last > 0.5) == true).float().mean() > 0.85


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("gradvit(iterations=150)", 20),
        ("april-iterative(iterations=150)", 20),
        ("ig(iterations=60)", 20),
    ],
)
def test_an_undefended_vit_is_read(clients: Clients, vit: nn.Module, text: str, least: int) -> None:
    assert min(decibels(clients, vit, text, 14)) > least


@pytest.mark.parametrize("name", ["gradvit", "april-iterative"])
def test_attacks_on_vits_refuse_other_models(clients: Clients, mlp: nn.Module, name: str) -> None:
    seen = clients(mlp, [[3]])[0].observation
    with pytest.raises(DoesNotFit, match="it needs a ViT with learned absolute position embed"):
        ATTACKS.parse(name)(seen)


def test_batch_norm_statistics_pull_towards_the_data(clients: Clients, digits: Any) -> None:
    """A network that has seen digits: noise has other statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    )
    model[1].momentum = None
    model.train()(digits.normalise(digits.images(list(range(300)))))
    client = clients(model, [[14, 25]], mode="eval")[0]
    free, bound = (
        ATTACKS.parse(f"gradinversion(iterations=60, labels='given', statistics={weight})")(
            client.observation
        )
        for weight in (0.0, 0.5)
    )
    with torch.no_grad():
        apart = [
            float((model[0](f.images).mean((0, 2, 3)) - model[1].running_mean).norm())
            for f in (free, bound)
        ]
    assert apart[1] < apart[0]


@EVERY
def test_the_papers_settings_are_settings_of_the_attack(attack: type[Matching]) -> None:
    fields = {field.name for field in dataclasses.fields(attack)}
    assert set(attack.published) <= fields
    papers = attack(**attack.published)
    for name, value in attack.published.items():
        assert getattr(papers, name) == value
        assert getattr(attack(), name) != value


@EVERY
def test_an_attack_spells_itself(attack: type[Matching]) -> None:
    for settings in ({}, {"iterations": 7, "labels": "inferred", "trials": 2}, attack.published):
        written = attack(**settings)
        assert ATTACKS.parse(str(written)) == written


@EVERY
def test_an_attack_says_what_it_is(attack: type[Matching]) -> None:
    assert attack.name in ATTACKS.names()
    assert attack.summary
    assert attack.paper
    assert attack.needs
    assert len({a.name for a in ITERATIVE}) == len(ITERATIVE)


def test_each_row_has_the_parts_its_paper_names(clients: Clients, vit: nn.Module) -> None:
    seen = clients(vit, [[3]], Dropout(p=0.25))[0].observation
    problem = MatchingProblem.from_observation(seen)
    made = {kind.name: kind() for kind in ITERATIVE}
    parts_of = {name: each.build_parts(each.build_problem(seen)) for name, each in made.items()}
    priors = {name: {type(p) for p in parts.priors} for name, parts in parts_of.items()}
    assert isinstance(parts_of["dlg"].optimiser, LBFGS)
    assert ATTACKS.parse("dlg").build_all_parts(problem).labels is not None
    assert ATTACKS.parse("idlg").build_all_parts(problem).labels is None
    assert isinstance(parts_of["dlg"].objective, SquaredError)
    for name in ("ig", "wiig", "dia"):
        assert isinstance(parts_of[name].objective, Cosine)
        assert parts_of[name].optimiser == Adam(lr=0.1, signed=("pixels",))
        assert priors[name] == {TotalVariation}
    sought = parts_of["dia"].with_mask_search(problem, 1e-4)
    assert sought.masks is not None
    assert sought.priors[-1] == DropRate(1e-4, problem.sites)
    assert sought.unknowns == (sought.images, sought.masks)
    assert PositionCosine in priors["april-iterative"]
    assert parts_of["april-iterative"].needs_full_gradients
    assert PatchSeams in priors["gradvit"]
    assert BatchNormStatistics in priors["gradinversion"]
    assert parts_of["gradinversion"].needs_statistics
    assert not parts_of["ig"].needs_full_gradients


def test_where_nothing_is_dropped_no_masks_are_sought(clients: Clients, mlp: nn.Module) -> None:
    problem = MatchingProblem.from_observation(clients(mlp, [[3]])[0].observation)
    parts = ATTACKS.parse("dia").build_parts(problem)
    assert parts.with_mask_search(problem, 1e-4) is parts


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("vit-small", 8, (4, 4)),
        ("vit-small", 12, (4, 4)),
        ("timm:vit_tiny_patch16_224", 32, (16, 16)),
    ],
)
def test_the_patches_size_is_found(name: str, size: int, expected: tuple[int, int]) -> None:
    found = find_patch_embedding(
        build(name, classes=10, channels=1, image_size=size), (1, size, size)
    )
    assert not isinstance(found, str)
    assert found.input_layer.patch_size((1, size, size)) == expected


def test_seams_are_those_of_the_models_patches(clients: Clients, vit: nn.Module) -> None:
    problem = MatchingProblem.from_observation(clients(vit, [[3]])[0].observation)
    (seams,) = [
        p for p in GradViT(seams=0.3).build_parts(problem).priors if isinstance(p, PatchSeams)
    ]
    assert seams == PatchSeams(0.3, (4, 4), after=0.5)
