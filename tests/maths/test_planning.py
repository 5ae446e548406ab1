"""Planned errors against simulation, closed forms and limits."""

import warnings

import numpy as np
import pytest

from fedkin import Federation, MixedModel
from fedkin.inference import plan


def simulated(m, n, d, noise, unlike, draws, seed=0):
    """Mean excess errors of least squares alone, and of a mixed model, over draws."""
    rng = np.random.default_rng(seed)
    alone, joined = [], []
    for _ in range(draws):
        coef = rng.normal(size=d + 1) + unlike * rng.normal(size=(m, d + 1))
        X, owner = rng.normal(size=(m * n, d)), np.repeat(np.arange(m), n)
        design = np.column_stack([X, np.ones(m * n)])
        y = (design * coef[owner]).sum(axis=1) + noise * rng.normal(size=m * n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MixedModel(covariance="isotropic").fit(Federation.from_groups(X, owner, y))
        own = np.column_stack([model.site_coef_, model.site_intercept_])
        joined.append(((own - coef) ** 2).sum(axis=1).mean())
        ls = [np.linalg.lstsq(design[owner == k], y[owner == k], rcond=None)[0] for k in range(m)]
        alone.append(((np.array(ls) - coef) ** 2).sum(axis=1).mean())
    return np.mean(alone), np.mean(joined)


@pytest.mark.parametrize(
    ("m", "n", "d", "noise", "unlike"),
    [(40, 20, 3, 1.0, 0.5), (60, 12, 4, 1.0, 0.3), (40, 40, 2, 2.0, 1.0), (80, 8, 5, 1.0, 0.4)],
)
def test_planned_errors_are_those_of_simulation(m, n, d, noise, unlike):
    found = plan(m, n, d, noise, unlike)
    alone, joined = simulated(m, n, d, noise, unlike, draws=8)
    assert found.joined == pytest.approx(joined, rel=0.10)
    if n > d + 6:  # below that least squares has no variance to average
        assert found.alone == pytest.approx(alone, rel=0.15)


def test_joining_is_never_worse_and_limits_are_right():
    for unlike in (0.01, 0.3, 3.0, 100.0):
        found = plan(1000, 30, 4, 1.0, unlike)
        assert found.joined <= found.alone
    # Without any prior it is least squares; without any spread, one model and half a pull too few:
    # the spread that is seen has variance 2 / (m p) + 2 / (m (n - p)) in units of w = 1 / n.
    far, near = plan(10**6, 30, 4, 1.0, 1e4), plan(10**6, 30, 4, 1.0, 0.0)
    assert far.joined == pytest.approx(far.alone, rel=1e-5)
    half = (1 / 5 + 1 / 25) * 5 / (30 * 10**6)
    assert near.joined - near.one == pytest.approx(half, rel=0.05)


def test_without_columns_it_is_shrinkage():
    found = plan(10**7, 2, 0, 1.0, 1.0)
    assert found.joined == pytest.approx(1.0 * 0.5 / 1.5, rel=1e-6)
    # James and Stein: the risk of means pulled by the spread that they show, where it is positive.
    m, v, s = 40, 1.0, 0.25
    stein = s - (m - 3) / (m - 1) * s**2 / (v + s)
    assert plan(m, 4, 0, 1.0, 1.0).joined == pytest.approx(stein + s**2 / (v + s) / m, rel=0.01)


def test_the_posterior_variances_solve_their_equations():
    found = plan(10, 15, 6, 1.3, 0.7)
    *slopes, level = found._posterior_variances(0.49)
    t = slopes[0]
    assert len(set(slopes)) == 1 and len(slopes) == 6
    assert t == pytest.approx(1 / (1 / 0.49 + (14 + level / 0.49) / (1.69 + 7 * t)), rel=1e-9)
    assert level == pytest.approx(1 / (1 / 0.49 + 15 / (1.69 + 6 * t)), rel=1e-9)


@pytest.mark.parametrize(("m", "n", "unlike"), [(100, 2, 0.2), (30, 4, 0.0), (8, 3, 0.4)])
def test_levels_pulled_by_the_spread_that_they_show_err_as_planned(m, n, unlike):
    """Restricted likelihood of balanced levels in closed form, many draws."""
    rng = np.random.default_rng(0)
    level = unlike * rng.normal(size=(20_000, m))
    mean = level + rng.normal(size=level.shape) / np.sqrt(n)
    noise = rng.chisquare(m * (n - 1), (20_000, 1)) / (m * (n - 1)) / n
    middle = mean.mean(axis=1, keepdims=True)
    square = ((mean - middle) ** 2).sum(axis=1, keepdims=True) / (m - 1)
    pulled = middle + (1.0 - np.minimum(noise / square, 1.0)) * (mean - middle)
    found = float(((pulled - level) ** 2).mean())
    assert plan(m, n, 0, 1.0, unlike).joined == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("way", ["soft", "hard"])
def test_kinds_that_are_far_apart_are_told_apart(way):
    found = plan(100, 20, 3, 2.0)
    far, near = found.of_kinds(3, 12.0, way), found.of_kinds(3, 2.0, way)
    # ODCL weighs sites by the noise that they seem to have, which costs a little.
    least, most = (0.98, 1.04) if way == "soft" else (1.0, 1.12)
    assert least < far / found.of_kinds(3) < most
    assert near > 2 * far
    # In units of the noise everything is the same.
    assert near == pytest.approx(4 * plan(100, 20, 3, 1.0).of_kinds(3, 1.0, way), rel=1e-12)


def test_beyond_the_sites_that_are_simulated_only_what_is_estimated_falls():
    apart = [plan(m, 20, 3).of_kinds(3, 6.0, "soft") for m in (1000, 4000)]
    assert apart[0] == pytest.approx(4 * apart[1], rel=0.05)
    near = [plan(m, 10, 3).of_kinds(3, 0.8, "soft") for m in (1000, 4000)]
    assert 0.7 * near[0] < near[1] < near[0]


def drawn_with_rows(n_rows, centres, n_sites=60, seed=3):
    """Sites of kinds_planning from rows, and the rows."""
    from fedkin.inference.kinds_planning import Sites

    rng = np.random.default_rng(seed)
    kind = np.arange(n_sites) % len(centres)
    X = rng.normal(size=(n_sites, n_rows, centres.shape[1]))
    X[:, :, -1] = 1.0
    noise = rng.normal(size=X.shape[:2])
    y = np.einsum("snp,sp->sn", X, centres[kind]) + noise
    return Sites(centres, kind, n_rows, X, noise, np.zeros(n_sites)), X, y


def test_chances_and_distances_of_kinds_are_those_of_their_rows():
    from scipy.special import softmax

    from fedkin.inference.kinds_planning import equally_far

    centres = equally_far(4, 3, 0.8)
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2)
    assert gaps[~np.eye(4, dtype=bool)] == pytest.approx(0.8)
    for n_rows in (4, 12):
        sites, X, y = drawn_with_rows(n_rows, centres)
        residual = ((y[:, None] - np.einsum("snp,kp->skn", X, centres)) ** 2).sum(axis=2)
        guess = softmax(-0.5 * residual, axis=1) @ centres
        assert sites.cost("soft") == pytest.approx(((guess - sites.truth) ** 2).sum(axis=1))
        # With twice as many rows as terms models are compared, with fewer residuals.
        ls = np.array([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(X, y)])
        away = ((ls[:, None] - centres) ** 2).sum(axis=2) if n_rows == 12 else residual
        guess = centres[away.argmin(axis=1)]
        assert sites.cost("hard") == pytest.approx(((guess - sites.truth) ** 2).sum(axis=1))


@pytest.mark.parametrize(("n_rows", "way"), [(3, "soft"), (12, "soft"), (12, "hard")])
def test_drawn_sites_cost_what_sites_with_rows_cost(n_rows, way):
    """Roots of sums of products instead of rows, and the known mean of rare mistakes."""
    from fedkin.inference.kinds_planning import draw_sites, equally_far

    centres = equally_far(3, 3, 2.0)
    brute = drawn_with_rows(n_rows, centres, 60_000)[0].cost(way)
    found = draw_sites(20_000, n_rows, centres, np.random.default_rng(1)).mean_cost(way)
    assert found == pytest.approx(brute.mean(), abs=4 * brute.std() / np.sqrt(60_000))


def test_simulated_kinds_are_those_that_the_methods_find():
    from fedkin import FMLR, ODCL
    from fedkin.inference.kinds_planning import _hard, _soft, equally_far

    centres = equally_far(3, 4, 1.2)
    sites, X, y = drawn_with_rows(15, centres)
    data = Federation.from_groups(X.reshape(-1, 4)[:, :-1], np.repeat(np.arange(60), 15), y.ravel())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        soft = FMLR(3, random_state=0, degrees=False, site_noise="common").fit(data)
        hard = ODCL(3, random_state=0).fit(data)
    kinds, own = _soft(sites, np.random.default_rng(0))
    found = np.column_stack([soft.coef_, soft.intercept_])
    order = [int(((found - k) ** 2).sum(axis=1).argmin()) for k in kinds]
    assert sorted(order) == [0, 1, 2]
    assert kinds == pytest.approx(found[order], abs=2e-3)
    share = np.array([soft.responsibilities(name) for name in data.names])
    assert own == pytest.approx(share @ found, abs=5e-3)
    own = _hard(sites, np.random.default_rng(0))[1]
    places = [data.names.index(str(k)) for k in range(60)]
    assert own == pytest.approx(np.column_stack([hard.coef_, hard.intercept_])[places], abs=1e-9)


def test_questions_are_answered():
    found = plan(20, 20, 3, 1.0, 0.4)
    rows = found.rows_needed(0.1)
    assert plan(20, rows, 3, 1.0, 0.4).joined <= 0.1 < plan(20, rows - 1, 3, 1.0, 0.4).joined
    assert found.sites_needed(1e-6) is None
    unlike = found.unlike_at_most(0.3)
    assert plan(20, 20, 3, 1.0, unlike).gain == pytest.approx(0.3, abs=1e-6)
    assert found.of_kinds(3) == pytest.approx(3 * 4 / 400)
    assert found.mistaken(0.0) == 0.5 and found.mistaken(5.0) < 1e-6


def test_words_table_picture_and_too_few_rows():
    found = plan(20, 20, 3, 1.0, 0.4)
    assert "Joining takes" in str(found) and len(found.table().rows()) == 3
    assert len(found.plot().lines) == 4
    assert np.isinf(plan(20, 5, 3).alone) and "too few rows" in plan(20, 5, 3).sentence


@pytest.mark.parametrize(
    ("arguments", "words"), [((0, 5, 2), "one site"), ((5, 5, 2, 0.0), "noise")]
)
def test_what_cannot_be_is_said(arguments, words):
    with pytest.raises(ValueError, match=words):
        plan(*arguments)
    with pytest.raises(ValueError, match="way"):
        plan(5, 5, 2).rows_needed(0.1, "curve")
    with pytest.raises(ValueError, match="soft"):
        plan(5, 9, 2).of_kinds(2, 1.0, "firm")
    with pytest.raises(ValueError, match="separation"):
        plan(5, 9, 2).of_kinds(2, 0.0)
    with pytest.raises(ValueError, match="equally far"):
        plan(5, 9, 2).of_kinds(5, 1.0)
    with pytest.raises(ValueError, match="fewer sites"):
        plan(2, 9, 2).of_kinds(3, 1.0)
    with pytest.raises(ValueError, match="gain"):
        plan(5, 9, 2).unlike_at_most(2.0)
