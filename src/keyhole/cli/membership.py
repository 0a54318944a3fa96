"""``keyhole membership``."""

from __future__ import annotations

from pathlib import Path

from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.cli.early_checks import check_membership
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out, Wide
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings


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
    """Infer which images a model was trained on, and judge defenses by how well that works.

    Attackers who know the defense are added wherever it can help them. The same command continues
    an interrupted run.
    """
    plan = make_settings(MembershipPlan, given)
    check_membership(plan, data_dir)
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
    print_run(result, page, wide=wide, as_json=as_json)
