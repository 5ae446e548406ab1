"""The committed page is what its files say, and says something about every table and figure."""

import re
from pathlib import Path

import pytest

from reproduction import catalogue
from reproduction.book import read_study, write_page
from reproduction.study import UNEXPLAINED

DOCS = Path(__file__).parents[2] / "docs"

PROMISED = {
    "FedGrEM": {("Figure", 3), *(("Table", k) for k in range(1, 9))},
    "ODCL": {*(("Figure", k) for k in (2, 3, 4, 5)), *(("Table", k) for k in (1, 2, 3))},
    "FMLR": {("Figure", k) for k in range(1, 7)},
    "FGPR": {("Figure", 1), ("Table", 1)},
}


def shown(paper):
    """(word, number) of every table and figure that some study of the paper shows."""
    found = set()
    for study in catalogue().values():
        if study.paper == paper:
            for word, numbers in re.findall(r"(Figure|Table)s? ([\d, and]+)", study.shows):
                found |= {(word, int(number)) for number in re.findall(r"\d+", numbers)}
    return found


@pytest.mark.parametrize("paper", PROMISED)
def test_every_table_and_figure_has_a_study(paper):
    assert PROMISED[paper] <= shown(paper)


@pytest.fixture(scope="module")
def page():
    return (DOCS / "reproduction.md").read_text(encoding="utf-8")


def test_the_page_is_made_from_the_files_beside_it(page, tmp_path):
    (tmp_path / "studies").symlink_to(DOCS / "studies")
    assert write_page(catalogue().values(), tmp_path).read_text(encoding="utf-8") == page


def claims(page):
    """(entry, ours, why) of every row beside the paper."""
    rows = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("| ")
    ]
    return [(r[0].strip(), r[2].strip(), r[5].strip()) for r in rows if len(r) == 6]


def test_every_entry_has_our_figure(page):
    open_ = [
        entry for entry, ours, _ in claims(page) if ours in ("", "not run", "nan", "no number")
    ]
    assert len(claims(page)) > 400 and not open_
    assert "Not run here" not in page


def test_no_row_far_from_what_was_noted_goes_without_a_reason(page):
    assert UNEXPLAINED not in page and "not traced" not in page


def test_every_study_has_its_picture():
    missing = [n for n in catalogue() if not (DOCS / "studies" / f"{n}.png").is_file()]
    assert not missing


@pytest.mark.parametrize("name", catalogue())
def test_the_rows_are_those_of_the_study_as_it_is_now(name):
    """Every cell and seed of the size that was run, and no other."""
    study = catalogue()[name]
    results, facts = read_study(study, DOCS / "studies")
    size = study.size(facts["size"])
    names = list(dict.fromkeys(key for cell in size.cells for key in cell))
    expected = {
        (*(cell.get(key) for key in names), seed)
        for cell in size.cells
        for seed in range(size.replications)
    }
    assert {tuple(row.get(key) for key in (*names, "seed")) for row in results.rows} == expected
