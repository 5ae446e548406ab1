"""What people call stays what it was: names and defaults of all public parameters."""

import inspect

import pytest
from tests.arguments.signatures import FROZEN, NAMES, file_of, signatures_of

import fedkin

every_estimator = pytest.mark.parametrize("name", NAMES)


@every_estimator
def test_signatures_are_the_frozen_ones(name):
    """If it is new or the change is meant: `python -m tests.arguments.signatures <name>`."""
    assert file_of(name).exists(), "run: python -m tests.arguments.signatures " + name
    frozen = file_of(name).read_text(encoding="utf-8").splitlines()
    assert signatures_of(name) == frozen


def test_no_estimator_has_gone():
    assert {path.stem for path in FROZEN.glob("*.txt")} <= set(NAMES)


@every_estimator
def test_all_parameters_but_the_first_go_by_their_name(name):
    parameters = list(inspect.signature(getattr(fedkin, name)).parameters.values())
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])
    with pytest.raises(TypeError, match="positional"):
        getattr(fedkin, name)(parameters[0].default, parameters[1].default)


def test_a_second_word_is_no_longer_taken_for_whatever_comes_second():
    with pytest.raises(TypeError, match="positional"):
        fedkin.FedGrEM(3, "diag")
