"""Packed statistics and EM against plain formulas on rows."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.base import clone

from fedkin import FMLR, Federation
from fedkin.algorithms import fmlr_starts
from fedkin.algorithms.fmlr import FMLR as fmlr
from fedkin.algorithms.fmlr_expectation import STANDING_TURNS, AtServer, AtSites
from fedkin.datasets import contaminate_sites, make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF
from fedkin.engines import InProcess
from fedkin.models.grouped_regression import (
    Noise,
    Parameters,
    best_residuals,
    expect,
    maximise,
    noise_density,
    responsibilities,
)
from fedkin.models.least_squares import (
    n_coefficients,
    n_statistics,
    packed_statistics,
    residual_coefficients,
    solve,
    solve_many,
    unpack,
)
from fedkin.protocol import Replies, Roster


def ragged(seed=0, sizes=(3, 0, 1, 12, 7), d=3):
    rng = np.random.default_rng(seed)
    return Federation.from_clients([(rng.normal(size=(n, d)), rng.normal(size=n)) for n in sizes])


def design(X, fit_intercept):
    return np.c_[X, np.ones(len(X))] if fit_intercept else X


def test_numbers_of_statistics_and_coefficients_are_inverse():
    assert all(n_coefficients(n_statistics(d)) == d for d in range(1, 200))


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_packed_statistics_are_the_sums_of_products(fit_intercept):
    clients = ragged()
    packed = packed_statistics(clients, fit_intercept)
    gram, cross, square, n = unpack(packed.T)
    for k in range(len(clients)):
        X, y = clients.client(k)
        X = design(X, fit_intercept)
        np.testing.assert_allclose(gram[k], X.T @ X, atol=1e-12)
        np.testing.assert_allclose(cross[k], X.T @ y, atol=1e-12)
        np.testing.assert_allclose(square[k], y @ y, atol=1e-12)
        assert n[k] == len(y)


def test_squared_residuals_are_linear_in_the_statistics():
    clients = ragged()
    coef = np.random.default_rng(1).normal(size=(2, 4, 3))
    found = residual_coefficients(coef) @ packed_statistics(clients, False)
    for k in range(len(clients)):
        X, y = clients.client(k)
        expected = ((y - coef @ X.T) ** 2).sum(-1)
        np.testing.assert_allclose(found[..., k], expected, atol=1e-10)


@pytest.mark.parametrize("duplicates", [(1e-4, 1.0, 1.0), (0.0, 1e-4, 1.0)])
def test_many_sites_are_solved_as_one_is(duplicates):
    """Regular, nearly singular and singular designs together."""
    rng = np.random.default_rng(0)
    sites = []
    for duplicate in duplicates:
        X = rng.normal(size=(30, 3))
        X[:, 2] = X[:, 1] + duplicate * X[:, 2]
        sites.append((X, X @ [1.0, 2.0, 3.0] + rng.normal(size=30)))
    statistics = packed_statistics(Federation.from_clients(sites), False).T
    coef, rank = solve_many(statistics)
    expected, ranks = solve(statistics)
    np.testing.assert_array_equal(rank, ranks)
    np.testing.assert_array_equal(rank, [2 if duplicate == 0 else 3 for duplicate in duplicates])
    np.testing.assert_allclose(coef, expected, rtol=1e-9)


@pytest.mark.parametrize("n_features", [1, 6, 20, 40])
def test_many_sites_are_solved_as_each_alone_and_left_as_they_were(n_features):
    rng = np.random.default_rng(n_features)
    sites = [(rng.normal(size=(60, n_features)), rng.normal(size=60)) for _ in range(5)]
    statistics = np.ascontiguousarray(packed_statistics(Federation.from_clients(sites), False).T)
    before = statistics.copy()
    coef, rank = solve_many(statistics)
    for k, (X, y) in enumerate(sites):
        np.testing.assert_allclose(coef[k], np.linalg.lstsq(X, y, rcond=None)[0], rtol=1e-9)
        # To the last bit: at a real site, the site is alone.
        np.testing.assert_array_equal(solve_many(statistics[k : k + 1])[0][0], coef[k])
    np.testing.assert_array_equal(rank, n_features)
    np.testing.assert_array_equal(statistics, before)


def test_solve_is_least_squares_and_least_norm_where_rows_are_few():
    clients = ragged(sizes=(20, 2))
    coef, rank = solve(packed_statistics(clients, False).T)
    X, y = clients.client(0)
    np.testing.assert_allclose(coef[0], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-10)
    X, y = clients.client(1)
    np.testing.assert_array_equal(rank, [3, 2])
    np.testing.assert_allclose(X @ coef[1], y, atol=1e-10)
    units = np.linalg.norm(X, axis=0)
    expected = np.linalg.lstsq(X / units, y, rcond=None)[0] / units
    np.testing.assert_allclose(coef[1], expected, atol=1e-8)


def test_rescaling_a_column_rescales_its_coefficient_only():
    clients = ragged(sizes=(20,))
    scale = np.array([1e-6, 1.0, 1e6])
    scaled = Federation.from_clients([(clients.X * scale, clients.y)])
    one = solve(packed_statistics(clients, True).T)[0][0]
    other = solve(packed_statistics(scaled, True).T)[0][0]
    np.testing.assert_allclose(other[:3] * scale, one[:3], rtol=1e-7)


def test_a_constant_column_and_a_duplicate_do_not_break_the_solution():
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    X = np.c_[x, x, np.zeros(30), np.full(30, 4.0)]
    y = 2 * x + 1 + 0.01 * rng.normal(size=30)
    coef, rank = solve(packed_statistics(Federation.from_clients([(X, y)]), True).T)
    assert np.isfinite(coef).all() and rank[0] == 2
    np.testing.assert_allclose(design(X, True) @ coef[0], y, atol=0.05)


def noise_by_quadrature(residuals, least):
    """Normal density of the residuals, averaged over variance = least / u^2, u uniform (Pareto)."""
    u = (np.arange(400_000) + 0.5) / 400_000
    n, squares = len(residuals), (residuals**2).sum()
    logs = -0.5 * n * np.log(2 * np.pi * least / u**2) - 0.5 * squares * u**2 / least
    return np.exp(logs).mean()


def brute_force(clients, coef, sigma, weights, noise=None):
    """Responsibilities and log likelihoods by scipy's normal density, row by row."""
    logs = np.zeros((len(clients), len(weights)))
    for k in range(len(clients)):
        X, y = clients.client(k)
        for g in range(len(weights)):
            if g < len(coef):
                density = norm.logpdf(y, X @ coef[g], sigma).sum()
            else:
                density = np.log(noise_by_quadrature(y - X @ noise.coef, noise.variance))
            logs[k, g] = np.log(weights[g]) + density
    top = logs.max(1, keepdims=True)
    total = np.exp(logs - top).sum(1, keepdims=True)
    return np.exp(logs - top) / total, (top + np.log(total))[:, 0]


@pytest.mark.parametrize("robust", [False, True])
def test_the_expectation_step_equals_brute_force(robust):
    clients, rng = ragged(), np.random.default_rng(2)
    coef, sigma = rng.normal(size=(2, 3, 3)), np.array([0.7, 1.3])
    noise = Noise(np.array([0.1, 0, 0]), 9.0) if robust else None
    weights = rng.dirichlet(np.ones(3 + robust), size=2)
    parameters = Parameters(coef, sigma, weights)
    statistics = packed_statistics(clients, False)
    outside = noise_density(statistics, noise) if robust else None
    share, loglik = responsibilities(statistics, parameters, outside)
    totals = expect(statistics, parameters, outside)
    for r in range(2):
        expected, logs = brute_force(clients, coef[r], sigma[r], weights[r], noise)
        np.testing.assert_allclose(share[r].T, expected, atol=1e-10)
        np.testing.assert_allclose(loglik[r], logs, atol=1e-9)
        np.testing.assert_allclose(totals.counts[r], expected.sum(0), atol=1e-9)
        np.testing.assert_allclose(totals.sums[r], expected.T @ statistics.T, atol=1e-8)
        np.testing.assert_allclose(totals.loglik[r], logs.sum(), atol=1e-8)


def test_the_maximisation_step_is_weighted_least_squares():
    clients, rng = ragged(), np.random.default_rng(3)
    parameters = Parameters(rng.normal(size=(1, 2, 3)), np.ones(1), np.array([[0.4, 0.6]]))
    statistics = packed_statistics(clients, False)
    new = maximise(expect(statistics, parameters), parameters, True, True)
    share, _ = brute_force(clients, parameters.coef[0], 1.0, parameters.weights[0])
    row_share = share[clients.owner]
    squares = 0.0
    for g in range(2):
        root = np.sqrt(row_share[:, g])
        expected = np.linalg.lstsq(clients.X * root[:, None], clients.y * root, rcond=None)[0]
        np.testing.assert_allclose(new.coef[0, g], expected, atol=1e-8)
        squares += (row_share[:, g] * (clients.y - clients.X @ expected) ** 2).sum()
    np.testing.assert_allclose(new.sigma[0] ** 2, squares / len(clients.X), rtol=1e-9)
    np.testing.assert_allclose(new.weights[0], share.mean(0), atol=1e-12)


def test_best_residuals_pick_the_component_that_fits():
    clients = ragged(sizes=(4, 9))
    coef = np.random.default_rng(0).normal(size=(1, 3, 3))
    found = best_residuals(packed_statistics(clients, False), coef)
    for k in range(2):
        X, y = clients.client(k)
        expected = min(((y - X @ b) ** 2).mean() for b in coef[0])
        np.testing.assert_allclose(found[0, k], expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans(), st.booleans())
def test_the_likelihood_never_decreases(seed, n_components, robust, fit_intercept):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, size=15)
    clients = ragged(seed, sizes, d=2)
    settings = {"n_components": n_components, "robust": robust, "fit_intercept": fit_intercept}
    settings |= {"n_restarts": 3, "init": "random", "max_rounds": 60}
    history = (
        InProcess().run(fmlr, fmlr.settings(**settings), clients, seed).result["history_loglik"]
    )
    steps = np.diff(history)
    assert (steps >= -1e-8 * np.abs(history[1:])).all()


def test_pair_moments_are_sums_over_pairs_of_different_rows():
    clients = ragged(sizes=(5, 1, 2), d=2)
    found = fmlr_starts.pair_moments(clients, False)
    for k in range(3):
        X, y = clients.client(k)
        n, expected = len(y), np.zeros((2, 2))
        for i in range(n):
            for j in range(n):
                if i != j:
                    expected += np.outer(X[i] * y[i], X[j] * y[j]) / (n * (n - 1))
        np.testing.assert_allclose(found[k], expected[np.triu_indices(2)], atol=1e-12)


def test_the_eigenspace_holds_the_coefficients():
    groups = make_regression_groups(2000, 5, PAPER_COEF[6][:3], random_state=1)
    moments = fmlr_starts.pair_moments(groups.federation, False).mean(0)
    vectors, values = fmlr_starts.eigenspace(moments, 3)
    kept = groups.coef @ vectors @ vectors.T
    assert np.abs(kept - groups.coef).max() < 0.5
    np.testing.assert_allclose(values.sum(), (groups.coef**2).sum(1).mean(), rtol=0.1)


# ------------------------------------------------------------------ the paper's claims, small


@pytest.mark.parametrize(("n", "width"), [(5, 0.01), (10, 0.001)])
def test_error_is_that_of_least_squares_with_known_labels(n, width):
    """Figure 1 in small: sigma known, equal proportions, start at a fifth of the separation."""
    errors, rounds = [], []
    for seed in range(6):
        groups = make_regression_groups(400, n, PAPER_COEF[3], random_state=[seed, n])
        start = groups.nearby(groups.separation() / 5, seed)
        fitted = FMLR(3, init=start, sigma=1.0, weights="uniform", fit_intercept=False)
        fitted.fit(groups.federation)
        known = groups.error(groups.known_labels_coef())
        errors.append((groups.error(fitted.coef_), known))
        rounds.append(fitted.n_iter_)
    found, known = np.mean(errors, axis=0)
    assert abs(found / known - 1) <= width
    assert np.mean(rounds) <= (3 if n >= 10 else 4.5)


def test_two_ways_of_sharing_give_one_answer_from_one_start():
    groups = make_regression_groups(60, 4, PAPER_COEF[3], random_state=5)
    start = groups.nearby(1.0, 0)
    for robust in (False, True):
        at_server, at_sites = (
            FMLR(3, share=share, init=start, robust=robust, random_state=0).fit(groups.federation)
            for share in ("statistics", "sums")
        )
        np.testing.assert_allclose(at_server.coef_, at_sites.coef_, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(at_server.sigma_, at_sites.sigma_, rtol=1e-9)
        np.testing.assert_allclose(
            at_server.responsibilities_, at_sites.responsibilities_, atol=1e-9
        )
        np.testing.assert_array_equal(at_server.labels_, at_sites.labels_)
        assert at_server.n_rounds_ == 1 < at_sites.n_rounds_


@pytest.mark.parametrize("share", ["statistics", "sums"])
@pytest.mark.parametrize("n", [2, 5, 25])
def test_from_scratch_the_right_number_of_groups_is_found_even_with_n_below_d(share, n):
    for seed in range(3):
        groups = make_regression_groups(300, n, PAPER_COEF[3], random_state=[seed, n])
        fitted = FMLR(share=share, max_components=4, fit_intercept=False, random_state=seed)
        fitted.fit(groups.federation)
        assert fitted.n_components_ == 3
        known = groups.error(groups.known_labels_coef())
        assert groups.error(fitted.coef_) <= 2 * known
        choice = fitted.choice_
        printed = ~choice["degrees"] & (choice["site_noise"] == "common")
        assert list(choice["n_components"][printed]) == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["own", "noise"])
def test_a_fifth_of_the_sites_spoilt_is_harmless_with_the_noise_group(kind):
    for seed in range(3):
        clean = make_regression_groups(300, 10, PAPER_COEF[3], random_state=seed)
        spoilt = contaminate_sites(clean, 0.2, kind, seed)
        fitted = FMLR(3, robust=True, fit_intercept=False, random_state=seed).fit(spoilt.federation)
        known = spoilt.error(spoilt.known_labels_coef())
        assert spoilt.error(fitted.coef_) <= 1.05 * known
        bad = np.flatnonzero(spoilt.labels < 0)
        named = np.isin(fitted.client_names_, fitted.odd_sites_)
        # A spoilt site may by chance lie near a regression: then it is not odd, nor does it harm.
        assert named[bad].mean() >= 0.9 and not named[spoilt.labels >= 0].any()


def test_a_wrong_regression_that_many_sites_follow_is_one_more_group():
    clean = make_regression_groups(300, 10, PAPER_COEF[3], random_state=0)
    spoilt = contaminate_sites(clean, 0.2, "coordinated", 0)
    known = spoilt.error(spoilt.known_labels_coef())
    near = FMLR(3, robust=True, fit_intercept=False, init=clean.nearby(1.0, 0), random_state=0)
    assert spoilt.error(near.fit(spoilt.federation).coef_) <= 1.05 * known
    chosen = FMLR(robust=True, fit_intercept=False, random_state=0).fit(spoilt.federation)
    assert chosen.n_components_ == 4


def test_huge_values_at_one_site_cost_only_that_site():
    groups = make_regression_groups(100, 10, PAPER_COEF[3], random_state=1)
    y = groups.federation.y.copy()
    y[groups.federation.owner == 3] *= 1e12
    wild = Federation.from_groups(groups.federation.X, groups.federation.owner, y)
    fitted = FMLR(3, robust=True, fit_intercept=False, random_state=0).fit(wild)
    assert list(fitted.odd_sites_) == ["3"]
    assert groups.error(fitted.coef_) <= 1.2 * groups.error(groups.known_labels_coef())


def test_the_noise_group_is_accurate_from_tiny_to_huge_residuals():
    """Against the incomplete gamma function with 50 digits."""
    mpmath.mp.dps = 50
    for n in (1, 7, 300):
        for square in (0.0, 1e-3, 1.0, 50.0, 1e4, 1e24):
            statistics = np.array([1.0, 0.0, n * square, n])[:, None]
            a, v = mpmath.mpf(n + 1) / 2, mpmath.mpf(30)
            half = mpmath.mpf(n * square) / 2
            integral = (1 / v) ** a / a
            if half:
                integral = mpmath.gammainc(a, 0, half / v) / half**a
            constant = mpmath.sqrt(v) / 2 / (2 * mpmath.pi) ** (mpmath.mpf(n) / 2)
            expected = float(mpmath.log(constant * integral))
            found = noise_density(statistics, Noise(np.zeros(1), 30.0))[0]
            np.testing.assert_allclose(found, expected, rtol=1e-10, err_msg=f"{n} {square}")


def test_an_empty_component_is_reported_and_never_nan():
    groups = make_regression_groups(12, 50, PAPER_COEF[3][:2], random_state=0)
    start = np.vstack([groups.coef, np.full(5, 500.0)])
    for share in ("statistics", "sums"):
        fitted = FMLR(3, share=share, init=start, fit_intercept=False).fit(groups.federation)
        np.testing.assert_array_equal(fitted.identified_, [True, True, False])
        assert np.isfinite(fitted.coef_).all() and np.isfinite(fitted.weights_).all()
        assert "Unidentified" in str(fitted.summary())


@pytest.mark.parametrize("share", ["statistics", "sums"])
def test_with_fixed_proportions_an_empty_component_is_unidentified_too(share):
    groups = make_regression_groups(12, 50, PAPER_COEF[3][:2], random_state=0)
    start = np.vstack([groups.coef, np.full(5, 500.0)])
    fitted = FMLR(3, share=share, init=start, fit_intercept=False, weights="uniform")
    np.testing.assert_array_equal(fitted.fit(groups.federation).identified_, [True, True, False])


@pytest.mark.parametrize("share", ["statistics", "sums"])
@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("value", [0.0, 3.7, -1e-6, 1e-170, 1e30])
@pytest.mark.parametrize("n_components", [1, 2, None])
@pytest.mark.filterwarnings("ignore:the noise:RuntimeWarning")
def test_an_outcome_without_variation_is_fitted(share, robust, value, n_components):
    X = ragged(sizes=(4, 9, 6, 12, 3)).X
    data = Federation.from_groups(X, np.arange(len(X)) % 6, np.full(len(X), value))
    fitted = FMLR(n_components, share=share, robust=robust, max_components=3, random_state=0)
    fitted.fit(data)
    assert np.isfinite(fitted.coef_).all() and np.isfinite(fitted.loglik_) and fitted.sigma_ > 0
    np.testing.assert_allclose(fitted.predict(data), value, rtol=1e-6, atol=1e-100)


# ------------------------------------------------------------------ sites that miss rounds


def test_sites_absent_in_one_late_round_do_not_change_the_number_of_components():
    """A smaller sum of log likelihoods is not a better fit if fewer sites were summed."""
    groups = make_regression_groups(60, 8, PAPER_COEF[3], random_state=2)
    model = FMLR(share="sums", max_components=4, n_restarts=4, random_state=0)
    whole = model.fit(groups.federation)
    assert whole.n_components_ == 3
    n_rounds = whole.n_rounds_
    for late in range(n_rounds - 4, n_rounds):
        engine = InProcess(absent=lambda number, names, late=late: names[:12] * (number == late))
        fitted = clone(model).set_params(engine=engine).fit(groups.federation)
        assert fitted.refusals_ and fitted.n_components_ == 3
        np.testing.assert_allclose(fitted.choice_["bic"], whole.choice_["bic"], rtol=1e-3)
        np.testing.assert_allclose(fitted.loglik_, whole.loglik_, rtol=1e-3)


def test_em_settles_though_other_sites_miss_every_round():
    groups = make_regression_groups(60, 8, PAPER_COEF[3], random_state=1)

    def away(number, names):
        return [n for n, u in zip(names, np.random.default_rng(number).random(60)) if u < 0.2]

    model = FMLR(share="sums", max_components=4, n_restarts=4, random_state=0)
    whole = model.fit(groups.federation)
    gaps = clone(model).set_params(engine=InProcess(absent=away)).fit(groups.federation)
    assert gaps.converged_ and gaps.n_components_ == whole.n_components_ == 3
    np.testing.assert_allclose(np.sort(gaps.coef_, axis=0), np.sort(whole.coef_, axis=0), atol=1e-3)


def test_a_site_lost_for_good_does_not_hold_on_to_its_first_groups():
    groups = make_regression_groups(20, 8, PAPER_COEF[3], random_state=2)
    lost = groups.federation.names[4]
    absent = InProcess(absent=lambda number, names: [lost] if number > 3 else [])
    model = FMLR(3, share="sums", random_state=0, max_rounds=50, engine=absent)
    keep = [k for k in range(20) if k != 4]
    known = FMLR(3, share="sums", random_state=0).fit(groups.federation.take(keep))
    np.testing.assert_allclose(
        np.sort(model.fit(groups.federation).coef_, axis=0), np.sort(known.coef_, axis=0), atol=1e-4
    )


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_with_a_fraction_of_sites_in_each_round_em_settles_where_all_sites_lead(fraction):
    groups = make_regression_groups(60, 6, PAPER_COEF[3], random_state=5)
    start = groups.nearby(1.0, 0)
    model = FMLR(3, share="sums", init=start, random_state=0)
    whole = model.fit(groups.federation)
    some = clone(model).set_params(fraction=fraction).fit(groups.federation)
    assert some.converged_ and some.n_iter_ > whole.n_iter_
    np.testing.assert_allclose(some.coef_, whole.coef_, atol=1e-4)
    np.testing.assert_allclose(some.loglik_, whole.loglik_, rtol=1e-6)


def test_the_history_is_that_of_the_restart_that_won():
    """Five components for three groups: restarts end at different places, after different ways."""
    ended_before_others = []
    for seed in range(3):
        groups = make_regression_groups(60, 4, PAPER_COEF[3], random_state=seed)
        fitted = FMLR(5, share="sums", random_state=0, n_restarts=10).fit(groups.federation)
        history = fitted.history_["loglik"]
        # Opening, start, final expectation and farewell are rounds, but no EM steps.
        assert fitted.n_iter_ == len(history) <= fitted.n_rounds_ - 4
        assert (np.diff(history) >= -1e-9 * np.abs(history[1:])).all()
        assert history[-1] == pytest.approx(fitted.loglik_, rel=1e-6)
        ended_before_others.append(len(history) < fitted.n_rounds_ - 4)
    # Which restart wins is not said, but that the slowest of ten always does would be a wonder.
    assert any(ended_before_others)


def test_a_wild_site_has_no_part_in_the_eigenspace_of_the_start():
    """The limit is not known when the moments are asked for; the server applies it afterwards."""
    groups = make_regression_groups(30, 10, PAPER_COEF[3], random_state=1)
    moments = fmlr_starts.pair_moments(groups.federation, False)
    statistics = packed_statistics(groups.federation, False).T.copy()
    expected = np.delete(moments, 3, axis=0).sum(axis=0)
    moments[3] *= 1e24
    upper = np.triu_indices(6)
    statistics[3, :-1][upper[1] == 5] *= 1e12
    statistics[3, -2] *= 1e12
    settings = fmlr.settings(robust=True, init="spectral", fit_intercept=False)
    roster = Roster(groups.federation.names)
    source = AtServer(roster, settings, np.random.default_rng(0))
    program = source.open()
    ask = next(program)
    assert ask.step == "statistics_and_moments"
    with pytest.raises(StopIteration):
        program.send(Replies(np.arange(30), {"statistics": statistics, "moments": moments}))
    np.testing.assert_allclose(source.moments, expected)


@pytest.mark.parametrize("share", ["statistics", "sums"])
def test_a_spectral_start_is_not_drawn_away_by_a_wild_site(share):
    groups = make_regression_groups(100, 10, PAPER_COEF[3], random_state=1)
    y = groups.federation.y.copy()
    y[groups.federation.owner == 3] *= 1e12
    wild = Federation.from_groups(groups.federation.X, groups.federation.owner, y)
    parameters = {"robust": True, "init": "spectral", "share": share, "random_state": 0}
    fitted = FMLR(3, fit_intercept=False, n_restarts=3, **parameters).fit(wild)
    assert groups.error(fitted.coef_) <= 1.2 * groups.error(groups.known_labels_coef())


def test_given_coefficients_without_intercept_start_with_a_zero_one():
    groups = make_regression_groups(30, 6, PAPER_COEF[2], random_state=0)
    settings = {"n_components": 2, "init": groups.coef}
    plain = InProcess().run(fmlr, fmlr.settings(**settings), groups.federation, 0).result
    settings["init"] = np.c_[groups.coef, [0, 0]]
    padded = InProcess().run(fmlr, fmlr.settings(**settings), groups.federation, 0).result
    np.testing.assert_array_equal(plain["coef"], padded["coef"])


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize(("sigma", "weights"), [(None, None), (1.0, None), (None, "uniform")])
def test_the_criterion_counts_every_parameter_that_is_learnt(robust, sigma, weights):
    data = make_regression_groups(30, 12, PAPER_COEF[2], random_state=0).federation
    model = FMLR(2, sigma=sigma, weights=weights, robust=robust, random_state=0).fit(data)
    n_coef = 2 * (data.n_features + 1)
    n_weights = 0 if weights else 2 - 1 + robust
    n_free = n_coef + (sigma is None) + n_weights
    expected = -2 * model.loglik_ + n_free * np.log(len(data.X))
    assert model.bic_ == pytest.approx(expected, rel=1e-12)


def test_a_reply_stands_for_less_than_the_stated_turns():
    """With everybody asked, a reply five rounds old does not count any more."""
    groups = make_regression_groups(8, 6, PAPER_COEF[2], random_state=0)
    roster = Roster(groups.federation.names, 0)
    settings = fmlr.settings(n_components=1, share="sums", fit_intercept=False)
    site_statistics = packed_statistics(groups.federation, False).T

    def replies(clients):
        sums = site_statistics[clients][:, None, None]
        ones = np.ones((len(clients), 1, 1))
        return Replies(clients, {"sums": sums, "counts": ones, "loglik": loglik[clients, None]})

    source = AtSites(roster, settings, np.random.default_rng(0))
    opened = source.open()
    next(opened)
    n, y = groups.federation.sizes.astype(float), groups.federation.y
    total = np.bincount(groups.federation.owner, y)
    square = np.bincount(groups.federation.owner, y**2)
    loglik = -0.5 * (n * np.log(2 * np.pi) + square)
    target = np.stack([n, total, square, np.full(8, site_statistics.shape[1])], axis=1)
    target[:, 3] = groups.federation.n_features
    with pytest.raises(StopIteration):
        opened.send(Replies(np.arange(8), {"target": target}))
    source.begin()
    parameters = Parameters(np.zeros((1, 1, 5)), np.ones(1), np.ones((1, 1)))
    counted = []
    for number in range(7):
        asked = source.expect(parameters, np.arange(1), 1.0)
        next(asked)
        with pytest.raises(StopIteration) as ended:
            asked.send(replies(np.arange(8) if number == 0 else np.arange(7)))
        counted.append(float(ended.value.value.counts[0, 0]))
    # The eighth site answered in the first round only.
    assert counted == [8.0] * STANDING_TURNS + [7.0] * (7 - STANDING_TURNS)
