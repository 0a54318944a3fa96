"""Attacks by a server that lies: it changes the model before it sends it out.

Each says in ``altered_model`` what it changes. Verdicts tell such a server from an honest one.
"""

from keyhole.attacks.malicious.fishing import Fishing
from keyhole.attacks.malicious.imprint import Imprint
from keyhole.attacks.malicious.imprint_weights import ImprintWeights
from keyhole.attacks.malicious.loki import Loki
from keyhole.attacks.malicious.peft_imprint import PeftImprint
from keyhole.attacks.malicious.single_out import SingleOut
from keyhole.attacks.malicious.trap_weights import TrapWeights

__all__ = [
    "Fishing",
    "Imprint",
    "ImprintWeights",
    "Loki",
    "PeftImprint",
    "SingleOut",
    "TrapWeights",
]
