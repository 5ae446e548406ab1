"""When the labels of a site are in doubt, worked out by hand."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2

from fedkin.alignment import CLEAR_ODDS, _another_within, align


def odds_of_swapping(distance, sites):
    """How many times less likely a site's other labelling is, from the scatter of two sites.

    The variance of two numbers is with one degree of freedom; what half of normal rows stay below
    is the median of chi-squared.
    """
    variance = sites.var(axis=0, ddof=1).mean() / chi2.median(1)
    return np.exp(2 * distance**2 / (2 * variance))


@pytest.mark.parametrize("distance", [2.7, 3.5, 3.8, 5.0])
def test_two_sites_know_that_their_middle_is_drawn_to_them(distance):
    """Each lies 1 from the middle of both, though they scatter by the root of two."""
    sites = np.array([[[1.0], [distance + 1.0]], [[-1.0], [distance - 1.0]]])
    assert align(sites).ambiguous.all() == (odds_of_swapping(distance, sites) < CLEAR_ODDS)


def test_another_labelling_within_the_slack_is_found_whatever_its_steps():
    """Brute force over all labellings, also where no single step is cheap."""
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(4, 2))
    aligned = reference + 0.3 * rng.normal(size=(200, 4, 2))
    gaps = []
    for site in aligned:
        own = ((site - reference) ** 2).sum()
        swapped = [
            ((site[list(order)] - reference) ** 2).sum() - own
            for order in permutations(range(4))
            if order != (0, 1, 2, 3)
        ]
        gaps.append(min(swapped))
    for factor, within in ((1 + 1e-9, True), (1 - 1e-9, False)):
        slack = np.abs(gaps) * factor
        found = _another_within(aligned, reference, slack)
        assert (found[np.array(gaps) > 0] == within).all()
