"""The settings of a frontier: which defenses, how clients train, and who attacks them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from keyhole.errors import BadValue
from keyhole.federation.plan import TrainingPlan
from keyhole.frontier.ranges import StrengthRange, read_range
from keyhole.settings import Count, NamesOrNone, Seed, make_settings
from keyhole.spelling import expand_lists

UNDEFENDED = "none"
"""What every setting is compared with; a frontier always measures it."""


def parse_seeds(value: object) -> object:
    """Parses ``0,1,2``; anything but text is returned as it is."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",")]
    bad = [part for part in parts if not part.isdecimal()]
    if bad:
        raise BadValue(f"seeds: {bad[0]!r} is no seed: write 0,1,2")
    return tuple(dict.fromkeys(int(part) for part in parts))


class FrontierPlan(TrainingPlan):
    """Defenses that are each trained with and attacked, once for each seed.

    ``defense`` and ``seed`` are those of single trainings: leave them alone, and give ``defenses``
    and ``seeds``. The first paragraph below a field is the help of the option by which
    ``keyhole frontier`` sets it.
    """

    defenses: NamesOrNone = ()
    """Defenses, each with one value or a list: 'tip,topk(k=[.1,.01])'.

    A list is one setting for each of its values. No defense at all is always measured, too."""
    search: NamesOrNone = ()
    """Defenses whose mildest strength that holds is looked for: 'gaussian(sigma=1e-6..1e-1)'.

    The mildest value is written first, the strongest last."""
    trials: Annotated[int, Field(ge=2, le=64)] = 8
    """Strengths that a search tries at most."""
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(parse_seeds), Field(min_length=1)] = (0,)
    """Seeds of weights, clients, victims and noise; intervals need several: 0,1,2."""
    attacks: NamesOrNone = ()
    """Attacks; default: all that apply to an honest server, closed forms first."""
    victims: Count = 8
    """Clients that are attacked at each moment of the training, for each seed."""
    victim_images: Count = 1
    """Images in the batch of an attacked client; one leaks most."""
    victim_steps: Count = 1
    """Local steps of an attacked client, at the learning rate of the training."""
    iterations: Count | None = None
    """Iterations of every iterative attack, at most."""

    @model_validator(mode="after")
    def check_what_is_measured(self) -> FrontierPlan:
        """Refuses a frontier of nothing, and fields that belong to single trainings."""
        if not self.defenses and not self.search:
            raise ValueError("name defenses to compare, or one to search")
        if self.defense != UNDEFENDED or self.seed != 0:
            raise ValueError("give defenses and seeds, not defense and seed")
        return self

    @property
    def settings(self) -> tuple[str, ...]:
        """Each defense of the frontier once, one for each value of a list, no defense first."""
        listed = [each for text in self.defenses for each in expand_lists(text)]
        return tuple(dict.fromkeys([UNDEFENDED, *listed]))

    @property
    def ranges(self) -> tuple[StrengthRange, ...]:
        """The ranges that are searched."""
        return tuple(read_range(text) for text in self.search)

    @property
    def bound(self) -> str:
        """What the iterative attacks were held to, in words; empty: their own iterations."""
        count = self.iterations
        words = f"iterative attacks of at most {count} iteration{'' if count == 1 else 's'}"
        return "" if count is None else words

    def training_plan(self, defense: str, seed: int) -> TrainingPlan:
        """The training of one setting with one seed.

        Args:
            defense: The clients' defense.
            seed: Seed of all random numbers.
        """
        fields: dict[str, Any] = self.model_dump(include=set(TrainingPlan.model_fields))
        return make_settings(TrainingPlan, {**fields, "defense": defense, "seed": seed})


QUICK: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "defenses": ("dropout", "topk(k=[0.1, 0.01])"),
    "search": ("dp(epsilon=5000..5)",),
    "trials": 4,
    "seeds": (0, 1, 2),
    "rounds": 5,
    "victims": 8,
    "iterations": 100,
}
"""``keyhole frontier --quick``: built-in images, under five minutes on two cores."""
