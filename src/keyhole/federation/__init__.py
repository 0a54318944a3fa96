"""Clients and servers: local training under a defense, federated averaging, what a server sees."""

from keyhole.federation.averaging import averaged
from keyhole.federation.capture import Recorder, Reply
from keyhole.federation.captured import Capture
from keyhole.federation.client import defended_update, local_update
from keyhole.federation.fedavg import Federation, Round, Share, client_generator
from keyhole.federation.fedsgd import FedSgd
from keyhole.federation.partition import PARTITIONS
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.run import TrainingResult, assemble, train
from keyhole.federation.together import Member
from keyhole.federation.training import LocalTraining

__all__ = [
    "PARTITIONS",
    "Capture",
    "FedSgd",
    "Federation",
    "LocalTraining",
    "Member",
    "Recorder",
    "Reply",
    "Round",
    "Share",
    "TrainingPlan",
    "TrainingResult",
    "assemble",
    "averaged",
    "client_generator",
    "defended_update",
    "local_update",
    "train",
]
