"""The network that server and clients train."""

from __future__ import annotations

from torch import Tensor, nn


class Net(nn.Module):
    """A small fully connected network for digits of 8 x 8 px."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """``[N, 1, 8, 8] -> [N, 10]``."""
        return self.head(self.hidden(images.flatten(1)).relu())  # type: ignore[no-any-return]
