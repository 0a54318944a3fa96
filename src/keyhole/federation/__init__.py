"""Clients and servers: local training under a defense."""

from keyhole.federation.client import LocalTraining, defended_update, local_update

__all__ = ["LocalTraining", "defended_update", "local_update"]
