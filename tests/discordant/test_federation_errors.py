"""Bad data are refused by site, fact and remedy."""

import numpy as np
import pytest

from fedkin import Federation, FederationError, MixedModel
from fedkin.checks import CheckWarning
from fedkin.inference import checks


def test_missing_values_name_site_column_and_remedy():
    X = np.ones((40, 2))
    X[[3, 5, 7], 1] = np.nan
    with pytest.raises(FederationError) as raised:
        Federation.from_clients({"A": np.ones((2, 2)), "B": X})
    expected = (
        "site 'B': column 'x1' has 3 of 40 values missing; drop or impute them before fitting (NaN)"
    )
    assert str(raised.value) == expected


def test_infinite_values_and_missing_targets_are_named():
    with pytest.raises(FederationError, match=r"site 'A': column 'x0' has 1 of 2 values infinite"):
        Federation.from_groups([[np.inf], [1]], ["A", "A"])
    with pytest.raises(FederationError, match=r"site 'B': target 'y' has 1 of 1 values missing"):
        Federation.from_groups([[1], [1]], ["A", "B"], [0, np.nan])


def test_many_findings_are_counted_not_poured_out():
    with pytest.raises(FederationError, match="and 15 more") as raised:
        Federation.from_groups(np.append(np.full(20, np.nan), 1.0)[:, None], np.arange(21))
    assert len(raised.value.findings) == 20


def test_columns_that_differ_are_named():
    pandas = pytest.importorskip("pandas")
    one = pandas.DataFrame({"age": [1.0], "bmi": [2.0]})
    other = pandas.DataFrame({"age": [1.0], "weight": [2.0]})
    with pytest.raises(FederationError, match=r"site 'B'.*lacks bmi has besides weight"):
        Federation.from_clients({"A": one, "B": other})
    turned = Federation.from_clients({"A": one, "B": one[["bmi", "age"]]})
    np.testing.assert_array_equal(turned.X, [[1, 2], [1, 2]])


def test_words_in_a_bare_table_are_refused_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sex": ["f"], "town": ["x"], "age": [1.0]})
    with pytest.raises(ValueError, match=r"column 'sex' holds .*, not numbers; encode") as told:
        Federation.from_groups(frame, ["A"])
    assert "column 'town'" in str(told.value)
    with pytest.raises(FederationError, match="site 'A': X holds values that are not numbers"):
        Federation.from_clients({"A": [["f"]]})


def test_dates_and_complex_numbers_are_no_target_in_disguise():
    X, groups = np.arange(6.0)[:, None], ["A", "A", "A", "B", "B", "B"]
    days = np.arange("2024-01-01", "2024-01-07", dtype="datetime64[D]")
    for y, word in ((days, "dates"), (days - days[0], "spans of time"), (X[:, 0] + 1j, "complex")):
        with pytest.raises(ValueError, match=f"y holds {word}.*; give"):
            Federation.from_groups(X, groups, y)
    with pytest.raises(ValueError, match="X holds dates; give numbers of a unit"):
        Federation.from_groups(days[:, None], groups)


def test_columns_of_one_name_and_of_dates_are_told_by_name():
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    twice = pandas.DataFrame([["A", 1.0, 2.0]], columns=["site", "age", "age"])
    table = pyarrow.table([["A"], [1.0], [2.0]], names=["site", "age", "age"])
    for frame in (twice, table):
        with pytest.raises(ValueError, match="several columns are called 'age'; rename or drop"):
            Federation.from_frame(frame)
    rows, groups = twice[["age"]], ["A"]
    with pytest.raises(ValueError, match="several columns are called 'age'"):
        MixedModel().fit(rows, [1.0], groups=groups)
    dated = pandas.DataFrame({"age": [1.0], "seen": pandas.to_datetime(["2024-01-01"])})
    with pytest.raises(ValueError, match=r"columns 'seen' hold dates.*Federation\.from_frame"):
        MixedModel().fit(dated, [1.0], groups=groups)


def test_a_target_that_does_not_vary_is_told_at_the_fit():
    X, groups = np.random.default_rng(0).normal(size=(40, 1)), np.repeat(["A", "B"], 20)
    with pytest.warns(CheckWarning, match="FK013 the target has one value only"):
        MixedModel("intercept").fit(X, np.full(40, 3.0), groups=groups)


def test_missing_columns_are_named_with_what_there_is():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"clinic": ["A"], "x": [1.0]})
    with pytest.raises(ValueError, match="no column 'site'; the columns are clinic, x"):
        Federation.from_frame(frame)


@pytest.mark.parametrize("nameless", [None, float("nan"), ""])
def test_a_row_without_a_site_is_named_by_its_number(nameless):
    with pytest.raises(ValueError, match="row 2 has no site name"):
        Federation.from_groups(np.ones((2, 1)), np.array(["A", nameless], dtype=object))


def test_one_site_spelt_two_ways_is_refused():
    with pytest.raises(ValueError, match="'1' is named by a number in some rows and by text"):
        Federation.from_groups(np.ones((2, 1)), np.array([1, "1"], dtype=object))
    with pytest.raises(ValueError, match="two sites are both called '1'"):
        Federation.from_clients({1: np.ones((1, 1)), "1": np.ones((1, 1))})


@pytest.mark.parametrize("as_given", [list, np.array, lambda g: np.array(g, dtype=object)])
def test_one_rule_for_spellings_however_names_are_given(as_given):
    X = np.ones((2, 1))
    with pytest.raises(ValueError, match="two spellings of one site name 'A'"):
        Federation.from_groups(X, as_given(["A", "A "]))
    with pytest.raises(ValueError, match="row 2 has no site name"):
        Federation.from_groups(X, as_given(["A", float("nan")]))


def test_lists_frames_and_files_do_not_merge_two_spellings(tmp_path):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="'1' is named by a number in some rows and by text"):
        Federation.from_groups(np.ones((2, 1)), [1, "1"])
    assert Federation.from_groups(np.ones((3, 1)), [1, 1.0, 2]).names == ("1", "2")
    for names, complaint in ((["A", "A "], "two spellings"), ([1, "1"], "named by a number")):
        frame = pandas.DataFrame({"site": pandas.Series(names, dtype=object), "x": [1.0, 2.0]})
        with pytest.raises(ValueError, match=complaint):
            Federation.from_frame(frame)
        with pytest.raises(ValueError, match=complaint):
            Federation.from_groups(frame[["x"]], frame["site"])
    np.savez(tmp_path / "one.npz", X=np.ones((2, 1)))
    with pytest.raises(ValueError, match="two sites are both called '1'"):
        Federation.from_files({1: tmp_path / "one.npz", "1": tmp_path / "one.npz"})


def test_a_feature_that_is_also_target_or_site_or_comes_twice_is_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"site": ["A", "B"], "x": [1.0, 2.0], "y": [1.0, 2.0]})
    with pytest.raises(ValueError, match="column 'y' is the target; it cannot be a feature"):
        Federation.from_frame(frame, target="y", features=["x", "y"])
    with pytest.raises(ValueError, match="column 'site' is the site's name"):
        Federation.from_frame(frame, target="y", features=["x", "site"])
    with pytest.raises(ValueError, match="feature 'x' is named twice"):
        Federation.from_frame(frame, target="y", features=["x", "x"])


def test_lengths_that_do_not_match_are_told():
    with pytest.raises(ValueError, match="one site name per row: 2 rows"):
        Federation.from_groups(np.ones((2, 1)), ["A"])
    with pytest.raises(ValueError, match="one number per row: 2 rows"):
        Federation.from_groups(np.ones((2, 1)), ["A", "A"], [1.0])
    with pytest.raises(ValueError, match="rows and columns"):
        Federation.from_groups(np.ones(2), ["A", "A"])


def test_no_rows_at_all_is_an_error_and_no_sites_too():
    with pytest.raises(FederationError, match="no site has any row"):
        Federation.from_clients({"A": np.empty((0, 2))})
    with pytest.raises(ValueError, match="at least one site"):
        Federation.from_clients({})


def test_targets_at_some_sites_only_are_an_error():
    with pytest.raises(FederationError, match="site 'B': has no target y"):
        Federation.from_clients({"A": (np.ones((1, 1)), [1]), "B": np.ones((1, 1))})


def test_tiny_empty_and_constant_are_warnings():
    made = Federation.from_clients(
        {"empty": np.empty((0, 2)), "tiny": np.ones((1, 2)), "big": [[1, k] for k in range(9)]}
    )
    facts = " / ".join(str(finding) for finding in made.findings)
    assert all(finding.level == "warning" for finding in made.findings)
    assert "site 'empty': has no rows" in facts
    assert "1 of 3 sites have no more rows than there are features (2), for example 'tiny'" in facts
    assert "column 'x0' is constant at every site, and the same; drop it" in facts


def test_columns_that_tell_sites_apart_are_not_to_be_dropped():
    clients = {f"site-{k}": [[float(k), j] for j in range(5)] for k in range(4)}
    facts = [str(finding) for finding in Federation.from_clients(clients).findings]
    assert any(
        "column 'x0' is constant within every site; methods with a model" in f for f in facts
    )
    assert any("a mixed model can" in fact for fact in facts)
    assert not any("drop it" in fact for fact in facts)


def test_files_that_are_not_there_or_not_tables_are_named(tmp_path):
    with pytest.raises(ValueError, match="no CSV, Parquet or npz files"):
        Federation.from_files(tmp_path)
    with pytest.raises(FederationError) as told:
        Federation.from_files([tmp_path / "a.doc", tmp_path / "b.csv"])
    facts = [(finding.site, finding.fact) for finding in told.value.findings]
    assert facts[0][0] == "a" and facts[0][1].startswith("expected a file ending in .csv")
    assert facts[1] == ("b", "there is no such file")


def test_a_column_without_any_value_is_told_once():
    table = np.column_stack([np.arange(6.0), np.full(6, np.nan)])
    with pytest.raises(FederationError) as raised:
        Federation.from_groups(table, np.arange(6) % 3)
    assert str(raised.value) == "column 'x1' has no value at all: 6 of 6 missing; leave it out"


def test_dropping_rows_until_none_is_left_names_the_columns():
    pandas = pytest.importorskip("pandas")
    gap = [np.nan] * 4
    frame = pandas.DataFrame(
        {"site": list("AABB"), "a": [1.0, 2, 3, 4], "b": gap, "y": [1, 2, 3, 4]}
    )
    with pytest.raises(FederationError, match=r"column 'b' lacks 100%\), so that no row is left"):
        Federation.from_frame(frame, target="y", missing="drop")


def test_rows_without_a_site_are_counted():
    with pytest.raises(ValueError, match="row 2 has no site name, nor have 2 others"):
        Federation.from_groups(np.ones((5, 1)), ["A", None, "B", np.nan, None])


def test_many_columns_that_do_not_vary_at_some_sites_are_one_finding():
    rows = np.random.default_rng(0).normal(size=(40, 5))
    rows[:10, 1:] = 3.0
    rows[10:20, 4] = 3.0
    data = Federation.from_groups(rows, np.repeat(np.arange(4), 10))
    (fact,) = [finding.fact for finding in data.findings if "constant" in finding.fact]
    assert fact == (
        "4 columns are constant at some sites: 'x4' at 2, 'x1' at 1, 'x2' at 1 and 1 more"
    )
    (told,) = [finding.fact for finding in checks(data) if finding.code == "FK011"]
    assert told == fact


def test_numbers_beyond_any_measurement_leave_the_other_checks_nothing():
    data = Federation.from_groups(np.full((6, 1), 1e300), np.arange(6) % 2, np.full(6, 1e200))
    assert set(checks(data).codes) == {"FK003"}
    facts = [finding.fact for finding in data.findings]
    assert "column 'x0' has values beyond 1e+100" in facts
    assert "target 'y' has values beyond 1e+100" in facts


def test_a_column_that_is_not_there_says_what_to_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"clinic": ["A"], "age": [1.0]})
    with pytest.raises(ValueError, match=r"are clinic, age; name the column of sites \(client="):
        Federation.from_frame(frame)
