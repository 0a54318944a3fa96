"""A client of a setting: it trains under the defense, and the server receives its update."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.defense_acted import check_simulated
from keyhole.auditing.recording_defense import RecordingDefense
from keyhole.defenses import DefenseCheck, NoDefense, Telemetry, check_defense
from keyhole.defenses.base import Memory
from keyhole.federation import train_client
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import generator
from keyhole.threat import Observation, SeenRound
from keyhole.update import Update, apply_change


@dataclass(frozen=True)
class ObservedClient:
    """What the server saw of one client, and what only some attackers are given.

    Args:
        victim: The client's number in the setting.
        observation: What the server saw.
        masks: The dropout masks of its last update; the judge needs them as well.
        intercepted: The images on their way to the client.
        telemetry: What the defense reported of the last update; None for captured clients.
        checks: Whether the defense acted; for a secure sum, one check for each client in it.
    """

    victim: int
    observation: Observation
    masks: tuple[Tensor, ...] = ()
    intercepted: tuple[Tensor, ...] = ()
    telemetry: Telemetry | None = None
    checks: tuple[DefenseCheck, ...] = ()


def observe_client(setting: AttackSetting, victim: int) -> ObservedClient:
    """Lets one client train, or reads what was captured of it."""
    assert setting.server is not None
    labels = setting.resolved.labels_of(victim)
    if setting.captured is not None:
        update = setting.captured[victim]()
        knowledge = setting.build_knowledge(setting.runs[0], labels)
        rounds = setting.captured_rounds[victim]() if setting.captured_rounds else ()
        seen = setting.server.receive(update, knowledge, client=victim, rounds=rounds)
        return ObservedClient(victim, seen, checks=_check_captured(setting, update))
    sent = (_train_client if setting.resolved.stage.aggregate == 1 else _train_group)(
        setting, victim
    )
    knowledge = setting.build_knowledge(setting.runs[0], labels, sent.masks)
    if setting.resolved.stage.moving:
        observation = setting.server.receive(
            sent.updates[0], knowledge, client=victim, rounds=sent.rounds
        )
    else:
        *before, last = sent.updates
        observation = setting.server.receive(last, knowledge, client=victim, earlier=before)
    return ObservedClient(
        victim, observation, sent.masks, sent.intercepted, sent.telemetry, sent.checks
    )


def _check_captured(setting: AttackSetting, update: Update) -> tuple[DefenseCheck, ...]:
    """Whether the defense of a captured client acted; of a secure sum nobody can tell."""
    if setting.resolved.stage.aggregate > 1:
        return ()
    found = check_defense(
        setting.defense,
        update,
        setting.model,
        exact=False,
        training_known=setting.resolved.training_known,
    )
    return () if found is None else (found,)


@dataclass(frozen=True)
class _Sent:
    """What left one client: its updates, and what belongs to the last of them."""

    updates: tuple[Update, ...]
    masks: tuple[Tensor, ...]
    intercepted: tuple[Tensor, ...]
    telemetry: Telemetry
    checks: tuple[DefenseCheck, ...]
    rounds: tuple[SeenRound, ...] = ()
    """Rounds after the first, in which the model moved on."""


def _train_client(setting: AttackSetting, victim: int) -> _Sent:
    """Lets one client train on all images of a victim."""
    resolved = setting.resolved
    return _train(setting, setting.model, resolved.victims[victim], ("client", victim))


def _train_group(setting: AttackSetting, victim: int) -> _Sent:
    """Lets the clients of one secure sum train; the server gets the mean of their updates."""
    resolved = setting.resolved
    stage, public = resolved.stage, resolved.build_public_knowledge()
    parts = torch.tensor(resolved.victims[victim]).view(stage.aggregate, stage.batch_size)
    attack = setting.runs[0].attack  # one that alters the model is alone in its setting
    clients = [
        _train(
            setting,
            attack.personalise(setting.model, client, public),
            part.tolist(),
            ("client", victim, client),
        )
        for client, part in enumerate(parts)
    ]
    rounds = zip(*(client.updates for client in clients), strict=True)
    seen = tuple(torch.cat(each) for each in zip(*(c.intercepted for c in clients), strict=True))
    updates = tuple(_average(each, stage.images_per_update) for each in rounds)
    checks = tuple(check for client in clients for check in client.checks)
    return _Sent(updates, (), seen, clients[-1].telemetry, checks)


def _average(updates: Sequence[Update], images: int) -> Update:
    """The mean of several clients' updates, as of one client with all their images."""
    change = {
        name: torch.stack([update.change[name] for update in updates]).mean(0)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in updates[0].change.items()
    }
    return replace(updates[0], change=change, batch_size=images, examples=images)


def _train(
    setting: AttackSetting, model: nn.Module, indices: Sequence[int], path: Sequence[str | int]
) -> _Sent:
    """Lets a client train ``model`` on the images of these indices, as often as the stage says.

    ``path`` names the generator of all that it draws.
    """
    resolved = setting.resolved
    draw = generator(resolved.seed, *path)
    like = next(model.parameters())
    memory: Memory = {}
    shared = resolved.trained if is_training_shared(setting, model) else None
    trained = None if shared is None else shared.choose(model, indices, setting.defense)
    recording = RecordingDefense(setting.defense)
    updates: list[Update] = []
    rounds: list[SeenRound] = []
    for number in range(resolved.stage.repeats):
        masks = MaskRecorder()
        update, telemetry = train_client(
            model,
            resolved.data.images(indices).to(like),
            resolved.data.labels[list(indices)].to(like.device),
            data=resolved.data,
            defense=recording if setting.defense.images_travel else setting.defense,
            generator=draw,
            training=resolved.training,
            mask_recorder=masks,
            memory=memory,
            train_locally=trained if model is setting.model else None,
        )
        updates.append(update)
        if resolved.stage.moving:
            rounds.append(SeenRound(number + 1, model.state_dict(), update))
            model = apply_update(model, update)
    check = check_simulated(
        setting.defense,
        updates[0],
        setting.model if resolved.stage.moving else model,
        data=resolved.data,
        indices=indices,
        training=resolved.training,
        seed=resolved.seed,
        path=path,
        trained=shared,
    )
    seen, checks = tuple(recording.recorded), () if check is None else (check,)
    recorded = masks.masks_by_site()
    return _Sent(tuple(updates), recorded, seen, telemetry, checks, tuple(rounds[1:]))


def is_training_shared(setting: AttackSetting, model: nn.Module) -> bool:
    """Whether other clients of the stage, or a check, may train as those of this setting do."""
    alone = isinstance(setting.defense, NoDefense) and len(setting.resolved.defenses) == 1
    return model is setting.model and not alone


def apply_update(model: nn.Module, update: Update) -> nn.Module:
    """A copy of the global model after an update, as a server of this client alone makes it."""
    moved = copy.deepcopy(model)
    weights = moved.state_dict()
    after = {name: apply_change(weights[name], change) for name, change in update.change.items()}
    moved.load_state_dict({**weights, **after})
    return moved
