import json
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin.cli import app, main
from fedkin.cli.guide import command_names, estimator_class
from fedkin.datasets import contaminate_sites, make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Runs leave folders."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table(tmp_path):
    groups = make_regression_groups(12, 10, PAPER_COEF[2], random_state=0)
    return write(groups.federation, tmp_path / "data.csv")


def write(data, path):
    names = np.array(data.names)[data.owner]
    lines = ["clinic,a,b,c,d,e,y"]
    lines += [
        ",".join([s, *map(repr, x.tolist()), repr(float(v))])
        for s, x, v in zip(names, data.X, data.y)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_fit_prints_tables_and_writes_them(table, tmp_path):
    out = tmp_path / "out"
    done = run("fit", "fmlr", table, "--client", "clinic", "--target", "y", "--out", out)
    assert done.exit_code == 0, done.output
    assert "12 sites, 2 regressions" in done.output
    written = sorted(path.name for path in out.iterdir())
    assert written == ["journal", "model", "report.html", "run.json", "run.toml", "tables"]
    tables = sorted(path.name for path in (out / "tables").iterdir())
    names = ["choice", "components", "estimates", "sites", "traffic"]
    assert tables == [f"{name}.csv" for name in names]
    assert "12 sites" in (out / "report.html").read_text()


def test_the_last_line_names_the_command_that_compares(table, tmp_path):
    out = tmp_path / "a run"
    done = run("fit", "odcl", table, "--client", "clinic", "--out", out, "-k", 2)
    question, command = done.stdout.strip().splitlines()[-1].split("? ")
    assert question == "Are sites better off than alone"
    program, *words = shlex.split(command)
    compared = run(*words)
    assert program == "fedkin" and compared.exit_code == 0, compared.output
    assert "over staying alone" in compared.stdout
    assert "better off than alone?" not in compared.stdout
    assert "fedkin compare odcl --config run.toml" in (out / "report.html").read_text()


def test_a_journal_does_not_fill_the_disk(table, tmp_path, monkeypatch):
    """1,000 sites with a curve in a plane send tens of gigabytes."""
    words = ("fit", "fedgrem", table, "--client", "clinic", "--drop", "y", "-k", 2)
    whole = run(*words, "--out", "whole")
    assert list((tmp_path / "whole" / "journal" / "1").glob("round-000002.*"))
    monkeypatch.setattr("fedkin.cli.run_folder.MOST_BYTES", 5000)
    done = run(*words, "--out", "bounded")
    assert done.exit_code == 0 and done.stdout == whole.stdout.replace("whole", "bounded")
    assert done.stderr.count("was given up: 12 sites sent") == 1
    assert not list((tmp_path / "bounded" / "journal" / "1").glob("round-*"))


def test_fit_speaks_json(table):
    done = run("fit", "fmlr", table, "--client", "clinic", "-k", 2, "--share", "sums", "--json")
    content = json.loads(done.stdout)
    assert len(content["components"]) == 2 and len(content["sites"]) == 12
    assert {site["group"] for site in content["sites"]} == {0, 1}


def test_parquet_is_read_too(table, tmp_path):
    from pyarrow import csv, parquet

    parquet.write_table(csv.read_csv(table), tmp_path / "data.parquet")
    one = run("fit", "fmlr", table, "--client", "clinic", "--json").stdout
    other = run("fit", "fmlr", tmp_path / "data.parquet", "--client", "clinic", "--json").stdout
    one, other = json.loads(one), json.loads(other)
    for told in (one, other):
        del told["data"]["file"], told["written"]
    assert one == other


def test_check_finds_nothing_in_good_data_and_names_what_is_wrong(table, tmp_path):
    done = run("check", table, "--client", "clinic", "--target", "y")
    assert done.exit_code == 0 and "nothing to complain about" in done.output
    broken = tmp_path / "missing.csv"
    lines = table.read_text().splitlines()
    first = lines[1].split(",")
    lines[1] = ",".join([first[0], "", *first[2:]])
    broken.write_text("\n".join(lines))
    done = run("check", broken, "--client", "clinic", "--json")
    assert done.exit_code == 2
    finding = json.loads(done.stdout)["findings"][0]
    assert finding["level"] == "error" and finding["site"] == "1"
    assert finding["fact"] == "column 'a' has 1 of 10 values missing"


def test_strict_makes_warnings_count(tmp_path):
    few = tmp_path / "few.csv"
    few.write_text("site,a,b\nA,1,2\nB,2,1\n")
    assert run("check", few).exit_code == 0
    done = run("check", few, "--strict")
    assert done.exit_code == 1 and "FK017" in done.output and "2 of 2" in done.output
    assert run("check", few, "--strict", "--ignore", "FK017,FK018,FK009").exit_code == 0


def test_check_shows_everything_at_once(table, tmp_path):
    lines = table.read_text().splitlines()
    name, *first = lines[1].split(",")
    lines[1] = ",".join([name, "", *first[1:]])
    name, *second = lines[2].split(",")
    lines[2] = ",".join([name, "-9999", *second[1:]])
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join(lines))
    done = run("check", broken, "--client", "clinic", "--target", "y", "--json")
    codes = {finding["code"] for finding in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 2 and {"FK001", "FK003"} <= codes


def test_odd_sites_are_named_on_the_error_stream(tmp_path):
    clean = make_regression_groups(40, 12, PAPER_COEF[3], random_state=3)
    spoilt = contaminate_sites(clean, 0.2, "noise", 1)
    path = write(spoilt.federation, tmp_path / "spoilt.csv")
    done = run("fit", "fmlr", path, "--client", "clinic", "-k", 3, "--strict")
    assert done.exit_code == 1 and "warning: 8 of 40 sites fit none of the groups" in done.stderr
    done = run("fit", "fmlr", path, "--client", "clinic", "-k", 3, "--robust", "--strict")
    assert done.exit_code == 0


def test_errors_are_one_line_and_exit_with_two(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["fedkin", "check", str(tmp_path / "none.csv")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("fedkin: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "folder.csv"),
        ("fit", "fmlr", "data.csv", "--client", "clinic", "--out", "data.csv"),
        ("fit", "fmlr", "data.csv", "--client", "clinic", "--features", "a,y"),
    ],
)
def test_what_the_disk_refuses_is_one_line_too(arguments, table, tmp_path, monkeypatch, capsys):
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedkin", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith("fedkin: ") and "\n" not in line


def test_version_is_told():
    import fedkin

    assert run("--version").output.strip() == fedkin.__version__


def curves(tmp_path):
    from fedkin.datasets import make_gaussian_sites

    data = make_gaussian_sites(5, 10, random_state=1).federation
    lines = [
        f"{s},{x[0]!r},{v!r}" for s, x, v in zip(data.groups, data.X.tolist(), data.y.tolist())
    ]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *lines]))
    return data


def test_the_table_asked_comes_back_in_its_order_with_columns_added(tmp_path):
    from fedkin import FGPR

    data = curves(tmp_path)
    asked = tmp_path / "asked.csv"
    asked.write_text("note,site,x\na,site-2,0.25\nb,elsewhere,0.5\nc,site-1,\nd,site-2,0.5\n")
    done = run("fit", "fgpr", "t.csv", "--predict", asked, "--out", "out", "--json", "--level", 0.9)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert len(told["sites"]) == 5 and told["numbers"]["n_priors"] == 1
    lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert lines[0] == '"note","site","x","prediction","standard deviation","low","high"'
    rows = told["predictions"]
    assert [row["note"] for row in rows] == ["a", "b", "c", "d"] and rows[2]["prediction"] is None
    mean = FGPR().fit(data).predict([[0.25], [0.5], [0.5]], ["site-2", "elsewhere", "site-2"])
    found = [rows[k]["prediction"] for k in (0, 1, 3)]
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    assert all(rows[k]["low"] < rows[k]["prediction"] < rows[k]["high"] for k in (0, 1, 3))
    again = run("predict", "out", asked, "--level", 0.9, "--json")
    assert json.loads(again.stdout) == rows
    written = run("predict", "out", asked, "--out", "p.csv", "--level", 0.9)
    assert written.exit_code == 0
    assert (tmp_path / "p.csv").read_text() == (tmp_path / "out" / "predictions.csv").read_text()


def test_a_model_is_adapted_from_the_shell(tmp_path):
    curves(tmp_path)
    assert run("fit", "fgpr", "t.csv", "--out", "out").exit_code == 0
    lines = (tmp_path / "t.csv").read_text().splitlines()
    new = [line.replace("site-2,", "new,") for line in lines if line.startswith("site-2,")]
    (tmp_path / "new.csv").write_text("\n".join([lines[0], *new]))
    done = run("adapt", "out", "new.csv", "--out", "adapted")
    assert done.exit_code == 0 and "now knows new" in done.output, done.output
    (tmp_path / "ask.csv").write_text("site,x\nnew,0.3\nsite-2,0.3\n")
    one, other = json.loads(run("predict", "adapted", "ask.csv", "--json").stdout)
    assert one["prediction"] == pytest.approx(other["prediction"], abs=0.2)


def test_configuration_equals_flags(table, tmp_path):
    flags = ("--client", "clinic", "-k", 2, "--share", "sums", "--robust", "--seed", 3)
    one = run("fit", "fmlr", table, *flags, "--out", "one", "--json")
    other = run("fit", "--config", "one/run.toml", "--out", "other", "--json")
    assert one.exit_code == other.exit_code == 0, other.output
    told = [json.loads(done.stdout) for done in (one, other)]
    for content in told:
        del content["written"]
    assert told[0] == told[1] and told[0]["settings"]["share"] == "sums"
    (tmp_path / "bad.toml").write_text('method = "fmlr"\ndata = "x.csv"\ncolour = 1\n')
    done = run("fit", "--config", "bad.toml")
    assert isinstance(done.exception, ValueError) and "no option colour" in str(done.exception)


def test_runs_are_numbered_and_nothing_else_is_written_over(table, tmp_path):
    for _ in range(2):
        run("fit", "local-erm", table, "--client", "clinic")
    assert sorted(p.name for p in (tmp_path / "fedkin-runs").iterdir()) == [
        "0001-local-erm",
        "0002-local-erm",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    done = run("fit", "local-erm", table, "--client", "clinic", "--out", "mine")
    assert "holds other things (thesis.tex)" in str(done.exception)


@pytest.mark.parametrize("name", command_names()[1:])
def test_every_method_has_an_option_for_every_setting(name):
    done = CliRunner().invoke(app, ["fit", name, "--help"], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    for setting in estimator_class(name)._parameters():
        if setting not in ("engine", "random_state"):
            assert f"--{setting.replace('_', '-')}" in done.output, setting


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("odcl", ("-k", 2, "--clustering", "spectral")),
        ("mixed-model", ("--random", "a,b", "--covariance", "diagonal")),
        ("ifca", ("-k", 2, "--init", "[[3,3,3,3,3],[-3,-3,-3,-3,-3]]")),
        ("fedgrem", ("-k", 2, "--family", "regression", "--max-rounds", 3)),
        ("local-gp", ()),
        ("standardizer", ("--robust",)),
        ("MixedModel", ()),
    ],
)
def test_methods_are_fitted_from_the_shell(method, options, table, tmp_path):
    done = run("fit", method, table, "--client", "clinic", *options, "--out", "out", "--json")
    assert done.exit_code in (0, 1), (done.output, done.exception)
    told = json.loads(done.stdout)
    assert told["answer"] and (tmp_path / "out" / "model" / "model.json").exists()
    assert run("report", "out").exit_code == 0


def test_options_are_checked_before_the_data_are_read():
    for options, words in (
        (("fmlr", "none.csv", "--share", "all"), "share must be one of"),
        (("fgpr", "none.csv", "--scale", "none"), None),
        (("fgpr", "none.csv", "--level", "2"), "between 0 and 1"),
        (("fmlr", "none.csv", "-k", "many"), "n_components must be a whole number"),
    ):
        done = run("fit", *options)
        assert done.exit_code != 0
        if words:
            assert words in str(done.exception)


def test_impossible_counts_are_refused(table):
    for method, option in (("fgpr", "--priors"), ("odcl", "-k"), ("ifca", "-k"), ("fmlr", "-k")):
        done = run("fit", method, table, "--client", "clinic", option, 20)
        assert isinstance(done.exception, ValueError), method
        assert "20" in str(done.exception) and "12" in str(done.exception)


def test_a_target_that_says_nothing_needs_attention(tmp_path):
    (tmp_path / "flat.csv").write_text("site,x,y\na,1,3\na,2,3\nb,4,3\nb,7,3\n")
    done = run("fit", "mixed-model", "flat.csv", "--random", "intercept")
    assert done.exit_code == 1 and "nothing to learn" in done.stderr


def test_words_are_levels_and_classes_from_the_shell(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["site;colour;x;grew"]
    for k in range(160):
        colour, x = rng.choice(["red", "blue"]), rng.normal()
        grew = "yes" if x + (colour == "red") + rng.normal() > 0 else "no"
        lines.append(f"s{k % 4};{colour};{x:.3f};{grew}".replace(".", ","))
    (tmp_path / "w.csv").write_text("\n".join(lines), encoding="cp1252")
    done = run(
        "fit", "odcl", "w.csv", "--loss", "logistic", "-k", 1, "--target", "grew", "--out", "o"
    )
    assert done.exit_code == 0, (done.output, done.exception)
    (tmp_path / "a.csv").write_text("site,colour,x\ns1,red,2.5\ns9,blue,-2.5\n")
    rows = json.loads(run("predict", "o", "a.csv", "--json").stdout)
    assert [row["prediction"] for row in rows] == ["yes", "no"]
    assert rows[0]["probability of yes"] > 0.8
    (tmp_path / "b.csv").write_text("site,colour,x\ns1,mauve,2.5\n")
    assert "mauve" in str(run("predict", "o", "b.csv").exception)


def test_errors_are_json_too(monkeypatch, capsys, tmp_path):
    (tmp_path / "gap.csv").write_text("site,x,y\na,1,2\na,,3\nb,2,2\n")
    monkeypatch.setattr("sys.argv", ["fedkin", "fit", "fmlr", "gap.csv", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "FederationError" and error["findings"][0]["site"] == "a"
    monkeypatch.setattr("sys.argv", ["fedkin", "--debug", "check", "none.csv"])
    with pytest.raises(ValueError, match="no such file"):
        main()


def test_tables_to_try_are_listed_shown_and_exported(tmp_path):
    from fedkin.cli.data import EXAMPLES

    listed = json.loads(run("data", "list", "--json").stdout)
    assert [row["name"] for row in listed] == list(EXAMPLES)
    assert "100 turbofan engines" in run("data", "show", "engines").output
    assert run("data", "export", "kinds").exit_code == 0
    assert run("check", "kinds.csv", "--target", "y").exit_code == 0
    engines = tmp_path / "engines.parquet"
    assert run("data", "export", "engines", engines).exit_code == 0
    told = json.loads(run("check", engines, "--client", "engine", "--json").stdout)
    assert told["sites"] == 100 and told["rows"] == 800
    assert isinstance(run("data", "show", "none").exception, ValueError)


def test_methods_are_told_with_their_questions():
    told = json.loads(run("methods", "--json").stdout)
    assert {row["method"] for row in told} >= {"fmlr", "mixed-model", "fgpr", "fedgrem", "odcl"}
    one = json.loads(run("methods", "fmlr", "--json").stdout)
    assert one["question"].endswith("?") and any(
        row["setting"] == "share" for row in one["settings"]
    )


def test_help_comes_without_the_library():
    import subprocess
    import sys

    code = (
        "import sys; from typer.testing import CliRunner; from fedkin.cli import app; "
        "assert CliRunner().invoke(app, ['fit', '--help']).exit_code == 0; "
        "assert 'numpy' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_comparing_is_there_or_says_that_it_is_not(table, tmp_path):
    done = run("compare", "mixed-model", table, "--client", "clinic", "--out", "out", "--json")
    try:
        from fedkin.inference import benefit  # noqa: F401
    except ImportError:
        assert "cannot compare yet" in str(done.exception)
        return
    assert done.exit_code in (0, 1), (done.output, done.exception)
    told = json.loads(done.stdout)["benefit"]
    assert len(told["gain"]) == 12 and told["sentence"]
    assert "What joining gives each site" in (tmp_path / "out" / "report.html").read_text()


def test_a_comparison_is_kept_as_plain_values():
    from types import SimpleNamespace

    from fedkin.report.benefits import benefit_record

    found = SimpleNamespace(
        sites=("a", "b"),
        gain=np.array([0.5, np.nan]),
        interval=np.array([[0.1, 0.9], [np.nan, np.nan]]),
        verdicts=np.array(["helps", "cannot tell"], dtype=object),
        sentence="Joining helps.",
        metric="log",
        level=0.95,
    )
    told = benefit_record(found)
    assert told["helped"] == 1 and told["gain"] == [0.5, None] and "95%" in told["caption"]


def test_groups_of_rows_are_found_in_common_units_and_predicted_in_the_same(tmp_path):
    from fedkin import Federation, FedGrEM, Standardizer
    from fedkin.frames import read_frame

    rng = np.random.default_rng(0)
    lines = [f"s{k % 3},{4 * (k % 2) + rng.normal()!r},{1000 * rng.normal()!r}" for k in range(120)]
    (tmp_path / "g.csv").write_text("\n".join(["site,a,b", *lines]))
    done = run("fit", "fedgrem", "g.csv", "-k", 2, "--out", "o")
    assert done.exit_code == 0, (done.output, done.exception)
    data = Federation.from_frame(read_frame("g.csv"))
    scaled = Standardizer().fit(data).transform(data)
    expected = FedGrEM(2, random_state=0).fit(scaled).predict(scaled)
    rows = json.loads(run("predict", "o", "g.csv", "--json").stdout)
    assert [row["group"] for row in rows] == expected.tolist()


def test_a_missing_number_names_the_option_that_helps(monkeypatch, capsys, tmp_path):
    (tmp_path / "gap.csv").write_text("site,x,y\na,1,2\na,,3\na,3,1\nb,2,2\nb,4,1\nb,3,2\n")
    monkeypatch.setattr("sys.argv", ["fedkin", "fit", "mixed-model", "gap.csv"])
    with pytest.raises(SystemExit):
        main()
    assert "--missing drop" in capsys.readouterr().err
    told = run("fit", "mixed-model", "gap.csv", "--missing", "drop", "--random", "intercept")
    assert told.exit_code == 0


def test_plan_says_what_to_expect():
    done = run("plan", "--sites", 20, "--rows", 15, "--columns", 3, "--unlike", 0.3)
    assert done.exit_code == 0 and "Joining takes" in done.output
    told = json.loads(run("plan", "--sites", 9, "--rows", 15, "--columns", 3, "--json").stdout)
    assert [row["way"] for row in told["ways"]] == ["alone", "by degrees", "one model"]


def test_what_make_run_does_on_some_of_its_engines(tmp_path):
    """A common curve wins there, though not from four readings (two folds); the page says so."""
    assert run("data", "export", "engines", tmp_path / "all.csv").exit_code == 0
    head, *rows = (tmp_path / "all.csv").read_text().splitlines()
    (tmp_path / "some.csv").write_text("\n".join([head, *rows[: 8 * 12]]))
    how = ("--client", "engine", "--target", "sensor_7", "--out", tmp_path / "out")
    done = run("fit", "auto", tmp_path / "some.csv", *how)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a curve for each site, around a common one" in page


def test_fit_auto_weighs_the_ways(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    lines = ["site,a,b,c,y"]
    for k in range(5):
        drawn = rng.normal(size=(8, 3))
        rows = np.column_stack([drawn, drawn[:, 0] + k + 2.0 * rng.normal(size=8)])
        lines += [",".join([f"s{k}", *(f"{value:.6f}" for value in row)]) for row in rows]
    path = tmp_path / "auto.csv"
    path.write_text("\n".join(lines))
    done = run("fit", "auto", path, "--target", "y", "--folds", 2)
    assert done.exit_code == 0 and "won overall" in done.output and "by degrees" in done.output
    assert "ways of sharing, '" in done.output and "over staying alone" in done.output
    (place,) = (tmp_path / "fedkin-runs").iterdir()
    told = json.loads((place / "run.json").read_text())["benefit"]
    assert told["sites"] == [f"s{k}" for k in range(5)] and np.mean(told["gain"]) > 0
    page = (place / "report.html").read_text()
    assert "Which way of sharing foretells best" in page and "What joining gives each site" in page


def test_check_takes_words_as_a_fit_does_and_names_the_target(tmp_path):
    rows = [f"{k % 3},{'ab'[k % 2]},{k * k % 7},{k % 5}" for k in range(24)]
    (tmp_path / "words.csv").write_text("\n".join(["clinic,drug,age,weight", *rows]))
    done = run("check", "words.csv", "--client", "clinic", "--target", "weight")
    assert done.exit_code == 0 and "drug=b" in done.output
    (tmp_path / "gap.csv").write_text("\n".join(["clinic,age,weight", "a,1,", "a,2,3", "b,2,1"]))
    done = run("check", "gap.csv", "--client", "clinic", "--target", "weight")
    assert done.exit_code == 2 and "target 'weight' has 1 of 2" in done.output
    (tmp_path / "both.csv").write_text("\n".join(["clinic,drug,age", "a,x,", "a,y,3", "b,x,1"]))
    done = run("check", "both.csv", "--client", "clinic", "--target", "age")
    assert done.exit_code == 2 and "target 'age' has 1 of 2" in done.output
    assert "FK001" in done.output and "encode" not in done.output


def test_a_column_of_row_numbers_and_dropped_rows_are_told(tmp_path):
    rows = [f"{k + 1},{'abc'[k % 3]},{k * k % 7},{k % 5}" for k in range(24)] + ["25,a,,1"]
    (tmp_path / "numbered.csv").write_text("\n".join(["rownames,site,age,y", *rows]))
    settings = ("--missing", "drop", "--random", "intercept")
    done = run("fit", "mixed-model", "numbered.csv", *settings)
    assert done.exit_code == 0 and "'rownames' numbers the rows" in done.output
    assert "1 of 25 rows lack a number and were left out" in done.output
    done = run("fit", "mixed-model", "numbered.csv", "--features", "age", *settings)
    assert done.exit_code == 0 and "numbers the rows" not in done.output


def test_columns_can_be_left_out(table, tmp_path):
    given = ("--client", "clinic", "--target", "y")
    done = run("check", table, *given, "--drop", "a, c", "--json")
    assert json.loads(done.stdout)["features"] == ["b", "d", "e"]
    done = run("fit", "local-erm", table, *given, "--drop", "a", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert 'drop = "a"' in (tmp_path / "out" / "run.toml").read_text()
    again = run("fit", "--config", tmp_path / "out" / "run.toml", "--out", tmp_path / "again")
    assert again.exit_code == 0, again.output
    told = json.loads((tmp_path / "again" / "run.json").read_text())
    assert told["data"]["features"] == ["b", "c", "d", "e"]
    with pytest.raises(ValueError, match="--drop: there is no column 'nix'"):
        CliRunner().invoke(
            app, ["check", str(table), *given, "--drop", "nix"], catch_exceptions=False
        )


def test_a_check_prints_all_it_found(tmp_path):
    lines = [f"s{k},{'' if k < 30 else k},{k}" for k in range(60)]
    (tmp_path / "gaps.csv").write_text("\n".join(["site,x,y", *lines]) + "\n")
    done = run("check", tmp_path / "gaps.csv", "--target", "y")
    assert done.exit_code == 2 and done.stdout.count("FK001") == 1, "one finding for all sites"
    assert "'s0', 's1', 's2' and 27 more" in done.stdout and "FK017" in done.stdout
    assert "--missing drop" in done.output


def test_a_fit_that_fails_says_what_was_found_before(tmp_path):
    lines = [f"s{k % 3},{k}e200,{k}" for k in range(12)]
    (tmp_path / "huge.csv").write_text("\n".join(["site,x,y", *lines]) + "\n")
    done = run("fit", "fmlr", tmp_path / "huge.csv", "--out", tmp_path / "run")
    assert done.exit_code != 0 and "squares overflow; measure it in a larger unit" in done.output
    assert not (tmp_path / "run").exists() or any((tmp_path / "run").iterdir())


def test_one_site_is_told_in_words(tmp_path):
    lines = [f"A,{k % 7},{k % 5}" for k in range(30)]
    (tmp_path / "one.csv").write_text("\n".join(["site,x,y", *lines]) + "\n")
    done = run("fit", "local-erm", tmp_path / "one.csv", "--out", tmp_path / "run")
    assert done.stdout.startswith("There is one site only")
    assert "FK014" in done.stderr


def test_rows_without_a_column_of_sites_are_those_of_a_new_site_and_that_is_said(table, tmp_path):
    run("fit", "fmlr", table, "--client", "clinic", "-k", 2, "--out", tmp_path / "run")
    bare = ["a,b,c,d,e", "1,2,3,4,5"]
    named = ["clinic,a,b,c,d,e", "nobody,1,2,3,4,5"]
    (tmp_path / "bare.csv").write_text("\n".join(bare) + "\n")
    (tmp_path / "named.csv").write_text("\n".join(named) + "\n")
    done = run("predict", tmp_path / "run", tmp_path / "bare.csv", "--json")
    assert "there is no column 'clinic' of sites" in done.stderr
    same = run("predict", tmp_path / "run", tmp_path / "named.csv", "--json")
    assert "no column" not in same.stderr
    assert json.loads(done.stdout)[0]["prediction"] == json.loads(same.stdout)[0]["prediction"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("fit fmrl data.csv", "there is no method 'fmrl'; did you mean 'fmlr'?"),
        ("compare data.csv", "name a method before the table: fedkin compare auto data.csv"),
        ("fit fmlr data.csv --n-componets 2", "--max-components, --n-components); see "),
        ("fit fmlr data.csv --seed x", "Invalid value for '--seed'"),
        ("fits", "Did you mean 'fit'?"),
        ("predict", "Missing argument 'model'"),
        ("fit fmlr data.csv --level 95", "between 0 and 1, such as .95, not 95"),
        ("fit fmlr data.csv --client clinic --target clinic", "names the sites"),
        ("fit odcl data.csv --client clinic --target y --loss logistic", "take loss='squared'"),
    ],
)
def test_a_wrong_call_is_one_line_and_json_if_asked(words, told, table, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedkin", *words.split(), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.err.startswith("fedkin: ") and said.err.count("\n") == 1 and told in said.err
    assert told in json.loads(said.out)["error"]["message"]


def test_help_begins_with_what_a_newcomer_needs(monkeypatch, capsys):
    """And no command is forgotten in its order."""
    shown = run("--help").output
    assert shown.index("check") < shown.index("compare") < shown.index("federation")
    monkeypatch.setattr("sys.argv", ["fedkin"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "compare" in said.out + said.err


def test_a_column_that_is_missing_from_rows_to_predict_is_named_with_those_there(table, tmp_path):
    run("fit", "fmlr", table, "--client", "clinic", "--target", "y", "--out", "model")
    (tmp_path / "ask.csv").write_text("clinic,a,b,c,d\nx,1,2,3,4\n")
    done = run("predict", "model", "ask.csv")
    assert "no column 'e', which the model was fitted with" in str(done.exception)
    assert "the columns are clinic, a, b, c, d" in str(done.exception)


def test_a_column_that_is_asked_for_and_dropped_is_an_error(table):
    words = ("fit", "fmlr", table, "--client", "clinic")
    for more in (("--features", "a,b", "--drop", "b"), ("--target", "y", "--drop", "y")):
        done = run(*words, *more)
        assert done.exit_code != 0 and "asked for, too" in str(done.exception)
    done = run(*words, "--drop", "y")  # y is the target by default, but not one that is left out
    assert done.exit_code != 0 and "needs a target" in str(done.exception)


def test_rows_that_get_no_or_a_strangers_prediction_are_told(table, tmp_path):
    run("fit", "fmlr", table, "--client", "clinic", "--out", "out")
    header, first, second, *_ = table.read_text().splitlines()
    site, *numbers = first.split(",")
    stranger = ",".join(["elsewhere", *numbers])
    lacking = ",".join([site, "", *numbers[1:]])
    ask = tmp_path / "ask.csv"
    ask.write_text("\n".join([header, lacking, first, stranger]) + "\n")
    done = run("predict", "out", ask)
    assert "1 of 3 rows lack a number: no prediction" in done.stderr
    assert (
        "1 of 2 rows are of sites that the model has nothing of (site 'elsewhere')" in done.stderr
    )
    assert len(done.stdout.splitlines()) == 4
    ask.write_text("\n".join([header, first]) + "\n")
    assert run("predict", "out", ask).stderr == ""

    nameless = ",".join(["", *second.split(",")[1:]])
    ask.write_text("\n".join([header, lacking, first, nameless]) + "\n")
    assert "row 3 has no site name" in str(run("predict", "out", ask).exception)
    ask.write_text("\n".join([header, lacking]) + "\n")
    assert "each of the 1 rows asked lacks a number" in str(run("predict", "out", ask).exception)
    ask.write_text(header + "\n")
    assert "a header but no rows" in str(run("predict", "out", ask).exception)


def test_new_rows_without_a_number_can_be_left_out_of_adapting(table, tmp_path):
    run("fit", "fmlr", table, "--client", "clinic", "--out", "out")
    header, *rows = table.read_text().splitlines()
    own = [",".join(["new", *row.split(",")[1:]]) for row in rows[:6]]
    own[0] = ",".join(["new", "", *own[0].split(",")[2:]])
    ask = tmp_path / "new.csv"
    ask.write_text("\n".join([header, *own]) + "\n")
    assert run("adapt", "out", ask, "--out", "wider").exit_code != 0
    done = run("adapt", "out", ask, "--out", "wider", "--missing", "drop")
    assert done.exit_code == 0 and "the model now knows new" in done.stdout


def test_a_fit_that_learnt_nothing_needs_attention_and_says_so_first(tmp_path):
    table = tmp_path / "ones.csv"
    table.write_text("site,x,y\n" + "".join(f"s{k},{k},{k * k}\n" for k in range(8)))
    done = run("fit", "fgpr", table, "--common", "false")
    assert done.exit_code == 1
    assert done.stdout.startswith("Nothing was learnt")


def test_what_is_said_first_of_rivals_is_true_of_them(table):
    words = (table, "--client", "clinic", "--drop", "y", "-k", 2)
    alone, pooled = run("fit", "local-em", *words), run("fit", "pooled-em", *words)
    assert "means nothing across sites" in alone.stdout and "no row left" in alone.stdout
    assert "all rows were brought to one place" in pooled.stdout
    assert "no row left" not in pooled.stdout


def test_the_call_to_try_names_the_file_that_was_written(tmp_path):
    done = run("data", "export", "kinds", tmp_path / "my kinds.csv")
    call = done.stdout.split("try: ")[1]
    assert str(tmp_path / "my kinds.csv") in shlex.split(call)


def test_classes_and_groups_of_an_automatic_fit_are_predicted_by_their_names(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=90)
    words = np.where(x + 0.5 * rng.normal(size=90) > 0, "ill", "well")
    rows = [f"s{k % 5},{a:.3f},{w}" for k, (a, w) in enumerate(zip(x, words))]
    path = tmp_path / "words.csv"
    path.write_text("\n".join(["site,x,state", *rows]) + "\n")
    fitted = run("fit", "auto", path, "--target", "state", "--out", "classes", "--no-report")
    assert fitted.exit_code == 0, fitted.output
    header, *told = run("predict", "classes", path).stdout.splitlines()
    names = header.replace('"', "").split(",")
    assert names[3:] == ["prediction", "probability of ill", "probability of well"]
    guess = np.array([line.split(",")[3].strip('"') for line in told])
    assert np.mean(guess == words) > 0.7
    fitted = run("fit", "auto", path, "--features", "x", "--out", "groups", "--no-report")
    header = run("predict", "groups", path).stdout.splitlines()[0]
    assert header.replace('"', "").endswith("x,state,group")
    refused = run("adapt", "groups", path, "--out", "wider")
    assert "adapt a fit of one method" in str(refused.exception)
