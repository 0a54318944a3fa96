"""Victims' networks: the papers' small ones, timm's, torchvision's, and the user's own."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.models.adapters import add_adapters
    from keyhole.models.anatomy import find_logits_layer
    from keyhole.models.architectures import (
        FAMILIES,
        MODELS,
        PLUGINS,
        USER_MODEL,
        Architecture,
        is_user_model,
    )
    from keyhole.models.building import build
    from keyhole.models.gradcam import heat_maps
    from keyhole.models.jigsaw import Jigsaw
    from keyhole.models.modes import default_mode, has_batch_norm
    from keyhole.models.puzzle import Puzzle, PuzzleRules, apply_puzzle, draw_random_puzzle
    from keyhole.models.weights import load_weights

__all__ = [
    "FAMILIES",
    "MODELS",
    "PLUGINS",
    "USER_MODEL",
    "Architecture",
    "Jigsaw",
    "Puzzle",
    "PuzzleRules",
    "add_adapters",
    "apply_puzzle",
    "build",
    "default_mode",
    "draw_random_puzzle",
    "find_logits_layer",
    "has_batch_norm",
    "heat_maps",
    "is_user_model",
    "load_weights",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
