"""What people call stays what it was: names, order and defaults of all public parameters."""

import inspect

import pytest

import fedkin
from tests.arguments.signatures import NAMES, frozen, lines_of

every_estimator = pytest.mark.parametrize("name", NAMES)


def test_every_public_estimator_is_frozen():
    assert tuple(frozen()) == NAMES


@every_estimator
def test_signatures_are_the_frozen_ones(name):
    """If the change is meant: `python -m tests.arguments.signatures`, and a line in CHANGELOG."""
    assert lines_of(name) == frozen()[name]


@every_estimator
def test_all_parameters_but_the_first_go_by_their_name(name):
    parameters = list(inspect.signature(getattr(fedkin, name)).parameters.values())
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])
    with pytest.raises(TypeError, match="positional"):
        getattr(fedkin, name)(parameters[0].default, parameters[1].default)


def test_a_second_word_is_no_longer_taken_for_whatever_comes_second():
    with pytest.raises(TypeError, match="positional"):
        fedkin.FedGrEM(3, "diag")
