"""The small cloud of a common curve's parameters, beside a long chain through all of them.

Fifteen rows leave open whether a part is there at all. Clouds around modes at zero did not hear of
it: errors on orange trees were 1.3 times those of straight lines, and a chain's were below them.
"""

import numpy as np
import pytest

from fedkin.algorithms import fgpr_common
from fedkin.estimators import FGPR
from fedkin.federation import Federation
from fedkin.models.common_dense import Rows, dense_posterior, dense_value
from fedkin.models.common_site import form_of
from fedkin.models.gp_priors import common_priors, penalty

KIND = (2.5, 2.5)
ASKED = np.linspace(0.0, 6.0, 7)[:, None]
WALKERS, STEPS, BURNT, KEPT = 40, 900, 300, 20


def fan(seed):
    """Five sites of three rows whose nearly straight curves fan out."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(5):
        x = rng.choice(np.arange(7.0), 3, replace=False)
        y = (1.0 + 0.15 * (k - 2)) * (3.0 + 2.0 * x - 0.05 * x**2) + 0.4 * rng.normal(size=3)
        clients.append((x[:, None], y))
    return Federation.from_clients(clients)


def chain(form, rows, start, seed=0):
    """Parameters (S, p) drawn from their posterior by the stretches of Goodman and Weare (2010)."""
    priors, rng, p = common_priors(form.names, 1), np.random.default_rng(seed), len(start)

    def log_posterior(theta):
        if np.abs(theta).max() > 15.0:
            return -np.inf
        return -dense_value(form, theta, rows)[0] - float(penalty(priors, theta)[0])

    walkers = start + 0.3 * rng.normal(size=(WALKERS, p))
    logs, kept = np.array([log_posterior(theta) for theta in walkers]), []
    for step in range(STEPS):
        for half in (0, 1):
            mine, others = np.arange(half, WALKERS, 2), np.arange(1 - half, WALKERS, 2)
            stretch = (1.0 + rng.random(len(mine))) ** 2 / 2.0
            fixed = walkers[rng.choice(others, len(mine))]
            moved = fixed + stretch[:, None] * (walkers[mine] - fixed)
            found = np.array([log_posterior(theta) for theta in moved])
            gain = (p - 1) * np.log(stretch) + found - logs[mine]
            taken = np.log(rng.random(len(mine))) < gain
            walkers[mine[taken]], logs[mine[taken]] = moved[taken], found[taken]
        if step >= BURNT and step % KEPT == 0:
            kept.append(walkers.copy())
    return np.concatenate(kept)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cloud_averages_as_a_long_chain_does(seed, monkeypatch):
    monkeypatch.setattr(fgpr_common, "OWN_SMOOTHNESS", KIND[1:])
    monkeypatch.setattr(fgpr_common, "_other_kinds", lambda best, d: np.zeros((0, len(best))))
    data = fan(seed)
    shared = FGPR(common=True).fit(data)._result.shared
    form = form_of(shared.kinds[0], shared.places)
    rows = Rows(shared.units.rows(data.X), shared.units.targets(data.y), data.owner)
    drawn = chain(form, rows, shared.weights @ shared.theta)
    asked = np.tile(shared.units.rows(ASKED), (len(data), 1))
    owner = np.repeat(np.arange(len(data)), len(ASKED))

    def averaged(theta, share):
        """Mean and standard deviation of sites' curves, each by itself."""
        found = [dense_posterior(form, one, rows, asked, owner) for one in theta]
        means, variances = map(np.array, zip(*((m, np.diagonal(C)) for m, C in found)))
        mean = share @ means
        return mean, np.sqrt(share @ (variances + (means - mean) ** 2))

    mean, spread = averaged(shared.theta, shared.weights)
    expected, exact = averaged(drawn, np.full(len(drawn), 1.0 / len(drawn)))
    # Three chains are .02 to .06 apart, the cloud .10 to .17 from them, its best point .23 to .41.
    assert np.sqrt(np.mean(((mean - expected) / exact) ** 2)) < 0.2
    assert 0.75 < float(np.exp(np.mean(np.log(spread / exact)))) < 1.25
