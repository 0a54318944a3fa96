"""A plan unrolled: which clients play under which defense, and who attacks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from keyhole.attacks import Attack
from keyhole.audit.cast import Cast, cast
from keyhole.audit.plan import Plan
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.threat import Attacker, Knowledge, Server
from keyhole.update import Update


@dataclass(frozen=True)
class Row:
    """One attacker in a scene: what will become one finding."""

    attack: Attack
    attacker: Attacker


@dataclass(frozen=True)
class Skipped:
    """An attack that could not be tried, and why."""

    attack: str
    model: str
    defense: str
    why: str


@dataclass(frozen=True)
class Scene:
    """Clients under one defense, training one model, seen by one server, before its attackers."""

    cast: Cast
    defense: Defense
    model: nn.Module
    server: Server
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = field(default=())

    def knowledge(self, row: Row, labels: torch.Tensor) -> Knowledge:
        """What the attacker of ``row`` is told of a client with these labels."""
        return self.cast.knowledge(self.defense, row.attack, row.attacker, labels)


def scenes(made: Cast) -> list[Scene]:
    """The scenes of one stage: attacks that alter the model get a server of their own."""
    honest = [a for a in made.attacks if a.altered_model is None]
    altering = [a for a in made.attacks if a.altered_model is not None]
    found = []
    servers: dict[str, tuple[nn.Module, Server]] = {}
    for defense in made.defenses:
        defense.validate(made.model)
        for attacks in ([honest] if honest else []) + [[a] for a in altering]:
            name = attacks[0].name if attacks[0].altered_model else ""
            if name not in servers:
                model = attacks[0].alter(made.model) if name else made.model
                servers[name] = (model, Server(model))
            found.append(_scene(made, defense, attacks, *servers[name]))
    _complain_of_the_useless(made, found)
    return found


def _scene(
    made: Cast, defense: Defense, attacks: Sequence[Attack], model: nn.Module, server: Server
) -> Scene:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for attack in attacks:
        reasons = why_not(attack, server, made, defense)
        if reasons:
            why = "; ".join(reasons)
            skipped.append(Skipped(str(attack), made.stage.model, str(defense), why))
        else:
            rows += [Row(attack, attacker) for attacker in attackers(attack, defense)]
    return Scene(made, defense, model, server, tuple(rows), tuple(skipped))


def why_not(attack: Attack, server: Server, made: Cast, defense: Defense) -> list[str]:
    """Whether the attack applies, asked before any client trains: by an update of zeros."""
    zeros = {name: torch.zeros_like(p) for name, p in server.sent.named_parameters()}
    update = Update(zeros, made.stage.steps, made.stage.lr or 1.0, made.stage.batch_size)
    labels = torch.zeros(made.stage.batch_size, dtype=torch.long)
    knowledge = made.knowledge(defense, attack, Attacker.NAIVE, labels)
    return attack.misfits(server.receive(update, knowledge))


def attackers(attack: Attack, defense: Defense) -> list[Attacker]:
    """Who uses this attack against this defense."""
    first = Attacker.PAPER if attack.name in defense.paper_attacks else Attacker.NAIVE
    knows = defense.name in attack.adapts_to and not isinstance(defense, NoDefense)
    return [first, Attacker.ADAPTIVE] if knows else [first]


def _complain_of_the_useless(made: Cast, found: Sequence[Scene]) -> None:
    """An attack that the user named and that applies nowhere in the stage is an error."""
    used = {str(row.attack) for scene in found for row in scene.rows}
    reasons = {s.attack: s.why for scene in found for s in scene.skipped if s.attack not in used}
    if made.chosen and reasons:
        attack, why = next(iter(reasons.items()))
        raise DoesNotFit(f"attack {attack!r} does not apply to {made.stage.model!r}: {why}")
    if not used:
        raise DoesNotFit(
            f"no attack applies to {made.stage.model!r}: " + "; ".join(reasons.values())
        )


def all_scenes(plan: Plan, **options: Any) -> list[Scene]:
    """Every scene of a plan, in order; whatever does not fit is said before anything runs."""
    return [s for stage in plan.stage for s in scenes(cast(stage, seed=plan.seed, **options))]
