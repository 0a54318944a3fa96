"""Victims' networks: the papers' small ones, timm's, torchvision's, and the user's own."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.models.architectures import FAMILIES, MODELS, OWN, PLUGINS, Architecture, is_own
    from keyhole.models.building import build
    from keyhole.models.weights import load_weights

__all__ = [
    "FAMILIES",
    "MODELS",
    "OWN",
    "PLUGINS",
    "Architecture",
    "build",
    "is_own",
    "load_weights",
]

__getattr__, __dir__ = import_on_demand(__name__)
