"""The benchmark runs at toy size: rows are well formed, peers agree, everything is written."""

import csv
import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure, run, scaling, table
from benchmarks.table import Promise, Row

TOY = measure.EFFORTS["toy"]
# Where the work is the same, results may differ by this much; see `difference` of each part.
AGREE = {
    "fmlr": 1e-10,
    "mixture_rounds": 1e-10,
    "odcl": 1e-10,
    "mixed_model": 1e-5,  # statsmodels stops where its steps are small
    "convex_clustering": 1e-3,  # peers stop at a gap of 1e-7
    "gaussian_process": 1e-9,
    "matern_curves": 1e-9,
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    for name in measure.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", run.PARTS)
def test_rows_are_well_formed_and_peers_agree(part, monkeypatch):
    # GPyTorch is no dependency of the tests; its rows are made by `make bench` only.
    monkeypatch.setattr(import_module("benchmarks.gaussian_process"), "gpytorch_peer", lambda: None)
    rows = list(import_module(f"benchmarks.{part}").rows(TOY))
    assert rows
    for row in rows:
        assert row.work and row.ours > 0 and row.turns >= 1
        assert (row.peer == "") == (row.peer_time is None)
        assert (row.bound == "") == (row.bound_time is None)
        assert Row.from_dict(json.loads(json.dumps(asdict(row)))) == row
        if row.difference is not None:
            assert row.difference <= AGREE[part]
    if part in AGREE:
        assert any(row.difference is not None for row in rows)


def test_a_promise_is_judged_by_what_it_limits():
    row = Row("w", 2.0, "p", 10.0, bound="b", bound_time=1.0, memory=3.0)
    assert row.holds is None
    kept = {"ratio": 5.0, "time": 2.0, "distance": 2.0, "memory": 3.0}
    broken = {"ratio": 5.1, "time": 1.9, "distance": 1.9, "memory": 2.9}
    for measured in table.MEASURES:
        assert replace(row, promise=Promise(measured, kept[measured])).holds
        assert not replace(row, promise=Promise(measured, broken[measured])).holds
    assert Row("w", 2.0, promise=Promise("ratio", 1.0)).holds is False


def test_the_verdict_names_what_is_broken_and_where_we_are_behind():
    slow = Row("slow", 2.0, "peer", 1.0, Promise("ratio", 3.0), threads=2)
    fast = Row("fast", 1.0, "peer", 4.0, Promise("ratio", 3.0))
    lines = table.verdict([slow, fast])
    assert lines[0] == "Promises that hold: 1 of 2."
    assert any("NOT kept: slow against peer (2 threads)" in line for line in lines)
    assert any("Behind the peer: slow" in line for line in lines)
    assert table.verdict([fast])[-1] == "Behind no peer."


def test_ten_percent_is_level_and_the_fastest_peer_counts():
    rows = [Row("w", 1.0, "weak", 9.0), Row("w", 1.0, "strong", 1.05), Row("v", 1.0, "p", 0.8)]
    assert [row.standing for row in rows] == ["ahead", "level", "behind"]
    assert Row("alone", 1.0).standing == ""
    assert [row.peer for row in table.strongest([*rows, Row("alone", 1.0)])] == ["strong", "p"]
    lines = table.verdict(rows)
    assert "ahead in 0, level (within 10%) in 1, behind in 1 of 2." in lines[1]
    assert any(line.startswith("Level with: w against strong") for line in lines)
    assert "| w | 1 | strong | 1.05 x | level |" in table.summary(rows)


def test_works_take_turns():
    called = []
    works = {name: lambda name=name: called.append(name) for name in "abc"}
    found = measure.race(works, measure.Effort("x", 4, 1, 0.0))
    assert called[-12:] == ["a", "b", "c"] * 4
    assert all(timing.turns == 4 for timing in found.values())


def test_a_bound_is_the_slower_of_arithmetic_and_memory():
    rates = measure.Roofline(flops=10.0, bytes=5.0, exps=2.0)
    assert rates.seconds(flops=20, exps=2, bytes=5) == 3.0
    assert rates.seconds(flops=20, bytes=50) == 10.0
    here = measure.roofline(size=64, megabytes=2)
    assert min(here) > 0


def test_the_exponent_of_a_power_is_found_where_fixed_costs_are_gone():
    sizes = [10, 20, 50, 100, 200, 500, 1000, 2000]
    points = [scaling.Point("p", "w", n, 1e-9 * n**1.5, 1) for n in sizes]
    assert scaling.exponent(points) == pytest.approx(1.5)
    late = [replace(p, seconds=p.seconds + (5e-8 if p.size < 200 else 0.0)) for p in points]
    assert scaling.exponent(late) == pytest.approx(1.5)


@pytest.mark.filterwarnings("ignore")
def test_scaling_writes_a_table_and_a_picture(tmp_path, capsys):
    scaling.main(["--effort", "toy", "--out", str(tmp_path)])
    measured = scaling.read_csv(tmp_path / "scaling.csv")
    assert {point.panel for point in measured} == set(scaling.PANELS)
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    printed, curves = capsys.readouterr().out, scaling.by_curve(measured)
    assert len(curves) == 9
    for (panel, work), curve in curves.items():
        assert len(curve) >= 2 and np.isfinite(scaling.exponent(curve))
        assert f"| {panel} | {work} |" in printed


def test_a_run_prints_one_table_and_writes_page_and_csv(tmp_path, capsys):
    run.main(["--quick", "--only", "engine", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("peer time") == 1
    page = (tmp_path / "results.md").read_text()
    assert all(f"| {name} |" in page or f" {name} |" in page for name in table.COLUMNS)
    assert "cores" in page and "linear algebra" in page and "GFlop/s" in page
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["threads"] for row in rows] == ["1", "2"]
    assert all(float(row["ours"]) > 0 for row in rows)


def test_kept_tables_end_their_lines_alike():
    kept = list(Path(run.__file__).parent.rglob("*.csv"))
    assert kept and not [path.name for path in kept if b"\r" in path.read_bytes()]
