"""Meta-analysis against published metafor results and statsmodels."""

import numpy as np
import pytest
from statsmodels.stats.meta_analysis import combine_effects

from fedkin.inference import meta_analysis, site_estimates

# BCG vaccine trials (Colditz et al. 1994), metafor's dat.bcg: tpos, tneg, cpos, cneg.
BCG = np.array(
    [
        [4, 119, 11, 128],
        [6, 300, 29, 274],
        [3, 228, 11, 209],
        [62, 13536, 248, 12619],
        [33, 5036, 47, 5761],
        [180, 1361, 372, 1079],
        [8, 2537, 10, 619],
        [505, 87886, 499, 87892],
        [29, 7470, 45, 7232],
        [17, 1699, 65, 1600],
        [186, 50448, 141, 27197],
        [5, 2493, 3, 2338],
        [27, 16886, 29, 17825],
    ],
    dtype=float,
)


def bcg():
    """Log relative risks and their standard errors: escalc(measure="RR")."""
    a, b, c, d = BCG.T
    errors = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    return np.log(a / (a + b)) - np.log(c / (c + d)), errors


def test_published_results_of_metafor():
    """rma(yi, vi, data=dat) and confint() as in metafor's manual (Viechtbauer 2010)."""
    found = meta_analysis(*bcg())
    assert found.pooled.estimate == pytest.approx(-0.7145, abs=5e-5)
    assert found.pooled.error == pytest.approx(0.1798, abs=5e-5)
    assert (found.pooled.low, found.pooled.high) == pytest.approx((-1.0669, -0.3622), abs=5e-5)
    assert found.tau2 == pytest.approx(0.3132, abs=5e-5)
    assert (found.tau2_low, found.tau2_high) == pytest.approx((0.1197, 1.1115), abs=5e-5)
    assert pytest.approx(92.22, abs=5e-3) == found.I2 and pytest.approx(12.86, abs=5e-3) == found.H2
    assert pytest.approx(152.2330, abs=5e-5) == found.Q and found.Q_chance < 1e-4


@pytest.mark.parametrize(("ours", "theirs"), [("DL", "chi2"), ("PM", "iterated")])
def test_statsmodels_agrees(ours, theirs):
    estimates, errors = bcg()
    found = meta_analysis(estimates, errors, method=ours)
    other = combine_effects(estimates, errors**2, method_re=theirs, atol=1e-12)
    assert found.tau2 == pytest.approx(other.tau2, rel=1e-6)
    assert found.pooled.estimate == pytest.approx(other.mean_effect_re, rel=1e-8)
    assert found.pooled.error == pytest.approx(other.sd_eff_w_re, rel=1e-8)
    fixed = meta_analysis(estimates, errors, method="FE")
    assert fixed.pooled.estimate == pytest.approx(other.mean_effect_fe, rel=1e-10)
    assert pytest.approx(other.q, rel=1e-10) == fixed.Q


def test_reml_is_the_maximum_of_the_restricted_likelihood():
    estimates, errors = bcg()
    v = errors**2

    def loglik(tau2):
        w = 1 / (v + tau2)
        mean = w @ estimates / w.sum()
        return -0.5 * (np.log(v + tau2).sum() + np.log(w.sum()) + w @ (estimates - mean) ** 2)

    best = meta_analysis(estimates, errors).tau2
    assert loglik(best) > max(loglik(best * 1.001), loglik(best * 0.999))


def test_alike_sites_have_no_variance_between():
    found = meta_analysis(np.full(6, 2.0), np.full(6, 0.5))
    assert found.tau2 == 0.0 and found.I2 == 0.0 and pytest.approx(0.0, abs=1e-20) == found.Q
    assert found.pooled.error == pytest.approx(0.5 / np.sqrt(6))


def test_prediction_intervals_hold_further_sites():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(200):
        true = rng.normal(1.0, 0.5, size=41)
        found = meta_analysis(true[:40] + rng.normal(0, 0.2, 40), np.full(40, 0.2))
        held.append(found.prediction[0] <= true[40] <= found.prediction[1])
    assert 0.9 <= np.mean(held) <= 0.99


def test_leaving_one_out_is_the_analysis_of_the_others():
    estimates, errors = bcg()
    table = meta_analysis(estimates, errors, [f"trial {k}" for k in range(13)]).leave_one_out()
    again = meta_analysis(np.delete(estimates, 3), np.delete(errors, 3))
    assert table["estimate"][3] == pytest.approx(again.pooled.estimate)
    assert table["without"][3] == "trial 3"


def test_own_estimates_of_sites_are_least_squares_with_its_errors():
    import statsmodels.api as sm

    rng = np.random.default_rng(1)
    X, groups = rng.normal(size=(33, 2)), np.repeat(["a", "b", "c"], [20, 10, 3])
    y = X @ [1.0, 2.0] + rng.normal(size=33)
    names, coef, error = site_estimates(X, y, groups)
    fit = sm.OLS(y[:20], np.column_stack([X[:20], np.ones(20)])).fit()
    np.testing.assert_allclose(coef[0], fit.params)
    np.testing.assert_allclose(error[0], fit.bse)
    assert names == ("a", "b", "c") and np.isnan(coef[2]).all()
    assert meta_analysis(coef[:, 0], error[:, 0], names).names == ("a", "b")


def test_pictures_tables_and_asymmetry():
    found = meta_analysis(*bcg())
    assert len(found.table().rows()) == 13 and "tau^2" in str(found)
    assert found.table()["weight %"].sum() == pytest.approx(100.0)
    assert found.forest().get_yticklabels() and found.funnel().get_xlabel() == "estimate"
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.1, 1.0, size=200)
    skewed = meta_analysis(2.0 * errors + errors * rng.normal(size=200), errors)
    assert skewed.asymmetry()[1] < 0.01


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0, 2.0], [1.0, 1.0], None, "ML"), "method"),
        (([1.0], [1.0]), "two sites"),
        (([1.0, 2.0], [1.0]), "alike"),
        (([1.0, np.nan], [1.0, 1.0]), "two sites"),
    ],
)
def test_what_cannot_be_is_said(arguments, words):
    with pytest.raises(ValueError, match=words):
        meta_analysis(*arguments)
