"""The parts of a matching attack: objective, priors, unknowns, optimiser and schedule."""
