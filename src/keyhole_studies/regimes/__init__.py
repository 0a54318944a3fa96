"""Regimes: where updates leak by network, weights, batch, local training and server."""

from keyhole_studies.regimes.grid import read_regimes

STUDY = read_regimes()
