"""The settings of a membership-inference experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from keyhole.errors import BadValue
from keyhole.optimisers import OptimiserText
from keyhole.parameters import parameter_names
from keyhole.settings import (
    ClientMode,
    Count,
    Momentum,
    Names,
    Positive,
    Seed,
    Settings,
)
from keyhole.spelling import parse_call

if TYPE_CHECKING:
    from keyhole.attacks.membership import MembershipAttack
    from keyhole.federation import LocalTraining


def parse_epochs(value: object) -> object:
    """Parses ``1,5,20``; anything but text is returned as it is."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",")]
    bad = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if bad:
        raise BadValue(f"at: {bad[0]!r} is no epoch: write 1,5,20")
    return tuple(int(part) for part in parts)


class MembershipPlan(Settings):
    """One model trained on some images, and attackers who guess which. Same plan, same result.

    The model is trained on ``members`` images; as many others are the non-members; public images
    are taken from the rest. A single client makes ``epochs`` passes over its images; several
    clients share the images and make ``local_epochs`` passes per round. The first paragraph below
    a field is the help of the option by which ``keyhole membership`` sets it.
    """

    data: str = "digits"
    """The data set, by name or folder."""
    model: str = "lenet"
    """The model, by name."""
    defenses: Names = ("none",)
    """Defenses, e.g. 'none,gaussian(sigma=0.01)'."""
    attacks: Names = ("loss", "shadow", "lira")
    """loss, shadow, lira, 'lira(variant="offline")'; or several."""
    members: Annotated[int, Field(ge=2)] = 200
    """Images trained on; as many others are non-members."""
    public: Annotated[int, Field(ge=0)] | None = None
    """The largest number of images of the attacker's own.

    None: ten times the members."""
    epochs: Count = 50
    """Passes over the images."""
    at: Annotated[tuple[Count, ...], BeforeValidator(parse_epochs)] = ()
    """Attack after these epochs as well: 1,5,20."""
    batch_size: Count = 32
    """Images in a batch."""
    lr: Positive = 0.005
    """Learning rate."""
    optimiser: OptimiserText = "adam"
    """sgd, adam or adamw, as in 'adamw(weight_decay=0.1)'."""
    momentum: Momentum = 0.9
    """Momentum of sgd, if --optimiser gives no settings."""
    clip: Positive | None = None
    """The largest norm of a step's gradient."""
    augment: bool = False
    """Flip and shift images at random."""
    client_mode: ClientMode = "train"
    """train, eval or frozen-norm."""
    clients: Count = 1
    """Clients who share the images; the global model is attacked."""
    local_epochs: Count = 1
    """Passes per round, where there are several clients."""
    shadows: Count | None = None
    """Shadow models that an attack trains.

    None: as many as the attack says."""
    views: Annotated[int, Field(ge=0)] = 8
    """Views of each image for an attacker who knows that images are changed; 0: none."""
    image_size: str | int | None = None
    """Size to scale images to: 224, or 112x92 (height x width)."""
    seed: Seed = 0
    """Seed of all random numbers."""
    captured: Path | None = None
    """Ask of the updates in this folder, which a curious server wrote, who was in them.

    No model is trained here then; attacks are fedmia, cosine and loss."""

    @model_serializer(mode="wrap")
    def _leave_out_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out fields that older versions did not have, as long as they change nothing."""
        values: dict[str, Any] = dump(self)
        if self.captured is None:
            values.pop("captured", None)
        return values

    @property
    def attacked_epochs(self) -> list[int]:
        """The epochs after which the model is attacked."""
        return sorted({*(epoch for epoch in self.at if epoch < self.epochs), self.epochs})

    def build_training(self, epochs: int) -> LocalTraining:
        """A client's local training: all of it, or one round if there are several clients.

        Args:
            epochs: Passes over the images in the whole experiment.
        """
        from keyhole.federation import LocalTraining  # needs torch, which a plan does not

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

    def count_rounds(self, epochs: int) -> int:
        """The number of rounds in which every client makes ``epochs`` passes over its images.

        Args:
            epochs: Passes over the images in the whole experiment.
        """
        return 1 if self.clients == 1 else -(-epochs // self.local_epochs)

    def build_attacks(self) -> list[MembershipAttack]:
        """The attacks, with the plan's number of shadow models unless they name one."""
        from keyhole.attacks.membership import MEMBERSHIP

        found = []
        for text in self.attacks:
            name, values = parse_call(text)
            attack = MEMBERSHIP.find(name)
            if self.shadows is not None and "shadows" in parameter_names(attack):
                values = {"shadows": self.shadows, **values}
            found.append(MEMBERSHIP.make(attack, name, values))
        return found
