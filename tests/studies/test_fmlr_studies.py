"""What survives of FMLR's figures at toy size: orderings and rates, no exact values."""

import pytest


@pytest.fixture(scope="module")
def figures(toy):
    return {k: toy(f"fmlr-figure-{k}") for k in (1, 2, 3, 4, 5)}


@pytest.mark.parametrize("figure", [1, 2, 3, 4, 5])
def test_more_sites_mean_less_error(figures, figure):
    found = figures[figure]
    for setting in found.distinct("setting"):
        errors = found.curve("m", "error", setting=setting)[1]
        assert errors[-1] < errors[0]


def test_em_is_as_good_as_labels_known_when_sites_have_ten_rows(figures):
    assert figures[1].estimate("ratio", setting=10).mean == pytest.approx(1, abs=0.01)


def test_error_grows_with_the_dimension_and_the_components(figures):
    for figure, small, large in ((4, 2, 10), (3, 2, 6)):
        few, many = (figures[figure].estimate("error", setting=s).mean for s in (small, large))
        assert few < many


def test_a_weak_signal_needs_more_iterations(figures):
    weak, strong = (figures[5].estimate("iterations", setting=s).mean for s in (0.5, 8.0))
    assert weak > 2 * strong
