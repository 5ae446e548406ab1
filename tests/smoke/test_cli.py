import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin.cli import app, main
from fedkin.datasets import contaminate_sites, make_regression_groups
from fedkin.datasets.fmlr import PAPER_COEF


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
    assert written == ["choice.csv", "components.csv", "sites.csv", "summary.html", "traffic.csv"]
    assert "12 sites, 2 regressions" in (out / "summary.html").read_text()


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
    assert json.loads(one) == json.loads(other)


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


def test_curves_are_fitted_predicted_and_their_prior_saved(tmp_path):
    from fedkin import FGPR
    from fedkin.datasets import make_gaussian_sites

    data = make_gaussian_sites(5, 10, random_state=1).federation
    names = np.array(data.names)[data.owner]
    rows = [f"{s},{x[0]!r},{v!r}" for s, x, v in zip(names, data.X.tolist(), data.y.tolist())]
    table, asked, out = tmp_path / "t.csv", tmp_path / "asked.csv", tmp_path / "out"
    table.write_text("\n".join(["site,x,y", *rows]))
    asked.write_text("site,x\nsite-2,0.25\nsite-2,0.5\nelsewhere,0.5\n")
    done = run("fit", "fgpr", table, "--predict", asked, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["sites"]) == 5
    written = sorted(path.name for path in out.iterdir())
    expected = ["choice.csv", "predictions.csv", "prior.npz", "priors.csv", "sites.csv"]
    assert written == [*expected, "summary.html", "traffic.csv"]
    told = (out / "predictions.csv").read_text().splitlines()
    where = ["elsewhere", "site-2", "site-2"]
    mean = FGPR().fit(data).predict([[0.5], [0.25], [0.5]], where)
    assert len(told) == 4
    found = [float(line.split(",")[2]) for line in told[1:]]
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    wrong = run("fit", "fgpr", table, "--scale", "none")
    assert isinstance(wrong.exception, ValueError)


def test_plan_says_what_to_expect():
    done = run("plan", "--sites", 20, "--rows", 15, "--columns", 3, "--unlike", 0.3)
    assert done.exit_code == 0 and "Joining takes" in done.output
    told = json.loads(run("plan", "--sites", 9, "--rows", 15, "--columns", 3, "--json").stdout)
    assert [row["way"] for row in told["ways"]] == ["alone", "by degrees", "one model"]


def test_fit_auto_weighs_the_ways(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    lines = ["site,a,b,c,y"]
    for k in range(5):
        drawn = rng.normal(size=(8, 3))
        rows = np.column_stack([drawn, drawn[:, 0] + k + 0.1 * rng.normal(size=8)])
        lines += [",".join([f"s{k}", *(f"{value:.6f}" for value in row)]) for row in rows]
    path = tmp_path / "auto.csv"
    path.write_text("\n".join(lines))
    done = run("fit", "auto", path, "--target", "y", "--folds", 2)
    assert done.exit_code == 0 and "won overall" in done.output and "by degrees" in done.output
