"""FGPR with a common curve: what it finds, who uses it, and what a new site gets."""

from dataclasses import replace

import numpy as np
import pytest

from fedkin.algorithms import fgpr_common_search as search
from fedkin.algorithms.fgpr_common import chosen, extent_of
from fedkin.algorithms.fgpr_own_way import Rival
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.engines import InProcess
from fedkin.estimators import FGPR
from fedkin.federation import Federation
from fedkin.models.common_dense import Rows, dense_posterior
from fedkin.models.common_site import Units, form_of
from fedkin.protocol import Replies

GRID = np.linspace(0.0, 10.0, 9)[:, None]


def curve(x):
    return 100.0 + 20.0 * np.sin(0.5 * x) + 3.0 * x


def growing(n_sites=12, n_rows=6, seed=0):
    """A common curve, levels and slopes of a site's own, noise."""
    rng = np.random.default_rng(seed)
    clients, truth = {}, {}
    for k in range(n_sites):
        x = rng.uniform(0.0, 10.0, n_rows)
        level, slope = 6.0 * rng.normal(), 0.5 * rng.normal()

        def own(t, level=level, slope=slope):
            return curve(t) + level + slope * (t - 5.0)

        clients[f"site-{k + 1}"] = (x[:, None], own(x) + rng.normal(size=n_rows))
        truth[f"site-{k + 1}"] = own(GRID[:, 0])
    return Federation.from_clients(clients), truth


@pytest.fixture(scope="module")
def sites():
    return growing()


@pytest.fixture(scope="module")
def model(sites):
    return FGPR().fit(sites[0])


def errors(model, truth):
    away = [model.predict(GRID, name) - values for name, values in truth.items()]
    return float(np.sqrt(np.mean(np.square(away))))


def test_the_default_finds_the_common_curve_and_gains_by_it(sites, model):
    data, truth = sites
    assert model.common_.all() and model.converged_
    without = FGPR(common=False).fit(data)
    assert not without.common_.any() and without.left_out_ is None
    assert errors(model, truth) < 0.5 * errors(without, truth)
    inside = []
    for name, values in truth.items():
        mean, std = model.predict(GRID, name, return_std=True)
        inside.append(np.abs(values - mean) <= 2.0 * std)
    assert np.mean(inside) > 0.9


def test_a_new_site_gets_the_common_curve_with_the_spread_of_departures(model):
    mean, std = model.predict(GRID, "new", return_std=True)
    assert (np.abs(mean - curve(GRID[:, 0])) < 8.0).all()
    known = model.predict(GRID, "site-1", return_std=True)[1]
    assert (std > known).all() and std.min() > 4.0 and std[4] < 15.0
    drawn = model.sample_y(GRID, "new", 2000)
    np.testing.assert_allclose(drawn.std(axis=1), std, rtol=0.1)
    assert np.corrcoef(drawn)[3, 5] > 0.8


def test_parameters_are_in_the_units_of_the_data(model):
    found = model.common_parameters_
    # A level and a long curve of the site's own can hardly be told apart.
    departs = found["level variance"] + found["own variance"]
    assert 0.3 < found["noise variance"] < 4.0 and 8.0 < departs < 150.0
    assert found["common lengths"].shape == (1,) and found["own smoothness"] in (np.inf, 2.5, 1.5)


def test_sites_asked_one_at_a_time_say_the_same_of_it(sites, model):
    alone = FGPR(engine=InProcess(block_size=1)).fit(sites[0])
    np.testing.assert_array_equal(alone.common_, model.common_)
    np.testing.assert_allclose(alone.left_out_, model.left_out_, rtol=1e-6)


def problem():
    ends = np.array([-2.0]), np.array([2.0])
    units = Units(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]))
    return search.Problem(np.array([2.5, 2.5, 1.0]), search.Extent(units, *ends), 20)


def answered(ask, away=()):
    """Replies whose sums are one a site and parameter."""
    n_asked, width = len(ask.common["theta"]), problem().width
    clients = np.setdiff1d(np.arange(4) if ask.who is None else ask.who, away)
    head = (len(clients), n_asked, 1)
    return Replies(
        clients,
        {
            "gram": np.ones((*head, width * (width + 1) // 2)),
            "log_det": np.ones(head),
            "missed": np.ones(head),
            "rows": np.ones(len(clients)),
        },
    )


def test_parts_of_a_question_are_about_the_same_sites(monkeypatch):
    """A site that is away for one part would else be missing from some sums and not from others."""
    wanted = [(problem(), np.full(len(problem().form.names), 0.1 * k)) for k in range(3)]
    each = search._numbers(problem(), slopes=False)
    for most, lost, expected in ((each * 4, 3, 3 + 3), (each * 2, 4, 6 + 6)):
        monkeypatch.setattr(search, "MOST_NUMBERS", most)
        program, reply, asks = search.told("totals", wanted, "", 4), None, []
        while True:
            try:
                asks.append(program.send(reply))
            except StopIteration as stop:
                found, heard = stop.value
                break
            assert len(asks[-1].common["theta"]) * each * 4 <= max(most, each * 4)
            reply = answered(asks[-1], away=[2] if len(asks) == lost else [])
        assert len(asks) == expected and heard.tolist() == [0, 1, 3]
        assert [float(sums.log_det[0, 0]) for sums in found] == [3.0, 3.0, 3.0]
        assert all(sums.gram.shape[-2:] == (problem().width,) * 2 for sums in found)


def test_what_would_fill_the_memory_is_asked_in_parts(sites, model, monkeypatch):
    """By parameters the same bits; by sites, where one parameter is too much, the same sums."""
    data, _ = sites
    each = search._numbers(problem(), slopes=True)
    monkeypatch.setattr(search, "MOST_NUMBERS", 5 * each * len(data))
    by_parameters = FGPR().fit(data)
    assert by_parameters.n_rounds_ > model.n_rounds_
    np.testing.assert_array_equal(by_parameters.predict(GRID, "new"), model.predict(GRID, "new"))
    monkeypatch.setattr(search, "MOST_NUMBERS", 5 * each)
    by_sites = FGPR().fit(data)
    assert by_sites.n_rounds_ > 2 * by_parameters.n_rounds_
    np.testing.assert_allclose(by_sites.predict(GRID, "new"), model.predict(GRID, "new"), rtol=1e-5)


def test_sites_that_begin_together_and_fan_out_are_known_to():
    """Level and slope are one, seen from the middle; a new site is known best where all begin."""
    rng = np.random.default_rng(5)
    clients = {}
    for k in range(16):
        x = np.sort(rng.uniform(0.0, 10.0, 6))
        y = 40.0 + (6.0 + 2.0 * rng.normal()) * x + 0.5 * rng.normal(size=6)
        clients[f"site-{k}"] = (x[:, None], y)
    model = FGPR(common=True).fit(Federation.from_clients(clients))
    assert model.common_parameters_["pivot"][0] == pytest.approx(0.0, abs=1.0)
    std = model.predict(np.array([[0.0], [5.0], [10.0]]), "new", return_std=True)[1]
    np.testing.assert_allclose(std[1:], [10.0, 20.0], rtol=0.35)
    assert std[0] < 0.25 * std[1]
    assert model.common_.all() and model.left_out_ is None, "what was asked for is not questioned"
    assert "sent sums over its rows" in str(model.summary())


def test_predictions_are_those_of_the_dense_process(sites, model):
    """Issue: to a thousandth of a standard deviation, at every member of the cloud."""
    data, shared = sites[0], model._result.shared
    rows = Rows(shared.units.rows(data.X), shared.units.targets(data.y), data.owner, shared.places)
    X = shared.units.rows(GRID)
    means, variances = model._curve("site-3").moments(GRID)
    location, scale = shared.units.target
    place, new = data.names.index("site-3"), np.full(len(GRID), 99)
    at_new = model._curve("new").moments(GRID)
    for k in np.argsort(-shared.weights)[:6]:
        form, theta = form_of(shared.kinds[k], shared.places), shared.theta[k]
        for found, owner in (((means, variances), np.full(len(GRID), place)), (at_new, new)):
            mean, spread = dense_posterior(form, theta, rows, X, owner)
            noise = np.exp(theta[-1] + 2.0 * theta[-2] * np.clip(X[:, 0], *np.ravel(form.edges)))
            std = scale * np.sqrt(np.diagonal(spread) + noise)
            assert (np.abs(found[0][k] - location - scale * mean) < 1e-3 * std).all()
            np.testing.assert_allclose(np.sqrt(found[1][k]), std, rtol=1e-3)


def test_a_site_that_comes_later_is_predicted_as_one_that_was_there(sites, model):
    data, _ = sites
    others = FGPR().fit(data.take(np.arange(1, len(data))))
    first = data.take([0])
    names = np.full(len(first.X), "site-1")
    later = others.adapt(first.X, first.y, names).predict(GRID, "site-1", return_std=True)
    there = model.predict(GRID, "site-1", return_std=True)
    assert (np.abs(later[0] - there[0]) < 1.0 * there[1]).all()
    np.testing.assert_allclose(later[1], there[1], rtol=0.5)


def test_what_is_saved_holds_the_common_curve_and_no_rows(sites, model, tmp_path):
    data, _ = sites
    place = model.save_shared(tmp_path / "prior.npz")
    with np.load(place, allow_pickle=False) as stored:
        numbers = np.concatenate(
            [stored[n].astype(float).ravel() for n in stored.files if n != "words"]
        )
    assert not np.isin(numbers, np.concatenate([data.X.ravel(), data.y])).any()
    again = FGPR.load_shared(place)
    for one, other in zip(
        model.predict(GRID, "nobody", return_std=True),
        again.predict(GRID, "nobody", return_std=True),
    ):
        np.testing.assert_array_equal(one, other)


def test_the_summary_tells_of_it(model):
    told = model.summary()
    assert "12 of them around a common curve" in told.title
    assert "common curve" in told.tables["common"]["part"]
    assert "gain per row by it" in told.tables["sites"]
    assert "helps 1" in str(told) and "can be read from them" in str(told)


def test_sites_with_nothing_in_common_do_without():
    rng = np.random.default_rng(3)
    clients = []
    for k in range(6):
        x = rng.uniform(0.0, 10.0, 25)
        wave = np.sin((0.6 + 0.3 * k) * x + rng.uniform(0, 6))
        clients.append((x[:, None], 10.0**k * (wave + 0.05 * rng.normal(size=25))))
    model = FGPR().fit(Federation.from_clients(clients))
    assert model.common_.sum() < 6
    scores = model.evaluate(Federation.from_clients(clients))
    assert (scores["rmse"] < 0.3 * 10.0 ** np.arange(6)).all()


def test_large_sites_are_thinned_for_the_common_curve_and_not_for_themselves(sites):
    data, truth = sites
    rng = np.random.default_rng(5)
    x = rng.uniform(0.0, 10.0, 90)
    clients = {name: data.client(k) for k, name in enumerate(data.names)}
    clients["large"] = (x[:, None], curve(x) + rng.normal(size=90))
    every = Federation.from_clients(clients)
    model = FGPR(common=True, max_points=40).fit(every)
    assert model.common_.all() and errors(model, truth) < 4.0
    away = model.predict(GRID, "large") - curve(GRID[:, 0])
    assert np.sqrt(np.mean(away**2)) < 1.0


# ------------------------------------------------------------------ the choice


def left_out(gain, as_new):
    told = np.zeros((len(gain), 2, 2))
    told[:, 0, 1], told[:, 1, 1] = gain, as_new
    return told


@pytest.mark.parametrize(
    ("gain", "as_new", "use"),
    [
        ([3.0, 2.0, 4.0], [1.0, 1.0, 1.0], [True, True]),
        ([-9.0, 9.0, -1.0], [1.0, 1.0, 1.0], [True, True]),
        ([-9.0, -8.0, -10.0], [1.0, 1.0, 1.0], [False, True]),
        ([3.0, 2.0, 4.0], [-9.0, -8.0, -10.0], [True, False]),
    ],
)
def test_rows_left_out_must_speak_against_it(gain, as_new, use):
    told, settings = left_out(gain, as_new), FgprSettings(common="choose")
    found = chosen(told, np.zeros(3), settings)
    assert found[:-1].tolist() == [use[0]] * 3 and found[-1] == use[1]


def test_a_site_goes_its_way_if_it_may():
    told, way = left_out([3.0, 2.0, 4.0], [1.0] * 3), np.array([1.0, 0.0, -1.0])
    settings = FgprSettings(common="choose")
    assert chosen(told, way, settings).tolist() == [False, True, True, True]
    assert chosen(told, way, settings.replace(personalise="posterior")).all()


def test_a_way_is_clearly_better_in_density_and_error():
    base = Rival(10.0, 4.0)
    assert base.loses_to(Rival(16.0, 3.0))
    assert not base.loses_to(Rival(16.0, 5.0)) and not base.loses_to(Rival(14.0, 3.0))


def test_the_frame_is_that_of_all_rows():
    rng = np.random.default_rng(1)
    X = [3.0 + 2.0 * rng.normal(size=(n, 1)) + k for k, n in enumerate((30, 50))]
    y = [rng.normal(size=len(x)) + 4.0 * k for k, x in enumerate(X)]
    arrays = {
        "rows": np.array([30.0, 50.0]),
        "moments": np.array([(v.mean(), v.std()) for v in y]),
        "spread": np.array([x.std(axis=0) for x in X]),
        "centre": np.array([x.mean(axis=0) for x in X]),
        "low": np.array([x.min(axis=0) for x in X]),
        "high": np.array([x.max(axis=0) for x in X]),
    }
    extent = extent_of(Replies(np.arange(2), arrays))
    every = np.concatenate(X)
    np.testing.assert_allclose(extent.units.frame[:, 0], [every.mean(), every.std()])
    np.testing.assert_allclose(extent.units.target, [np.hstack(y).mean(), np.hstack(y).std()])
    framed = extent.units.rows(every)
    np.testing.assert_allclose([extent.low, extent.high], [framed.min(axis=0), framed.max(axis=0)])
    rise = np.hstack([(one - one.mean()) / np.hstack(y).std() for one in y]).std()
    run = np.concatenate([(one - one.mean(axis=0)) / every.std(axis=0) for one in X]).std()
    assert extent.steep == pytest.approx(min(rise / run, 1.0))
    nothing = replace(Replies(np.arange(2), arrays | {"moments": np.zeros((2, 2))}))
    assert extent_of(nothing) is None


def test_what_grows_with_the_curve_is_found_and_widens_the_intervals():
    """Departures and noise are ten times as large at the end as at the beginning."""
    rng = np.random.default_rng(5)
    X, ends = np.linspace(0.0, 10.0, 12)[:, None], np.array([[0.0], [10.0]])
    clients = {}
    for k in range(20):
        departure = 0.4 * rng.normal() + 0.2 * rng.normal(size=len(X))
        clients[f"site-{k}"] = (X, curve(X[:, 0]) + 10.0 ** (X[:, 0] / 10.0) * departure)
    model = FGPR().fit(Federation.from_clients(clients))
    assert model.common_parameters_["growth"] == pytest.approx(np.log(10.0) / 10.0, rel=0.1)
    _, std = model.predict(ends, "new", return_std=True)
    assert 7.0 < std[1] / std[0] < 14.0
    _, beyond = model.predict(np.array([[10.0], [10.001]]), "new", return_std=True)
    assert beyond[1] == pytest.approx(beyond[0], rel=1e-3)


def test_a_plane_that_changes_fast_at_one_edge_is_seen_bent():
    """Rows say where: by a feature's haste, in its units; predictions gain by it."""
    rng = np.random.default_rng(0)
    groups = np.repeat([f"site-{k}" for k in range(6)], 40)
    X = np.column_stack([rng.uniform(0.0, 10.0, len(groups)), rng.uniform(-1.0, 1.0, len(groups))])
    levels = np.repeat(rng.normal(size=6), 40)
    y = 3.0 * np.sin(9.0 * np.exp(-0.4 * X[:, 0])) + X[:, 1] + levels
    y += 0.05 * rng.normal(size=len(y))
    kept = rng.uniform(size=len(y)) < 0.5
    model = FGPR(common=True).fit(X[kept], y[kept], groups=groups[kept])
    tried = model._result.common_tried
    assert tried[tried[:, 3] == 1, 4].min() < tried[tried[:, 3] == 0, 4].min() - 0.1, "per row"
    assert model._result.shared.theta[:, -3].max() < 0.0
    haste = model.common_parameters_["haste"]
    assert -1.0 < haste[0] < -0.2
    mean, std = model.predict(X[~kept], groups[~kept], return_std=True)
    assert np.sqrt(np.mean((mean - y[~kept]) ** 2)) < 0.12
    assert np.mean(np.abs(mean - y[~kept]) < 1.96 * std) > 0.9
    told = model.estimates()
    k = list(told["term"]).index("haste 1")
    assert abs(told["estimate"][k] + 0.4) < 3.0 * told["std. error"][k] < 0.3


def test_along_a_line_and_in_space_nothing_bends():
    rng = np.random.default_rng(1)
    groups = np.repeat(["a", "b", "c"], 12)
    for d in (1, 3):
        X = rng.normal(size=(36, d))
        y = np.exp(-X[:, 0]) + 0.1 * rng.normal(size=36)
        model = FGPR(common=True, max_rounds=5).fit(X, y, groups=groups)
        assert len(model.common_parameters_["haste"]) == 0
        assert not model._result.common_tried[:, 3].any()


def test_a_prior_with_other_parameters_is_refused_in_words(model, tmp_path):
    place = model.save_shared(tmp_path / "prior.npz")
    with np.load(place) as kept:
        arrays = dict(kept)
    np.savez(place, **arrays | {"common_theta": arrays["common_theta"][:, 1:]})
    with pytest.raises(ValueError, match="fit and save it again"):
        FGPR.load_shared(place)
