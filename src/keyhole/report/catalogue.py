"""What there is to choose from, room by room."""

from __future__ import annotations

from typing import Any

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.data import SOURCES
from keyhole.defenses import DEFENSES
from keyhole.metrics import METRICS
from keyhole.models import FAMILIES, MODELS
from keyhole.registry import parameters

Entry = dict[str, Any]

OWN_MODEL = "package.module:callable"


def catalogue() -> dict[str, list[Entry]]:
    """Attacks on images and on membership, defenses, models, data sets and metrics by room."""
    return {
        "attacks": [
            {
                "name": a.name,
                "summary": a.summary,
                "paper": a.paper,
                "needs": a.needs,
                "is_given": sorted(a().given),
                "adapts_to": sorted(a.adapts_to),
                "alters_model": a.altered_model,
                "parameters": parameters(a()),
            }
            for a in ATTACKS
        ],
        "membership": [
            {"name": m.name, "summary": m.summary, "paper": m.paper, "parameters": parameters(m())}
            for m in MEMBERSHIP
        ],
        "defenses": [
            {"name": d.name, "summary": d.summary, "paper": d.paper, "parameters": parameters(d())}
            for d in DEFENSES
        ],
        "models": [
            *({"name": m.name, "summary": m.summary, "paper": m.paper} for m in MODELS.values()),
            *(
                {"name": f"{f}:NAME", "summary": what, "paper": ""}
                for f, (what, _) in FAMILIES.items()
            ),
            {
                "name": "dp:NAME",
                "summary": "any of these made fit for DP-SGD: BatchNorm becomes GroupNorm (Opacus)",
                "paper": "",
            },
            {
                "name": OWN_MODEL,
                "summary": "your own: called with those of classes, channels and image_size "
                "(height, width) that it has arguments for",
                "paper": "",
            },
        ],
        "data": [
            *(
                {"name": s.name, "summary": s.summary, "needs": s.where and f"{s.where}"}
                for s in SOURCES.values()
            ),
            {
                "name": "PATH/TO/FOLDER",
                "summary": "any folder of images",
                "needs": "CLASS/IMAGE.png",
            },
        ],
        "metrics": [
            {
                "name": m.name,
                "summary": m.summary,
                "more is seen when": "high" if m.leaks_high else "low",
            }
            for m in METRICS.values()
        ],
    }
