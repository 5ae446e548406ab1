"""Generators of the papers, contaminations, and real data shipped or fetched."""

from fedkin.datasets.fedgrem import (
    SimulatedMixture,
    make_gaussian_mixtures,
    make_regression_mixtures,
)
from fedkin.datasets.fetched import (
    DataMissing,
    Images,
    data_folder,
    load_cifar10_two_classes,
    load_fashion_mnist,
    load_mnist,
)
from fedkin.datasets.fgpr import (
    GaussianSites,
    MultiFidelity,
    TurbofanSplit,
    make_gaussian_sites,
    make_multi_fidelity,
    turbofan_noise_floor,
    turbofan_split,
    two_kinds_of_priors,
)
from fedkin.datasets.fmlr import RegressionGroups, contaminate_sites, make_regression_groups
from fedkin.datasets.odcl import (
    FlippedImages,
    SitesOfKinds,
    make_flipped_images,
    make_logistic_groups,
    make_sparse_regressions,
    spoil_sites,
)
from fedkin.datasets.shipped import PenDigits, Turbofan, load_pendigits, load_turbofan

__all__ = [
    "DataMissing",
    "FlippedImages",
    "GaussianSites",
    "Images",
    "MultiFidelity",
    "PenDigits",
    "RegressionGroups",
    "SimulatedMixture",
    "SitesOfKinds",
    "Turbofan",
    "TurbofanSplit",
    "contaminate_sites",
    "data_folder",
    "load_cifar10_two_classes",
    "load_fashion_mnist",
    "load_mnist",
    "load_pendigits",
    "load_turbofan",
    "make_flipped_images",
    "make_gaussian_mixtures",
    "make_gaussian_sites",
    "make_logistic_groups",
    "make_multi_fidelity",
    "make_regression_groups",
    "make_regression_mixtures",
    "make_sparse_regressions",
    "spoil_sites",
    "turbofan_noise_floor",
    "turbofan_split",
    "two_kinds_of_priors",
]
