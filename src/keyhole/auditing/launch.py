"""Starts an audit: of a plan, or of one model on one data set with parts that may be objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from keyhole.attacks import ATTACKS, Attack
from keyhole.auditing.attack_setting import AttackSetting, build_settings, check_any_applies
from keyhole.auditing.captured import build_captured_settings
from keyhole.auditing.captured_inference import CapturedMembership
from keyhole.auditing.captured_membership import ask_within_audit
from keyhole.auditing.plan import AUTO, Plan, Stage
from keyhole.auditing.resolve import resolve_stage
from keyhole.auditing.results import AuditResult
from keyhole.auditing.run import RunContext, run_settings
from keyhole.auditing.store import Store
from keyhole.data import ImageSet
from keyhole.defenses import DEFENSES, Defense
from keyhole.device import find_device
from keyhole.errors import BadValue, KeyholeError
from keyhole.metrics import Metric
from keyhole.progress import NullProgress, Progress
from keyhole.settings import make_settings
from keyhole.spelling import shorten


def run_plan(
    plan: Plan,
    *,
    out: Path | None = None,
    data_dir: str | None = None,
    device: str = "auto",
    fresh: bool = False,
    progress: Progress | None = None,
    victims_at_once: int | None = None,
) -> AuditResult:
    """Runs a plan, in a folder in which the same plan can be continued.

    What cannot fit is refused before the folder is touched.

    Args:
        plan: The plan.
        out: The run folder; None: nothing is kept.
        data_dir: Where data sets and their weights lie; None: the default places.
        device: ``auto``, or a device of torch.
        fresh: Replaces an earlier audit in the folder.
        progress: Shows how much is done; None: nothing is shown.
        victims_at_once: How many victims an attack may take at once; None: as many as fit.
    """
    settings, notes = build_plan_settings(plan, data_dir=data_dir, device=device)
    check_any_applies(settings)
    membership = None
    for stage in plan.stage:
        if stage.captured is not None and membership is None:
            membership, said = ask_within_audit(
                stage, data_dir=data_dir, device=find_device(device), seed=plan.seed
            )
            notes = [*notes, *said]
    return run_in_folder(
        settings,
        plan,
        out,
        fresh=fresh,
        progress=progress,
        data_dir=data_dir,
        victims_at_once=victims_at_once,
        notes=notes,
        membership=membership,
    )


def build_plan_settings(
    plan: Plan, *, data_dir: str | None = None, device: str = "auto"
) -> tuple[list[AttackSetting], list[str]]:
    """Resolves a plan: the settings of all stages, and notes on what could not be used.

    Args:
        plan: The plan.
        data_dir: Where data sets and their weights lie; None: the default places.
        device: ``auto``, or a device of torch.
    """
    place = find_device(device)
    resolved = [
        resolve_stage(stage, seed=plan.seed, data_dir=data_dir, device=place)
        for stage in plan.stage
        if stage.captured is None
    ]
    settings = [setting for stage in resolved for setting in build_settings(stage)]
    notes: list[str] = []
    for stage in plan.stage:
        if stage.captured is not None:
            more, said = build_captured_settings(
                stage, seed=plan.seed, data_dir=data_dir, device=place
            )
            settings, notes = [*settings, *more], [*notes, *said]
    return settings, notes


def audit(
    *,
    model: str | nn.Module = "mlp",
    data: str | ImageSet = "faces",
    defenses: Sequence[str | Defense] = ("none",),
    attacks: Sequence[str | Attack] = (AUTO,),
    metrics: Sequence[str | Metric] = (),
    victims: int = 4,
    batch_size: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
    data_dir: str | None = None,
    device: str = "auto",
    victims_at_once: int | None = None,
    **stage: Any,
) -> AuditResult:
    """Audits one model on one data set; parts are names or objects of your own.

    >>> result = audit(model="mlp", data="digits", attacks=["linear"], victims=1)
    >>> result.verdicts[0].words
    'broken by linear (naive): 1 of 1 images read'

    Args:
        model: The model that clients train.
        data: The images of the victims.
        defenses: The defenses, each of which all clients use in turn.
        attacks: The attacks; ``auto``: all that apply to an honest server.
        metrics: Metrics that are measured besides those of every audit.
        victims: The number of clients attacked.
        batch_size: Images in a client's batch.
        seed: Seed of weights, victims and noise.
        out: The run folder, in which the same audit can be continued; None: nothing is kept.
        data_dir: Where data sets and their weights lie; None: the default places.
        device: ``auto``, or a device of torch.
        victims_at_once: How many victims an attack may take at once; None: as many as fit.
        **stage: Further fields of :class:`Stage`, such as ``image_size``, ``steps`` and ``lr``.
            With ``captured``, a folder that a curious server wrote, its clients are attacked; what
            they say of their defenses counts, unless ``defenses`` names another.
    """
    if not isinstance(model, str | nn.Module):
        raise BadValue(
            f"model: {shorten(repr(model))} is no nn.Module and no name: call it first, or name "
            "its place, 'my_model:build'"
        )
    described: dict[str, Any] = {
        "model": model if isinstance(model, str) else type(model).__name__,
        "data": data if isinstance(data, str) else data.name,
        "defenses": tuple(str(d) for d in defenses),
        "attacks": tuple(str(a) for a in attacks),
        "metrics": tuple(m if isinstance(m, str) else m.name for m in metrics),
    }
    described |= {"victims": victims, "batch_size": batch_size}
    folder = None if out is None else Path(out)
    if stage.get("captured") is not None:
        if not (isinstance(model, str) and isinstance(data, str)):
            raise BadValue("captured: give model and data by name; the weights are the capture's")
        fields = Stage.model_fields
        given = {k: v for k, v in described.items() if v != fields[k].default}
        captured = make_settings(Plan, {"seed": seed, "stage": ({**given, **stage},)})
        return run_plan(
            captured,
            out=folder,
            data_dir=data_dir,
            device=device,
            victims_at_once=victims_at_once,
        )
    described_stage: Stage = make_settings(Stage, {**described, **stage})
    plan = make_settings(Plan, {"seed": seed, "stage": (described_stage,)})
    resolved = resolve_stage(
        described_stage,
        seed=seed,
        data_dir=data_dir,
        device=find_device(device),
        model=None if isinstance(model, str) else model,
        data=None if isinstance(data, str) else data,
        defenses=[DEFENSES.resolve(defense) for defense in defenses],
        attacks=None if AUTO in attacks else [ATTACKS.resolve(attack) for attack in attacks],
        metrics=metrics,
    )
    settings = build_settings(resolved)
    check_any_applies(settings)
    return run_in_folder(
        settings,
        plan,
        folder,
        data_dir=data_dir,
        victims_at_once=victims_at_once,
    )


def run_in_folder(
    settings: Sequence[AttackSetting],
    plan: Plan,
    out: Path | None,
    *,
    fresh: bool = False,
    progress: Progress | None = None,
    data_dir: str | None = None,
    victims_at_once: int | None = None,
    notes: Sequence[str] = (),
    membership: CapturedMembership | None = None,
) -> AuditResult:
    """Runs the settings in a folder that a failed start leaves as it was.

    Args:
        settings: What to run.
        plan: The plan that they belong to.
        out: The run folder; None: nothing is kept.
        fresh: Replaces an earlier audit in the folder.
        progress: Shows how much is done; None: nothing is shown.
        data_dir: Where data sets and their weights lie; None: the default places.
        victims_at_once: How many victims an attack may take at once; None: as many as fit.
        notes: What could not be used of captured material.
        membership: Who was in the images of captured clients; None: not asked.
    """
    store = None if out is None else Store.open(out, plan.to_json(), fresh=fresh)
    context = RunContext(store, progress or NullProgress(), victims_at_once)
    try:
        return run_settings(
            settings, context, data_dir=data_dir, notes=notes, membership=membership
        )
    except KeyholeError:
        if store is not None:
            store.discard_if_empty()
        raise
    finally:
        if store is not None:
            store.release()
