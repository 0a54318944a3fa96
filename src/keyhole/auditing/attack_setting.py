"""A plan unrolled: which clients play under which defense, and who attacks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from keyhole.attacks import ITERATIVE, Attack, Gifd
from keyhole.attacks.generative.prior import public_half
from keyhole.auditing.resolve import ResolvedStage, fallbacks
from keyhole.defenses import Capability, Defense
from keyhole.errors import DoesNotFit
from keyhole.parameters import recordable
from keyhole.plugins import address_of
from keyhole.registry import part_name, spell
from keyhole.threat import Attacker, Knowledge, Server
from keyhole.update import Update


@dataclass(frozen=True)
class AttackRun:
    """One attacker in a setting: what will become one finding."""

    attack: Attack
    attacker: Attacker


@dataclass(frozen=True)
class Skipped:
    """An attack that could not be tried, and why."""

    attack: str
    model: str
    defense: str
    why: str
    data: str = ""
    """What the images are called in the report."""


@dataclass(frozen=True)
class AttackSetting:
    """Clients under one defense, training one model, seen by one server, before its attackers."""

    resolved: ResolvedStage
    defense: Defense
    model: nn.Module
    server: Server | None
    """None where every attack was refused, and until a captured setting is opened."""
    rows: tuple[AttackRun, ...]
    skipped: tuple[Skipped, ...] = field(default=())
    captured: tuple[Callable[[], Update], ...] | None = None
    """Read what a real server saw of each client; None: the clients train here."""
    reopen: Callable[[], Server] | None = None
    """Puts a captured round's weights into ``model``; None: they are there."""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Attacks that are tried only by request: why, and how to ask for them."""

    def opened(self) -> AttackSetting:
        """The setting with its weights in place, which captured ones of a stage share."""
        return self if self.reopen is None else replace(self, server=self.reopen())

    def knowledge(
        self,
        row: AttackRun,
        labels: torch.Tensor,
        masks: tuple[torch.Tensor, ...] = (),
        passed: Sequence[torch.Tensor] = (),
    ) -> Knowledge:
        """What the attacker of ``row`` is told of a client with these labels, masks and images."""
        return self.resolved.knowledge(
            self.defense, row.attack, row.attacker, labels, masks, passed
        )


def attack_settings(resolved: Sequence[ResolvedStage]) -> list[AttackSetting]:
    """Every setting of the stages, in order; raises for what does not fit before anything runs."""
    found = [setting for made in resolved for setting in settings_of(made)]
    refuse_useless(found)
    return found


def refuse_useless(settings: Sequence[AttackSetting]) -> None:
    """Raises with the reasons where no attack applies in any of them."""
    if any(setting.rows for setting in settings):
        return
    refused = [s for setting in settings for s in setting.skipped]
    if not refused:
        return
    first, reasons = refused[0], {s.attack: s.why for s in reversed(refused)}
    if len(reasons) == 1:
        raise DoesNotFit(f"attack {first.attack!r} does not apply to {first.model!r}: {first.why}")
    listed = "; ".join(f"{name}: {reasons[name]}" for name in reversed(reasons))
    raise DoesNotFit(f"none of the attacks applies to {first.model!r}: {listed}")


def settings_of(made: ResolvedStage) -> list[AttackSetting]:
    """The settings of one stage: attacks that alter the model get a server of their own."""
    found = []
    for defense in made.defenses:
        defense.validate(made.model)
        found += _defended(made, defense, made.prepare_model(defense))
    return found


def _defended(made: ResolvedStage, defense: Defense, model: nn.Module) -> list[AttackSetting]:
    """The settings of one defense, whose global model is ``model``."""
    honest = [a for a in made.attacks if a.altered_model is None]
    found = [setting_of(made, defense, honest, model, Server(model))] if honest else []
    refused: list[Skipped] = []
    for attack in made.attacks:
        if attack.altered_model is None:
            continue
        try:
            altered = attack.alter(model, made.public_knowledge())
            found.append(setting_of(made, defense, [attack], altered, Server(altered)))
        except DoesNotFit as error:
            refused.append(skip(attack.label, made, defense, str(error)))
    if refused:
        found.append(AttackSetting(made, defense, model, None, (), tuple(refused)))
    return found


def skip(attack: str, made: ResolvedStage, defense: Defense, why: str) -> Skipped:
    defended = spell(defense.spec.name, recordable(defense.spec.parameters))
    return Skipped(attack, made.stage.model, defended, why, made.label or made.stage.data)


def untried(defense: Defense) -> list[str]:
    """Iterative attacks on this very defense, which `auto` leaves out where a closed form reads."""
    return [a.name for a in ITERATIVE if a.only_adaptive and a().knows(defense)]


def concerns(attack: Attack, made: ResolvedStage, defense: Defense) -> bool:
    """Whether it is worth a word that an attack does not apply to this defense."""
    if made.chosen:
        return True
    elsewhere = attack.only_adaptive and not attack.knows(defense)
    return not elsewhere and (attack.reads_update or defense.images_travel)


def setting_of(
    made: ResolvedStage,
    defense: Defense,
    attacks: Sequence[Attack],
    model: nn.Module,
    server: Server,
) -> AttackSetting:
    attacks = [attack for attack in attacks if concerns(attack, made, defense)]
    rows, skipped = _rows(made, defense, attacks, server)
    if not made.chosen and not any(r.attack.reads_images and r.attack.reads_update for r in rows):
        more, refused = _rows(made, defense, fallbacks(defense, made), server)
        rows, skipped = [*rows, *more], [*skipped, *refused]
    elif not made.chosen:
        skipped += [
            skip(name, made, defense, "it takes minutes: name it with --attack")
            for name in untried(defense)
        ]
    notes = (*made.notes, *defense.caveats(model), *seen_by_prior(made, [r.attack for r in rows]))
    return AttackSetting(made, defense, model, server, tuple(rows), tuple(skipped), notes=notes)


def seen_by_prior(made: ResolvedStage, attacks: Sequence[Attack]) -> list[str]:
    """A line where the generator that comes with GIFD was trained on some of the victims."""
    if made.data.name != "cifar10" or not any(
        isinstance(a, Gifd) and a.generator is None for a in attacks
    ):
        return []
    public = set(public_half(made.data))
    victims = [image for batch in made.victims for image in batch]
    seen = sum(image in public for image in victims)
    if not seen:
        return []
    return [f"gifd's generator was trained on {seen} of the {len(victims)} images attacked"]


def _rows(
    made: ResolvedStage, defense: Defense, attacks: Sequence[Attack], server: Server
) -> tuple[list[AttackRun], list[Skipped]]:
    rows: list[AttackRun] = []
    skipped: list[Skipped] = []
    for attack in attacks:
        reasons = why_not(attack, server, made, defense)
        if reasons:
            skipped.append(skip(attack.label, made, defense, "; ".join(reasons)))
        else:
            rows += [AttackRun(attack, attacker) for attacker in attackers(attack, defense)]
    return rows, skipped


def why_not(attack: Attack, server: Server, made: ResolvedStage, defense: Defense) -> list[str]:
    """Whether the attack applies, asked before any client trains: by an update of zeros."""
    named = server.sent.named_parameters()
    zeros = {
        name: torch.zeros_like(p)
        for name, p in named
        if made.reported is None or name in made.reported
    }
    update = Update(zeros, made.stage.steps, made.stage.lr or 1.0, made.stage.batch_size)
    if made.stage.captured is not None and "masks" in attack.given:
        return ["nobody knows the dropout masks of a captured client"]
    if "intercepted" in attack.given and not defense.images_travel:
        return ["under this defense no image leaves the client"]
    if "intercepted" in attack.given and made.stage.captured is not None:
        return ["a captured folder holds updates, no images on their way"]
    if not made.scored and "labels" in attack.given:
        return ["nobody knows the labels of this client's images"]
    labels = torch.zeros(made.stage.batch_size, dtype=torch.long)
    blank = torch.zeros(1, *made.data.shape).expand(made.stage.batch_size, -1, -1, -1)
    kind = attackers(attack, defense)[0]
    knowledge = made.knowledge(defense, attack, kind, labels, passed=(blank,))
    seen = server.receive(update, knowledge)
    reasons = attack.incompatibilities(seen)
    absent = [] if reasons else sorted(attack.reads(seen) - set(zeros))
    return reasons + [f"it reads {name!r}, which clients do not report" for name in absent[:1]]


def attackers(attack: Attack, defense: Defense) -> list[Attacker]:
    """Who uses this attack against this defense.

    One who attacks as a paper did knows how clients train, dropout included, and nothing else that
    a defense declares.
    """
    usable = attack.matching_capabilities(defense)
    if usable and attack.only_adaptive:
        return [Attacker.ADAPTIVE]
    names = {part_name(attack), address_of(type(attack))}
    if names & set(defense.paper_attacks):
        first, more = Attacker.PAPER, usable - {Capability.HIDDEN_MASKS}
    else:
        first, more = Attacker.NAIVE, usable
    return [first, Attacker.ADAPTIVE] if more else [first]
