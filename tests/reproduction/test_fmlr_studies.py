"""What survives of FMLR's figures and theorems at toy size: orderings and rates only."""

import numpy as np
import pytest

from reproduction.fmlr_contraction import theory_rate
from reproduction.fmlr_empty import empty_share
from reproduction.fmlr_errors import claims, over_known
from reproduction.fmlr_plans import PLANS, labels_known_constant, truth
from reproduction.study import Results

FIGURES = tuple(PLANS)


@pytest.mark.parametrize(
    "name",
    [
        "fmlr-figure-1",
        "fmlr-from-scratch",
        "fmlr-spoilt-sites",
        "fmlr-kinds-and-degrees",
        "fmlr-noise-of-sites",
        "fmlr-intervals",
        "fmlr-real-sites",
    ],
)
def test_promises_hold_at_toy_size(kept_promises, name):
    # A slope over two numbers of sites says nothing.
    assert kept_promises(name, but="slope" if name == "fmlr-figure-1" else None)


@pytest.fixture(scope="module")
def figures(toy):
    return {k: toy(f"fmlr-figure-{k}") for k in FIGURES}


@pytest.mark.parametrize("figure", FIGURES)
def test_more_sites_mean_less_error(figures, figure):
    for curve in PLANS[figure].curves:
        errors = curve.of(figures[figure]).curve("m", "error")[1]
        assert errors[-1] < errors[0]


def test_em_is_as_good_as_labels_known_when_sites_have_ten_rows(figures):
    found = figures[1].where(setting=10)
    error, known = (found.estimate(name).mean for name in ("error", "known_labels"))
    assert error == pytest.approx(known, rel=0.01)


def test_error_grows_with_the_dimension_and_the_components(figures):
    for figure, small, large in ((4, 2, 10), (3, 2, 6)):
        few, many = (figures[figure].estimate("error", setting=s).mean for s in (small, large))
        assert few < many


def test_a_weak_signal_needs_more_iterations(figures):
    weak, strong = (figures[5].estimate("iterations", setting=s).mean for s in (0.5, 8.0))
    assert weak > 2 * strong


def test_the_largest_separation_does_not_matter_once_labels_are_found(figures):
    found = figures[6].where(n=10)
    errors = [found.where(setting=s).column("error") for s in found.distinct("setting")]
    np.testing.assert_allclose(errors, np.broadcast_to(errors[0], np.shape(errors)), rtol=1e-3)


@pytest.mark.parametrize("curve", PLANS[6].curves, ids=lambda curve: curve.label)
def test_the_truths_of_figure_six_have_one_least_and_the_stated_largest_separation(curve):
    coef = truth(6, curve.setting)
    between = np.linalg.norm(coef[:, None] - coef[None], axis=-1)[np.triu_indices(3, 1)]
    assert between.min() == pytest.approx(3 * np.sqrt(5))
    assert f"Δmax = {between.max():.1f}," in curve.label


def test_the_constant_of_one_regression_is_the_mean_of_a_chi():
    # K = 1, d = 1: E|N(0, 1)|; and the larger of two chi_2 (Rayleigh) by hand.
    assert labels_known_constant(1, 1) == pytest.approx(np.sqrt(2 / np.pi))
    rayleigh = np.sqrt(np.pi / 2)
    assert labels_known_constant(2, 2) == pytest.approx(np.sqrt(2) * (2 - np.sqrt(0.5)) * rayleigh)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_curve_has_a_row_for_its_error(figures, figure):
    entries = {claim.entry for claim in claims(figures[figure], figure)}
    first = PLANS[figure].shown[0]
    assert {f"{curve.label}: error at m = {first}" for curve in PLANS[figure].curves} <= entries


def test_the_error_over_labels_known_is_a_ratio_of_means():
    rows = [{"seed": 0, "error": 2, "known_labels": 1}, {"seed": 1, "error": 4, "known_labels": 3}]
    # Residuals of the ratio 6 / 4: .25 and -.25.
    assert over_known(Results(rows)) == pytest.approx((1.5, 0.25, 2))


# ------------------------------------------------------------------ theorems


@pytest.fixture(scope="module")
def contraction(toy):
    return toy("fmlr-contraction")


def test_one_step_contracts_faster_than_the_theory_says_and_more_with_more_rows(contraction):
    for snr in contraction.distinct("snr"):
        for distance in contraction.distinct("distance"):
            n, factor = contraction.curve("n", "factor", snr=snr, distance=distance)
            assert (factor < 1).all() and (np.diff(factor) < 0).all()
            if distance < 0.25:
                assert (factor < np.exp(-theory_rate(distance) * n)).all()


def test_one_step_contracts_more_from_nearby_and_with_a_stronger_signal(contraction):
    for snr in contraction.distinct("snr"):
        factors = contraction.curve("distance", "factor", snr=snr, n=2)[1]
        assert (np.diff(factors) > 0).all()
    factors = contraction.curve("snr", "factor", n=2, distance=0.1)[1]
    assert (np.diff(factors) < 0).all()


def test_with_many_rows_one_step_is_enough_on_both_sides_of_the_root(toy):
    found = toy("fmlr-regimes").where(n=100)
    assert min(found.distinct("m")) < np.sqrt(100) < max(found.distinct("m"))
    assert (found.column("steps") == 1).all()


def test_with_few_rows_and_a_weak_signal_one_step_does_not_profit_from_more_sites(toy):
    found = toy("fmlr-regimes").where(n=4, snr=1.73)
    many = max(found.distinct("m"))
    end, first = (found.estimate(name, m=many).mean for name in ("error", "one_step"))
    assert many > np.exp(4) and first > 1.5 * end
    steps = found.curve("m", "steps")[1]
    assert steps[-1] > steps[0]


# ------------------------------------------------------------------ beyond the figures


def test_empty_components_are_frequent_with_three_sites_and_always_named(toy):
    found = toy("fmlr-empty-component")
    assert found.estimate("named").mean == 1
    share = {m: found.estimate("empty", m=m).mean for m in (3, 21)}
    assert share[3] > 0.5 > 0.1 > share[21]
    assert empty_share(3) == pytest.approx(1 - 6 / 27)


def test_em_finds_the_regressions_from_far_beyond_the_theory_s_quarter(toy):
    found = toy("fmlr-start-radius")
    assert max(found.distinct("radius")) > 0.25
    assert found.estimate("success").mean > 0.75


def test_noise_and_proportions_need_not_be_known(toy):
    found = toy("fmlr-nuisance")
    assert found.estimate("success").mean == 1
    assert found.estimate("sigma_error").mean < 0.05
    assert found.estimate("weights_error").mean < 0.05
