"""Data that no textbook shows: tiny, empty, constant, repeated, large."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import describe, prepare_sites
from fedkin.datasets import make_gaussian_sites
from fedkin.estimators import (
    FGPR,
    FedAvgNetwork,
    FedAvgPolynomial,
    LocalGP,
    PooledGP,
)
from fedkin.estimators.fgpr import NothingLearntWarning
from fedkin.federation import Federation

MODELS = [
    FGPR(),
    FGPR(mean="linear", personalise="map"),
    FGPR(normalize_y="mean"),
    FGPR(optimizer="sgd", max_rounds=5, normalize_y=False),
    FGPR(robust="trimmed"),
    FGPR(n_priors=2),
    LocalGP(),
    PooledGP(),
    FedAvgPolynomial(3, max_rounds=5),
    FedAvgNetwork(1, max_rounds=5, random_state=0),
]
GRID = np.linspace(0, 1, 5)[:, None]

every_model = pytest.mark.parametrize("model", MODELS, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def odd_federation():
    regular = make_gaussian_sites(5, 12, random_state=2).federation
    clients = {name: regular.client(k) for k, name in enumerate(regular.names)}
    clients["one-row"] = (np.array([[0.3]]), np.array([2.0]))
    clients["empty"] = (np.empty((0, 1)), np.empty(0))
    clients["constant"] = (GRID, np.full(5, 3.0))
    clients["repeated"] = (np.full((6, 1), 0.5), np.arange(6.0))
    return Federation.from_clients(clients)


@every_model
def test_odd_sites_are_coped_with(model):
    data = odd_federation()
    model.fit(data)
    for name in (*data.names, "never seen"):
        mean, std = model.predict(GRID, np.full(5, name), return_std=True)
        assert np.isfinite(mean).all() and (std > 0).all(), name
        assert np.isfinite(model.log_predictive_density(GRID, mean, np.full(5, name))).all()
    assert model.sample_y(GRID, np.full(5, "site-1"), 3).shape == (5, 3)
    assert str(model.summary())


@pytest.mark.parametrize("place", ["a", "b-and-a-half", "z"])
@pytest.mark.parametrize("unit", [1.0, 1e-4])
def test_an_empty_site_does_not_change_the_frame_of_the_averaged_curve(place, unit):
    clients = {
        "b": (unit * np.array([[3.0], [4.0]]), np.array([1.0, 2.0])),
        "c": (unit * np.array([[0.0], [1.0], [50.0]]), np.array([0.0, 2.0, 1.0])),
    }
    model = FedAvgPolynomial(1, max_rounds=2)
    frame = model.fit(Federation.from_clients(clients))._result.frame
    clients[place] = (np.empty((0, 1)), np.empty(0))
    np.testing.assert_array_equal(model.fit(Federation.from_clients(clients))._result.frame, frame)
    farthest = np.abs(50.0 * unit - frame[0, 0])
    assert farthest <= frame[1, 0] <= 2.0 * farthest


@pytest.mark.parametrize("model", [PooledGP(), FedAvgPolynomial(3)], ids=str)
def test_sites_without_rows_or_spread_do_not_speak_for_unseen_ones(model):
    data = make_gaussian_sites(2, 12, random_state=2).federation
    clients = {name: data.client(k) for k, name in enumerate(data.names)}
    clients = {name: (X, 105.0 + 20.0 * y) for name, (X, y) in clients.items()}
    before = model.fit(Federation.from_clients(clients)).predict(GRID, "new", return_std=True)
    clients["empty"] = (np.empty((0, 1)), np.empty(0))
    model.fit(Federation.from_clients(clients))
    for name in ("new", "empty"):
        for one, other in zip(before, model.predict(GRID, name, return_std=True)):
            np.testing.assert_allclose(other, one, rtol=1e-9)
    assert str(model.summary())
    model.adapt(Federation.from_clients({"new": clients["empty"], "other": clients["site-1"]}))
    assert np.isfinite(model.predict(GRID, "new")).all()
    clients["one-row"] = (np.array([[0.3]]), np.array([0.0]))
    model.fit(Federation.from_clients(clients))
    _, std = model.predict(GRID, "new", return_std=True)
    np.testing.assert_allclose(std, before[1], rtol=0.2)


def test_larger_sites_speak_louder_for_unseen_ones():
    data = make_gaussian_sites(2, 30, random_state=2).federation
    (X, y), (Z, w) = data.client(0), data.client(1)
    uneven = Federation.from_clients({"a": (X[:10], y[:10]), "b": (Z, 100.0 + w)})
    for model in (PooledGP().fit(uneven), FedAvgPolynomial(1).fit(uneven)):
        assert abs(model.predict(GRID, "new").mean() - 75.0) < 5.0


@every_model
def test_one_client_is_enough(model):
    X, y = make_gaussian_sites(1, 12).federation.client(0)
    assert np.isfinite(model.fit(X, y).predict(X)).all()


@every_model
def test_order_of_rows_and_sites_is_irrelevant(model):
    data = make_gaussian_sites(4, 9, random_state=6).federation
    turned = Federation.from_clients(
        {n: data.client(k) for k, n in reversed(list(enumerate(data.names)))}
    )
    where = np.full(5, "site-2")
    one = model.fit(data).predict(GRID, where)
    np.testing.assert_array_equal(one, model.fit(turned).predict(GRID, where))


def test_a_federation_without_any_variation_falls_back_to_the_start():
    data = Federation.from_clients([(GRID, np.full(5, 2.0)), (GRID, np.full(5, 4.0))])
    assert np.isfinite(FGPR().fit(data).predict(GRID, np.full(5, "site-1"))).all()


def test_rounds_in_which_nobody_teaches_are_waited_out():
    varying = make_gaussian_sites(2, 30, random_state=2).federation
    sites = {name: varying.client(k) for k, name in enumerate(varying.names)}
    still = {f"still-{k}": (GRID, np.full(5, float(k))) for k in range(8)}
    model = FGPR(fraction=0.2, max_rounds=60, random_state=0)
    model.fit(Federation.from_clients({**sites, **still}))
    assert np.isfinite(model.theta_).all()
    assert not np.allclose(model.theta_[0], model.history_["theta"][0])
    alike = FGPR(fraction=0.2, random_state=0).fit(Federation.from_clients(still))
    np.testing.assert_array_equal(alike.theta_[0], alike.history_["theta"][0])


def test_a_constant_site_is_predicted_near_its_constant():
    model = FGPR().fit(odd_federation())
    np.testing.assert_allclose(model.predict(GRID, np.full(5, "constant")), 3.0, atol=1.0)


FIXED = ConstantKernel(1.0, "fixed") * RBF(0.3, "fixed") + WhiteKernel(0.2, "fixed")


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd"}, {"n_priors": None}], ids=str)
def test_a_kernel_without_free_parameters_is_used_as_it_is(settings):
    data = odd_federation()
    model = FGPR(FIXED, **settings).fit(data)
    assert model.kernel_ == FIXED and model.n_priors_ == 1 and not model.own_.any()
    oracle = GaussianProcessRegressor(FIXED, alpha=0, optimizer=None)
    plain = FGPR(FIXED, mean="zero", normalize_y=False, **settings).fit(data)
    expected = oracle.fit(*data.client(data.names.index("site-1"))).predict(GRID)
    np.testing.assert_allclose(plain.predict(GRID, "site-1"), expected, rtol=1e-9)


def test_a_limit_below_the_number_of_neighbours_is_kept_to():
    data = make_gaussian_sites(3, 30, random_state=1).federation
    model = FGPR(max_points=10, personalise="posterior", common=False).fit(data)
    exact = FGPR(personalise="posterior", init=model.theta_[0], optimizer="sgd", max_rounds=1)
    exact.set_params(learning_rate=1e-12).fit(data)
    # All 30 rows are neighbours, so nothing is approximated but the training.
    for one, other in zip(
        model.predict(GRID, "site-1", return_std=True),
        exact.predict(GRID, "site-1", return_std=True),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_samples_of_an_unseen_site_spread_like_its_prediction():
    data = make_gaussian_sites(20, 12, random_state=2).federation
    shifts = np.random.default_rng(0).normal(size=20) * 10
    model = FGPR().fit(replace(data, y=data.y + shifts[data.owner]))
    _, std = model.predict(GRID, "new", return_std=True)
    drawn = model.sample_y(GRID, "new", 4000)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.05)
    # Sites differ by their level: most of the spread moves a whole curve.
    assert np.corrcoef(drawn)[0, -1] > 0.8


@pytest.mark.parametrize("normalize_y", [True, "mean", False])
def test_units_do_not_matter_even_if_no_site_has_five_rows(normalize_y):
    sites = make_gaussian_sites(40, 4, n_held_out=10, random_state=1)
    settings = {"normalize_y": normalize_y, "common": False}
    model, other = FGPR(**settings), FGPR(**settings)
    model.fit(sites.federation)
    far = 1e6

    def changed(data):
        return replace(data, X=1e4 * data.X, y=far + 300.0 * data.y)

    other.fit(changed(sites.federation))
    one, two = model.evaluate(sites.held_out), other.evaluate(changed(sites.held_out))
    np.testing.assert_allclose(two["coverage"].mean(), one["coverage"].mean(), atol=0.02)
    np.testing.assert_allclose(two["rmse"], 300.0 * one["rmse"], rtol=0.02)
    mean, std = other.predict(1e4 * GRID, "new", return_std=True)
    assert (np.abs(mean - far) < 300).all() and (std > 200).all()


def test_small_sites_tell_orders_of_magnitude_only():
    clients = {"one": ([[0.3]], [2.0]), "two": ([[1.0], [4.3]], [3.1, 7.7])}
    data = Federation.from_clients({n: tuple(map(np.array, c)) for n, c in clients.items()})
    settings = FgprSettings().for_sites()
    cache = prepare_sites(data, settings)
    reply, _ = describe(data, cache, settings, {}, {}, None, None)
    assert not reply["moments"][0].any() and not reply["spread"][0].any()
    mean, deviation = reply["moments"][1]
    # The standard deviation is 2.3 and told as 2 to 1 or 2 to 1.5; the mean in halves of that.
    assert 2 * np.log2(deviation) == pytest.approx(np.round(2 * np.log2(deviation)))
    assert deviation in (2.0, pytest.approx(8**0.5)) and (2 * mean / deviation) % 1 == 0


def test_sites_of_few_rows_are_told_to_share_the_scale():
    data = make_gaussian_sites(5, 6, random_state=2).federation
    assert "normalize_y='mean'" in str(FGPR().fit(data).summary())
    assert "normalize_y='mean'" not in str(FGPR(normalize_y="mean").fit(data).summary())
    many = make_gaussian_sites(5, 30, random_state=2).federation
    assert "normalize_y='mean'" not in str(FGPR().fit(many).summary())


def test_large_sites_are_approximated_and_the_summary_says_so():
    data = make_gaussian_sites(3, 130, random_state=1).federation
    for how in ("neighbours", "subset"):
        model = FGPR(max_points=110, large_sites=how).fit(data)
        exact = FGPR(personalise="posterior").fit(data)
        where = np.full(5, "site-1")
        assert np.abs(model.predict(GRID, where) - exact.predict(GRID, where)).max() < 0.6
        assert "max_points=110" in str(model.summary())


def test_new_rows_of_a_known_site_replace_its_old_ones():
    data = make_gaussian_sites(5, 12, random_state=2).federation
    model = FGPR(personalise="posterior", common=False).fit(data)
    before = model.predict(GRID, np.full(5, "site-1"))
    X, y = data.client(0)
    model.adapt(X, -y, np.full(len(X), "site-1"))
    np.testing.assert_allclose(model.predict(GRID, np.full(5, "site-1")), -before, atol=1e-6)


def test_new_rows_need_the_name_of_their_site():
    data = make_gaussian_sites(3, 12, random_state=2).federation
    with pytest.raises(ValueError, match="adapt needs the name of the site"):
        FGPR().fit(data).adapt(data.X, data.y)


def test_an_unseen_site_gets_the_population():
    data = make_gaussian_sites(20, 12, random_state=2).federation
    shifted = replace(data, y=data.y + 100.0)
    mean, std = FGPR(common=False).fit(shifted).predict(GRID, "new", return_std=True)
    assert np.ptp(mean) < 1e-9 and abs(mean[0] - 100.0) < 1.0 and (std > 1.0).all()
    mean, std = FGPR(common=True).fit(shifted).predict(GRID, "new", return_std=True)
    assert (np.abs(mean - 100.0) < 1.0).all() and (std > 1.0).all()


@pytest.mark.parametrize("model", [FGPR(), FGPR(common=False), LocalGP()], ids=str)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_fit_that_learnt_nothing_says_so(model, rows):
    """All sites of one row, or of a constant target."""
    clients = [(GRID[:rows] + k / 7, np.full(rows, float(k))) for k in range(6)]
    with pytest.warns(NothingLearntWarning, match="Nothing was learnt"):
        model.fit(Federation.from_clients(clients))
    assert np.isnan(model.log_marginal_likelihood_)
    told = str(model.summary())
    assert "nothing learnt" in told and "log likelihood 0" not in told


@pytest.mark.parametrize("family", [FGPR, LocalGP])
def test_rows_on_a_line_do_not_make_a_site_certain(family):
    """A few rows with hardly any noise among them: the interval beyond them is no point."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(12):
        x, slope, level = np.sort(rng.uniform(size=4)), *rng.normal(size=2)
        clients.append((x[:, None], level + slope * x + 1e-9 * rng.normal(size=4)))
    model = family().fit(Federation.from_clients(clients))
    _, std = model.predict([[1.5]], "site-1", return_std=True)
    assert std[0] > 1e-3 * clients[0][1].std()
