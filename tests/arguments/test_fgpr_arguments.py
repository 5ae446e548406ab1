"""Wrong arguments of FGPR and its rivals are named with their remedy."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, PairwiseKernel

from fedkin.datasets import make_gaussian_sites, make_multi_fidelity, turbofan_split
from fedkin.estimators import (
    FGPR,
    CoKriging,
    FedAvgNetwork,
    FedAvgPolynomial,
    LocalGP,
    PooledGP,
)
from fedkin.federation import Federation

EVERY = [FGPR, LocalGP, PooledGP, FedAvgPolynomial, FedAvgNetwork, CoKriging]


@pytest.fixture(scope="module")
def sites():
    return make_gaussian_sites(4, 8).federation


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"optimizer": "adam"}, "optimizer must be one of"),
        ({"personalise": "always"}, "personalise must be one of"),
        ({"mean": "quadratic"}, "mean must be one of"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"robust": True}, "robust must be one of"),
        ({"large_sites": "drop"}, "large_sites must be one of"),
        ({"normalize_y": "pooled"}, "normalize_y must be one of"),
        ({"fraction": 0.0}, "fraction must be above 0"),
        ({"n_priors": 0}, "n_priors must be at least 1"),
        ({"max_points": 0}, "max_points must be at least 1"),
        ({"n_priors": 2, "optimizer": "sgd"}, "several priors need optimizer='exact'"),
        ({"kernel": PairwiseKernel()}, "not on the list"),
        ({"kernel": RBF([1.0, 1.0])}, "2 length scales, the data have 1 features"),
        ({"init": np.zeros(7)}, "3 free log-parameters"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(sites, arguments, said):
    with pytest.raises(ValueError, match=said):
        FGPR(**arguments).fit(sites)


@pytest.mark.parametrize("family", EVERY)
def test_an_outcome_is_needed(family):
    without = Federation.from_clients([np.ones((3, 1))])
    with pytest.raises(ValueError, match="outcome"):
        family().fit(without)


@pytest.mark.parametrize("family", EVERY)
def test_estimators_clone_and_repeat_their_parameters(family):
    model = family()
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("family", [FedAvgPolynomial, FedAvgNetwork])
def test_sizes_are_positive(family, sites):
    with pytest.raises(ValueError, match="must be at least 1 or None"):
        family(0).fit(sites)


def test_levels_must_name_every_site(sites):
    with pytest.raises(ValueError, match="levels must name every site once"):
        CoKriging(levels=["site-1"]).fit(sites)
    with pytest.raises(ValueError, match="knows the levels"):
        CoKriging().fit(sites).predict([[0.5]], ["elsewhere"])


def test_unknown_functions_and_axes_are_named():
    with pytest.raises(ValueError, match="there are currin"):
        make_multi_fidelity("ackley")
    with pytest.raises(ValueError, match="share-of-life-leaky"):
        turbofan_split(7, axis="share")
