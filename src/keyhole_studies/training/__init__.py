"""The one loop that trains the studies' networks, on images that lie on the network's device."""

from keyhole_studies.training.batches import BatchMaker, draw_batches
from keyhole_studies.training.loop import Penalty, take_gradient_step, take_step, train_network
from keyhole_studies.training.optimisers import make_optimiser, set_rate
from keyhole_studies.training.settings import TrainingSettings, compute_rate

__all__ = [
    "BatchMaker",
    "Penalty",
    "TrainingSettings",
    "compute_rate",
    "draw_batches",
    "make_optimiser",
    "set_rate",
    "take_gradient_step",
    "take_step",
    "train_network",
]
