"""What summaries say where sites would probably be better off otherwise, and where they do not."""

import numpy as np
import pytest

from fedkin import FMLR, MixedModel
from fedkin.algorithms.better_off import fit_beside_others, in_words
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, solve_many

ALONE, TOGETHER = "Probably worse than every site alone", "Probably worse than one model for all"
HARDLY = "Rows hardly tell that slopes differ"


def sites(level=0.0, slope=0.0, n_sites=30, n_rows=20, seed=0):
    """Regressions on two columns whose levels and slopes have these standard deviations."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_sites, n_rows, 2))
    own = np.array([1.0, -1.0]) + slope * rng.normal(size=(n_sites, 2))
    y = np.einsum("knp,kp->kn", X, own) + level * rng.normal(size=(n_sites, 1))
    y += rng.normal(size=(n_sites, n_rows))
    names = [f"site {k:02d}" for k in range(n_sites)]
    return Federation.from_clients(dict(zip(names, zip(X, y))))


def said(model, data):
    return " ".join(str(model.fit(data).summary()).split())


@pytest.mark.parametrize(
    "model", [MixedModel(random="intercept"), FMLR(1, degrees=False, site_noise="common")]
)
def test_who_denies_slopes_of_their_own_to_sites_is_told(model):
    words = said(model, sites(level=1.0, slope=2.0))
    assert ALONE in words and TOGETHER not in words


@pytest.mark.parametrize(
    "model", [MixedModel(), MixedModel(site_noise="own"), FMLR(random_state=0)]
)
@pytest.mark.parametrize(("level", "slope"), [(0.0, 0.0), (1.0, 0.0), (1.0, 2.0)])
def test_defaults_are_not_called_worse_on_clean_data(model, level, slope):
    words = said(model, sites(level, slope))
    assert ALONE not in words and TOGETHER not in words


def test_two_kinds_without_departures_are_not_called_worse():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 20, 2))
    kinds = np.array([[1.0, -1.0], [-1.0, 2.0]])[np.arange(20) % 2]
    y = np.einsum("knp,kp->kn", X, kinds) + 0.5 * rng.normal(size=(20, 20))
    words = said(FMLR(2, random_state=0), Federation.from_clients(list(zip(X, y))))
    assert ALONE not in words and TOGETHER not in words


def test_departures_of_slopes_that_rows_hardly_tell_are_called_so():
    only_levels, slopes = sites(level=1.0), sites(level=1.0, slope=1.0)
    nothing = sites(seed=2)
    assert f"{HARDLY}: AIC prefers departures of the level alone" in said(MixedModel(), only_levels)
    assert f"{HARDLY}: AIC prefers one model for all" in said(MixedModel(), nothing)
    assert HARDLY not in said(MixedModel(), slopes)
    assert HARDLY not in said(MixedModel(random="intercept"), only_levels)


def test_aic_without_slopes_is_that_of_the_simpler_fits():
    data = sites(level=1.0)
    model = MixedModel().fit(data)
    level, none = model._result.facts(model._settings()).aic_without_slopes()
    assert level == pytest.approx(MixedModel(random="intercept").fit(data).aic_, abs=1e-6)
    design = np.column_stack([data.X, np.ones(len(data.X))])
    y = data.y - design @ np.linalg.lstsq(design, data.y, rcond=None)[0]
    k = len(y) - 3
    deviance = k * (1 + np.log(2 * np.pi * y @ y / k)) + np.linalg.slogdet(design.T @ design)[1]
    assert none == pytest.approx(deviance + 2 * 4, rel=1e-9)


def test_expected_errors_are_those_at_further_rows():
    """A level of every site's own where slopes differ: seven times the noise is found, and said."""
    data = sites(level=1.0, slope=5.0, n_sites=200, n_rows=60)
    first = np.concatenate([np.arange(k, k + 20) for k in data.offsets[:-1]])
    known = np.isin(np.arange(len(data.y)), first)
    model = MixedModel(random="intercept")
    model.fit(data.X[known], data.y[known], groups=data.groups[known])
    away = data.y[~known] - model.predict(data.X[~known], groups=data.groups[~known])
    sums = packed_statistics(
        Federation.from_groups(data.X[known], data.groups[known], data.y[known]), True
    )
    variances = np.zeros((3, 3))
    variances[2, 2] = model.random_covariance_[0, 0]
    coef = np.column_stack([model.site_coef_, model.site_intercept_])
    noise = np.full(200, model.sigma_**2)
    found = fit_beside_others(sums.T.copy(), coef, variances, noise, np.ones((200, 1)), True)
    # Errors are in units of the noise of rows about sites' own regressions, which is one.
    assert found[0] == pytest.approx(np.sqrt((away**2).mean()), rel=0.1)
    assert found[2] == pytest.approx(1.0, rel=0.2)


def test_equal_sites_with_models_of_their_own_are_better_off_with_one():
    statistics = np.ascontiguousarray(packed_statistics(sites(n_rows=8), True).T)
    own, _ = solve_many(statistics)
    how = (1e6 * np.eye(3), np.ones(30), np.ones((30, 1)), True)
    words = in_words(fit_beside_others(statistics, own, *how))
    assert len(words) == 1 and words[0].startswith(TOGETHER)


def test_sites_of_few_rows_do_not_judge():
    statistics = np.ascontiguousarray(packed_statistics(sites(n_rows=6), True).T)
    own, _ = solve_many(statistics)
    how = (1e6 * np.eye(3), np.ones(30), np.ones((30, 1)), True)
    assert fit_beside_others(statistics, own, *how) is None and in_words(None) == []
