"""What clients may train and send, by name; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.registry import Registry

if TYPE_CHECKING:
    from keyhole.models.fine_tuning import FineTuning

FINE_TUNINGS: Registry[FineTuning] = Registry(
    "share",
    {
        "all": "keyhole.models.fine_tuning:All",
        "head": "keyhole.models.fine_tuning:Head",
        "norm+head": "keyhole.models.fine_tuning:NormAndHead",
        "adapters": "keyhole.models.fine_tuning:Adapters",
        "lora": "keyhole.models.fine_tuning:Lora",
    },
)
