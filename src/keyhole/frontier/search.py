"""Finds the mildest strength that holds, by halving a range; Optuna keeps the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keyhole.errors import DoesNotFit
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.ranges import StrengthRange
from keyhole.frontier.result import SearchOutcome

if TYPE_CHECKING:
    from optuna import Study

SHARE = "share"
"""The parameter of a trial: the share of the way from the mild end to the strong one."""
HELD = "held"
Measure = Callable[[str], SettingOutcome | None]
"""Measures one setting, or finds what was measured of it before; None where that fails."""


def import_optuna() -> Any:
    """Optuna, without its own log; raises where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise DoesNotFit("a search needs Optuna: pip install 'keyhole[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def choose_share(held: Mapping[float, bool]) -> float | None:
    """The next share to try; None if the range is decided.

    The strong end comes first: if it is broken, nothing in the range holds. Then the mild end: if
    it holds, it is the answer. Then the middle between the strongest that was broken and the
    mildest that held.

    Args:
        held: The shares tried so far, and whether each held.

    >>> choose_share({}), choose_share({1.0: True}), choose_share({1.0: True, 0.0: False})
    (1.0, 0.0, 0.5)
    """
    if 1.0 not in held:
        return 1.0
    if not held[1.0]:
        return None
    if 0.0 not in held:
        return 0.0
    if held[0.0]:
        return None
    mildest = min(share for share, each in held.items() if each)
    return (max(share for share in held if share < mildest) + mildest) / 2


def make_study() -> Study:
    """A study whose sampler halves the range; it minimises the strength that holds."""
    optuna = import_optuna()
    from optuna.samplers import BaseSampler

    class Bisection(BaseSampler):  # type: ignore[misc]
        """Proposes the middle between what was broken and what held."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> float:
            share = choose_share(read_trials(study))
            assert share is not None
            return share

    study: Study = optuna.create_study(sampler=Bisection(), direction="minimize")
    return study


def read_trials(study: Any) -> dict[float, bool]:
    """The shares that were tried, and whether each held."""
    done = [trial for trial in study.get_trials(deepcopy=False) if HELD in trial.user_attrs]
    return {trial.params[SHARE]: trial.user_attrs[HELD] for trial in done}


def search_strength(
    strength: StrengthRange, measure: Measure, trials: int
) -> tuple[SearchOutcome, dict[str, SettingOutcome]]:
    """Halves a range until its trials are used up; the outcome, and all measured settings by text.

    It ends early where a setting cannot be measured, and takes for granted that what holds at one
    strength holds at every greater one.

    Args:
        strength: The range.
        measure: Measures one setting.
        trials: The most settings to measure.
    """
    study, found, texts = make_study(), dict[float, SettingOutcome](), dict[float, str]()
    while len(found) < trials and choose_share(read_trials(study)) is not None:
        trial = study.ask()
        share = trial.suggest_float(SHARE, 0.0, 1.0)
        outcome = measure(strength.defense_at(share))
        if outcome is None or outcome.label in {each.label for each in found.values()}:
            break  # it failed, or the range is too narrow to be halved again
        found[share], texts[share] = outcome, strength.defense_at(share)
        trial.set_user_attr(HELD, outcome.held)
        study.tell(trial, share if outcome.held else 1.0 + share)
    held = {share: found[share].held for share in found}
    return describe_search(strength, found, held), {texts[share]: found[share] for share in found}


def describe_search(
    strength: StrengthRange, found: Mapping[float, SettingOutcome], held: Mapping[float, bool]
) -> SearchOutcome:
    """What the trials of a search say."""
    mildest = min((share for share, each in held.items() if each), default=None)
    below = [share for share in held if mildest is not None and share < mildest]
    broken = max(below, default=None)
    tried = tuple(each.label for each in found.values())
    count = f"{len(found)} setting{'' if len(found) == 1 else 's'} tried"
    if mildest is None:
        words = f"{strength.text}: even the strongest end was broken ({count})."
        return SearchOutcome(strength.text, tried, None, None, words)
    name = found[mildest].label
    if broken is None:
        words = f"{strength.text}: even the mildest end, {name}, held ({count}): search lower."
        return SearchOutcome(strength.text, tried, name, None, words)
    words = (
        f"{strength.text}: {name} is the mildest that held, {found[broken].label} was broken "
        f"({count}). A search takes for granted that what is stronger holds as well."
    )
    return SearchOutcome(strength.text, tried, name, found[broken].label, words)
