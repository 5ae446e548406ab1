"""Tables as people have them: other separators, encodings, words, dates, gaps."""

import gzip

import numpy as np
import pandas
import pytest

from fedkin import Federation, FederationError
from fedkin.frames import read_frame

PLAIN = "site,größe,y\nÅrhus,1.5,2\nBonn,-0.25,3\nÅrhus,2.0,4.5\n"
GERMAN = PLAIN.replace(",", ";").replace(".", ",")


def written(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", PLAIN.encode()),
        ("marked.csv", PLAIN.encode("utf-8-sig")),
        ("windows.csv", PLAIN.encode("cp1252")),
        ("utf16.csv", PLAIN.encode("utf-16")),
        ("utf16le.csv", PLAIN.encode("utf-16-le")),
        ("semicolons.csv", GERMAN.encode()),
        ("semicolons_windows.csv", GERMAN.encode("cp1252")),
        ("tabs.tsv", PLAIN.replace(",", "\t").encode()),
        ("tabs.txt", GERMAN.replace(";", "\t").encode()),
        ("packed.csv.gz", gzip.compress(GERMAN.encode("utf-16"), mtime=0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_however_a_file_is_written_its_numbers_are_the_same(tmp_path, name, content):
    data = Federation.from_frame(read_frame(written(tmp_path / name, content)), target="y")
    assert data.names == ("Bonn", "Århus") and data.feature_names == ("größe",)
    assert data.X[:, 0].tolist() == [-0.25, 1.5, 2.0] and data.y.tolist() == [3.0, 2.0, 4.5]


def test_what_is_said_of_a_file_counts(tmp_path):
    odd = written(tmp_path / "odd.csv", b"site!x\na!1,5\n")
    assert read_frame(odd, sep="!", decimal=",").to_pydict() == {"site": ["a"], "x": [1.5]}
    with pytest.raises(ValueError, match=r"cannot be read as utf-8 .*--encoding"):
        read_frame(written(tmp_path / "w.csv", "site,x\nÅ,1\n".encode("cp1252")), encoding="utf-8")
    with pytest.raises(ValueError, match="separated by one character"):
        read_frame(odd, sep="::")


def test_a_line_that_is_too_short_names_file_and_options(tmp_path):
    path = written(tmp_path / "short.csv", b"a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"short.csv: line 3: Expected 2 columns, got 1.*--sep"):
        read_frame(path)


def test_empty_files_are_named_by_site_all_at_once(tmp_path):
    files = {
        "north": written(tmp_path / "n.csv", b"x,y\n1,2\n"),
        "east": written(tmp_path / "e.csv", b""),
        "west": written(tmp_path / "w.csv", b"x,y\n"),
    }
    with pytest.raises(FederationError) as told:
        Federation.from_files(files, "y")
    facts = {finding.site: finding.fact for finding in told.value.findings}
    assert facts == {
        "east": "the file is empty",
        "west": "the file has a header but no rows",
    }


def frame(**columns):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"site": ["a", "a", "b", "b"], **columns})


def test_words_become_levels_and_a_missing_word_is_a_level_of_its_own():
    data = Federation.from_frame(frame(colour=["red", None, "blue", "red"], x=[1.0, 2, 3, 4]))
    assert data.feature_names == ("colour=red", "colour=(missing)", "x")
    assert data.X[:, 0].tolist() == [1, 0, 0, 1] and data.X[:, 1].tolist() == [0, 1, 0, 0]


def test_levels_of_the_fit_hold_ever_after():
    data = Federation.from_frame(frame(colour=["red", "green", "blue", "red"]))
    later = Federation.from_frame(frame(colour=["red"] * 4), encoding=data.encoding)
    assert later.feature_names == data.feature_names and later.X.tolist() == [[0.0, 1.0]] * 4
    with pytest.raises(FederationError, match="'mauve', the fit had 'blue', 'green', 'red'"):
        Federation.from_frame(frame(colour=["mauve"] * 4), encoding=data.encoding)
    told = type(data.encoding).from_json(data.encoding.to_json())
    assert told == data.encoding


def test_categories_keep_their_order_in_pandas_and_polars():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    sizes = ["small", "large", "medium", "large"]
    order = ["small", "medium", "large", "huge"]
    one = frame(size=pandas.Categorical(sizes, categories=order))
    other = polars.DataFrame({"site": ["a", "a", "b", "b"], "size": sizes}).with_columns(
        polars.col("size").cast(polars.Enum(order))
    )
    for table in (one, other):
        data = Federation.from_frame(table)
        assert data.feature_names == ("size=medium", "size=large")
        assert data.X.tolist() == [[0, 0], [0, 1], [1, 0], [0, 1]]


def test_dates_become_days_and_numbered_columns_are_taken():
    pandas = pytest.importorskip("pandas")
    days = pandas.to_datetime(["1970-01-02 00:00", "1970-01-03 12:00", None, "1971-01-01 00:00"])
    data = Federation.from_frame(frame(day=days, x=[1.0] * 4), missing="drop")
    assert data.X[:, 0].tolist() == [1.0, 2.5, 365.0] and data.rows.tolist() == [0, 1, 3]
    numbered = pandas.DataFrame([["a", 1.0, 2.0], ["b", 3.0, 4.0]])
    data = Federation.from_frame(numbered, client=0, target=2, features=[1])
    assert data.feature_names == ("1",) and data.y.tolist() == [2.0, 4.0]


def test_all_offenders_are_listed_at_once():
    many = [f"person {k}" for k in range(60)]
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(
        {
            "site": ["a", "b"] * 30,
            "name": many,
            "code": many,
            "span": pandas.to_timedelta(range(60), unit="h"),
        }
    )
    with pytest.raises(FederationError) as told:
        Federation.from_frame(table)
    facts = [finding.fact for finding in told.value.findings]
    assert len(facts) == 3 and "column 'name' holds 60 different words" in facts[0]


def test_a_word_among_numbers_is_told_and_does_not_make_levels():
    """Of 20 different numbers and one slip there would be 20 levels, in silence."""
    values = [str(k) for k in range(20)]
    slip = {"site": ["a", "b"] * 10, "x": [*values[:7], "n/k", *values[8:]]}
    pandas = pytest.importorskip("pandas")
    with pytest.raises(FederationError, match=r"'x' holds numbers, but 'n/k' in 1 of 20 .*row 8"):
        Federation.from_frame(pandas.DataFrame(slip))
    stages = {"site": ["a", "b"] * 10, "x": ["1", "2", "3", "4+"] * 5}
    assert Federation.from_frame(pandas.DataFrame(stages)).feature_names == ("x=2", "x=3", "x=4+")
    target = pandas.DataFrame({**stages, "y": slip["x"]})
    with pytest.raises(ValueError, match=r"target 'y' holds numbers, but 'n/k'"):
        Federation.from_frame(target, target="y", classes=True)


def test_a_target_of_names_is_told_by_its_name():
    pandas = pytest.importorskip("pandas")
    names = {"site": ["a", "b"] * 30, "x": range(60), "who": [f"person {k}" for k in range(60)]}
    with pytest.raises(ValueError, match=r"target 'who' holds 60 .*take another target"):
        Federation.from_frame(pandas.DataFrame(names), target="who", classes=True)


@pytest.mark.filterwarnings("error")
def test_infinite_values_are_told_without_a_complaint_of_numpy():
    table = frame(x=[np.inf] * 4, z=[1.0, 1.0, 2.0, 3.0])
    with pytest.raises(FederationError, match="values infinite"):
        Federation.from_frame(table)


def test_missing_numbers_stop_a_fit_or_are_dropped_as_told():
    table = frame(x=[1.0, np.nan, 3.0, 4.0], y=[1.0, 2.0, 3.0, np.nan])
    with pytest.raises(FederationError, match=r"site 'a': column 'x' has 1 of 2 values missing"):
        Federation.from_frame(table, target="y")
    data = Federation.from_frame(table, target="y", missing="drop")
    assert data.rows.tolist() == [0, 2] and data.names == ("a", "b")


def test_words_as_target_are_classes_if_asked_for():
    table = frame(x=[1.0, 2, 3, 4], y=["no", "yes", "yes", "no"])
    data = Federation.from_frame(table, target="y", classes=True)
    assert data.y.tolist() == [0, 1, 1, 0] and data.encoding.classes == ("no", "yes")
    with pytest.raises(ValueError, match=r"target 'y' holds words .*logistic"):
        Federation.from_frame(table, target="y")


def test_dates_with_points_are_days_first(tmp_path):
    text = "site;when;y\nA;31.01.2026;1\nA;01.02.2026;2\n"
    data = Federation.from_frame(read_frame(written(tmp_path / "d.csv", text.encode())), target="y")
    assert np.diff(data.X[:, 0]).tolist() == [1.0]
    text = text.replace("2026;", "2026 12:00;")
    data = Federation.from_frame(read_frame(written(tmp_path / "t.csv", text.encode())), target="y")
    assert np.diff(data.X[:, 0]).tolist() == [1.0] and data.X[0, 0] % 1 == 0.5


def test_a_column_of_many_words_says_what_it_may_be(tmp_path):
    lines = [f'A,p{k},"{k + 1},000.5",{k}' for k in range(60)]
    text = "\n".join(["site,who,cost,y", *lines])
    with pytest.raises(FederationError) as raised:
        Federation.from_frame(read_frame(written(tmp_path / "d.csv", text.encode())), target="y")
    who, cost = map(str, raised.value.findings)
    assert "'p0', 'p1' and 58 more: names, not a category; leave it out" in who
    assert "numbers or dates in a spelling that is not known here; write 1234.5" in cost


def test_dates_that_are_text_are_no_levels(tmp_path):
    days = ["2026-01-01", "2026-01-02", "2026-02-28"] * 2
    frame = pandas.DataFrame({"site": list("aabbcc"), "day": days, "y": range(6)})
    with pytest.raises(FederationError, match=r"holds dates as text.*pandas\.to_datetime"):
        Federation.from_frame(frame, target="y")
    for slip in ("2026-02-30", "last week"):
        lines = [f"{s},{d},{k}" for s, d, k in zip("aabbcc", [*days[:5], slip], range(6))]
        path = written(tmp_path / "d.csv", "\n".join(["site,day,y", *lines]).encode())
        told = f"'day' holds dates, but '{slip}' in 1 of 6 rows .row 6 first"
        with pytest.raises(FederationError, match=told):
            Federation.from_frame(read_frame(path), target="y")
    meant = frame.assign(day=frame.day.astype("category"))
    assert Federation.from_frame(meant, target="y").n_features == 2  # whoever says so means levels
