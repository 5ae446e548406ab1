"""Federated statistics for sites that are alike but not the same."""

__version__ = "0.1.0"
