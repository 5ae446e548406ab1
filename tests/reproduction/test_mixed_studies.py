"""What survives of the mixed model's studies at toy size."""

import math

import numpy as np
import pytest

from reproduction import mixed_classes, mixed_printed
from reproduction.mixed_classes import measured
from reproduction.real_sites import split


@pytest.mark.parametrize("name", ["mixed-lme4", "mixed-counts", "mixed-poisoned"])
def test_promises_hold_at_toy_size(kept_promises, name):
    assert kept_promises(name)


def test_mixed_models_are_no_worse_than_their_peers_on_real_sites(kept_promises, toy):
    assert kept_promises("mixed-real-sites")
    errors = toy("mixed-real-sites")
    ours = errors.estimate("error", method="MixedModel").mean
    assert ours < 0.8 * errors.estimate("error", method="one model").mean


def test_quasi_likelihood_draws_the_spread_to_zero(toy):
    found = toy("mixed-bias")
    quasi, exact = (
        found.estimate("bias of the spread", method=name).mean
        for name in ("quasi-likelihood", "9 points")
    )
    assert quasi < exact - 0.05


def test_intervals_are_wider_at_new_sites_and_hold_most_targets(toy):
    found = toy("mixed-coverage")
    for noise in ("common", "own"):
        run = found.where(noise=noise)
        assert run.estimate("known sites").mean > 0.85
        assert run.estimate("new sites").mean > 0.8
        new, known = (run.estimate(f"width, {kind} sites").mean for kind in ("new", "known"))
        assert new > 1.2 * known


def test_pulled_models_beat_sites_alone_and_one_model(toy):
    found = toy("mixed-classes")
    loss = {name: found.estimate("log loss", method=name).mean for name in found.distinct("method")}
    assert loss[mixed_classes.OURS] < 0.9 * min(loss["alone"], loss["one model"])
    assert loss[mixed_classes.OURS] < 1.15 * loss["pulled to one model"]


def test_printed_digits_are_counted_in_units_of_the_last():
    assert mixed_printed.missed(24.7405, "24.741") == pytest.approx(0.5)
    assert mixed_printed.missed(1000.005, "1000.00000") == pytest.approx(0.5)


def test_probabilities_that_are_met_have_no_calibration_error():
    said = np.array([[0.75, 0.25]] * 4)
    assert measured(said, np.array([0, 0, 0, 1]))["calibration error"] == pytest.approx(0.0)
    found = measured(said, np.array([0, 1, 1, 1]))
    assert found["calibration error"] == pytest.approx(0.5) and found["error"] == 0.75
    assert found["log loss"] == pytest.approx(-(math.log(0.75) + 3 * math.log(0.25)) / 4)


def test_splits_share_no_row_and_keep_to_their_number():
    site = np.repeat(["a", "b", "c"], [10, 20, 2])
    train, test = split(site, 5, 0)
    assert not set(train) & set(test)
    assert np.unique(site[train], return_counts=True)[1].tolist() == [5, 5, 2]
    assert np.unique(site[test], return_counts=True)[1].tolist() == [3, 6]
