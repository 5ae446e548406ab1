"""Which way a client goes; costs are constants, so no clock is read here."""

import numpy as np
import pytest

from fedkin.models.matern_states import SMOOTHNESS
from fedkin.models.state_choice import walk_is_faster


@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@pytest.mark.parametrize(
    ("n_clients", "low", "high"), [(1, 256, 600), (100, 32, 100), (2000, 8, 64)]
)
def test_the_break_even_falls_with_the_number_of_clients(smoothness, n_clients, low, high):
    def walked(n):
        return walk_is_faster(np.full(n_clients, n), smoothness).all()

    assert not walked(low) and walked(high)


def test_every_client_is_judged_with_those_of_its_size():
    sizes = np.array([0, 5, 20_000, 9, 30_000])
    assert walk_is_faster(sizes, 1.5).tolist() == [False, False, True, False, True]


def test_nobody_is_no_trouble():
    assert walk_is_faster(np.zeros(0, dtype=np.intp), 0.5).shape == (0,)
