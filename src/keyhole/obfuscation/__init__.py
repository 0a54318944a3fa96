"""The collection node: shuffles images before they go to clients, and can restore them."""

from keyhole.obfuscation.folders import SkippedImage, printable_path
from keyhole.obfuscation.key import SiteKey
from keyhole.obfuscation.node import ObfuscationResult, obfuscate, restore

__all__ = ["ObfuscationResult", "SiteKey", "SkippedImage", "obfuscate", "printable_path", "restore"]
