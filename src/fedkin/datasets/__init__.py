"""Generators of the papers, contaminations, and real data shipped or fetched."""

from fedkin.datasets.fmlr import RegressionGroups, contaminate_sites, make_regression_groups
from fedkin.datasets.shipped import PenDigits, Turbofan, load_pendigits, load_turbofan

__all__ = [
    "PenDigits",
    "RegressionGroups",
    "Turbofan",
    "contaminate_sites",
    "load_pendigits",
    "load_turbofan",
    "make_regression_groups",
]
