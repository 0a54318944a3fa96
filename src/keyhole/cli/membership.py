"""``keyhole membership``."""

from __future__ import annotations

from pathlib import Path

from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.cli.early_checks import check_membership
from keyhole.cli.places import (
    LOCAL,
    Address,
    CpusPerPiece,
    GpusPerPiece,
    On,
    Pieces,
    PlaceRequest,
    Workers,
)
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out, Wide
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.spelling import expand_lists
from keyhole.terminal import say, say_json


@takes_fields_of(MembershipPlan, called={"defenses": "defense", "attacks": "attack"})
def membership(
    *,
    given: Given,
    on: On = LOCAL,
    address: Address = None,
    workers: Workers = None,
    cpus_per_piece: CpusPerPiece = 1,
    gpus_per_piece: GpusPerPiece = 0.0,
    pieces: Pieces = None,
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
    if plan.captured is not None:
        print_captured(plan, device=device, data_dir=data_dir, out=out, as_json=as_json)
        return
    place = PlaceRequest(on, address, workers, cpus_per_piece, gpus_per_piece, pieces)
    in_pieces = place.asked or any(len(expand_lists(text)) > 1 for text in plan.defenses)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.membership import infer_membership
        from keyhole.device import find_device
        from keyhole.report import membership_page
        from keyhole.scale.membership_run import run_membership
    folder = out or Path("runs") / f"membership-{plan.digest}"
    with show_progress() as bar:
        if in_pieces:
            result = run_membership(
                plan,
                out=folder,
                store=place.open_store(folder),
                on=place.make_place(),
                machine=place.make_machine(device, data_dir),
                fresh=fresh,
                progress=bar,
            )
        else:
            result = infer_membership(
                plan,
                out=folder,
                fresh=fresh,
                data_dir=data_dir,
                device=find_device(device),
                progress=bar,
            )
        bar.show("the page is written")
        page = membership_page.write(result)
    print_run(result, page, wide=wide, as_json=as_json)


def print_captured(
    plan: MembershipPlan, *, device: str, data_dir: str | None, out: Path | None, as_json: bool
) -> None:
    """Asks a captured folder who was in its clients' images, and prints what is found."""
    with INTERRUPTS.leaving_at_once():
        from keyhole.atomic import write_json
        from keyhole.auditing.captured_membership import CAPTURED_ATTACKS, infer_captured_membership
        from keyhole.device import find_device
    assert plan.captured is not None
    named = "attacks" in plan.model_fields_set
    found = infer_captured_membership(
        plan.captured,
        model=plan.model,
        data=plan.data,
        attacks=plan.attacks if named else CAPTURED_ATTACKS,
        image_size=plan.image_size,
        data_dir=data_dir,
        device=find_device(device),
        seed=plan.seed,
    )
    if out is not None:
        write_json(out, found.to_json())
    if as_json:
        say_json(found.to_json())
        return
    for line in (*found.to_lines(), *found.notes):
        say(line)
