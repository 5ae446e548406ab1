"""A site's curve from one prior for all: conditioned on its rows, or known of it without any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models.gp_posterior import SiteCurve
from fedkin.models.gp_rows import Normalize, input_frame, standardisation, target_size
from fedkin.models.kernels import Form

# Up to so many rows a row left out is left out of the site's standardisation, too.
FEW_ROWS = 20


@dataclass(frozen=True)
class CurvePlan:
    """How rows become a curve: kernel's form, standardisation, mean function, large sites.

    `target` (4,) is what is known of a typical site: location and scale of its standardisation,
    variance of locations between sites, and of the standardised target.
    """

    form: Form
    target: Floats
    normalize_y: Normalize = True
    mean: str = "constant"
    max_points: int = 500
    large: str = "neighbours"

    def without_rows(self, theta: Floats, weights: Floats, n_features: int) -> SiteCurve:
        """What is known of a site without rows."""
        location, scale, between, _ = map(float, self.target)
        return SiteCurve(
            form=self.form,
            theta=theta,
            weights=weights,
            X=np.zeros((0, n_features)),
            y=np.zeros(0),
            location=location,
            scale=scale,
            between=between,
        )

    def given(self, site: Federation, theta: Floats, weights: Floats) -> SiteCurve:
        """The curve of one site given its rows."""
        X, y = site.client(0)
        assert y is not None
        location, scale, varies = standardisation(site, self.normalize_y, self.mean)
        least = 0.0
        if not varies[0]:
            # What the site's targets do not tell of their size, the population's do.
            location, scale = self.target[:1], self.target[1:2]
            least = float(np.sqrt(self.target[3]))
        return SiteCurve(
            form=self.form,
            theta=theta,
            weights=weights,
            X=X,
            y=y,
            location=float(location[0]),
            scale=float(scale[0]),
            mean=self.mean,
            frame=np.concatenate(input_frame(site)),
            size=max(float(target_size(site, (y - location) / scale)[0]), least),
            max_points=self.max_points,
            large=self.large,
        )

    def as_new(self, site: Federation, theta: Floats, weights: Floats) -> float:
        """Log density of all targets of one site as if none of it were known."""
        X, y = site.client(0)
        assert y is not None
        return self.without_rows(theta, weights, X.shape[1]).joint_log_density(X, y)

    def left_out(self, site: Federation, theta: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Expected value and log density of each of a site's targets given its others, (n,).

        Of large sites those of a subset.
        """
        X, y = site.client(0)
        assert y is not None
        if len(X) > FEW_ROWS:
            return self.given(site, theta, weights).left_out()
        mean, density = np.empty(len(X)), np.empty(len(X))
        for j, kept in enumerate(~np.eye(len(X), dtype=bool)):
            curve = self.without_rows(theta, weights, X.shape[1])
            if len(X) > 1:
                curve = self.given(_one_site(X[kept], y[kept]), theta, weights)
            one = X[j : j + 1], y[j : j + 1]
            mean[j], density[j] = curve.predict(one[0])[0][0], curve.log_density(*one)[0]
        return mean, density


def _one_site(X: Floats, y: Floats) -> Federation:
    return Federation(X, np.array([0, len(X)]), ("site",), y)
