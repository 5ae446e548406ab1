"""Pictures are drawn and hold what they say."""

import numpy as np
import pytest

from fedkin.datasets import make_gaussian_sites
from fedkin.estimators import (
    FGPR,
    CoKriging,
    FedAvgPolynomial,
    LocalGP,
    PooledGP,
    curve_plots,
)
from fedkin.federation import Federation


@pytest.fixture(scope="module")
def fitted():
    sites = make_gaussian_sites(10, 12, n_held_out=20, random_state=1)
    return FGPR(normalize_y="mean").fit(sites.federation), sites


def test_bands_are_drawn_over_the_data(fitted):
    model, sites = fitted
    axes = curve_plots.posterior_bands(model, sites.federation, "site-3")
    assert axes.get_title() == "site-3" and len(axes.lines[1].get_xdata()) == 12
    with pytest.raises(ValueError, match="no site 'x'"):
        curve_plots.posterior_bands(model, sites.federation, "x")


def test_sites_with_numbers_for_names_are_drawn(fitted):
    _, sites = fitted
    data = Federation.from_clients({k: sites.federation.client(k) for k in range(3)})
    model = FGPR(personalise="posterior").fit(data)
    for name in (0, 0.0, np.int64(0), "0"):
        assert curve_plots.posterior_bands(model, data, name).get_title() == "0"


def test_prior_samples_are_as_many_as_asked_for(fitted):
    assert len(curve_plots.prior_samples(fitted[0], 0, 1, 4).lines) == 4


def test_convergence_has_a_line_for_every_parameter(fitted):
    assert len(curve_plots.convergence(fitted[0]).lines) == fitted[0].theta_.size


def test_a_model_of_the_truth_lies_near_the_diagonal(fitted):
    model, sites = fitted
    held = curve_plots.calibration(model, sites.held_out).lines[1]
    assert np.abs(np.asarray(held.get_ydata()) - held.get_xdata()).max() < 0.15


EVERY_KIND = ("bands", "samples", "convergence", "calibration")
BY_SITE = ("bands", "calibration")


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (FGPR(), EVERY_KIND),
        (PooledGP(), EVERY_KIND),
        (LocalGP(), BY_SITE),
        (CoKriging(), BY_SITE),
        (FedAvgPolynomial(3), BY_SITE),
    ],
    ids=str,
)
def test_plot_draws_every_kind_and_refuses_others(fitted, model, kinds):
    data = fitted[1].federation.take([0, 1, 2])
    model.fit(data)
    given = data if model._data is None else None
    for kind in kinds:
        axes = model.plot(kind, data=given)
        assert axes.lines
        assert model.plot(kind, axes, data=data) is axes
    assert model.plot("bands", site="site-2", data=data).get_title() == "site-2"
    for kind in {"path", *EVERY_KIND} - {*kinds}:
        with pytest.raises(ValueError, match="kind must be one of 'bands'"):
            model.plot(kind)


def test_rows_that_are_elsewhere_must_be_given(fitted, tmp_path):
    model, sites = fitted
    away = FGPR.load_shared(model.save_shared(tmp_path / "prior.npz"))
    assert away.plot("convergence").get_xlabel() == "evaluation"
    with pytest.raises(ValueError, match=r"give them: plot\('bands', data=...\)"):
        away.plot("bands")
    assert away.plot("bands", data=sites.federation).lines
