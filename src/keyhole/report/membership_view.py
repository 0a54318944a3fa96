"""What became of a membership experiment, in words."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.auditing.membership import MembershipResult, Trial
from keyhole.metrics.membership import RateAt
from keyhole.spelling import spell


def headline(trials: Sequence[Trial]) -> str:
    """How many models give their members away, in a sentence: none, some or all."""
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
    """The defense of a trial, as one would ask for it."""
    return spell(trial.defense["name"], trial.defense["parameters"])


def describe_trial(trial: Trial) -> str:
    """What became of one model, in a line."""
    worst = trial.worst
    accuracy = (
        f"{trial.train_accuracy:.1%} right on its own images, {trial.test_accuracy:.1%} on others"
    )
    if identifies_members(trial):
        area = f"AUC {worst.auc:.3f} [{worst.auc_low:.3f}, {worst.auc_high:.3f}]"
        return f"{accuracy}; members identified by {worst.attack} ({worst.attacker}), {area}"
    return f"{accuracy}; members not identified by the attacks tried"


def describe_experiment(result: MembershipResult) -> str:
    """Who trained on what, in one line."""
    plan = result.plan
    who = "one client" if plan.clients == 1 else f"{plan.clients} clients"
    return (
        f"{who} trained on {result.members} images; {result.others} others asked about; "
        f"{result.public} public images; {plan.optimiser}, lr {plan.lr:g}; seed {plan.seed}"
    )


def rates_of(result: MembershipResult) -> tuple[RateAt, ...]:
    """The false-positive rates at which every attacker is measured."""
    return result.trials[0].inferences[0].rates


def explain_stars(result: MembershipResult) -> list[str]:
    """What the stars mean, where there are any."""
    if all(rate.resolved for rate in rates_of(result)):
        return []
    return [
        f"* {result.others} non-members cannot show a false-positive rate below "
        f"{rates_of(result)[0].resolution:.2%}: the rate shown is that without any false alarm"
    ]
