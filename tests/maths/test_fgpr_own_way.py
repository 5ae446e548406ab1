"""Sites of FGPR that go their own way: what holds their hyper-parameters is left to rows."""

import numpy as np
import pytest

import fedkin
from fedkin.algorithms.fgpr_own_way import Rival, way_of
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import FREE, PULLED
from fedkin.datasets import make_multi_fidelity
from fedkin.estimators import FGPR, LocalGP
from fedkin.federation import Federation
from fedkin.models.kernels import default_spec, form_of
from fedkin.models.site_curves import CurvePlan

TASK = make_multi_fidelity("branin", 7)
X, Y = TASK.federation.client(list(TASK.federation.names).index(TASK.site))


@pytest.fixture(scope="module")
def sites():
    """Two sites of noisy planes, and a computer experiment without noise."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(2):
        rows = rng.uniform(X.min(axis=0), X.max(axis=0), (15, 2))
        clients[f"plane {k}"] = (rows, rows.sum(axis=1) + k + 5.0 * rng.normal(size=15))
    return Federation.from_clients({**clients, "exact": (X, Y)})


@pytest.fixture(scope="module")
def model(sites):
    return FGPR().fit(sites)


def off(model):
    return TASK.rmse(model.predict(TASK.X_test, "exact"))


def test_a_site_without_noise_is_not_worse_than_alone(sites, model):
    alone = LocalGP().fit(sites)
    assert model.client_names_[0] == "exact" and model.own_[0] and not model.common_[0]
    assert model._result.site_freedom.tolist() == [FREE, PULLED, PULLED]
    assert off(model) < 0.6 * off(alone)


def test_a_saved_model_knows_what_holds_a_site(model, tmp_path):
    again = fedkin.load(model.save(tmp_path / "model"))
    for name in ("exact", "plane 1"):
        found, kept = (m.predict(TASK.X_test[:5], name, return_std=True) for m in (again, model))
        assert np.array_equal(found, kept)


def plan():
    form = form_of(default_spec(X.std(axis=0)), 2)
    return CurvePlan(form, np.array([0.0, 1.0, 1.0, 1.0])), form.start


def told(noise, personalise="choose"):
    """What a site keeps that is much better alone than with either rival."""
    rng = np.random.default_rng(4)
    site = Federation.from_clients({"site": (X, Y + noise * Y.std() * rng.normal(size=len(Y)))})
    bad = Rival(-1e3, 1e6)
    settings = FgprSettings(common="choose", personalise=personalise)
    how, start = plan()
    return way_of(site, how, start, start, (bad, bad), settings)


def test_rows_with_noise_do_not_set_hyper_parameters_free():
    way, kept = told(noise=0.3)
    assert way == 1.0 and kept.freedom == PULLED
    assert (kept.theta == plan()[1]).all()  # those that the site came with


def test_they_are_free_only_where_the_site_may_choose():
    assert told(noise=0.0)[1].freedom > PULLED
    assert told(noise=0.0, personalise="map")[1].freedom == PULLED


def test_the_common_curve_stays_where_nothing_is_better_alone():
    rng = np.random.default_rng(5)
    site = Federation.from_clients({"site": (X, rng.normal(size=len(X)))})
    how, start = plan()
    settings = FgprSettings(common="choose")
    good, bad = Rival(0.0, 1.0), Rival(-10.0, 2.0)
    assert way_of(site, how, start, start, (bad, good), settings) == (-1.0, None)
    assert way_of(site, how, start, None, (good, bad), settings) == (1.0, None)
    assert way_of(site, how, start, None, (good, good), settings) == (0.0, None)
