"""What a membership-inference experiment is to do, as settings that can be repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from keyhole.attacks.membership import MEMBERSHIP, MembershipAttack
from keyhole.federation import LocalTraining
from keyhole.federation.training import Optimiser
from keyhole.models.modes import ClientMode
from keyhole.registry import parse_call, spell, split_names
from keyhole.settings import Count, Seed

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]


class MembershipPlan(BaseModel):
    """Who trains on how many images, and who asks about them. The same plan, the same findings.

    ``members`` images are trained on; as many others, drawn like them, are the non-members; public
    images are taken from what remains. A single client passes ``epochs`` times over its images;
    several share them and pass ``local_epochs`` times a round. The model is also attacked where it
    stood after each of the epochs ``at``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = "digits"
    model: str = "lenet"
    image_size: str | int | None = None
    defenses: Names = ("none",)
    attacks: Names = ("loss", "shadow", "lira")
    members: Annotated[int, Field(ge=2)] = 200
    public: Annotated[int, Field(ge=0)] | None = None
    """At most; None: ten times the members."""
    epochs: Count = 50
    at: tuple[Count, ...] = ()
    batch_size: Count = 32
    lr: Positive = 0.005
    optimiser: Optimiser = "adam"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    clip: Positive | None = None
    augment: bool = False
    client_mode: ClientMode = "train"
    clients: Count = 1
    local_epochs: Count = 1
    shadows: Count | None = None
    """Models that each attacker trains who needs some; None: as many as the attack says."""
    views: Annotated[int, Field(ge=0)] = 8
    """Views that an attacker takes of each image who knows that the defense changes images."""
    seed: Seed = 0

    @field_validator("defenses", "attacks", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(split_names(value)) if isinstance(value, str) else value

    @property
    def stops(self) -> list[int]:
        """The epochs after which the model is attacked."""
        return sorted({*(epoch for epoch in self.at if epoch < self.epochs), self.epochs})

    @property
    def digest(self) -> str:
        """Eight hex digits that tell this plan from others."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def training(self, epochs: int) -> LocalTraining:
        """What a client does: alone, or in one round of several."""
        return LocalTraining(
            lr=self.lr,
            mode=self.client_mode,
            epochs=epochs if self.clients == 1 else min(epochs, self.local_epochs),
            batch_size=self.batch_size,
            optimiser=self.optimiser,
            momentum=self.momentum,
            clip=self.clip,
            augment=self.augment,
        )

    def rounds(self, epochs: int) -> int:
        """Rounds after which every client has passed ``epochs`` times over its images."""
        return 1 if self.clients == 1 else -(-epochs // self.local_epochs)

    def attackers(self) -> list[MembershipAttack]:
        """The attacks by name, with the plan's number of shadow models unless they name one."""
        found = []
        for text in self.attacks:
            name, values = parse_call(text)
            own = {f.name for f in dataclasses.fields(MEMBERSHIP[name])}
            usual = {"shadows": self.shadows} if "shadows" in own else {}
            found.append(MEMBERSHIP.parse(spell(name, {**usual, **values})))
        return found
