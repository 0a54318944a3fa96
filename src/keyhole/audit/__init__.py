"""The audit: a plan, its run, findings, and the verdict on each defense."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from keyhole.attacks import ATTACKS, Attack
from keyhole.audit.captured import captured_scenes
from keyhole.audit.cast import cast
from keyhole.audit.finding import Finding
from keyhole.audit.plan import AUTO, Plan, Stage, read_plan, tour
from keyhole.audit.progress import Progress, Silent
from keyhole.audit.run import AuditResult, play
from keyhole.audit.scene import Scene, refuse_useless, scenes, scenes_of
from keyhole.audit.store import Store
from keyhole.audit.verdict import Verdict
from keyhole.data import ImageSet
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import BadValue, KeyholeError
from keyhole.settings import checked

__all__ = [
    "AuditResult",
    "Finding",
    "Plan",
    "Progress",
    "Stage",
    "Store",
    "Verdict",
    "audit",
    "read_plan",
    "run_plan",
    "tour",
]


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
    """Runs a plan; with ``out``, in a folder in which the same plan can be continued.

    Everything that cannot fit is said before the folder is touched.
    """
    place = find_device(device)
    casts = [
        cast(s, seed=plan.seed, data_dir=data_dir, device=place)
        for s in plan.stage
        if s.captured is None
    ]
    acts = [scene for made in casts for scene in scenes_of(made)]
    notes: list[str] = []
    for stage in plan.stage:
        if stage.captured is not None:
            more, said = captured_scenes(stage, seed=plan.seed, data_dir=data_dir, device=place)
            acts, notes = [*acts, *more], [*notes, *said]
    refuse_useless(acts)
    store = None if out is None else Store.open(out, plan.to_json(), fresh=fresh)
    return _play(acts, store, progress or Silent(), data_dir, victims_at_once, notes)


def audit(
    *,
    model: str | nn.Module = "mlp",
    data: str | ImageSet = "faces",
    defenses: Sequence[str | Defense] = ("none",),
    attacks: Sequence[str | Attack] = (AUTO,),
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

    Further keywords are those of :class:`Stage` (``image_size``, ``steps``, ``lr``, ...).

    >>> result = audit(model="mlp", data="digits", attacks=["linear"], victims=1)
    >>> result.verdicts[0].words
    'broken by linear (naive): 1 of 1 images read'
    """
    described = {
        "model": model if isinstance(model, str) else type(model).__name__,
        "data": data if isinstance(data, str) else data.name,
        "defenses": tuple(str(d) for d in defenses),
        "attacks": tuple(str(a) for a in attacks),
    }
    settings: Stage = checked(
        Stage, {**described, "victims": victims, "batch_size": batch_size, **stage}
    )
    plan = checked(Plan, {"seed": seed, "stage": (settings,)})
    made = cast(
        settings,
        seed=seed,
        data_dir=data_dir,
        device=find_device(device),
        model=None if isinstance(model, str) else model,
        data=None if isinstance(data, str) else data,
        defenses=[DEFENSES.parse(d) if isinstance(d, str) else d for d in defenses],
        attacks=None
        if AUTO in attacks
        else [ATTACKS.parse(a) if isinstance(a, str) else a for a in attacks],
    )
    acts = scenes([made])
    store = None if out is None else Store.open(Path(out), plan.to_json())
    return _play(acts, store, Silent(), data_dir, victims_at_once)


def _play(
    acts: Sequence[Scene],
    store: Store | None,
    progress: Progress,
    data_dir: str | None,
    victims_at_once: int | None = None,
    notes: Sequence[str] = (),
) -> AuditResult:
    try:
        return play(
            acts,
            store=store,
            progress=progress,
            data_dir=data_dir,
            victims_at_once=victims_at_once,
            notes=notes,
        )
    except KeyholeError:
        if store is not None:
            store.discard_if_empty()
        raise
    finally:
        if store is not None:
            store.release()


def find_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadValue(f"unknown device {name!r}: it is auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadValue("this machine has no usable CUDA device: pass --device cpu")
    return device
