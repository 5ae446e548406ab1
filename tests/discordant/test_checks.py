"""Every check has data that raise it and clean data that do not."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest

from fedkin import Federation, MixedModel
from fedkin.checks import CHECKS, NUMBERS_AT_FIT, checks_of_table, findings_at_fit
from fedkin.estimators.mixture_checks import FEW, ORIGIN, UNITS
from fedkin.inference import CheckWarning, checks


def clean(m=8, n=25, seed=0, level=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * n, 3))
    groups = np.repeat([f"site-{k}" for k in range(m)], n)
    y = X @ [1.0, 2.0, 0.0] + np.repeat(level * rng.normal(size=m), n) + rng.normal(size=m * n)
    return X, y, groups


def with_value(value, column=0, row=3):
    X, y, groups = clean()
    X[row, column] = value
    return X, y, groups


def with_column(values, column=1):
    X, y, groups = clean()
    X[:, column] = values(X, y, groups)
    return X, y, groups


def in_grams():
    X, y, groups = clean()
    X[:, 0] += 5.0
    X[groups == "site-3", 0] *= 1000.0
    return X, y, groups


def same_rows_at_two_sites():
    X, y, groups = clean()
    X[groups == "site-1"], y[groups == "site-1"] = X[groups == "site-0"], y[groups == "site-0"]
    return X, y, groups


def rows_twice():
    X, y, groups = clean()
    X[5:10], y[5:10] = X[:5], y[:5]
    return X, y, groups


def labelled(y):
    X, _, groups = clean()
    return X, y(groups), groups


RAISED = {
    "FK001": with_value(np.nan),
    "FK002": with_value(np.inf),
    "FK003": with_value(-999.0),
    "FK004": in_grams(),
    "FK005": with_column(lambda X, y, groups: 3.0 - 2.0 * y),
    "FK006": rows_twice(),
    "FK007": same_rows_at_two_sites(),
    "FK008": with_column(lambda X, y, groups: np.arange(len(y))),
    "FK009": with_column(lambda X, y, groups: X[:, 0] - 2 * X[:, 2]),
    "FK010": with_column(lambda X, y, groups: 7.0),
    "FK011": with_column(lambda X, y, groups: np.unique(groups, return_inverse=True)[1] * 1.1),
    "FK012": with_column(lambda X, y, groups: 1e6 + 1e-2 * X[:, 1]),
    "FK013": labelled(lambda groups: np.zeros(200)),
    "FK014": (*clean()[:2], np.full(200, "all")),
    "FK015": (*clean()[:2], np.arange(200)),
    "FK016": (Federation.from_clients({"a": np.eye(3)[:, :2], "b": np.zeros((0, 2))}),),
    "FK017": clean(n=3),
    "FK018": (np.random.default_rng(0).normal(size=(4, 9)), None, ["a", "a", "b", "b"]),
    "FK019": labelled(lambda groups: np.where(groups == "site-2", 1.0, np.arange(200) % 2)),
    "FK020": labelled(lambda groups: (np.arange(200) % 100 == 0).astype(float)),
    "FK021": clean(),
    "FK022": with_column(lambda X, y, groups: np.where(groups == "site-2", 3, np.arange(200) % 2)),
    "FK023": clean(level=2.0),
}


@pytest.mark.parametrize("code", ["FK001", "FK002", *CHECKS])
def test_a_check_raises_and_can_be_ignored(code):
    options = {"n_groups": 9} if code == "FK021" else {}
    found = checks(*RAISED[code], **options)
    assert code in found.codes, str(found)
    one = next(finding for finding in found if finding.code == code)
    assert one.fact and one.remedy
    assert code not in checks(*RAISED[code], ignore=[code], **options).codes


def test_every_check_can_be_raised_here_and_is_on_the_page():
    assert set(RAISED) == {"FK001", "FK002", *CHECKS}
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (FK\d+) \| (.*?) \|", page, flags=re.M))
    assert set(told) == {*RAISED, UNITS, ORIGIN, FEW}  # these are told by fits of groups of rows
    assert all(told[code] == check.__doc__ for code, check in CHECKS.items())


@pytest.mark.parametrize("seed", range(5))
def test_clean_data_raise_none(seed):
    assert not checks(*clean(seed=seed)), str(checks(*clean(seed=seed)))
    X, y, groups = clean(seed=seed)
    assert not checks(X, y > 0, groups) and not checks(X, None, groups)
    assert str(checks(X, y, groups)) == "nothing to complain about"


def test_sites_are_named():
    found = checks(*in_grams())
    assert [finding.site for finding in found if finding.code == "FK004"] == ["site-3"]
    assert "1e+03" in found[0].fact or "times" in found[0].fact
    assert [f.site for f in checks(*with_value(1e300)) if f.code == "FK003"] == ["site-0"]


def test_several_findings_come_at_once_and_words_may_be_the_target():
    X, y, groups = with_value(np.nan)
    X[7, 2], X[:, 1] = -9999.0, 4.0
    found = checks(X, np.where(y > 0, "yes", "no"), groups)
    assert {"FK001", "FK003", "FK010"} <= set(found.codes)
    assert "FK003" in found._repr_html_()


def test_nine_hundred_ninety_nine_among_its_likes_is_a_number():
    rng = np.random.default_rng(0)
    X, y, groups = clean()
    X[:, 0] = np.round(rng.uniform(0, 2000, size=200))
    X[0, 0] = 999.0
    assert "FK003" not in checks(X, y, groups).codes


def test_days_of_every_site_are_no_identifier():
    X, y, groups = clean()
    X[:, 0] = np.tile(np.arange(25), 8)
    assert "FK008" not in checks(X, y, groups).codes


def test_an_unknown_code_is_refused():
    with pytest.raises(ValueError, match="FK999"):
        checks(*clean(), ignore=["FK999"])


def test_estimators_warn_with_a_code():
    X, y, groups = with_value(-9999.0)
    with pytest.warns(CheckWarning, match="FK003") as caught:
        MixedModel().fit(X, y, groups=groups)
    assert caught[0].message.code == "FK003" and caught[0].message.finding.site == "site-0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="FK003")
        MixedModel().fit(X, y, groups=groups)
    assert caught[0].filename == __file__


def test_large_data_are_not_looked_at_before_a_fit():
    X = np.zeros((NUMBERS_AT_FIT // 2 + 1, 2))
    X[0, 0] = 1e300
    assert not findings_at_fit(Federation.from_groups(X, np.zeros(len(X), int)))


# ------------------------------------------------------------------ what tables of the world taught


def test_a_column_of_sites_is_in_no_other_units():
    """What is left of a constant after its mean is rounding, not a scale (DISCLIM of nlme)."""
    X, y, groups = clean(m=60)
    values = np.random.default_rng(0).normal(size=60)
    values[7] = 0.0013
    of_site = values[np.unique(groups, return_inverse=True)[1]]
    assert "FK004" not in checks(np.column_stack([X, of_site]), y, groups).codes


def test_many_columns_of_sites_are_one_finding():
    X, y, groups = clean()
    codes = np.unique(groups, return_inverse=True)[1]
    of_sites = np.random.default_rng(0).normal(size=(codes.max() + 1, 5))[codes]
    facts = [f.fact for f in checks(np.column_stack([X, of_sites]), y, groups)]
    told = [fact for fact in facts if "constant within every site" in fact]
    assert len(told) == 1 and told[0].startswith("5 columns") and "and 2 more" in told[0]


def test_counts_and_years_are_no_classes_and_no_levels():
    X, y, groups = clean()
    rng = np.random.default_rng(1)
    counts = rng.poisson(2.0, len(y)).astype(float)
    counts[:1] = 17.0  # of esoph: one row of many cases is no rare class
    years = rng.integers(5, 17, len(y)).astype(float)
    years[0] = 4.0
    assert not {"FK020", "FK022"} & set(checks(np.column_stack([X, years]), counts, groups).codes)


def test_a_table_with_words_and_gaps_is_checked_as_a_whole():
    pandas = pytest.importorskip("pandas")
    X, y, groups = clean()
    words = np.where(np.arange(len(y)) % 3, "red", "blue")
    frame = pandas.DataFrame({"site": groups, "colour": words, "a": X[:, 0], "y": y})
    frame["row"] = np.arange(len(y))
    frame.loc[::10, "a"] = np.nan
    found = checks_of_table(frame, "site", "y")
    assert found.codes[:2] == ["FK001", "FK008"], str(found)
    assert sum(finding.code == "FK001" for finding in found) <= 5


def test_a_date_for_every_row_is_no_number_of_the_row():
    columns = {"site": ["a", "b", "c"] * 20, "y": [k % 7 for k in range(60)]}
    span = pandas.date_range("2026-01-01", periods=60)
    dates = Federation.from_frame(pandas.DataFrame({**columns, "day": span}), "site", "y")
    numbers = Federation.from_frame(pandas.DataFrame({**columns, "day": range(60)}), "site", "y")
    assert "FK008" not in checks(dates).codes and "FK008" in checks(numbers).codes
