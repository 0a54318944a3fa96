"""The collection node: shuffles pictures before they go to clients, and can undo it."""

from keyhole.federation.collection.key import SiteKey
from keyhole.federation.collection.node import Work, obfuscate, restore
from keyhole.federation.collection.places import LeftOut, shown

__all__ = ["LeftOut", "SiteKey", "Work", "obfuscate", "restore", "shown"]
