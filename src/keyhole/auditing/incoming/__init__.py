"""A client's look at the model that the server sent, before it trains on it."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.auditing.incoming.check import check_incoming
    from keyhole.auditing.incoming.fingerprint import hash_weights
    from keyhole.auditing.incoming.mod import incoming_mod
    from keyhole.auditing.incoming.result import Alarm, IncomingCheck, NotChecked

__all__ = [
    "Alarm",
    "IncomingCheck",
    "NotChecked",
    "check_incoming",
    "hash_weights",
    "incoming_mod",
]

__getattr__, __dir__ = import_on_demand(__name__)
