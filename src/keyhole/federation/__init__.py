"""Clients and servers: local training under a defense, federated averaging, captures."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.federation.augmentation import augment_images
    from keyhole.federation.averaging import average_updates
    from keyhole.federation.capture import CaptureWriter, Reply
    from keyhole.federation.capture_reader import Capture
    from keyhole.federation.client import RoundClient, compute_local_update, train_client
    from keyhole.federation.plain_loop import ProtectedClient, protect
    from keyhole.federation.plan import PARTITIONS, TrainingPlan
    from keyhole.federation.rounds import ClientUpdate, Federation, Round, client_generator
    from keyhole.federation.run import TrainingResult, build_federation, train
    from keyhole.federation.training import LocalTraining, cut_batches

__all__ = [
    "PARTITIONS",
    "Capture",
    "CaptureWriter",
    "ClientUpdate",
    "Federation",
    "LocalTraining",
    "ProtectedClient",
    "Reply",
    "Round",
    "RoundClient",
    "TrainingPlan",
    "TrainingResult",
    "augment_images",
    "average_updates",
    "build_federation",
    "client_generator",
    "compute_local_update",
    "cut_batches",
    "protect",
    "train",
    "train_client",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
