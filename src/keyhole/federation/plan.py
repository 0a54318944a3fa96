"""The settings of a federated training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from keyhole.mean_and_std import check_mean_and_std
from keyhole.optimisers import OptimiserText
from keyhole.registry import Registry
from keyhole.settings import (
    AskedPrecision,
    ClientMode,
    Count,
    Deviations,
    Means,
    Momentum,
    Positive,
    Seed,
    Settings,
    make_settings,
)
from keyhole.spelling import expand_lists, split_names

if TYPE_CHECKING:
    from keyhole.federation.partition import Partition
    from keyhole.federation.training import LocalTraining

PARTITIONS: Registry[Partition] = Registry(
    "partition",
    {
        "iid": "keyhole.federation.partition:Iid",
        "balanced": "keyhole.federation.partition:Balanced",
        "dirichlet": "keyhole.federation.partition:Dirichlet",
        "by-user": "keyhole.federation.partition:ByUser",
    },
)


class TrainingPlan(Settings):
    """One model trained by many clients. The same plan gives the same weights.

    The first paragraph below a field is the help of the option by which ``keyhole train`` sets it.
    """

    data: str = "digits"
    """The data set, by name or folder."""
    model: str = "mlp"
    """The model, by name."""
    share: str | None = None
    """What clients train and send: head, norm+head, adapters, 'lora(r=8)' or all (default).

    The rest of the model is frozen on every client."""
    clients: Count = 10
    """The number of clients."""
    rounds: Count = 5
    """The number of rounds."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the clients sampled in each round."""
    partition: str = "iid"
    """iid, balanced, dirichlet(alpha=0.5) or by-user."""
    images: Count | None = None
    """The largest number of images of a client."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Fraction of the images kept for evaluation, unless the data set has a test part."""
    defense: str = "none"
    """The defense of every client, such as gaussian(sigma=0.01)."""
    epochs: Count = 3
    """Local epochs per round."""
    steps: Count | None = None
    """Local steps per round, instead of epochs."""
    batch_size: Count = 16
    """Images per local step."""
    lr: Positive = 0.03
    """The clients' learning rate."""
    optimiser: OptimiserText = "sgd"
    """sgd, adam or adamw, as in 'sgd(momentum=0.9, nesterov=true, weight_decay=1e-4)'."""
    momentum: Momentum = 0.9
    """Momentum of sgd, if --optimiser gives no settings."""
    clip: Positive | None = None
    """The largest norm of a step's gradient."""
    augment: bool = False
    """Flip and shift images at random."""
    client_mode: ClientMode = "train"
    """train, eval or frozen-norm."""
    image_size: str | int | None = None
    """Size to scale images to: 224, or 112x92 (height x width)."""
    mean: Means | None = None
    """Mean of pixels in 0..1 that clients subtract: 0.5, or 0.49,0.48,0.45.

    None: the data set's own."""
    std: Deviations | None = None
    """Standard deviation of the pixels; given with mean."""
    weights: Path | None = None
    """Safetensors file with the first weights; default: random."""
    together: Literal["auto", "yes", "no"] = "auto"
    """Train clients as one tensor axis: auto, yes or no.

    ``auto``: by rule, where it tends to be faster
    (:func:`keyhole.federation.backends.vmap.vmap_is_faster`)."""
    precision: AskedPrecision = "auto"
    """Precision to train in: auto, float32, tf32 or bf16.

    ``auto``: float32 on a CPU; by device and size of the model on a GPU
    (:func:`keyhole.federation.precision.choose_precision`). ``plan.json`` says which it was."""
    compiled: Literal["auto", "yes", "no"] = "auto"
    """Compile the network before steps are recorded on a GPU: auto, yes or no.

    ``auto``: by rule, where a training is so long that it pays
    (:func:`keyhole.federation.choosing.choose_backend`)."""
    seed: Seed = 0
    """Seed of all random numbers."""

    @model_validator(mode="after")
    def check_mean_and_std(self) -> TrainingPlan:
        """Refuses one without the other."""
        check_mean_and_std(self.mean, self.std)
        return self

    @model_serializer(mode="wrap")
    def _leave_out_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out fields that older versions did not have, as long as they change nothing."""
        values: dict[str, Any] = dump(self)
        return {name: v for name, v in values.items() if name != "share" or v is not None}

    @property
    def training(self) -> LocalTraining:
        """How every client trains in a round."""
        from keyhole.federation.training import LocalTraining  # needs torch, which a plan does not

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


def expand_training(values: Mapping[str, Any], seeds: Sequence[int] | None) -> list[TrainingPlan]:
    """One plan for each seed, each defense and each model, and each value that these list.

    Args:
        values: The fields of a plan by name; defenses and models with commas between them.
        seeds: The seeds; None: the plan's own.

    >>> plans = expand_training({"defense": "none,topk(k=[.1,.01])"}, None)
    >>> [plan.defense for plan in plans]
    ['none', 'topk(k=0.1)', 'topk(k=0.01)']
    """
    default = TrainingPlan()
    choices = {
        "defense": expand_names(str(values.get("defense", default.defense)), "--defense"),
        "model": expand_names(str(values.get("model", default.model)), "--model"),
        "seed": list(dict.fromkeys(seeds or [values.get("seed", default.seed)])),
    }
    return [
        make_settings(TrainingPlan, {**values, **dict(zip(choices, chosen, strict=True))})
        for chosen in itertools.product(*choices.values())
    ]


def expand_names(text: str, option: str) -> list[str]:
    """The names that an option lists, each once, with one value for each parameter."""
    names = split_names(text, option=option)
    return list(dict.fromkeys(each for name in names for each in expand_lists(name)))
