"""What FedGrEM's server makes of given replies, by closed forms."""

import numpy as np
import pytest

from fedkin.algorithms.mixtures import sites
from fedkin.algorithms.mixtures.families import family_of
from fedkin.algorithms.mixtures.fedgrem import FedGrem, FedGremSettings
from fedkin.federation import Federation
from fedkin.protocol import Roster
from fedkin.randomness import KeyRing


def server(rows, settings, **replies):
    """A server that has heard these replies of every site."""
    m = len(rows)
    made = FedGrem(FedGremSettings(n_components=2, **settings), Roster(tuple(map(str, range(m)))))
    made.last.put(np.arange(m), {"rows": np.asarray(rows, dtype=float), **replies})
    return made


@pytest.mark.parametrize("boast", [1.0, 100.0, 1e6])
def test_a_common_covariance_does_not_depend_on_how_rows_are_spread(boast):
    """Every site has the same covariance; one has, or claims, very many rows."""
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    rows = np.array([40.0, 60.0, 50.0, 50.0 * boast, 30.0])
    components = np.random.default_rng(0).normal(size=(5, 2, 2))
    scatter = rows[:, None, None] * covariance
    one = server(rows, {"covariance_type": "tied"}, components=components, scatter=scatter)
    np.testing.assert_allclose(one.pooled_covariance(), covariance, rtol=1e-10)


def test_sites_move_to_the_centre_by_the_papers_penalty_over_the_root_of_their_rows():
    """B.1: lambda = C sqrt(p + log m) + kappa_0 lambda before; a far site moves by its radius."""
    m, p = 50, 3
    components = np.zeros((m, 2, p))
    components[7] = 1e3
    one = server(np.full(m, 16.0), {"shrinkage": "paper"}, components=components)
    penalty = 1.0
    for _ in range(3):
        one.combine()
        penalty = 0.1 * penalty + 2.0 * np.sqrt(p + np.log(m))
        moved = np.linalg.norm(one.shared[7] - components[7], axis=-1)
        np.testing.assert_allclose(moved, penalty / 4.0)


def test_shared_weights_of_sites_that_differ_by_more_than_chance_stay_their_own():
    """Shares of .90 to .99 of 1,000 rows have standard errors below .01."""
    large = np.linspace(0.90, 0.99, 20)
    weights = np.column_stack([large, 1 - large])
    one = server(np.full(20, 1000.0), {"share_weights": True}, weights=weights)
    assert np.abs(one._shrunk_weights() - weights).max() < 0.006


def test_a_mini_batch_stands_for_all_rows_of_its_site():
    """Rows of 1 and -1 about zero: every one adds 1 to the scatter, 5 rows tell of all 40."""
    family = family_of(FedGremSettings(n_components=1, covariance_type="tied"))
    clients = Federation.from_clients([np.tile([[1.0], [-1.0]], (20, 1))])
    batch = family.prepare(clients).batch(KeyRing(("a",), 0).at(1), 5)
    fit = np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    statistics = family.expect(batch, fit)
    reply = {"rows": np.array([40.0])}
    made = sites.with_optional(reply, ("scatter",), family, batch, statistics, fit)
    np.testing.assert_allclose(made["scatter"], [[[40.0]]])
