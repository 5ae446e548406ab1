"""Wrong arguments of FGPR and its rivals are named with their remedy."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    PairwiseKernel,
    RationalQuadratic,
    WhiteKernel,
)

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.datasets import make_gaussian_sites, make_multi_fidelity, turbofan_split
from fedkin.estimators import (
    FGPR,
    CoKriging,
    FedAvgNetwork,
    FedAvgPolynomial,
    LocalGP,
    PooledGP,
)
from fedkin.estimators.curve_plots import calibration
from fedkin.federation import Federation
from fedkin.frames import FederationError
from fedkin.models.kernels import to_spec

EVERY = [FGPR, LocalGP, PooledGP, FedAvgPolynomial, FedAvgNetwork, CoKriging]


@pytest.fixture(scope="module")
def sites():
    return make_gaussian_sites(4, 8).federation


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"optimizer": "adam"}, "optimizer must be one of"),
        ({"optimizer": "none"}, "optimizer must be one of"),
        ({"personalise": "own"}, "personalise must be one of"),
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
        ({"common": "yes"}, "common must be one of"),
        ({"n_points": 0}, "n_points must be at least 1"),
        ({"hyperprior": "weak"}, "hyperprior must be one of"),
        ({"common": True, "n_priors": 2}, "common curve needs robust=False and n_priors=1"),
        ({"common": True, "robust": "median"}, "common curve needs robust=False and n_priors=1"),
        ({"common": True, "kernel": RationalQuadratic() + WhiteKernel()}, "leave kernel=None"),
        ({"kernel": PairwiseKernel()}, "not on the list"),
        ({"kernel": RBF([1.0, 1.0])}, "2 length scales, the data have 1 features"),
        ({"init": np.zeros(7)}, "3 free log-parameters"),
        ({"init": np.zeros((2, 3))}, "give them as an array"),
        ({"init": np.zeros((0, 3)), "n_priors": 2}, "up to 2 rows"),
        ({"init": np.zeros((1, 1, 3))}, "3 free log-parameters"),
        ({"init": [np.nan, 0.0, 0.0]}, "init has entries that are not finite"),
        ({"n_priors": 1.5}, "n_priors must be a whole number"),
        ({"max_points": "5"}, "max_points must be a whole number"),
        ({"max_rounds": True}, "max_rounds must be a whole number"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
        ({"tol": 0.0}, "tol must be above 0"),
        ({"tol": "x"}, "tol must be a number, not 'x'"),
        ({"learning_rate": None}, "learning_rate must be a number"),
        ({"fraction": "half"}, "fraction must be a number"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(sites, arguments, said):
    with pytest.raises(ValueError, match=said):
        FGPR(**arguments).fit(sites)


def test_a_kernel_may_be_given_as_data(sites):
    kernel = ConstantKernel(1.5) * RBF(0.5) + WhiteKernel(0.3)
    given, told = FgprSettings(kernel=kernel), FgprSettings(kernel=to_spec(kernel))
    assert given.kernel == told.kernel == json.loads(json.dumps(given.kernel))
    one, other = FGPR(kernel).fit(sites), FGPR(to_spec(kernel)).fit(sites)
    np.testing.assert_array_equal(one.theta_, other.theta_)
    with pytest.raises(ValueError, match="RBF takes length_scale"):
        FGPR({"kernel": "RBF", "metric": "cosine"}).fit(sites)


@pytest.mark.parametrize("family", EVERY)
def test_only_the_first_parameter_may_go_without_its_name(family):
    with pytest.raises(TypeError):
        family(None, 3)


def test_a_kernel_that_only_borrows_the_name_is_refused(sites):
    impostor = type("RBF", (RBF,), {})
    with pytest.raises(ValueError, match="not on the list"):
        FGPR(impostor()).fit(sites)


def test_targets_must_be_as_many_as_rows(sites):
    model = FGPR().fit(sites)
    for ask in (model.evaluate, model.log_predictive_density, model.score):
        with pytest.raises(ValueError, match="2 values for 3 rows"):
            ask(np.zeros((3, 1)), [1.0, 2.0], "site-1")


def test_targets_that_are_no_numbers_are_refused_by_site(sites):
    model, y = FGPR(personalise="posterior").fit(sites), sites.y.copy()
    y[8:10] = np.nan
    names, spoilt = np.array(sites.names)[sites.owner], replace(sites, y=y)
    said = "site 'site-2': target 'y' has 2 of 8 values missing; drop or impute them"
    for ask in (model.evaluate, model.log_predictive_density, model.score):
        for given in ((spoilt,), (sites.X, y, names), (sites, y)):
            with pytest.raises(FederationError, match=said):
                ask(*given)
        with pytest.raises(FederationError, match="has 2 of 32 values missing"):
            ask(sites.X, y)
        with pytest.raises(FederationError, match="1 of 1 values infinite"):
            ask([[0.5]], [np.inf], "site-1")
    with pytest.raises(FederationError, match=said):
        calibration(model, spoilt)


def test_at_least_one_sample_is_drawn(sites):
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        FGPR().fit(sites).sample_y([[0.5]], "site-1", 0)


@pytest.mark.parametrize("family", EVERY)
def test_a_target_is_needed(family):
    without = Federation.from_clients([np.ones((3, 1))])
    with pytest.raises(ValueError, match="needs a target y"):
        family().fit(without)


@pytest.mark.parametrize("family", EVERY)
def test_estimators_clone_and_repeat_their_parameters(family):
    model = family()
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (FedAvgPolynomial(0), "degree must be at least 1"),
        (FedAvgPolynomial(2.5), "degree must be a whole number"),
        (FedAvgPolynomial(fraction=0), "fraction must be above 0"),
        (FedAvgPolynomial(fraction=-1), "fraction must be above 0"),
        (FedAvgPolynomial(local_steps=0), "local_steps must be at least 1"),
        (FedAvgPolynomial(learning_rate=0), "learning_rate must be above 0"),
        (FedAvgPolynomial(max_rounds=0), "max_rounds must be at least 1"),
        (FedAvgPolynomial(tol="x"), "tol must be a number"),
        (FedAvgPolynomial(normalize_y="x"), "normalize_y must be one of"),
        (FedAvgNetwork(0), "depth must be at least 1"),
        (FedAvgNetwork(width=0), "width must be at least 1"),
        (FedAvgNetwork(server_rate=-1.0), "server_rate must be above 0"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_an_averaged_curve_is_named(sites, model, said):
    with pytest.raises(ValueError, match=said):
        model.fit(sites)


def test_levels_must_name_every_site(sites):
    with pytest.raises(ValueError, match="levels must name every site once"):
        CoKriging(levels=["site-1"]).fit(sites)
    with pytest.raises(ValueError, match="knows the levels"):
        CoKriging().fit(sites).predict([[0.5]], ["elsewhere"])


def test_co_kriging_keeps_to_the_levels_of_its_fit(sites):
    model = CoKriging().fit(sites)
    X, y = sites.client(0)
    said = "site 'new': co-kriging knows the levels 'site-1', .*; fit again with the site's rows"
    with pytest.raises(ValueError, match=said):
        model.predict(X, "new")
    with pytest.raises(ValueError, match=said):
        model.adapt(X, y, np.full(len(X), "new"))
    with pytest.raises(ValueError, match="co-kriging needs groups"):
        model.predict(X)
    with pytest.raises(ValueError, match="normalize_y must be one of"):
        CoKriging(normalize_y="x").fit(sites)


@pytest.mark.parametrize("place", ["a", "site-2-and-a-half", "z"])
def test_co_kriging_refuses_a_level_without_rows(sites, place):
    clients = {name: sites.client(k) for k, name in enumerate(sites.names)}
    clients[place] = (np.empty((0, 1)), np.empty(0))
    with pytest.raises(FederationError, match=f"site '{place}': has no rows; .* leave the site"):
        CoKriging().fit(Federation.from_clients(clients))


def test_levels_may_be_numbers(sites):
    data = Federation.from_clients({k: sites.client(k) for k in range(3)})
    one = CoKriging(levels=[2.0, 1.0, 0.0]).fit(data)
    other = CoKriging(levels=["2", "1", "0"]).fit(data)
    np.testing.assert_array_equal(one.predict([[0.5]], "0"), other.predict([[0.5]], "0"))


def test_unknown_functions_and_axes_are_named():
    with pytest.raises(ValueError, match="there are currin"):
        make_multi_fidelity("ackley")
    with pytest.raises(ValueError, match="share-of-life-leaky"):
        turbofan_split(7, axis="share")
