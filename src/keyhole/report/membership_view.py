"""Describes the results of a membership experiment in words."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.auditing.membership_result import MembershipResult, Trial
from keyhole.metrics.membership import RateAt
from keyhole.spelling import spell


def summarise_trials(trials: Sequence[Trial]) -> str:
    """Says in one sentence how many models reveal their members."""
    found, count = sum(map(identifies_members, trials)), len(trials)
    if found == 0:
        which = "the model" if count == 1 else f"any of {count} models"
        return f"The attacks tried could not tell the members of {which} from other images."
    one = "the model was" if count == 1 else f"1 of {count} models was"
    many = f"all {count} models were" if found == count else f"{found} of {count} models were"
    which = one if found == 1 else many
    return f"Attackers can tell which images {which} trained on, better than by guessing."


def identifies_members(trial: Trial) -> bool:
    """Whether the best attacker is better than guessing: the AUC's 95% interval lies above .5."""
    return trial.worst.auc_low > 0.5


def label_trial(trial: Trial) -> str:
    """Returns the defense of a trial as a user writes it."""
    return spell(trial.defense["name"], trial.defense["parameters"])


def describe_trial(trial: Trial) -> str:
    """Describes the result for one model in one line."""
    worst = trial.worst
    accuracy = (
        f"{trial.train_accuracy:.1%} right on its own images, {trial.test_accuracy:.1%} on others"
    )
    if identifies_members(trial):
        area = f"AUC {worst.auc:.3f} [{worst.auc_low:.3f}, {worst.auc_high:.3f}]"
        return f"{accuracy}; members identified by {worst.attack} ({worst.attacker}), {area}"
    return f"{accuracy}; members not identified by the attacks tried"


def describe_experiment(result: MembershipResult) -> str:
    """Says in one line who trained on what."""
    plan = result.plan
    who = "one client" if plan.clients == 1 else f"{plan.clients} clients"
    return (
        f"{who} trained on {result.members} images; {result.others} others asked about; "
        f"{result.public} public images; {plan.optimiser}, lr {plan.lr:g}; seed {plan.seed}"
    )


def rates_of(result: MembershipResult) -> tuple[RateAt, ...]:
    """Returns the false-positive rates at which every attacker is measured."""
    return result.trials[0].inferences[0].rates


def explain_stars(result: MembershipResult) -> list[str]:
    """Says what the stars mean, if there are any."""
    if all(rate.resolved for rate in rates_of(result)):
        return []
    return [
        f"* {result.others} non-members cannot show a false-positive rate below "
        f"{rates_of(result)[0].resolution:.2%}: the rate shown is that without any false alarm"
    ]
