"""Runs a membership experiment in pieces, and puts its trials into one run folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.membership_store import MembershipStore
from keyhole.lock import locked
from keyhole.progress import Progress
from keyhole.scale.membership_pieces import split_membership
from keyhole.scale.outcome import Place
from keyhole.scale.parts import check_parts
from keyhole.scale.piece import Machine
from keyhole.scale.piece_store import PieceStore
from keyhole.scale.run import run_pieces


def run_membership(
    plan: MembershipPlan,
    *,
    out: Path,
    store: PieceStore,
    on: Place | None = None,
    machine: Machine | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> MembershipResult:
    """Runs the trials that have no result yet; the run folder is that of any experiment.

    Args:
        plan: The experiment; lists in the names of its defenses stand for one defense each.
        out: The run folder.
        store: Where pieces keep their results.
        on: Where to run them; None: in this process.
        machine: What each may use.
        fresh: Replaces an earlier run in the folder, and the results of the pieces.
        progress: Shows how much is done; None: nothing is shown.
    """
    pieces = split_membership(plan)
    check_parts(defenses=(name for piece in pieces for name in piece.values["defenses"]))
    folder = MembershipStore(out, plan.to_json())
    folder.check(fresh=fresh)
    if fresh:
        for piece in pieces:
            store.forget(piece)
    done = run_pieces(pieces, store, on=on, machine=machine, progress=progress)
    reader = TypeAdapter(MembershipResult)
    found = [reader.validate_python(each.result) for each in done]
    first = found[0]
    with locked(out):
        folder.begin(fresh=fresh)
        result = MembershipResult(
            plan,
            *(first.members, first.others, first.public),
            tuple(trial for each in found for trial in each.trials),
            tuple(dict.fromkeys(note for each in found for note in each.notes)),
            versions=first.versions,
            run=str(out),
        )
        folder.conclude(result.to_json())
    return result
