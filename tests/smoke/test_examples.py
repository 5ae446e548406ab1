"""The examples run and show what they say."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"


def run(name, target):
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.main(target)


def test_joined_engines_keep_their_promises_and_separate_ones_do_not(tmp_path):
    table = run("turbofan", tmp_path / "report.html")
    coverage, score = table["coverage of 95 %"], table["log score"]
    assert 0.92 <= coverage[0] <= 0.97 and max(coverage[1:]) < 0.93
    assert score[0] < 1.0 < min(score[1:])
    assert all(int(said.split()[0]) >= 90 for said in table["joining helps"][1:])
    page = (tmp_path / "report.html").read_text()
    assert "Joining helps 9" in page
    assert "What joining gives each site" in page and len(page) < 1e6


def test_joined_writers_mean_the_same_digit_and_separate_ones_do_not(tmp_path):
    table = run("pen_digits", tmp_path / "pen.html")
    (once, alone_once), (own, alone_own) = list(table.columns.values())[1:]
    assert once < 25 and alone_once > 60
    assert own < 6 and abs(own - alone_own) < 2
