"""How the clients of a round are trained: in a loop, stacked by vmap, or by CUDA graphs."""

from keyhole.federation.backends.base import Backend
from keyhole.federation.backends.cuda_graph import CudaGraphTrainer
from keyhole.federation.backends.graphed_model import GraphedModel
from keyhole.federation.backends.loop import LoopTrainer
from keyhole.federation.backends.vmap import VmapTrainer

__all__ = ["Backend", "CudaGraphTrainer", "GraphedModel", "LoopTrainer", "VmapTrainer"]
