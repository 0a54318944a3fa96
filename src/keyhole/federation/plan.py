"""What a federated training is to do, as settings that can be repeated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from keyhole.data.normalisation import Deviations, Means, check_both
from keyhole.federation.training import LocalTraining, Optimiser
from keyhole.models.modes import ClientMode
from keyhole.settings import Count, Seed

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TrainingPlan(BaseModel):
    """One model trained by many clients. The same plan gives the same weights.

    Clients train for ``epochs``, or for ``steps`` if those are given. ``images`` bounds how many a
    client has. A part of the data, ``held_out``, is kept for evaluation unless the data set comes
    with a part of its own for that.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "mlp"
    data: str = "digits"
    image_size: str | int | None = None
    weights: Path | None = None
    mean: Means | None = None
    """Of pixels in [0, 1], for the model's inputs: one number, or one per channel; with ``std``.
    None: the data set's own."""
    std: Deviations | None = None
    defense: str = "none"
    clients: Count = 10
    rounds: Count = 5
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    partition: str = "iid"
    images: Count | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    epochs: Count = 3
    steps: Count | None = None
    batch_size: Count = 16
    lr: Positive = 0.03
    optimiser: Optimiser = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    clip: Positive | None = None
    augment: bool = False
    client_mode: ClientMode = "train"
    together: Literal["auto", "yes", "no"] = "auto"
    """Whether sampled clients are trained as one tensor axis; ``auto``: by rule, where it tends to
    be faster (:func:`keyhole.federation.together.faster_together`)."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _both(self) -> TrainingPlan:
        check_both(self.mean, self.std)
        return self

    @property
    def training(self) -> LocalTraining:
        """What every client does in a round."""
        return LocalTraining(
            steps=self.steps or 1,
            lr=self.lr,
            mode=self.client_mode,
            epochs=None if self.steps else self.epochs,
            batch_size=self.batch_size,
            optimiser=self.optimiser,
            momentum=self.momentum,
            clip=self.clip,
            augment=self.augment,
        )

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """Eight hex digits that tell this plan from others."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]
