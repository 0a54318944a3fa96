"""The settings of an audit: models x data x defenses x attackers."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from keyhole.errors import BadValue, one_line
from keyhole.mean_and_std import check_mean_and_std
from keyhole.optimisers import OptimiserText
from keyhole.settings import (
    ClientMode,
    Count,
    Deviations,
    Means,
    Names,
    NamesOrNone,
    Positive,
    Seed,
    Settings,
    make_settings,
)
from keyhole.untrusted import check_depth, read_regular

AUTO = "auto"
"""Every closed form that applies to an honest server. If none of them reads images, also
`conv-spear` where it applies, IG, GIFD (for images of its generator's shape), the attacks that the
defense was published with, and those that need to know the defense."""
MAX_PLAN_BYTES = 1 << 20
LATER_FIELDS = (
    *("metrics", "aggregate", "epochs", "local_batch_size", "optimiser"),
    *("warm_up", "warm_up_defended", "share", "moving"),
)
"""Fields of a stage that older versions did not have."""


class Stage(Settings):
    """One model on one data set, under some defenses, before some attacks.

    Each client is one victim. The first paragraph below a field is the help of the option by which
    ``keyhole audit`` sets it.
    """

    model: str = "mlp"
    """The model, by name."""
    share: str | None = None
    """What clients train and send: head, norm+head, adapters, 'lora(r=8)' or all (default).

    The rest of the model is frozen on every client."""
    data: str = "faces"
    """The data set, by name or folder."""
    defenses: Names = ("none",)
    """Defenses, e.g. 'none,gaussian(sigma=0.01)'."""
    attacks: Names = (AUTO,)
    """Attacks; default: all that apply to an honest server."""
    metrics: NamesOrNone = ()
    """Metrics of your own, e.g. my_parts:LARGEST.

    They are measured besides those of every audit."""
    victims: Count = 4
    """The number of clients attacked."""
    batch_size: Count = 1
    """Images in a client's batch."""
    aggregate: Count = 1
    """Clients whose updates the server gets as one mean, as under secure aggregation.

    Each victim is then one such group of clients."""
    image_size: str | int | None = None
    """Size to scale images to: 224, or 112x92 (height x width)."""
    mean: Means | None = None
    """Mean of pixels in 0..1 that clients subtract: 0.5, or 0.49,0.48,0.45.

    None: as a captured folder says, else the data set's own, which is an assumption."""
    std: Deviations | None = None
    """Standard deviation of the pixels; given with mean."""
    weights: Path | None = None
    """The model's weights, safetensors; default: random."""
    steps: Count = 1
    """Local steps; more than one need lr."""
    epochs: Count | None = None
    """Passes over a client's images, in place of steps."""
    local_batch_size: Count | None = None
    """Images per local step; default: all of a client's.

    A client shuffles them in every epoch, and the server does not know how."""
    optimiser: OptimiserText = "sgd"
    """sgd, adam or adamw, as in 'sgd(momentum=0.9, nesterov=true, weight_decay=1e-4)'."""
    warm_up: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Rounds of federated training before the attack, by clients with other images."""
    warm_up_defended: bool = False
    """Train those rounds under the defense as well, not without any."""
    lr: Positive | None = None
    """Learning rate: clients share weights, not gradients.

    Without it they share the gradient of one step."""
    client_mode: ClientMode | None = None
    """train, eval or frozen-norm.

    None: train, or what a captured folder says; a batch norm that would see one image only keeps
    to its running statistics."""
    repeats: Count = 1
    """Updates that each client sends for the same images.

    Attacks may combine them."""
    moving: bool = False
    """Apply each of these updates before the next, as in rounds of one client.

    Without it all are from the same weights."""
    checkpoint_epoch: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Epochs that the model's weights were trained for, for the record."""
    iterations: Count | None = None
    """Iterations of every iterative attack, at most."""
    parity: Literal["paper"] | None = None
    """paper: iterative attacks exactly as published; far slower."""
    captured: Path | None = None
    """Attack the updates in this folder, which a curious server wrote.

    No client trains here then."""
    rounds: str | None = None
    """Captured rounds: 1,3 or all; default: the first."""
    nodes: str | None = None
    """Captured clients, by name: 0,7.

    None: the first ``victims`` of a round."""
    truth: Path | None = None
    """JSON file that says which images each client had, to score by.

    Needed only if the captured folder does not say so itself."""

    @property
    def images_per_update(self) -> int:
        """Images behind one update that the server gets."""
        return self.batch_size * self.aggregate

    @model_validator(mode="after")
    def _check_mean_and_std(self) -> Stage:
        check_mean_and_std(self.mean, self.std)
        return self

    @model_validator(mode="after")
    def _check_training(self) -> Stage:
        if self.epochs is not None and "steps" in self.model_fields_set:
            raise ValueError("epochs and steps: give one of them")
        if self.moving and (self.lr is None or self.repeats == 1):
            raise ValueError("moving: give --repeats of 2 or more, and the clients' --lr")
        if self.captured is not None and self.warm_up:
            raise ValueError("warm-up: captured clients got the weights that the server sent")
        return self

    @model_validator(mode="after")
    def _check_aggregate(self) -> Stage:
        if self.captured is not None and self.aggregate > 1:
            raise ValueError("aggregate: captured updates are attacked as the server got them")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_later_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out fields that older versions did not have, as long as they change nothing."""
        values: dict[str, Any] = dump(self)
        return {
            name: value
            for name, value in values.items()
            if name not in LATER_FIELDS
            or getattr(self, name) != type(self).model_fields[name].default
        }


class Plan(Settings):
    """Stages that share a seed. The same plan gives the same findings."""

    title: str = "Audit"
    """The heading of the page."""
    seed: Seed = 0
    """Seed of weights, victims and noise."""
    stage: Annotated[tuple[Stage, ...], Field(min_length=1)]
    """The stages, one or more."""

    def with_all(self, **values: Any) -> Plan:
        """The plan with some values changed in every stage.

        Args:
            **values: Fields of :class:`Stage`, or the plan's ``seed``; None changes nothing.
        """
        given = {k: v for k, v in values.items() if v is not None}
        seed = given.pop("seed", self.seed)
        stages = [
            make_settings(Stage, {**s.model_dump(exclude_unset=True), **given}) for s in self.stage
        ]
        return make_settings(Plan, {"title": self.title, "seed": seed, "stage": tuple(stages)})


def read_plan(path: Path) -> Plan:
    """A plan from a TOML file: ``seed = 0`` and any number of ``[[stage]]`` tables.

    A plan can name code (``model = "package:function"``), which the audit imports and runs. One
    that lists values is read by :func:`keyhole.auditing.read_sweep`.

    Args:
        path: The file.
    """
    return make_plan(read_plan_values(path), where=f" in {path}")


def make_plan(values: dict[str, Any], *, where: str = "") -> Plan:
    """A plan from the values of its fields.

    Args:
        values: The fields by name.
        where: Where they were written, for errors: `` in plan.toml``.
    """
    return make_settings(Plan, values, where=where, inner=Stage.model_fields)


def read_plan_values(path: Path) -> dict[str, Any]:
    """What a TOML file holds, before anything but its form is checked.

    Args:
        path: The file.
    """
    try:
        values = tomllib.loads(read_regular(path, MAX_PLAN_BYTES).decode("utf-8"))
        check_depth(values)
    except FileNotFoundError:
        raise BadValue(f"{path} does not exist: name a TOML file with [[stage]] tables") from None
    except RecursionError:
        raise BadValue(f"{path} cannot be read as TOML (its lists lie too deep)") from None
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise BadValue(f"{path} cannot be read as TOML ({why})") from None
    return values


def tour() -> Plan:
    """The built-in tour: images that ship with Keyhole's dependencies, about half a minute."""
    return Plan(**read_tour_values())


def read_tour_values() -> dict[str, Any]:
    """The values of the built-in tour."""
    text = resources.files("keyhole.auditing").joinpath("tour.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
