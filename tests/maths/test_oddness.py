"""Odd sites: laws of distances and noises beside textbook ones, and sites set aside."""

import numpy as np
import pytest
from scipy import stats

from fedkin.inference.oddness import adjusted, judge
from fedkin.models.site_evidence import (
    SiteEvidence,
    _Kind,
    distances,
    inverse,
    real_kinds,
    weight_of,
)


def evidence(estimates, precision=1e8, labels=None, by_degrees=True, squares=None, degrees=None):
    m, q = estimates.shape
    information = np.broadcast_to(precision * np.eye(q), (m, q, q)).copy()
    labels = np.zeros(m, dtype=int) if labels is None else labels
    names = tuple(map(str, range(m)))
    every = np.ones(q, dtype=bool)
    return SiteEvidence(
        names, np.full(m, 10.0), estimates, information, labels, every, by_degrees, squares, degrees
    )


def test_without_sampling_error_the_law_is_hotellings():
    """A new point beside m - 1 others with a covariance of m - 2 degrees of freedom.

    But for the error of the others' centre, which is taken from the spread of all of them.
    """
    m, q = 25, 3
    points = np.random.default_rng(0).normal(size=(m, q)) @ np.diag([1.0, 2.0, 0.3])
    found = judge(evidence(points), 0.05, "holm")
    for k in (0, 7, 24):
        others = np.delete(points, k, axis=0)
        off = points[k] - others.mean(axis=0)
        square = off @ np.linalg.solve(np.cov(others.T), off) / (1 + 1 / (m - 1))
        ratio = square * (m - 1 - q) / (q * (m - 2))
        assert np.exp(found.where[k]) == pytest.approx(stats.f.sf(ratio, q, m - 1 - q), rel=0.02)


def test_noise_is_judged_by_the_f_test():
    rng = np.random.default_rng(1)
    m, n = 12, 9
    squares, degrees = rng.chisquare(n, m), np.full(m, float(n))
    quiet = evidence(np.zeros((m, 1)), squares=squares, degrees=degrees)
    found = judge(quiet, 0.05, "holm")
    for k in range(m):
        rest = (squares.sum() - squares[k]) / (n * (m - 1))
        below = stats.f.cdf(squares[k] / n / rest, n, n * (m - 1))
        assert np.exp(found.noise[k]) == pytest.approx(2 * min(below, 1 - below), rel=1e-9)


def test_taking_a_site_away_is_summing_over_the_others():
    rng = np.random.default_rng(2)
    m, q = 9, 2
    estimates, spread = rng.normal(size=(m, q)), 0.3 * np.eye(q)
    sampling = np.array([a @ a.T for a in rng.normal(size=(m, q, q))])
    kind = _Kind(estimates, sampling, spread, np.ones(m, dtype=bool))
    scatter, expected, free = kind.without()
    for k in (0, 5):
        rest = np.arange(m) != k
        w = kind.weights[rest]
        off = estimates[rest] - w @ estimates[rest] / w.sum()
        inside = w - w**2 / w.sum()
        assert scatter[k] == pytest.approx(np.einsum("m,mi,mj->ij", w, off, off))
        assert expected[k] == pytest.approx(np.einsum("m,mij->ij", inside, sampling[rest]))
        assert free[k] == pytest.approx(inside.sum())


def test_a_weight_is_an_inverse_and_needs_none():
    a = np.random.default_rng(3).normal(size=(4, 4))
    J, D = a @ a.T, np.diag([0.1, 2.0, 0.0, 1.0])
    assert weight_of(J[None], D)[0] == pytest.approx(np.linalg.inv(np.linalg.inv(J) + D))
    half = np.diag([2.0, 0.0])
    assert weight_of(half[None], np.eye(2))[0] == pytest.approx(np.diag([1 / (1 / 2 + 1), 0.0]))


def test_a_site_that_tells_of_one_direction_is_judged_in_it_alone():
    points = np.random.default_rng(4).normal(size=(12, 2))
    told = evidence(points, 4.0, by_degrees=False)
    told.information[3] = np.diag([4.0, 0.0])
    told.estimates[3] = [0.0, 1e6]
    found = judge(told, 0.05, "holm")
    assert found.distances.rank[3] == 1
    assert not found.odd[3]


@pytest.mark.parametrize("method", ["holm", "bh"])
def test_adjusted_p_values_are_those_of_statsmodels(method):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(5).uniform(size=20) ** 3
    theirs = multitest.multipletests(p, method={"holm": "holm", "bh": "fdr_bh"}[method])[1]
    ours = adjusted(np.append(np.log(p), np.nan), method)
    assert ours[:-1] == pytest.approx(theirs)
    assert np.isnan(ours[-1])


def test_a_kind_of_one_site_is_none():
    labels = np.array([0, 0, 1, 2, 2, -1])
    assert list(real_kinds(labels, np.ones(6, dtype=bool))) == [0, 0, -1, 1, 1, -1]
    assert list(real_kinds(np.arange(3), np.ones(3, dtype=bool))) == [0, 0, 0]


def test_odd_sites_do_not_hide_each_other():
    points = np.random.default_rng(6).normal(size=(30, 2))
    points[:5] += 40.0
    found = judge(evidence(points), 0.05, "holm")
    assert list(np.flatnonzero(found.odd)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0])
def test_p_values_of_clean_sites_are_what_they_say(spread):
    """Of 1200 sites 60 are below .05; four standard deviations are 30."""
    below = 0
    for seed in range(40):
        rng = np.random.default_rng([7, seed])
        noise = 0.5 * rng.normal(size=(30, 2))
        told = evidence(spread * rng.normal(size=(30, 2)) + noise, 4.0)
        below += (judge(told, 0.05, "holm").pvalue < 0.05).sum()
    assert 30 <= below <= 90


def test_scores_are_normal_deviates_that_do_not_end():
    points = np.random.default_rng(8).normal(size=(20, 1))
    points[0] = 1e6
    found = judge(evidence(points), 0.05, "holm")
    assert np.isfinite(found.score).all()
    assert found.score[3] == pytest.approx(-stats.norm.ppf(found.pvalue[3]))
    assert found.score[0] > 8


def test_units_of_the_parameters_do_not_matter():
    points = np.random.default_rng(9).normal(size=(20, 2))
    turn = np.array([[2.0, 1.0], [0.0, 1000.0]])
    plain = evidence(points, 9.0)
    back = np.linalg.inv(turn)
    other = plain._replace(estimates=points @ turn.T, information=back.T @ plain.information @ back)
    a, b = (judge(e, 0.05, "holm") for e in (plain, other))
    assert inverse(other.information)[0] == pytest.approx(turn @ turn.T / 9.0)
    counts, labels = np.ones(20, dtype=bool), np.zeros(20, dtype=int)
    first, second = (distances(e, e.information, labels, counts) for e in (plain, other))
    assert second.square == pytest.approx(first.square, rel=0.02)
    assert (a.odd == b.odd).all()
