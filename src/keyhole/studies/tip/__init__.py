"""Targeted interpretable perturbation: the tables of the paper."""
