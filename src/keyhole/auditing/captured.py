"""An audit of what a server captured: rounds and clients of a run, ours or the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch

from keyhole.atomic import digest_of, read_json
from keyhole.attacks import Attack
from keyhole.auditing.attack_choice import MAX_IMAGES_ITERATIVE
from keyhole.auditing.attack_setting import AttackSetting, build_setting
from keyhole.auditing.captured_clients import (
    CapturedClient,
    Owners,
    find_clients,
    group_clients,
    is_index,
)
from keyhole.auditing.captured_model import CapturedModel
from keyhole.auditing.captured_rounds import choose_earlier, read_earlier_rounds
from keyhole.auditing.captured_training import CapturedTraining, is_known_exactly
from keyhole.auditing.client_normalisation import normalise_as_captured
from keyhole.auditing.plan import AUTO, Stage
from keyhole.auditing.resolve import (
    PUBLIC,
    ResolvedStage,
    compute_fingerprint,
    describe_batch_norms,
    resolve_metrics,
)
from keyhole.auditing.stage_attacks import choose_attacks, configure_attack
from keyhole.data import ImageSet, load, parse_size
from keyhole.errors import BadValue, KeyholeError, RunFolderError
from keyhole.federation import Capture
from keyhole.federation.capture import JsonObject
from keyhole.federation.capture_reader import MAX_LISTED, CapturedRound, limit_lines
from keyhole.optimisers import Sgd
from keyhole.seeds import generator
from keyhole.untrusted import printable

MAX_SIDE = 4096
"""Pixels of an image's side."""


def build_captured_settings(
    stage: Stage, *, seed: int, data_dir: str | None, device: torch.device
) -> tuple[list[AttackSetting], list[str]]:
    """The settings of a captured folder, and notes on what in it could not be used."""
    assert stage.captured is not None
    if stage.repeats > 1:
        raise BadValue("repeats: captured clients sent what they sent; leave it out")
    capture = Capture.open(stage.captured)
    notes = list(capture.problems)
    size = stage.image_size or read_image_size(capture.about, notes)
    by_user = capture.about.get("by-user") is True
    data = load(stage.data, image_size=size, data_dir=data_dir, by_user=by_user)
    data, assumed, about_data = normalise_as_captured(data, stage, capture.about)
    if not assumed:
        stage = stage.model_copy(update={"mean": data.mean, "std": data.std})
    model = CapturedModel(stage, data, seed, device, capture.about)
    if model.alteration is not None:
        notes.append(f"its server altered the model before it sent it out: {model.alteration}")
    run = CapturedRun(
        stage=stage,
        data=data,
        about_data=tuple(about_data),
        model=model,
        owners=read_truth(capture, stage, len(data), notes),
        seed=seed,
        rounds=capture.rounds,
    )
    settings = [
        setting
        for captured_round in choose_rounds(capture, stage)
        for setting in run.build_settings(captured_round, notes)
    ]
    if not settings:
        reasons = notes[len(capture.problems) :] or notes
        raise RunFolderError(f"nothing in {capture.root} can be attacked: {reasons[0]}")
    return settings, notes


def read_image_size(about: JsonObject, notes: list[str]) -> str | int | None:
    """The image size that a capture was made with, if it gives a possible one."""
    text = about.get("image-size")
    try:
        size = (0, 0) if isinstance(text, bool) else parse_size(text)
    except (BadValue, TypeError):
        size = (0, 0)
    if size is None or 1 <= min(size) <= max(size) <= MAX_SIDE:
        return text
    notes.append(
        f"the captured image size {printable(text)} is not a size: the data set's own is used"
    )
    return None


def choose_rounds(capture: Capture, stage: Stage) -> list[CapturedRound]:
    """The rounds that the user names; by default the first, which tends to leak most."""
    rounds = {each.number: each for each in capture.rounds}
    if stage.rounds is None:
        return [capture.rounds[0]]
    if stage.rounds == "all":
        return list(capture.rounds)
    wanted = [part.strip() for part in stage.rounds.split(",")]
    unknown = [part for part in wanted if not is_index(part) or int(part) not in rounds]
    if unknown:
        more = ["..."] if len(rounds) > MAX_LISTED else []
        known = ", ".join([*map(str, [*rounds][:MAX_LISTED]), *more])
        raise BadValue(f"round {unknown[0]!r} was not captured: there are {known}, or say all")
    return [rounds[number] for number in dict.fromkeys(int(part) for part in wanted)]


def read_truth(capture: Capture, stage: Stage, images: int, notes: list[str]) -> Owners:
    """The images of each client; empty if nobody recorded them."""
    found = capture.truth if stage.truth is None else read_json(stage.truth)
    if found is None:
        return {}
    path = stage.truth or capture.root / "truth.json"
    try:
        if found.get("data") not in (None, stage.data):
            about = printable(found["data"])
            notes.append(f"the truth is about {about!r}, not {stage.data!r}: nothing is scored")
            return {}
        owners = {str(k): tuple(int(i) for i in v) for k, v in found["clients"].items()}
        if any(not 0 <= i < images for share in owners.values() for i in share):
            raise RunFolderError(f"{path} names images that {stage.data!r} does not have")
        return owners
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(
            f'{path} is not a truth file: it should hold {{"clients": {{ID: [INDEX, ...]}}}}'
        ) from None


@dataclasses.dataclass(frozen=True)
class CapturedRun:
    """What all rounds of a captured folder share."""

    stage: Stage
    data: ImageSet
    about_data: tuple[str, ...]
    """Notes on how the images are normalised."""
    model: CapturedModel
    owners: Owners
    seed: int
    rounds: Sequence[CapturedRound] = ()
    """All captured rounds."""

    def build_settings(
        self, captured_round: CapturedRound, notes: list[str]
    ) -> list[AttackSetting]:
        """The settings of one round: one for each group of clients that trained alike."""
        number = captured_round.number
        where = f"in round {number}"
        lost = [f"client {n} sent nothing {where}: {why}" for n, why in captured_round.lost.items()]
        notes += limit_lines(lost, f"clients sent nothing {where}")
        try:
            model = self.model.load_round(captured_round)
        except KeyholeError as error:
            notes.append(f"round {number}: {error}")
            return []
        groups = group_clients(find_clients(captured_round, self.stage, model, self.owners, notes))
        if not groups:
            notes.append(f"round {number} has no client that can be attacked")
        several = len(groups) > 1
        return [self._build_setting(captured_round, group, several=several) for group in groups]

    def _build_setting(
        self, captured_round: CapturedRound, group: Sequence[CapturedClient], *, several: bool
    ) -> AttackSetting:
        training, model = group[0].training, group[0].model
        scored, where = group[0].truth is not None, f"in round {captured_round.number}"
        left_out = note_left_out(self.stage, training)
        victims = tuple(client.truth or () for client in group)
        honest = self.model.alteration is None
        earlier = choose_earlier(self.rounds, captured_round.number, group) if honest else ()
        attacks = configure_attacks(self.stage, training, scored=scored)
        most = max(attack.most_rounds for attack in attacks)
        resolved = ResolvedStage(
            stage=describe_stage(self.stage, captured_round, group),
            model=model,
            data=self.data,
            defenses=(training.defense,),
            attacks=tuple(attacks),
            attacks_named=self.stage.attacks != (AUTO,) or bool(left_out),
            victims=victims,
            public=self._choose_public(victims),
            seed=self.seed,
            fingerprint=compute_fingerprint(
                model, self.data, victims, [each.digest for each in group]
            ),
            metrics=resolve_metrics(self.stage.metrics, self.data),
            reported=group[0].parameters,
            reported_buffers=frozenset.intersection(*(each.buffers for each in group)),
            label=f"{self.stage.data}, captured {where}, {label_group(group, several=several)}",
            scored=scored,
            orders=training.orders,
            optimiser=training.optimiser,
            rounds_seen=1 + len(earlier),
            notes=(*self.about_data, *describe_batch_norms(model, training.mode, mode_given=True)),
            assumed_normalisation=self.stage.mean is None,
            clients_did=training.clients_did,
            training_known=is_known_exactly(training),
            altered_model=self.model.alteration,
        )
        setting = build_setting(resolved, training.defense, resolved.attacks, model)
        digest = digest_of(model.state_dict())
        return dataclasses.replace(
            setting,
            server=None,
            load_server=partial(self.model.open_server, captured_round, digest),
            captured=tuple(client.read for client in group),
            captured_rounds=tuple(
                partial(read_earlier_rounds, client, earlier, self.stage, most) for client in group
            ),
            notes=(*setting.notes, *training.notes, *left_out),
            left_out=left_out,
        )

    def _choose_public(self, victims: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Indices of public images: none that a client is known to have."""
        private = {i for indices in (*self.owners.values(), *victims) for i in indices}
        order = torch.randperm(len(self.data), generator=generator(self.seed, "victims")).tolist()
        return tuple([i for i in order if i not in private][:PUBLIC])


def describe_stage(
    stage: Stage, captured_round: CapturedRound, group: Sequence[CapturedClient]
) -> Stage:
    """The stage as one group of clients trained, for the record."""
    training = group[0].training
    return stage.model_copy(
        update={
            "rounds": str(captured_round.number),
            "nodes": ",".join(client.name for client in group),
            "defenses": (str(training.defense),),
            "victims": len(group),
            "batch_size": training.examples // training.clients,
            "aggregate": training.clients,
            "steps": training.steps,
            "local_batch_size": local_batch_size(training),
            "optimiser": str(training.optimiser or Sgd()),
            "lr": training.lr,
            "client_mode": training.mode,
            "checkpoint_epoch": captured_round.number - 1,
        }
    )


def local_batch_size(training: CapturedTraining) -> int | None:
    """Images per local step; None: all of a client's."""
    return training.batch_size if training.batch_size < training.examples else None


def label_group(group: Sequence[CapturedClient], *, several: bool) -> str:
    """What a group of clients is called; by its names if a round has ``several`` groups."""
    names = [client.name for client in group]
    if len(group) == 1:
        who = f"client {names[0]}"
    elif several:
        more = f" and {len(group) - MAX_LISTED} more" if len(group) > MAX_LISTED else ""
        who = f"clients {', '.join(names[:MAX_LISTED])}{more}"
    else:
        who = f"{len(group)} clients"
    images, clients = group[0].training.examples, group[0].training.clients
    if clients > 1:
        who = f"{who}, the mean of {clients} clients,"
    return f"{who} of {'1 image' if images == 1 else f'{images} images'}"


def configure_attacks(stage: Stage, training: CapturedTraining, *, scored: bool) -> list[Attack]:
    """The attacks to try, without what only a simulation could give them."""
    return [
        configure_attack(attack, stage, labels_known=scored, orders=training.orders)
        for attack in choose_attacks(stage)
    ]


def note_left_out(stage: Stage, training: CapturedTraining) -> tuple[str, ...]:
    """Says so if a client has too many images for iterative attacks that nobody asked for."""
    if stage.attacks != (AUTO,) or training.examples <= MAX_IMAGES_ITERATIVE:
        return ()
    return (
        f"a client trained on {training.examples} images: iterative attacks are tried only if "
        "named with --attack",
    )
