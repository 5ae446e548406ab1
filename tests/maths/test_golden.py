"""Results stay what they were when they were recorded; see tests/golden."""

from collections import Counter

import numpy as np
import pytest
from tests.golden.cases import CASES, PUBLIC
from tests.golden.compare import difference, differences
from tests.golden.record import outcome_of, recorded

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def golden():
    return recorded()


@pytest.mark.parametrize("case", CASES)
def test_results_are_as_recorded(case, golden):
    found = differences(golden[case], outcome_of(case), TOLERANCE)
    assert not found, "\n".join(found)


def test_every_recorded_estimator_is_still_public_and_recorded_twice(golden):
    """A new estimator has nothing to stay equal to; its oracle is in its row of the battery."""
    counts = Counter(str(found["estimator"]) for found in golden.values())
    assert set(counts) <= set(PUBLIC)
    assert min(counts.values()) >= 2


def test_every_recorded_case_is_still_there(golden):
    assert set(golden) == set(CASES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-5]),
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0]),
        ([1, 2], [1, 3]),
        ([1, 2], [1.0, 2.0]),
        ([True], [False]),
        (["a"], ["b"]),
    ],
)
def test_a_difference_is_seen(old, new):
    assert difference(np.array(old), np.array(old), TOLERANCE) is None
    assert difference(np.array(old), np.array(new), TOLERANCE)


def test_a_missing_attribute_is_a_difference_and_a_new_one_is_not():
    here = {"coef_": np.zeros(2)}
    assert differences(here, {}, TOLERANCE) == ["coef_: is missing"]
    assert not differences({}, here, TOLERANCE)
