"""What the layer recorder keeps of each call of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from keyhole.attacks.matching.gradients.anchored_norm import KnownMoments
from keyhole.attacks.matching.gradients.unfolding import ConvGeometry

LayerKind = Literal["linear", "conv", "layer_norm", "group_norm", "batch_norm"]


class Convolution(NamedTuple):
    """How one call of a convolution computed its output."""

    geometry: ConvGeometry
    groups: int
    columns: Tensor | None
    """The columns ``[N * B, L, Q]``, if the output is their product with the weight."""


@dataclass
class LayerCall:
    """One call of one layer: its input and output for the samples of all victims."""

    kind: LayerKind
    weight: str | None
    bias: str | None
    layer_input: Tensor
    output: Tensor
    versions: tuple[int, int]
    normalised: Tensor | None = None
    """For norms: the normalised input before scale and shift."""
    normalised_axes: int = 0
    """For layer norms: the number of trailing axes that are normalised."""
    convolution: Convolution | None = None

    @property
    def overwritten(self) -> bool:
        """Whether the model changed the input or output in place after the layer had run."""
        return (self.layer_input._version, self.output._version) != self.versions


@dataclass(frozen=True)
class BatchStatistics:
    """One BatchNorm's statistics of each victim's batch, ``[N, C]``, and its running statistics.

    Args:
        mean: The batch mean.
        var: The batch variance, biased.
        running_mean: The mean that the global model holds.
        running_var: The variance that it holds.
        known: The moments of the client's own batch, where uploaded buffers tell them.
    """

    mean: Tensor
    var: Tensor
    running_mean: Tensor
    running_var: Tensor
    known: KnownMoments | None = None
