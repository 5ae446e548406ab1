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
    # Without any prior it is least squares; without any spread, one model and half a pull too few.
    far, near = plan(10**6, 30, 4, 1.0, 1e4), plan(10**6, 30, 4, 1.0, 0.0)
    assert far.joined == pytest.approx(far.alone, rel=1e-5)
    assert near.one < near.joined < near.one + 1 / (30 * 10**6) * 1.1


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


@pytest.mark.parametrize("way", ["soft", "hard"])
def test_kinds_that_are_far_apart_are_told_apart(way):
    found = plan(100, 20, 3, 2.0)
    far, near = found.of_kinds(3, 12.0, way), found.of_kinds(3, 2.0, way)
    assert far == pytest.approx(found.of_kinds(3), rel=0.03)
    assert near > 2 * far
    # In units of the noise everything is the same.
    assert near == pytest.approx(4 * plan(100, 20, 3, 1.0).of_kinds(3, 1.0, way), rel=1e-12)


def test_chances_of_kinds_are_those_of_bayes():
    from scipy.stats import multivariate_normal

    from fedkin.inference.kinds_planning import _Drawn, equally_far

    centres = equally_far(4, 3, 0.8)
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2)
    assert gaps[~np.eye(4, dtype=bool)] == pytest.approx(0.8)
    drawn = _Drawn(6, 2, centres)
    own, share = drawn.own(), drawn.shares()
    for k in range(5):
        law = [multivariate_normal(c, np.linalg.inv(drawn.gram[k])).pdf(own[k]) for c in centres]
        assert share[k] == pytest.approx(np.array(law) / np.sum(law), rel=1e-8)


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
    assert np.isinf(plan(5, 4, 2).of_kinds(2, 1.0, "hard"))
    with pytest.raises(ValueError, match="gain"):
        plan(5, 9, 2).unlike_at_most(2.0)
