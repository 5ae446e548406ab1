"""Running studies: what is kept is used again; failures cost themselves only."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin.datasets import DataMissing
from reproduction import Claim, Estimate, Results, Size, Study, catalogue, cells, keys
from reproduction.__main__ import app
from reproduction.book import farthest, read_study, write_again, write_page
from reproduction.runner import StudyFailed, results, run


def draws(seed, scale):
    value = scale * np.random.default_rng([seed, int(scale)]).normal()
    return [{"method": "plain", "error": value}, {"method": "doubled", "error": 2 * value}]


def fails_at_two(seed, scale):
    if scale == 2:
        raise FloatingPointError("no number")
    return draws(seed, scale)


def picture(found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2))
    figure.subplots().plot(*found.curve("scale", "error", method="plain"))
    return figure


def claims(found):
    return [Claim("scale 1", "0.1", found.estimate("error", scale=1, method="plain"), "yes")]


def reworded(found):
    return [Claim("the first scale", "a tenth", "0.1", "in other words")]


def study(**changes):
    size = Size(cells(scale=[1, 2]), 3)
    made = Study(
        name="small",
        paper="Nobody",
        shows="Table 0",
        title="scales",
        protocol="Normal draws.",
        one=draws,
        figure=picture,
        claims=claims,
        by=("scale", "method"),
        measures=("error",),
        full=Size(size.cells, 5),
        quick=size,
        toy=size,
    )
    return replace(made, **changes)


def kept(out):
    return sorted((out / "studies" / ".cells" / "small").iterdir())


def test_a_run_leaves_rows_figure_table_and_facts(tmp_path):
    run([study()], tmp_path, "quick")
    folder = tmp_path / "studies"
    assert {p.name for p in folder.glob("small*")} == {
        f"small.{end}" for end in ("csv", "png", "md", "json")
    }
    found, facts = read_study(study(), folder)
    assert len(found.rows) == 2 * 3 * 2 and facts["size"] == "quick"
    expected = [draws(seed, 1)[0]["error"] for seed in range(3)]
    estimate = found.estimate("error", scale=1, method="plain")
    assert estimate.mean == pytest.approx(np.mean(expected), rel=1e-6)
    assert estimate.se == pytest.approx(np.std(expected, ddof=1) / math.sqrt(3), rel=1e-6)
    assert str(estimate) in (folder / "small.md").read_text()
    page = write_page([study(), study(name="other")], tmp_path).read_text()
    assert f"scale 1: 0.1, ours {estimate}" in page
    assert "not run here: `python -m reproduction run other`" in page


def test_what_was_cut_short_goes_on_and_a_larger_size_begins_with_the_smaller(tmp_path):
    run([study()], tmp_path, "quick")
    first = kept(tmp_path)
    first[0].unlink()
    marked = json.loads(first[1].read_text())
    marked["rows"][0]["method"] = "kept"
    first[1].write_text(json.dumps(marked))
    run([study()], tmp_path, "full")
    assert set(first) <= set(kept(tmp_path)) and len(kept(tmp_path)) == 10
    rows = read_study(study(), tmp_path / "studies")[0]
    assert "kept" in rows.distinct("method"), "a kept replication was run again"
    run([study()], tmp_path, "full", fresh=True)
    assert "kept" not in read_study(study(), tmp_path / "studies")[0].distinct("method")


def test_other_code_is_another_replication(tmp_path):
    run([study()], tmp_path, "quick")
    with pytest.raises(StudyFailed, match=r"small \{'scale': 2\} seed 0: FloatingPointError"):
        run([study(one=fails_at_two)], tmp_path, "quick")
    # Scale 1 was run and kept beside the old ones; scale 2 was not.
    assert len(kept(tmp_path)) == 6 + 3


def test_a_change_anywhere_in_the_package_is_another_replication(tmp_path, monkeypatch):
    run([study()], tmp_path, "quick")
    monkeypatch.setattr(keys, "package", lambda: "a helper has changed")
    run([study()], tmp_path, "quick")
    assert len(kept(tmp_path)) == 6 + 6


def test_rewording_claims_and_protocol_discards_no_replication(tmp_path):
    run([study()], tmp_path, "quick")
    before = {path: path.stat().st_mtime_ns for path in kept(tmp_path)}
    run([study(claims=reworded, protocol="Draws, normal.", title="sizes")], tmp_path, "quick")
    assert {path: path.stat().st_mtime_ns for path in kept(tmp_path)} == before
    assert "in other words" in (tmp_path / "studies" / "small.md").read_text()


def test_tables_and_page_are_written_again_from_the_rows(tmp_path):
    run([study()], tmp_path, "quick")
    table = tmp_path / "studies" / "small.md"
    rows, text = table.with_suffix(".csv").read_bytes(), table.read_text()
    write_again([study()], tmp_path)
    assert table.read_text() == text and table.with_suffix(".csv").read_bytes() == rows
    write_again([study(protocol="Draws.")], tmp_path)
    assert "Draws." in table.read_text()


def nearly_one(seed, scale):
    return [{"method": "plain", "error": 1.0 + 1e-9 * seed}]


def test_a_page_after_a_run_is_the_one_made_from_its_rows(tmp_path):
    """Rows are kept with seven digits; what is beyond them is on no page."""
    run([study(one=nearly_one, by=("scale",))], tmp_path, "quick")
    page = tmp_path / "studies" / "small.md"
    first = page.read_text("utf-8")
    write_again([study(one=nearly_one, by=("scale",))], tmp_path)
    assert page.read_text("utf-8") == first


def test_a_failing_study_does_not_keep_others_from_finishing(tmp_path):
    good = study(name="good")
    with pytest.raises(StudyFailed, match="3 replications failed"):
        run([study(one=fails_at_two), good], tmp_path, "quick")
    assert (tmp_path / "studies" / "good.md").is_file()
    assert not (tmp_path / "studies" / "small.md").is_file()


def test_a_study_without_its_data_is_left_out_and_said_so(tmp_path):
    def missing():
        raise DataMissing("there is no such file")

    said = []
    run([study(needs=(missing,))], tmp_path, "quick", say=said.append)
    assert said == ["small is left out: there is no such file"]
    assert not (tmp_path / "studies").exists()


def test_a_study_without_its_library_is_left_out_and_said_so(tmp_path):
    def missing():
        import no_such_library  # noqa: F401

    said = []
    run([study(needs=(missing,))], tmp_path, "quick", say=said.append)
    assert said == ["small is left out: No module named 'no_such_library'"]


def test_a_dask_cluster_gives_the_same_numbers(tmp_path):
    distributed = pytest.importorskip("distributed")
    fmlr = catalogue()["fmlr-figure-5"]
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        local_directory=tmp_path / "dask",
    ) as cluster:
        address = cluster.scheduler_address
        run([fmlr], tmp_path, "toy", jobs=-1, backend="dask", address=address)
    here = results(fmlr, "toy").rows
    there = read_study(fmlr, tmp_path / "studies")[0].rows
    assert [row["error"] for row in there] == pytest.approx([r["error"] for r in here], rel=1e-6)


def test_the_mean_is_over_replications_not_rows():
    rows = [{"seed": 0, "x": 1.0}, {"seed": 0, "x": 3.0}, {"seed": 1, "x": 4.0}]
    assert Results(rows).estimate("x") == Estimate(3.0, 1.0, 2)
    assert str(Results([]).estimate("x")) == "not run"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Estimate(0.12345, 0.01, 3), "0.123 ± 0.010"),
        (Estimate(12.345, 0.0123, 3), "12.345 ± 0.012"),
        (Estimate(1234.5, 250.0, 3), "1234 ± 250"),
        (Estimate(1.5e-9, 2e-10, 3), "1.5e-09 ± 2e-10"),
        (Estimate(12.345, 0.0, 3), "12.3 ± 0"),
        (Estimate(12.345, math.nan, 1), "12.3"),
    ],
)
def test_a_standard_error_has_two_digits_and_the_mean_as_many_places(value, written):
    assert str(value) == written


@pytest.mark.parametrize(
    ("paper", "number"),
    [
        ("9.62 (1.03)", 9.62),
        ("0.98 ± 0.003", 0.98),
        ("440", 440.0),
        ("-0.5", -0.5),
        ("n of about 400", None),
        ("4 on average", None),
        ("curve, no number", None),
    ],
)
def test_a_printed_number_is_read_with_or_without_its_spread(paper, number):
    assert Claim("a", paper, "1", "yes").printed == number


def test_the_farthest_entry_is_so_by_its_ratio():
    claims = [
        Claim("near", "10", Estimate(11.0, 0.1, 5), "yes"),
        Claim("half", "10", Estimate(5.0, 0.1, 5), "yes"),
        Claim("larger", "10", Estimate(18.0, 0.1, 5), "yes"),
        Claim("seconds", "10", Estimate(1.0, 0.1, 5), "another machine", compared=False),
        Claim("not run", "10", Results([]).estimate("x"), "yes"),
        Claim("words", "large", Estimate(1.0, 0.1, 5), "yes"),
    ]
    assert farthest(claims) == "half: 10, ours 5.00 ± 0.10"
    assert farthest(claims[4:]) == "no numbers printed"


def test_rows_are_found_by_their_values_whatever_was_asked_before():
    found = Results([{"seed": s, "a": a, "x": a + s} for s in (0, 1) for a in (1, 2)])
    assert found.where(a=1).column("x").tolist() == [1, 2]
    assert found.where(a=2.0, seed=1).column("x").tolist() == [3]
    assert found.where(seed=1, a=2).column("x").tolist() == [3]
    assert found.where(b=None).column("x").tolist() == [1, 2, 2, 3]
    assert found.where(a=3).rows == [] and found.where().rows == found.rows


def test_names_are_unique_and_every_module_is_listed():
    import reproduction as studies

    found = [s.name for m in studies.MODULES for s in _studies(m)]
    assert len(found) == len(set(found)) == len(catalogue())
    folder = Path(studies.__file__).parent
    apart = {"__init__", "__main__", "study", "runner", "book", "accept"}
    unlisted = {
        path.stem
        for path in folder.glob("*.py")
        if path.stem not in apart and "STUDIES = " in path.read_text(encoding="utf-8")
    }
    assert unlisted == set(studies.MODULES)


def _studies(module):
    from importlib import import_module

    return import_module(f"reproduction.{module}").STUDIES


def test_the_command_lists_and_refuses_unknown_names(tmp_path):
    listed = CliRunner().invoke(app, ["list"])
    assert "fmlr-figure-1" in listed.output
    ray = ["run", "all", "--backend", "ray", "--out", str(tmp_path)]
    assert "--backend dask" in str(CliRunner().invoke(app, ray).exception)
    refused = CliRunner().invoke(app, ["run", "nothing", "--out", str(tmp_path)])
    assert isinstance(refused.exception, ValueError) and "reproduction list" in str(
        refused.exception
    )


def test_studies_use_what_users_use_and_mathematics_but_nothing_in_between():
    """So a study cannot break when algorithms, engines or messages change inside."""
    folder = Path(catalogue.__code__.co_filename).parent
    used = {
        (path.name, module)
        for path in folder.glob("*.py")
        for module in re.findall(r"(?:from|import) fedkin\.(\w+)", path.read_text("utf-8"))
    }
    assert {"datasets", "clustering"} <= {module for _, module in used}
    inside = {"algorithms", "engines", "protocol", "estimators", "privacy", "settings"}
    # Who studies lies in messages has to know messages.
    assert not [p for p in used if p[1] in inside and p != ("liars.py", "protocol")]


def test_neither_wheel_nor_sdist_carries_studies():
    import tomllib

    root = Path(__file__).parents[2]
    built = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    assert built["targets"]["wheel"]["packages"] == ["src/fedkin"]
    assert not [part for part in built["targets"]["sdist"]["include"] if "reproduction" in part]
    assert not (root / "src" / "fedkin" / "studies").exists()
