"""The classes of Keyhole's own attacks, by whether they iterate."""

from __future__ import annotations

from keyhole.attacks import CLOSED_FORM_TABLE, ITERATIVE_TABLE
from keyhole.attacks.base import Attack
from keyhole.attacks.matching import Matching
from keyhole.lazy import import_address

CLOSED_FORM: tuple[type[Attack], ...] = tuple(map(import_address, CLOSED_FORM_TABLE.values()))
ITERATIVE: tuple[type[Matching], ...] = tuple(map(import_address, ITERATIVE_TABLE.values()))
