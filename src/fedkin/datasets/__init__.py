"""Generators of the papers, contaminations, and real data shipped or fetched."""

from fedkin.datasets.fedgrem import (
    SimulatedMixture,
    make_gaussian_mixtures,
    make_regression_mixtures,
)
from fedkin.datasets.fmlr import RegressionGroups, contaminate_sites, make_regression_groups
from fedkin.datasets.shipped import Turbofan, load_turbofan

__all__ = [
    "RegressionGroups",
    "SimulatedMixture",
    "Turbofan",
    "contaminate_sites",
    "load_turbofan",
    "make_gaussian_mixtures",
    "make_regression_groups",
    "make_regression_mixtures",
]
