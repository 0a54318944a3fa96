"""A client of a setting: it trains under the defense, and the server receives its update."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from keyhole.auditing.attack_setting import AttackSetting
from keyhole.auditing.recording_defense import RecordingDefense
from keyhole.defenses import Telemetry
from keyhole.defenses.base import Memory
from keyhole.federation import train_client
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.seeds import generator
from keyhole.threat import Observation
from keyhole.update import Update


@dataclass(frozen=True)
class ObservedClient:
    """What the server saw of one client, and what only some attackers are given.

    Args:
        victim: The client's number in the setting.
        observation: What the server saw.
        masks: The dropout masks of its last update; the judge needs them as well.
        intercepted: The images on their way to the client.
        telemetry: What the defense reported of the last update; None for captured clients.
    """

    victim: int
    observation: Observation
    masks: tuple[Tensor, ...] = ()
    intercepted: tuple[Tensor, ...] = ()
    telemetry: Telemetry | None = None


def observe_client(setting: AttackSetting, victim: int) -> ObservedClient:
    """Lets one client train, or reads what was captured of it."""
    assert setting.server is not None
    labels = setting.resolved.labels_of(victim)
    if setting.captured is not None:
        update = setting.captured[victim]()
        knowledge = setting.build_knowledge(setting.runs[0], labels)
        return ObservedClient(victim, setting.server.receive(update, knowledge, client=victim))
    updates, masks, intercepted, telemetry = _train_client(setting, victim)
    observation = setting.server.receive(
        updates[-1],
        setting.build_knowledge(setting.runs[0], labels, masks),
        client=victim,
        earlier=updates[:-1],
    )
    return ObservedClient(victim, observation, masks, intercepted, telemetry)


def _train_client(
    setting: AttackSetting, victim: int
) -> tuple[list[Update], tuple[Tensor, ...], tuple[Tensor, ...], Telemetry]:
    """The updates that a client sends, the last one's masks, its images, the last telemetry."""
    resolved = setting.resolved
    like = next(setting.model.parameters())
    draw = generator(resolved.seed, "client", victim)
    memory: Memory = {}
    recording = RecordingDefense(setting.defense)
    updates: list[Update] = []
    for _ in range(resolved.stage.repeats):
        masks = MaskRecorder()
        update, telemetry = train_client(
            setting.model,
            resolved.data.images(resolved.victims[victim]).to(like),
            resolved.labels_of(victim).to(like.device),
            data=resolved.data,
            defense=recording if setting.defense.images_travel else setting.defense,
            generator=draw,
            training=resolved.training,
            mask_recorder=masks,
            memory=memory,
        )
        updates.append(update)
    return updates, masks.masks_by_site(), tuple(recording.recorded), telemetry
