"""The mean and std that normalised the clients' images: given, captured, assumed or fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from keyhole.attacks import Attack, Checkpointer, Reconstruction
from keyhole.auditing.plan import Stage
from keyhole.data import ImageSet, Normalisation
from keyhole.data.normalisation import (
    are_grey_levels,
    common_normalisations,
    fit_normalisation,
)
from keyhole.errors import BadValue
from keyhole.mean_and_std import parse_deviations, parse_means
from keyhole.models import is_user_model
from keyhole.threat import Observation

PASS_THEM = "pass --mean and --std (mean=, std= in Python and in curious(...))"


def normalise_as_captured(
    data: ImageSet, stage: Stage, about: Mapping[str, Any]
) -> tuple[ImageSet, bool, list[str]]:
    """The images of a captured run, normalised as the user or the capture says.

    Returns also whether the normalisation is only assumed, and notes for the reader.
    """
    if stage.mean is not None and stage.std is not None:
        return data.with_normalisation(stage.mean, stage.std), False, []
    notes = []
    if about.get("mean") is not None or about.get("std") is not None:
        try:
            mean, std = parse_means(about.get("mean")), parse_deviations(about.get("std"))
            return data.with_normalisation(mean, std), False, []
        except BadValue as error:
            notes.append(f"the mean and std that were captured cannot be used ({error})")
    return data, True, [*notes, note_captured_assumption(data)]


def note_captured_assumption(data: ImageSet) -> str:
    """Says that a data set's own mean and std are assumed of captured clients."""
    return describe_assumption("clients normalise their images", data)


def note_assumption(stage: Stage, data: ImageSet, *, own_model: bool) -> tuple[str, ...]:
    """Says that the data set's own mean and std are assumed, if the model is the user's own."""
    if stage.mean is not None or not (own_model or stage.weights or is_user_model(stage.model)):
        return ()
    return (describe_assumption("the model's training normalised its images", data),)


def describe_assumption(who: str, data: ImageSet) -> str:
    return (
        f"how {who} is not known: the data set's own {Normalisation.of(data)} are assumed. With "
        f"wrong values attacks look weaker than they are: {PASS_THEM}"
    )


def attack_by_best_fit(
    attack: Attack,
    observations: Sequence[Observation],
    checkpointer: Checkpointer,
    assumed: Normalisation,
    *,
    exact: bool = True,
) -> Iterator[tuple[Reconstruction, Normalisation]]:
    """Attacks, fits a normalisation to the inputs that were found, and attacks again with it.

    The fit uses only what the attack found, never the truth. If the fit is the assumed one but no
    whole grey levels appear, the common normalisations are tried one by one; that works only on
    ``exact`` updates, which no defense has changed.
    """
    found = list(attack.on_many(observations, checkpointer))
    images = [each.images for each in found if each.images is not None]
    fit = fit_normalisation(torch.cat(images), assumed) if images else assumed
    if exact and fit == assumed and not _finds_grey_levels(found[:1], assumed):
        fit = find_by_trial(attack, observations[0], checkpointer) or assumed
    if fit == assumed:
        yield from ((each, assumed) for each in found)
        return
    note = (
        f"what {attack.name} found fits {fit.name} ({fit}) better than the assumed {assumed}: it "
        "is shown and scored by that"
    )
    for each in attack.on_many(
        [assume_normalisation(fit, each) for each in observations], checkpointer
    ):
        yield replace(each, notes=(*each.notes, note)), fit


def find_by_trial(
    attack: Attack, observation: Observation, checkpointer: Checkpointer
) -> Normalisation | None:
    """The common normalisation with which the attack finds whole grey levels in one client.

    An attack that needs the range of pixels to find the scale of inputs fails with a wrong one.
    """
    for choice in common_normalisations(observation.knowledge.shape[0]):
        found = list(attack.on_many([assume_normalisation(choice, observation)], checkpointer))
        if _finds_grey_levels(found, choice):
            return choice
    return None


def assume_normalisation(normalisation: Normalisation, observation: Observation) -> Observation:
    """The observation of an attacker who assumes this normalisation."""
    mean, std = normalisation.mean, normalisation.std
    return replace(observation, knowledge=replace(observation.knowledge, mean=mean, std=std))


def _finds_grey_levels(found: Sequence[Reconstruction], by: Normalisation) -> bool:
    images = [each.images for each in found if each.images is not None]
    return bool(images) and are_grey_levels(by.pixels(torch.cat(images).double()))
