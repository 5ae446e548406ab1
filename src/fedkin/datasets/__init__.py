"""Generators of the papers, contaminations, and real data shipped or fetched."""

from fedkin.datasets.fmlr import RegressionGroups, contaminate_sites, make_regression_groups
from fedkin.datasets.odcl import (
    FlippedImages,
    SitesOfKinds,
    make_flipped_images,
    make_logistic_groups,
    make_sparse_regressions,
    spoil_sites,
)
from fedkin.datasets.shipped import Turbofan, load_turbofan

__all__ = [
    "FlippedImages",
    "RegressionGroups",
    "SitesOfKinds",
    "Turbofan",
    "contaminate_sites",
    "load_turbofan",
    "make_flipped_images",
    "make_logistic_groups",
    "make_regression_groups",
    "make_sparse_regressions",
    "spoil_sites",
]
