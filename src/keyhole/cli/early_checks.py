"""What can be refused before torch is imported: unknown names and missing files.

The library makes the same checks, by the same functions, when it does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.data.sources import check_source
from keyhole.defenses import DEFENSES
from keyhole.federation.capture_folder import check_capture_folder
from keyhole.federation.plan import PARTITIONS
from keyhole.metrics.selection import NAMED
from keyhole.models.architectures import check_model_name
from keyhole.models.shares import FINE_TUNINGS
from keyhole.untrusted import check_tensor_file

if TYPE_CHECKING:
    from keyhole.auditing.membership_plan import MembershipPlan
    from keyhole.auditing.plan import Stage
    from keyhole.federation.plan import TrainingPlan
    from keyhole.frontier.plan import FrontierPlan


def check_stage(stage: Stage, data_dir: str | None) -> None:
    """Checks what one stage of an audit names."""
    from keyhole.auditing.plan import AUTO  # other commands need not load this plan

    if stage.captured is not None:
        check_capture_folder(stage.captured)
    check_victim(stage.data, stage.model, data_dir, weights=stage.weights)
    check_share(stage.share)
    check_defenses(stage.defenses)
    for attack in stage.attacks:
        if attack != AUTO:
            ATTACKS.check_name(attack)
    for metric in stage.metrics:
        NAMED.check_name(metric)


def check_training(plan: TrainingPlan, data_dir: str | None) -> None:
    """Checks what a federated training names."""
    check_defenses([plan.defense])
    check_share(plan.share)
    PARTITIONS.check_name(plan.partition)
    check_victim(plan.data, plan.model, data_dir, weights=plan.weights)


def check_frontier(plan: FrontierPlan, data_dir: str | None) -> None:
    """Checks what a frontier names."""
    check_defenses([*plan.settings, *(each.name for each in plan.ranges)])
    for attack in plan.attacks:
        ATTACKS.check_name(attack)
    PARTITIONS.check_name(plan.partition)
    check_victim(plan.data, plan.model, data_dir, weights=plan.weights)


def check_membership(plan: MembershipPlan, data_dir: str | None) -> None:
    """Checks what a membership experiment names."""
    check_victim(plan.data, plan.model, data_dir)
    if plan.captured is not None:
        check_capture_folder(plan.captured)
        return
    for attack in plan.attacks:
        MEMBERSHIP.check_name(attack)
    check_defenses(plan.defenses)


def check_victim(
    data: str, model: str, data_dir: str | None, *, weights: Path | None = None
) -> None:
    """Checks a data set, a model, and the file of its weights."""
    check_source(data, data_dir=data_dir)
    check_model_name(model)
    if weights is not None:
        check_tensor_file(weights)


def check_incoming_names(
    files: Sequence[Path | None], model: str | None, data: str | None, data_dir: str | None
) -> None:
    """Checks what the user names of a model that a server sent, of which much may be missing."""
    for file in files:
        if file is not None:
            check_tensor_file(file)
    if model is not None:
        check_model_name(model)
    if data is not None:
        check_source(data, data_dir=data_dir)


def check_share(share: str | None) -> None:
    """Checks the name of what clients train and send."""
    if share is not None:
        FINE_TUNINGS.check_name(share)


def check_defenses(defenses: Sequence[str]) -> None:
    """Checks the names of defenses."""
    for defense in defenses:
        DEFENSES.check_name(defense)
