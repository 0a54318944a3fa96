"""Several defenses in a row: ``dropout + topk(k=0.01)``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense, DefenseSpec, uses_door
from keyhole.defenses.capabilities import (
    BatchChange,
    Capability,
    HiddenPositions,
    ImageChange,
    Interval,
)
from keyhole.defenses.noise_model import Noise
from keyhole.defenses.traces import Trace
from keyhole.errors import BadValue
from keyhole.registry import label_of
from keyhole.seeds import generator
from keyhole.update import Update

EQUAL_SIZES = "after signsgd all values of a tensor have one size, among which it cannot choose"
POINTLESS = {
    ("signsgd", "topk"): EQUAL_SIZES,
    ("signsgd", "pruning"): EQUAL_SIZES,
    ("signsgd", "quantise"): EQUAL_SIZES,
    ("signsgd", "percentile-privacy"): EQUAL_SIZES,
    ("half", "quantise"): "the second rounds more coarsely: leave the first out",
}
"""Pairs of defenses, the second anywhere after the first, that make no sense, and why."""


@dataclass(frozen=True)
class Composition(Defense):
    """Applies its parts in order, at every door.

    Each part has a memory and a generator of its own: the latter is named by the part's place and
    name, so that what one part draws does not move another's numbers.

    An attacker who knows all of it may assume what its parts declare, as far as that is still true
    of what leaves: bounds of values only of the last part that changes updates, if no other part
    before it declares bounds; noise only if later parts keep it or bound values. An attacker who
    knows some of it is given those parts: ``Knowledge(defense=part)``.

    Args:
        parts: Two defenses or more.

    >>> from keyhole.defenses import DEFENSES
    >>> str(DEFENSES.parse("dropout + topk(k=0.01)").spec)
    'dropout + topk(k=0.01)'
    """

    parts: tuple[Defense, ...]

    name: ClassVar[str] = "composition"
    summary: ClassVar[str] = "several defenses in a row, written with + between them"

    def __post_init__(self) -> None:
        flat = tuple(part for given in self.parts for part in given.each_part())
        object.__setattr__(self, "parts", flat)
        reason = find_conflict(flat)
        if reason is not None:
            raise BadValue(f"defense {str(self.spec)!r}: {reason}")

    def each_part(self) -> tuple[Defense, ...]:
        return self.parts

    @property
    def paper_attacks(self) -> tuple[str, ...]:  # type: ignore[override]
        """The attacks of the parts' papers."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.paper_attacks))

    @property
    def images_travel(self) -> bool:  # type: ignore[override]
        """Whether a part is meant for images on their way to the client."""
        return any(part.images_travel for part in self.parts)

    @property
    def hides_masks(self) -> bool:  # type: ignore[override]
        """Whether a part drops units by masks that the server does not see."""
        return any(part.hides_masks for part in self.parts)

    @property
    def keeps_norms(self) -> bool:  # type: ignore[override]
        """Whether a part replaces directions, and no later one changes the update again."""
        return any(part.keeps_norms and not self._later(part) for part in self.parts)

    def incompatibilities(self, model: nn.Module) -> list[str]:
        for part in self.parts:
            reasons = part.incompatibilities(model)
            if reasons:
                return [f"{part.name}: {reason}" for reason in reasons]
            model = part.prepare_model(model)
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        return [caveat for part in self.parts for caveat in part.caveats(model)]

    def prepare_model(self, model: nn.Module) -> nn.Module:
        for part in self.parts:
            model = part.prepare_model(model)
        return model

    def unshared(self, model: nn.Module) -> frozenset[str]:
        return frozenset().union(*(part.unshared(model) for part in self.parts))

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        for part, own in self._open("on_images", side):
            images = part.on_images(images, own)
            self._close(part, own, side)
        return images

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        for part, own in self._open("on_model", side):
            model = part.on_model(model, own)
            self._close(part, own, side)
        return model

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor] | None:
        gradient = None
        for part, own in self._open("on_step", side):  # one part at most has a step of its own
            gradient = part.on_step(model, inputs, labels, own)
            self._close(part, own, side)
        return gradient

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        for part, own in self._open("on_update", side):
            update = part.on_update(update, own)
            self._close(part, own, side)
        return update

    def _open(self, door: str, side: ClientSide | None) -> Sequence[tuple[Defense, ClientSide]]:
        """The parts that use a door, each with its own side; a seed is drawn if there are any."""
        side = side or ClientSide()
        users = [(i, part) for i, part in enumerate(self.parts) if uses_door(part, door)]
        if not users:
            return []
        like = side.generator
        seed = int(torch.randint(2**62, (), generator=like, device=like.device))
        opened = []
        for i, part in users:
            draw = torch.Generator(like.device)
            draw.manual_seed(generator(seed, "part", i, part.name, door).initial_seed())
            memory = dict(side.memory.get(memory_key(i, part), {}))
            opened.append((part, replace(side, generator=draw, telemetry={}, memory=memory)))
        return opened

    def _close(self, part: Defense, own: ClientSide, side: ClientSide | None) -> None:
        """Keeps what a part remembers and reports."""
        if side is None:
            return
        place = next(i for i, each in enumerate(self.parts) if each is part)
        if own.memory:
            side.memory[memory_key(place, part)] = own.memory
        side.record(**{f"{part.name}.{name}": value for name, value in own.telemetry.items()})

    @property
    def declares(self) -> frozenset[Capability]:
        """What its parts declare, as far as it is true of what leaves the client."""
        found: frozenset[Capability] = frozenset().union(*(part.declares for part in self.parts))
        gone = {Capability.NOISE} if not self._parts_with_noise() else set()
        gone |= {Capability.VALUES} if self._part_with_bounds() is None else set()
        gone |= {Capability.IMAGE_CHANGE} if self.image_change() is None else set()
        gone |= set() if self.keeps_norms else {Capability.NORMS}
        return found - gone

    def _later(self, part: Defense) -> list[Defense]:
        """The parts that change the update after ``part`` did what it does."""
        place = next(i for i, each in enumerate(self.parts) if each is part)
        late = uses_door(part, "on_update") and not uses_door(part, "on_step")
        others = [each for each in self.parts[place + 1 if late else 0 :] if each is not part]
        return [each for each in others if uses_door(each, "on_update")]

    def _parts_with_noise(self) -> list[Defense]:
        """The parts whose noise is in the update as they declare it."""
        kept = {Capability.NOISE, Capability.VALUES}
        return [
            part
            for part in self.parts
            if Capability.NOISE in part.declares
            and all(later.declares & kept for later in self._later(part))
        ]

    def _part_with_bounds(self) -> Defense | None:
        """The part whose bounds hold of the update: none if another part bounds values, too."""
        found = [part for part in self.parts if Capability.VALUES in part.declares]
        return found[0] if len(found) == 1 and not self._later(found[0]) else None

    def noise_model(self, update: Update, model: nn.Module) -> Mapping[str, Noise]:
        """The sum of what its parts add."""
        found: dict[str, Noise] = {}
        for part in self._parts_with_noise():
            for name, noise in part.noise_model(update, model).items():
                found[name] = add_noise(found[name], noise) if name in found else noise
        return found

    def possible_values(self, update: Update) -> Mapping[str, Interval]:
        """The bounds of the values that the last part got."""
        part = self._part_with_bounds()
        return {} if part is None else part.possible_values(update)

    def misleading_values(self, update: Update, model: nn.Module) -> Mapping[str, Tensor]:
        """All values that mislead because of one part."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for name, mask in part.misleading_values(update, model).items():
                found[name] = found[name] | mask if name in found else mask
        return found

    def batch_change(self) -> BatchChange | None:
        """How the part that computes a step's gradient makes its batch."""
        return next((c for part in self.parts if (c := part.batch_change())), None)

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """What its parts leave, as far as the later ones keep it."""
        return [
            trace
            for part in self.parts
            for trace in part.expected_traces(update, model)
            if not trace.needs_reference
            and all(later.keeps_trace(trace) for later in self._later(part))
        ]

    def keeps_trace(self, trace: Trace) -> bool:
        """Whether each of its parts keeps it."""
        users = [part for part in self.parts if uses_door(part, "on_update")]
        return all(part.keeps_trace(trace) for part in users)

    def image_change(self) -> ImageChange | None:
        """What one part did to the images; None where several did something."""
        found = [part.image_change() for part in self.parts]
        known = [change for change in found if change is not None]
        return known[0] if len(known) == 1 else None

    def hidden_positions(self) -> HiddenPositions | None:
        """How the part that hides positions does it."""
        return next((h for part in self.parts if (h := part.hidden_positions())), None)

    @property
    def spec(self) -> DefenseSpec:
        """Its parts, each with the parameters that are not the defaults, as one name."""
        return DefenseSpec(" + ".join(label_of(part) for part in self.parts), {})

    def __str__(self) -> str:
        return " + ".join(str(part) for part in self.parts)


def memory_key(place: int, part: Defense) -> str:
    """Where a client keeps what a part remembers, apart from that of the others."""
    return f"{place + 1}-{part.name}"


def find_conflict(parts: Sequence[Defense]) -> str | None:
    """Why defenses make no sense together; None where they do.

    Args:
        parts: The defenses in their order.
    """
    if len(parts) < 2:
        return "a composition has two parts or more"
    for first, second in itertools.combinations(parts, 2):
        if (first.name, second.name) in POINTLESS:
            return f"{second.name} after {first.name}: {POINTLESS[first.name, second.name]}"
        if first.name == second.name:
            return f"{first.name} stands twice: give one with the parameters that are meant"
    for part in parts:
        if part.name == "none":
            return "none does nothing: leave it out"
    steps = [part.name for part in parts if uses_door(part, "on_step")]
    if len(steps) > 1:
        return f"{' and '.join(steps)} each compute the gradient of a step: choose one"
    return None


def add_noise(one: Noise, other: Noise) -> Noise:
    """Two independent noises in the same parameter."""
    sigma = None
    if one.sigma is not None and other.sigma is not None:
        sigma = math.hypot(one.sigma, other.sigma)
    same: Any = one.bins if one.bins is other.bins else None
    return Noise(one.variance + other.variance, same, sigma, max(one.share, other.share))
