"""A plan unrolled: which clients train under which defense, and who attacks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from keyhole.attacks import Attack, ConvolutionSpear, Gifd
from keyhole.attacks.generative.prior import public_half
from keyhole.auditing.resolve import ResolvedStage
from keyhole.auditing.stage_attacks import (
    choose_attackers,
    choose_fallback_attacks,
    find_adaptive_attacks,
)
from keyhole.defenses import Defense
from keyhole.errors import DoesNotFit
from keyhole.models.modes import RUNNING_STATISTICS
from keyhole.parameters import make_recordable
from keyhole.spelling import spell
from keyhole.threat import Attacker, Knowledge, SeenRound, Server
from keyhole.update import Update


@dataclass(frozen=True)
class AttackRun:
    """One attacker in a setting, who gives one finding."""

    attack: Attack
    attacker: Attacker


@dataclass(frozen=True)
class Skipped:
    """An attack that could not be tried, and why.

    Args:
        attack: The attack, with the parameters that are not its defaults.
        model: The model's name.
        defense: The defense, with its parameters.
        why: The reason, in words.
        data: What reports call the images; empty in older run folders.
    """

    attack: str
    model: str
    defense: str
    why: str
    data: str = ""


@dataclass(frozen=True)
class AttackSetting:
    """Clients who train one model under one defense, and the attackers behind one server.

    Args:
        resolved: The stage that the setting belongs to.
        defense: The clients' defense.
        model: The global model under that defense.
        server: None if no attack applies, and for captured clients before :meth:`with_server`.
        runs: The attackers.
        skipped: Attacks that do not apply, and why.
        captured: Functions that read what a real server saw of each client; None: clients train.
        captured_rounds: Functions that read earlier rounds of each captured client.
        load_server: Puts a captured round's weights into ``model``; None: they are there.
        notes: What a reader of the findings should know.
        left_out: Attacks that are tried only by request: why, and how to ask for them.
    """

    resolved: ResolvedStage
    defense: Defense
    model: nn.Module
    server: Server | None
    runs: tuple[AttackRun, ...]
    skipped: tuple[Skipped, ...] = ()
    captured: tuple[Callable[[], Update], ...] | None = None
    captured_rounds: tuple[Callable[[], tuple[SeenRound, ...]], ...] = ()
    load_server: Callable[[], Server] | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def with_server(self) -> AttackSetting:
        """The setting with its weights loaded; captured settings of a stage share one model."""
        return self if self.load_server is None else replace(self, server=self.load_server())

    def build_knowledge(
        self,
        run: AttackRun,
        labels: Tensor,
        masks: Sequence[Tensor] = (),
        intercepted: Sequence[Tensor] = (),
    ) -> Knowledge:
        """What the attacker of ``run`` knows about a client with these labels, masks and images."""
        knowledge = self.resolved.build_knowledge(
            self.defense, run.attack, run.attacker, labels, masks, intercepted
        )
        return replace(knowledge, trained=self.resolved.find_trained(self.server))


def check_any_applies(settings: Sequence[AttackSetting]) -> None:
    """Raises with the reasons if no attack applies in any of the settings."""
    skipped = [s for setting in settings for s in setting.skipped]
    if not skipped or any(setting.runs for setting in settings):
        return
    first, reasons = skipped[0], {s.attack: s.why for s in reversed(skipped)}
    if len(reasons) == 1:
        raise DoesNotFit(f"attack {first.attack!r} does not apply to {first.model!r}: {first.why}")
    listed = "; ".join(f"{name}: {reasons[name]}" for name in reversed(reasons))
    raise DoesNotFit(f"none of the attacks applies to {first.model!r}: {listed}")


def build_settings(resolved: ResolvedStage) -> list[AttackSetting]:
    """The settings of one stage: attacks that alter the model get a server of their own.

    Defenses that leave the model as it is share a server, so that it is probed only once.
    """
    settings = []
    server: Server | None = None
    for defense in resolved.defenses:
        defense.validate(resolved.model)
        model = resolved.prepare_model(defense)
        own = server if model is resolved.model else None
        settings += _build_defended_settings(resolved, defense, model, own)
        if model is resolved.model and server is None:
            server = next((s.server for s in settings if s.model is model and s.server), None)
    return settings


def _build_defended_settings(
    resolved: ResolvedStage, defense: Defense, model: nn.Module, server: Server | None
) -> list[AttackSetting]:
    """The settings of one defense, whose global model is ``model``; ``server`` may send it."""
    honest = [attack for attack in resolved.attacks if attack.altered_model is None]
    settings = [build_setting(resolved, defense, honest, model, server)] if honest else []
    skipped: list[Skipped] = []
    for attack in resolved.attacks:
        if attack.altered_model is None:
            continue
        try:
            altered = attack.alter(model, resolved.build_public_knowledge())
            settings.append(build_setting(resolved, defense, [attack], altered))
        except DoesNotFit as error:
            skipped.append(build_skipped(attack.label, resolved, defense, str(error)))
    if skipped:
        settings.append(AttackSetting(resolved, defense, model, None, (), tuple(skipped)))
    return settings


def build_setting(
    resolved: ResolvedStage,
    defense: Defense,
    attacks: Sequence[Attack],
    model: nn.Module,
    server: Server | None = None,
) -> AttackSetting:
    """The setting of these attacks; for `auto`, more of them if they do not read images.

    Args:
        resolved: The stage.
        defense: The clients' defense.
        attacks: The attacks that the stage names.
        model: The global model.
        server: A server that sends this model; None: a new one.
    """
    server = Server(model) if server is None else server
    attacks = [attack for attack in attacks if is_relevant(attack, resolved, defense)]
    runs, skipped = _build_runs(resolved, defense, attacks, server)
    if not resolved.attacks_named:
        if any(run.attack.reads_images and run.attack.reads_update for run in runs):
            skipped += [
                build_skipped(a.name, resolved, defense, "it takes minutes: name it with --attack")
                for a in find_adaptive_attacks(defense)
            ]
        else:
            fallbacks = choose_fallback_attacks(defense, resolved.data.shape)
            convolutions = ConvolutionSpear()
            if not find_incompatibilities(convolutions, server, resolved, defense):
                fallbacks = [convolutions, *fallbacks]
            more, refused = _build_runs(
                resolved, defense, [resolved.configure(attack) for attack in fallbacks], server
            )
            runs, skipped = [*runs, *more], [*skipped, *refused]
    warmed = resolved.warm_up_notes.get(str(defense))
    trained = () if warmed is None else (warmed,)
    notes = (
        *resolved.notes,
        *trained,
        *defense.caveats(model),
        *note_prior_overlap(resolved, runs),
    )
    return AttackSetting(resolved, defense, model, server, tuple(runs), tuple(skipped), notes=notes)


def build_skipped(attack: str, resolved: ResolvedStage, defense: Defense, why: str) -> Skipped:
    defended = spell(defense.spec.name, make_recordable(defense.spec.parameters))
    data = resolved.label or resolved.stage.data
    return Skipped(attack, resolved.stage.model, defended, why, data)


def is_relevant(attack: Attack, resolved: ResolvedStage, defense: Defense) -> bool:
    """Whether a report should mention an attack that does not apply to this defense."""
    if resolved.attacks_named:
        return True
    for_others = attack.only_adaptive and not attack.knows(defense)
    return (
        attack.concerns(resolved.model)
        and not for_others
        and (attack.reads_update or defense.images_travel)
    )


def note_prior_overlap(resolved: ResolvedStage, runs: Sequence[AttackRun]) -> list[str]:
    """A line if the generator that comes with GIFD was trained on some of the victims."""
    shipped = any(isinstance(r.attack, Gifd) and r.attack.generator is None for r in runs)
    if resolved.data.name != "cifar10" or not shipped:
        return []
    public = set(public_half(resolved.data))
    victims = [image for batch in resolved.victims for image in batch]
    count = sum(image in public for image in victims)
    if not count:
        return []
    return [f"gifd's generator was trained on {count} of the {len(victims)} images attacked"]


def _build_runs(
    resolved: ResolvedStage, defense: Defense, attacks: Sequence[Attack], server: Server
) -> tuple[list[AttackRun], list[Skipped]]:
    runs: list[AttackRun] = []
    skipped: list[Skipped] = []
    for attack in attacks:
        reasons = find_incompatibilities(attack, server, resolved, defense)
        if reasons:
            skipped.append(build_skipped(attack.label, resolved, defense, "; ".join(reasons)))
        else:
            runs += [AttackRun(attack, who) for who in choose_attackers(attack, defense)]
    return runs, skipped


def find_incompatibilities(
    attack: Attack, server: Server, resolved: ResolvedStage, defense: Defense
) -> list[str]:
    """Why an attack does not apply, found with an update of zeros before any client trains."""
    stage = resolved.stage
    missing = _find_unavailable(attack, resolved, defense)
    if missing is not None:
        return [missing]
    reported = server.reported if resolved.reported is None else resolved.reported
    shared = reported - defense.unshared(server.sent)
    zeros = {
        name: torch.zeros_like(parameter)
        for name, parameter in server.sent.named_parameters()
        if name in shared
    }
    if stage.lr is not None or stage.captured is not None:  # buffers come with weights
        zeros |= {
            name: torch.zeros_like(buffer)
            for name, buffer in server.sent.named_buffers()
            if name.rpartition(".")[2] in RUNNING_STATISTICS
            and (resolved.reported_buffers is None or name in resolved.reported_buffers)
        }
    count = stage.images_per_update
    blank = torch.zeros(1, *resolved.data.shape).expand(count, -1, -1, -1)
    knowledge = resolved.build_knowledge(
        defense,
        attack,
        choose_attackers(attack, defense)[0],
        torch.zeros(count, dtype=torch.long),
        intercepted=(blank,),
    )
    local = stage.local_batch_size or count
    batch_size = count if stage.aggregate > 1 else min(local, count)
    update = Update(zeros, stage.steps, stage.lr or 1.0, batch_size, count)
    knowledge = replace(knowledge, trained=resolved.find_trained(server))
    observation = server.receive(update, knowledge)
    reasons = attack.incompatibilities(observation)
    absent = [] if reasons else sorted(attack.reads(observation) - set(zeros))
    return reasons + [f"it reads {name!r}, which clients do not report" for name in absent[:1]]


def _find_unavailable(attack: Attack, resolved: ResolvedStage, defense: Defense) -> str | None:
    """What the attack must be given that nobody has here; None: it can be given everything."""
    captured = resolved.stage.captured is not None
    if captured and "masks" in attack.given:
        return "nobody knows the dropout masks of a captured client"
    if resolved.stage.aggregate > 1 and "masks" in attack.given:
        return "masks are given for single clients, not for a secure sum"
    if "intercepted" in attack.given and not defense.images_travel:
        return "under this defense no image leaves the client"
    if captured and "intercepted" in attack.given:
        return "a captured folder holds updates, no images on their way"
    if not resolved.scored and "labels" in attack.given:
        return "nobody knows the labels of this client's images"
    return None
