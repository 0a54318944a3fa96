"""An audit of what a real server captured: rounds and clients of a run, ours or the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from keyhole.atomic import digest_of, read_json
from keyhole.attacks import Attack
from keyhole.auditing.attack_setting import AttackSetting, build_setting
from keyhole.auditing.captured_clients import (
    CapturedClient,
    alike,
    find_witnesses,
    give_names,
    is_place,
    longest_file,
    refuse_complex,
)
from keyhole.auditing.captured_training import CapturedRecipe, defense_of, parse_claim
from keyhole.auditing.client_normalisation import normalise_as_captured
from keyhole.auditing.plan import Stage
from keyhole.auditing.resolve import (
    PUBLIC,
    ResolvedStage,
    compute_fingerprint,
    describe_batch_norms,
    resolve_metrics,
)
from keyhole.auditing.stage_attacks import choose_attacks, configure_attack
from keyhole.data import ImageSet, load, parse_size
from keyhole.defenses import Defense
from keyhole.errors import BadValue, KeyholeError, RunFolderError
from keyhole.federation import Capture
from keyhole.federation.capture import JsonObject
from keyhole.federation.capture_reader import MAX_LISTED, CapturedRound, limit_lines
from keyhole.models import build
from keyhole.models.weights import load_tensors
from keyhole.seeds import generator
from keyhole.threat import Server
from keyhole.untrusted import printable

MOST_CLAIMS = 4
"""Different defenses that clients of one round claim and that are looked at for the model."""
LARGEST = 4096
"""Pixels of an image's side."""
MANY = 64
"""Images of a client from which on iterative attacks are tried only by request."""


def captured_settings(
    stage: Stage, *, seed: int, data_dir: str | None, device: torch.device
) -> tuple[list[AttackSetting], list[str]]:
    """The settings of a captured folder, and in words what of it could not be used."""
    assert stage.captured is not None
    if stage.repeats > 1:
        raise BadValue("repeats: captured clients sent what they sent; leave it out")
    capture = Capture.open(stage.captured)
    notes = list(capture.problems)
    size = stage.image_size or size_told(capture.about, notes)
    by_user = capture.about.get("by-user") is True
    data = load(stage.data, image_size=size, data_dir=data_dir, by_user=by_user)
    data, assumed, said = normalise_as_captured(data, stage, capture.about)
    if not assumed:
        stage = stage.model_copy(update={"mean": data.mean, "std": data.std})
    owners = truth_of(capture, stage, len(data), notes)
    settings: list[AttackSetting] = []
    models = Models(stage, data, seed, device)
    for seen in chosen_rounds(capture, stage):
        where = f"in round {seen.number}"
        lost = [f"client {n} sent nothing {where}: {why}" for n, why in seen.lost.items()]
        notes += limit_lines(lost, f"clients sent nothing {where}")
        try:
            model = models.of(seen)
        except KeyholeError as error:
            notes.append(f"round {seen.number}: {error}")
            continue
        clients = find_witnesses(seen, stage, model, owners, notes)
        groups = alike(clients)
        for group in groups:
            label = label_of(stage, seen, group, several=len(groups) > 1)
            settings.append(_setting(stage, seen, models, data, group, owners, seed, label, said))
        if not clients:
            notes.append(f"round {seen.number} has no client that can be attacked")
    if not settings:
        reasons = notes[len(capture.problems) :] or notes
        raise RunFolderError(f"nothing in {capture.root} can be attacked: {reasons[0]}")
    return settings, notes


def size_told(about: JsonObject, notes: list[str]) -> str | int | None:
    """The image size that a capture was made with, where it tells one that can be."""
    told = about.get("image-size")
    try:
        size = (0, 0) if isinstance(told, bool) else parse_size(told)
    except (BadValue, TypeError):
        size = (0, 0)
    if size is None or 1 <= min(size) <= max(size) <= LARGEST:
        return told
    notes.append(f"the captured image size {printable(told)} is none: the data set's own is taken")
    return None


def chosen_rounds(capture: Capture, stage: Stage) -> list[CapturedRound]:
    """The rounds that the user names; the first one, which tends to leak most, without."""
    there = {seen.number: seen for seen in capture.rounds}
    if stage.rounds is None:
        return [capture.rounds[0]]
    if stage.rounds == "all":
        return list(capture.rounds)
    wanted = [part.strip() for part in stage.rounds.split(",")]
    unknown = [part for part in wanted if not is_place(part) or int(part) not in there]
    if unknown:
        known = ", ".join(
            [*map(str, [*there][:MAX_LISTED]), *(["..."] if len(there) > MAX_LISTED else [])]
        )
        raise BadValue(f"round {unknown[0]!r} was not captured: there are {known}, or say all")
    return [there[number] for number in dict.fromkeys(int(part) for part in wanted)]


def truth_of(
    capture: Capture, stage: Stage, images: int, notes: list[str]
) -> dict[str, tuple[int, ...]]:
    """Whose images are whose, by client; empty where nobody noted it."""
    found = capture.truth if stage.truth is None else read_json(stage.truth)
    if found is None:
        return {}
    where = stage.truth or capture.root / "truth.json"
    try:
        if found.get("data") not in (None, stage.data):
            about = printable(found["data"])
            notes.append(f"the truth is about {about!r}, not {stage.data!r}: nothing is scored")
            return {}
        owners = {str(k): tuple(int(i) for i in v) for k, v in found["clients"].items()}
        if any(not 0 <= i < images for share in owners.values() for i in share):
            raise RunFolderError(f"{where} speaks of images that {stage.data!r} does not have")
        return owners
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(
            f'{where} is no truth: it should hold {{"clients": {{ID: [INDEX, ...]}}}}'
        ) from None


class Models:
    """The model as the server sent it in each round: one object, whose weights change."""

    def __init__(self, stage: Stage, data: ImageSet, seed: int, device: torch.device) -> None:
        self.stage, self.device = stage, device
        self.plain = build(
            stage.model,
            classes=len(data.classes),
            channels=data.shape[0],
            image_size=data.size,
            seed=seed,
        )
        self.defended: dict[str, nn.Module] = {}
        if "defenses" in stage.model_fields_set:
            defense_of({}, stage)

    def of(self, seen: CapturedRound) -> nn.Module:
        """The round's model; good until another round's is asked for."""
        for claim in self.claims(seen):
            with suppress(KeyholeError):
                return self.filled(claim, seen)
        return self.filled(defense_of(seen.config, self.stage), seen)

    def claims(self, seen: CapturedRound) -> list[Defense]:
        """Defenses that clients claim and that would add parameters to the model."""
        if "defenses" in self.stage.model_fields_set:
            return []
        said = dict.fromkeys(str(client.get("defense", "none")) for client in seen.clients)
        claims = [claim for text in said if (claim := parse_claim(text)) is not None]
        fitting = [
            claim for claim in claims[:MOST_CLAIMS] if not claim.incompatibilities(self.plain)
        ]
        return [claim for claim in fitting if claim.prepare_model(self.plain) is not self.plain]

    def filled(self, defense: Defense, seen: CapturedRound) -> nn.Module:
        """The model under a defense with the round's weights; raises where they do not fit."""
        known = self.defended.get(str(defense))
        model = known or defense.prepare_model(self.plain).to(self.device)
        weights = give_names(seen.read_weights(longest_file(model.state_dict())), model)
        refuse_complex(weights)
        load_tensors(model, weights, "the captured model")
        self.defended[str(defense)] = model
        return model

    def server(self, seen: CapturedRound, digest: str) -> Server:
        """The round's server once more; raises where the folder is no longer what it was."""
        model = self.of(seen)
        if digest_of(model.state_dict()) != digest:
            raise RunFolderError(f"{seen.folder} has changed while it was audited")
        return Server(model)


def _setting(
    stage: Stage,
    seen: CapturedRound,
    models: Models,
    data: ImageSet,
    group: Sequence[CapturedClient],
    owners: dict[str, tuple[int, ...]],
    seed: int,
    label: str,
    said: Sequence[str],
) -> AttackSetting:
    recipe, model = group[0].recipe, group[0].model
    scored = group[0].truth is not None
    defense = recipe.defense
    attacks, left_out = attacks_for(stage, recipe, scored=scored)
    victims = tuple(client.truth or () for client in group)
    private = {i for indices in (*owners.values(), *victims) for i in indices}
    order = torch.randperm(len(data), generator=generator(seed, "victims")).tolist()
    own = stage.model_copy(
        update={
            "rounds": str(seen.number),
            "nodes": ",".join(client.node for client in group),
            "defenses": (str(defense),),
            "victims": len(group),
            "batch_size": recipe.examples,
            "steps": recipe.steps,
            "lr": recipe.lr,
            "client_mode": recipe.mode,
            "checkpoint_epoch": seen.number - 1,
        }
    )
    resolved = ResolvedStage(
        stage=own,
        model=model,
        data=data,
        defenses=(defense,),
        attacks=tuple(attacks),
        attacks_named=stage.attacks != ("auto",) or recipe.examples > MANY,
        victims=victims,
        public=tuple([i for i in order if i not in private][:PUBLIC]),
        seed=seed,
        fingerprint=compute_fingerprint(model, data, victims, [client.digest for client in group]),
        metrics=resolve_metrics(stage.metrics, data),
        reported=group[0].reported,
        label=label,
        scored=scored,
        orders=recipe.orders,
        notes=(*said, *describe_batch_norms(model, recipe.mode, mode_given=True)),
        assumed_normalisation=stage.mean is None,
        clients_did=recipe.clients_did,
    )
    setting = build_setting(resolved, defense, attacks, model)
    notes = (*setting.notes, *recipe.notes, *left_out)
    return dataclasses.replace(
        setting,
        server=None,
        load_server=partial(models.server, seen, digest_of(model.state_dict())),
        captured=tuple(client.read for client in group),
        notes=notes,
        left_out=tuple(left_out),
    )


def label_of(
    stage: Stage, seen: CapturedRound, group: Sequence[CapturedClient], *, several: bool
) -> str:
    """What a group of clients goes by; where a round has ``several``, by their names."""
    who = f"client {group[0].node}" if len(group) == 1 else f"{len(group)} clients"
    if several and len(group) > 1:
        more = f" and {len(group) - MAX_LISTED} more" if len(group) > MAX_LISTED else ""
        who = f"clients {', '.join(client.node for client in group[:MAX_LISTED])}{more}"
    images = group[0].recipe.examples
    count = "1 image" if images == 1 else f"{images} images"
    return f"{stage.data}, captured in round {seen.number}, {who} of {count}"


def attacks_for(
    stage: Stage, recipe: CapturedRecipe, *, scored: bool
) -> tuple[list[Attack], list[str]]:
    """The attacks to try, without what only a simulation could tell them; and what was left out."""
    left_out = []
    if stage.attacks == ("auto",) and recipe.examples > MANY:
        left_out.append(
            f"a client trained on {recipe.examples} images: iterative attacks are tried only if "
            "named with --attack"
        )
    attacks = [
        configure_attack(attack, stage, labels_known=scored, orders=recipe.orders)
        for attack in choose_attacks(stage)
    ]
    return attacks, left_out
