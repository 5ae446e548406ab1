"""What clipping leaves of a normal row, by integration; and the least variance of a client."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2

from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models.latent_classes import clipped_share


@pytest.mark.parametrize("n_features", [1, 2, 7])
@pytest.mark.parametrize("clip", [0.3, 1.0, 2.5, 6.0])
def test_the_clipped_share_is_an_expectation(n_features, clip):
    law = chi2(n_features)
    inside = quad(lambda square: square * law.pdf(square), 0.0, clip**2)[0]
    expected = (inside + clip**2 * law.sf(clip**2)) / n_features
    assert clipped_share(clip, n_features) == pytest.approx(expected, rel=1e-6)


def test_the_least_variance_is_a_millionth_of_the_mean_variance_of_a_column():
    """The same for many columns as for few."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 6)) * [1.0, 2.0, 0.5, 1.0, 3.0, 0.1]
    for rows in (X, X[:, :1]):
        found = gaussian.smallest_variance(gaussian.prepare(Federation.from_clients([rows])))
        assert found[0] == pytest.approx(1e-6 * rows.var(axis=0).mean())
