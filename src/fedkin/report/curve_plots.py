"""Pictures of site curves for a page; they live with the estimators, whose `plot` draws them."""

from fedkin.estimators.curve_plots import calibration, convergence, posterior_bands, prior_samples

__all__ = ["calibration", "convergence", "posterior_bands", "prior_samples"]
