"""The pieces of an audit: one stage, one defense, one attack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keyhole.auditing.plan import AUTO, Plan, Stage
from keyhole.data.sources import SOURCES, is_path
from keyhole.scale.piece import Piece, Workspace, build_piece
from keyhole.settings import make_settings
from keyhole.spelling import expand_lists, parse_call, spell

WORK = "keyhole.scale.audit_pieces:run_audit_piece"


def split_audit(plan: Plan) -> list[Piece]:
    """The pieces of an audit, in the order of its findings, each once.

    ``auto`` is one piece: what it runs depends on what its closed forms read. So is a captured
    folder.
    """
    pieces = [
        build_audit_piece(stage, plan.seed) for whole in plan.stage for stage in split_stage(whole)
    ]
    return list({piece.key: piece for piece in pieces}.values())


def split_stage(stage: Stage) -> Iterator[Stage]:
    """Stages of one defense and one attack each."""
    if stage.captured is not None:
        yield stage
        return
    attacks = [AUTO] if AUTO in stage.attacks else spell_all(stage.attacks)
    for defense in spell_all(stage.defenses):
        for attack in attacks:
            yield make_settings(
                Stage,
                {
                    **stage.model_dump(exclude_unset=True),
                    "defenses": (defense,),
                    "attacks": (attack,),
                },
            )


def spell_all(names: Iterable[str]) -> list[str]:
    """Names with one value for each parameter, all spelled in one way.

    >>> spell_all(["gaussian( sigma=[1e-4,.1] )", "none"])
    ['gaussian(sigma=0.0001)', 'gaussian(sigma=0.1)', 'none']
    """
    return [spell_once(name) for listed in names for name in expand_lists(listed)]


def spell_once(text: str) -> str:
    """A name with its parameters as :func:`keyhole.spelling.spell` writes it."""
    name, values = parse_call(text)
    return spell(name, values, off=values)


def build_audit_piece(stage: Stage, seed: int) -> Piece:
    """The piece that audits one stage.

    Args:
        stage: The stage, with one defense and one attack.
        seed: Seed of weights, victims and noise.
    """
    names = [stage.model, *stage.defenses, *stage.attacks, *stage.metrics]
    folder = stage.data if stage.data not in SOURCES and is_path(stage.data) else None
    title = f"{', '.join(stage.attacks)} against {', '.join(stage.defenses)}, "
    title += f"{stage.model} on {stage.data}"
    return build_piece(
        WORK,
        {"seed": seed, "stage": stage.model_dump(mode="json")},
        title=title if seed == 0 else f"{title}, seed {seed}",
        reads=[folder, stage.weights, stage.captured, stage.truth, *find_files(names)],
        parts=names,
    )


def find_files(names: Iterable[str]) -> list[str]:
    """Files that parameters of names name: ``gifd(generator='mine.safetensors')``."""
    values = [value for name in names for value in parse_call(name)[1].values()]
    return [value for value in values if isinstance(value, str) and Path(value).is_file()]


def run_audit_piece(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Audits one stage in the piece's folder, which is the run folder of that audit."""
    from keyhole.auditing.launch import build_plan_settings, run_in_folder

    machine = space.machine
    plan = make_settings(Plan, {"seed": values["seed"], "stage": (dict(values["stage"]),)})
    settings, notes = build_plan_settings(plan, data_dir=machine.data_dir, device=machine.device)
    result = run_in_folder(
        settings,
        plan,
        space.folder,
        progress=space.progress,
        data_dir=machine.data_dir,
        victims_at_once=machine.victims_at_once,
        notes=notes,
    )
    return {
        "findings": [finding.key for finding in result.findings],
        "skipped": [asdict(each) for each in result.skipped],
        "notes": list(result.notes),
    }
