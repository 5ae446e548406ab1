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
        ({"n_components": 2.5}, "n_components must be a whole number, not 2.5"),
        ({"n_components": True}, "n_components must be a whole number"),
        ({"n_restarts": 0}, "n_restarts must be at least 1"),
        ({"max_rounds": 0}, "max_rounds must be at least 1"),
        ({"max_components": 0}, "max_components must be at least 1"),
        ({"max_components": "4"}, "max_components must be a whole number"),
        ({"fraction": 0.5}, "fraction is for share='sums'"),
        ({"n_components": 9}, "n_components=9 needs at least as many sites with rows; there are 8"),
        ({"sigma": 0.0}, "sigma must be above 0"),
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


def test_missing_outcomes_name_their_site():
    y = np.array([1.0, 2.0, np.nan, 4.0])
    with pytest.raises(ValueError, match="site 'B': target 'y' has 1 of 2 values missing"):
        FMLR().fit(np.eye(4), y, groups=["A", "A", "B", "B"])
    with pytest.raises(ValueError, match="y must hold one number per row"):
        FMLR().fit(np.eye(4), y[:3], groups=["A", "A", "B", "B"])


def test_one_name_for_all_rows_is_no_fit():
    with pytest.raises(ValueError, match=r"name a site for each row.*Federation\.from_frame"):
        FMLR().fit(np.eye(4), np.ones(4), groups="clin")


def test_a_new_site_needs_a_name_and_the_columns_of_the_fit():
    fitted = FMLR(2, random_state=0).fit(GROUPS.federation)
    with pytest.raises(ValueError, match="adapt needs the name of the site"):
        fitted.adapt(np.ones((3, 5)), np.ones(3))
    with pytest.raises(ValueError, match="the fit had 5 features, not 4"):
        fitted.adapt(Federation.from_clients({"new": (np.ones((3, 4)), np.ones(3))}))
    with pytest.raises(ValueError, match="4 features"):
        fitted.adapt(np.ones((3, 4)), np.ones(3), groups="new")
    with pytest.raises(ValueError, match="row 2 has no site name"):
        fitted.predict(np.ones((2, 5)), groups=["new", None])


def test_a_federation_with_other_columns_is_refused_by_name():
    fitted = FMLR(1).fit(_named(["age", "bmi"]))
    for use in (fitted.predict, fitted.adapt):
        with pytest.raises(ValueError, match=r"columns differ .* lacks bmi has besides weight"):
            use(_named(["age", "weight"]))
        with pytest.raises(ValueError, match=r"columns differ .* has besides weight"):
            use(_named(["age", "bmi", "weight"]))


def _named(columns):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, len(columns))), rng.normal(size=12)
    return Federation.from_groups(X, np.arange(12) % 3, y, feature_names=columns)
