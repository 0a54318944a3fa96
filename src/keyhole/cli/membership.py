"""``keyhole membership``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out, Wide
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.terminal import say_json, say_unwrapped

if TYPE_CHECKING:
    from keyhole.auditing.membership_result import MembershipResult


@takes_fields_of(MembershipPlan, called={"defenses": "defense", "attacks": "attack"})
def membership(
    *,
    given: Given,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    fresh: Fresh = False,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Ask a trained model which images it was trained on, and judge defenses by the answers.

    Attackers who know the defense are added wherever it can help them. The same command continues
    an interrupted run.
    """
    plan = make_settings(MembershipPlan, given)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.membership import infer_membership
        from keyhole.device import find_device
        from keyhole.report import membership_page
    with show_progress() as bar:
        result = infer_membership(
            plan,
            out=out or Path("runs") / f"membership-{plan.digest}",
            fresh=fresh,
            data_dir=data_dir,
            device=find_device(device),
            progress=bar,
        )
        bar.show("the page is written")
        page = membership_page.write(result)
    print_membership(result, page, wide=wide, as_json=as_json)


def print_membership(result: MembershipResult, page: str, *, wide: bool, as_json: bool) -> None:
    """Prints a result for people or for machines."""
    from keyhole.report.membership_console import print_result

    if as_json:
        say_json(result.to_json())
        return
    print_result(result, wide=wide)
    say_unwrapped(f"Findings: {result.run}")
    say_unwrapped(f"Report:   {page}")
