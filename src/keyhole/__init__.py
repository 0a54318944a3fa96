"""Keyhole: how much of your clients' images can be seen through the updates they share?

Parts work alone (``keyhole.defenses``, ``keyhole.attacks``, ``keyhole.metrics``), and
:func:`keyhole.audit` plays the whole game.
"""

import os

# Before torch starts its threads: ones that spin while they wait made a 200 x 600 SVD take 8 s
# instead of 0.04 s on two cores with one other busy process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from keyhole import attacks, data, defenses, federation, metrics, models
from keyhole.audit import AuditResult, Finding, Plan, Verdict, audit
from keyhole.errors import KeyholeError
from keyhole.threat import Attacker, Knowledge, Observation, Server
from keyhole.update import Update
from keyhole.version import __version__

__all__ = [
    "Attacker",
    "AuditResult",
    "Finding",
    "KeyholeError",
    "Knowledge",
    "Observation",
    "Plan",
    "Server",
    "Update",
    "Verdict",
    "__version__",
    "attacks",
    "audit",
    "data",
    "defenses",
    "federation",
    "metrics",
    "models",
]
