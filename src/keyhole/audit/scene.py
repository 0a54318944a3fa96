"""A plan unrolled: which clients play under which defense, and who attacks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from keyhole.attacks import ITERATIVE, Attack, Gifd
from keyhole.attacks.generative.prior import public_half
from keyhole.audit.cast import Cast, fallbacks
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
    data: str = ""
    """What the images are called in the report."""


@dataclass(frozen=True)
class Scene:
    """Clients under one defense, training one model, seen by one server, before its attackers."""

    cast: Cast
    defense: Defense
    model: nn.Module
    server: Server | None
    """None where every attack was refused, and until a captured scene is opened."""
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = field(default=())
    captured: tuple[Callable[[], Update], ...] | None = None
    """Read what a real server saw of each client; None: the clients train here."""
    reopen: Callable[[], Server] | None = None
    """Puts a captured round's weights into ``model``; None: they are there."""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Attacks that are tried only by request: why, and how to ask for them."""

    def opened(self) -> Scene:
        """The scene with its weights in place, which captured ones of a stage share."""
        return self if self.reopen is None else replace(self, server=self.reopen())

    def knowledge(
        self,
        row: Row,
        labels: torch.Tensor,
        masks: tuple[torch.Tensor, ...] = (),
        passed: Sequence[torch.Tensor] = (),
    ) -> Knowledge:
        """What the attacker of ``row`` is told of a client with these labels, masks and images."""
        return self.cast.knowledge(self.defense, row.attack, row.attacker, labels, masks, passed)


def scenes(casts: Sequence[Cast]) -> list[Scene]:
    """Every scene of some stages, in order; whatever does not fit is said before anything runs."""
    found = [scene for made in casts for scene in scenes_of(made)]
    refuse_useless(found)
    return found


def refuse_useless(scenes: Sequence[Scene]) -> None:
    """Raises with the reasons where no attack applies in any of them."""
    if any(scene.rows for scene in scenes):
        return
    refused = [s for scene in scenes for s in scene.skipped]
    if not refused:
        return
    first, reasons = refused[0], {s.attack: s.why for s in reversed(refused)}
    if len(reasons) == 1:
        raise DoesNotFit(f"attack {first.attack!r} does not apply to {first.model!r}: {first.why}")
    listed = "; ".join(f"{name}: {reasons[name]}" for name in reversed(reasons))
    raise DoesNotFit(f"none of the attacks applies to {first.model!r}: {listed}")


def scenes_of(made: Cast) -> list[Scene]:
    """The scenes of one stage: attacks that alter the model get a server of their own."""
    found = []
    for defense in made.defenses:
        defense.validate(made.model)
        found += _defended(made, defense, made.prepared(defense))
    return found


def _defended(made: Cast, defense: Defense, model: nn.Module) -> list[Scene]:
    """The scenes of one defense, whose global model is ``model``."""
    honest = [a for a in made.attacks if a.altered_model is None]
    found = [scene_of(made, defense, honest, model, Server(model))] if honest else []
    refused: list[Skipped] = []
    for attack in made.attacks:
        if attack.altered_model is None:
            continue
        try:
            altered = attack.alter(model)
            found.append(scene_of(made, defense, [attack], altered, Server(altered)))
        except DoesNotFit as error:
            refused.append(skip(attack.called, made, defense, str(error)))
    if refused:
        found.append(Scene(made, defense, model, None, (), tuple(refused)))
    return found


def skip(attack: str, made: Cast, defense: Defense, why: str) -> Skipped:
    return Skipped(attack, made.stage.model, str(defense), why, made.label or made.stage.data)


def untried(defense: Defense) -> list[str]:
    """Iterative attacks on this very defense, which `auto` leaves out where a closed form reads."""
    return [a.name for a in ITERATIVE if a.only_adaptive and defense.name in a.adapts_to]


def concerns(attack: Attack, made: Cast, defense: Defense) -> bool:
    """Whether it is worth a word that an attack does not apply to this defense."""
    if made.chosen:
        return True
    elsewhere = attack.only_adaptive and defense.name not in attack.adapts_to
    return not elsewhere and (attack.reads_update or defense.images_travel)


def scene_of(
    made: Cast, defense: Defense, attacks: Sequence[Attack], model: nn.Module, server: Server
) -> Scene:
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
    return Scene(made, defense, model, server, tuple(rows), tuple(skipped), notes=notes)


def seen_by_prior(made: Cast, attacks: Sequence[Attack]) -> list[str]:
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
    made: Cast, defense: Defense, attacks: Sequence[Attack], server: Server
) -> tuple[list[Row], list[Skipped]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for attack in attacks:
        reasons = why_not(attack, server, made, defense)
        if reasons:
            skipped.append(skip(attack.called, made, defense, "; ".join(reasons)))
        else:
            rows += [Row(attack, attacker) for attacker in attackers(attack, defense)]
    return rows, skipped


def why_not(attack: Attack, server: Server, made: Cast, defense: Defense) -> list[str]:
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
    reasons = attack.misfits(seen)
    absent = [] if reasons else sorted(attack.reads(seen) - set(zeros))
    return reasons + [f"it reads {name!r}, which clients do not report" for name in absent[:1]]


def attackers(attack: Attack, defense: Defense) -> list[Attacker]:
    """Who uses this attack against this defense."""
    first = Attacker.PAPER if attack.name in defense.paper_attacks else Attacker.NAIVE
    knows = attack.knows(defense.name) and not isinstance(defense, NoDefense)
    if knows and attack.only_adaptive:
        return [Attacker.ADAPTIVE]
    return [first, Attacker.ADAPTIVE] if knows else [first]
