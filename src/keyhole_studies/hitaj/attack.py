"""What the malicious client of Hitaj et al. 2017 does, by numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Hitaj:
    """What the adversary does in each round.

    It trains its generator by Adam to lower

        CE(model(drawing), target) + tv * TV(drawing);

    then it adds drawings to its own images, labelled as fake, and trains the global model on all of
    them, like any other client.

    Args:
        target: The class to draw.
        rounds: Of the federation.
        begin: Until this round it only trains along: a model that knows nothing teaches nothing.
        steps: Of Adam in a round.
        batch: Drawings in a step.
        fakes: Drawings labelled as fake: half of them new, half of earlier rounds.
        lr: Of Adam.
        latent: Length of the generator's codes.
        features: Of the generator's last stage.
        tv: The weight of the total variation.
        replay: Rounds from which earlier fakes are taken (as Shrivastava et al. 2017), so that the
            model does not forget what it was shown before.
        average: What is handed over is drawn with the mean of the generator's weights over rounds;
            old weights fade by this factor in each round (Yazici et al. 2019).
    """

    target: Annotated[int, Field(ge=0)]
    rounds: Count = 100
    begin: Count = 1
    steps: Count = 20
    batch: Annotated[int, Field(ge=2)] = 32
    fakes: Count = 100
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5e-4
    latent: Count = 64
    features: Count = 12
    tv: Weight = 0.05
    replay: Annotated[int, Field(ge=0)] = 10
    average: Annotated[float, Field(ge=0, lt=1)] = 0.95

    name: ClassVar[str] = "gan"
    summary: ClassVar[str] = "a client trains a generator against the global model"
    paper: ClassVar[str] = "Hitaj et al. 2017"
