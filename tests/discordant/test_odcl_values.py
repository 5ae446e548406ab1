"""Missing and infinite values are named by site, column, count and remedy wherever they are."""

import numpy as np
import pytest

from fedkin import FMLR, ODCL, FederationError
from fedkin.datasets import make_logistic_groups, make_sparse_regressions

DATA = make_sparse_regressions(30, n_clients=4, n_features=3, n_active=2).federation
SITES = np.array(DATA.names)[DATA.owner]
CLASSES = make_logistic_groups(60, n_clients=4, random_state=1).federation


def with_gaps(values, rows, gap=np.nan):
    spoilt = np.array(values, dtype=object if isinstance(gap, str | None) else float)
    spoilt[rows] = gap
    return spoilt


def complaint(call, *arguments):
    with pytest.raises(FederationError) as raised:
        call(*arguments)
    return str(raised.value)


@pytest.mark.parametrize("model", [ODCL(2, random_state=0), FMLR(2, random_state=0)])
def test_rows_to_predict_name_their_site(model):
    fitted = model.fit(DATA)
    X = DATA.X.copy()
    X[[31, 40], 1] = np.nan
    expected = "site '2': column 'x1' has 2 of 30 values missing; drop or impute them first (NaN)"
    assert complaint(fitted.predict, X, SITES) == expected
    assert complaint(fitted.score, X, DATA.y, SITES) == expected
    assert complaint(fitted.predict, X) == expected.replace("30", "120").removeprefix("site '2': ")
    X[[31, 40], 1] = np.inf
    expected = "column 'x1' has 2 of 120 values infinite; correct them or drop these rows first"
    assert complaint(fitted.predict, X, "new") == f"site 'new': {expected}"


def test_columns_with_names_are_named():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(DATA.X, columns=["age", "bmi", "dose"])
    fitted = ODCL(2, random_state=0).fit(table, DATA.y, SITES)
    table.loc[5, "bmi"] = np.nan
    assert "site '1': column 'bmi' has 1 of 30" in complaint(fitted.predict, table, SITES)


def test_targets_to_score_name_their_site():
    fitted = ODCL(2, random_state=0).fit(DATA)
    y = with_gaps(DATA.y, [95, 96])
    expected = "site '4': target 'y' has 2 of 30 values missing; drop or impute them first (NaN)"
    assert complaint(fitted.score, DATA.X, y, SITES) == expected
    assert complaint(fitted.score, DATA, y) == expected


def test_a_fit_to_one_site_speaks_the_same_words():
    expected = "site 'site': target 'y' has 2 of 120 values missing; drop or impute them"
    assert expected in complaint(ODCL().fit, DATA.X, with_gaps(DATA.y, [3, 4]))
    expected = "site 'site': column 'x2' has 1 of 120 values missing; drop or impute them"
    assert expected in complaint(ODCL().fit, with_gaps(DATA.X, (7, 2)), DATA.y)


@pytest.mark.parametrize("gap", [np.nan, None])
def test_missing_classes_name_their_site(gap):
    words = np.where(CLASSES.y > 0, "sick", "healthy").astype(object)
    sites = np.array(CLASSES.names)[CLASSES.owner]
    fitted = ODCL(2, loss="logistic", random_state=0).fit(CLASSES.X, words, sites)
    words[:2] = gap
    expected = "target 'y' has 2 of 60 values missing; drop or impute them"
    assert f"site '1': {expected}" in complaint(fitted.score, CLASSES.X, words, sites)
    assert f"site '1': {expected}" in complaint(fitted.fit, CLASSES.X, words, sites)
    numbers = ODCL(2, loss="logistic", random_state=0).fit(CLASSES)
    own = CLASSES.owner == 0
    y = with_gaps(CLASSES.y[own], [0, 1], gap)
    assert f"site 'new': {expected}" in complaint(numbers.adapt, CLASSES.X[own], y, "new")
