"""What tests of pieces share."""

from __future__ import annotations

from ray_clusters import cluster

__all__ = ["cluster"]
