"""Pictures are drawn and hold what they say."""

import numpy as np
import pytest

from fedkin.datasets import make_gaussian_sites
from fedkin.estimators import FGPR
from fedkin.federation import Federation
from fedkin.report import curve_plots


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
