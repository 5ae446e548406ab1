import numpy as np
import pytest

from fedkin import FMLR, Federation
from fedkin.datasets import make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF

GROUPS = make_regression_groups(8, 6, PAPER_COEF[2], random_state=0)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"share": "rows"}, "share must be one of 'statistics', 'sums', not 'rows'"),
        ({"weights": "learnt"}, "weights must be one of"),
        ({"init": "magic"}, "init must be one of"),
        ({"init": "ridge", "share": "sums"}, "needs every site's own fit"),
        ({"n_components": 0}, "n_components must be at least 1"),
        ({"n_components": 9}, "n_components=9 needs at least as many sites with rows; there are 8"),
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"fraction": 0.0}, "fraction must be above 0"),
        ({"init": np.ones((2, 5))}, "needs n_components"),
        ({"init": np.ones((2, 3)), "n_components": 2}, r"init has shape \(2, 3\); expected \(2 co"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_remedy(parameters, complaint):
    with pytest.raises(ValueError, match=complaint):
        FMLR(**parameters).fit(GROUPS.federation)


def test_data_are_needed_unless_an_engine_has_them():
    with pytest.raises(ValueError, match="fit needs data"):
        FMLR().fit()
    with pytest.raises(ValueError, match="requires y"):
        FMLR().fit(Federation.from_clients([np.ones((3, 2))]))


def test_bad_values_name_their_site():
    X = np.ones((4, 2))
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="site 'B': column 'x1' has 1 of 2 values missing"):
        FMLR().fit(X, np.ones(4), groups=["A", "A", "B", "B"])


def test_prediction_needs_the_columns_of_the_fit():
    fitted = FMLR(2, random_state=0).fit(GROUPS.federation)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(np.ones((3, 4)))
    with pytest.raises(ValueError, match="groups must name a site"):
        fitted.predict(np.ones((3, 5)), groups=["1"])
