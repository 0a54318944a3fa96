"""How the network that ships with the jigsaw solver is trained: on images that no audit attacks."""

from keyhole_studies.unscrambler_training.public import load_public_images
from keyhole_studies.unscrambler_training.puzzles import PublicImages
from keyhole_studies.unscrambler_training.training import UnscramblerSettings, train_unscrambler

__all__ = ["PublicImages", "UnscramblerSettings", "load_public_images", "train_unscrambler"]
