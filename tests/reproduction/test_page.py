"""The committed pages are what their rows say, and say something about every table and figure."""

import re
from pathlib import Path

import pytest

from reproduction import catalogue
from reproduction.book import OURS, read_others, read_study, study_page, write_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STUDIES = DOCS / "studies"

SHOWN = {
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


@pytest.mark.parametrize("paper", SHOWN)
def test_every_table_and_figure_has_a_study(paper):
    assert SHOWN[paper] <= shown(paper)


@pytest.fixture(scope="module")
def page():
    return (DOCS / "reproduction.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """Both pages written again from the committed rows."""
    folder = tmp_path_factory.mktemp("again")
    (folder / "studies").symlink_to(STUDIES)
    write_page(catalogue().values(), folder)
    return folder


@pytest.mark.parametrize("name", ["reproduction.md", "promises.md"])
def test_the_pages_are_made_from_the_rows_beside_them(again, name):
    assert (again / name).read_text(encoding="utf-8") == (DOCS / name).read_text(encoding="utf-8")


def table_rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]


def test_the_summary_has_one_row_a_table_or_figure_with_a_verdict(page):
    rows = {r[0].strip(): [cell.strip() for cell in r] for r in table_rows(page) if len(r) == 5}
    for study in catalogue().values():
        if study.paper != OURS:
            row = rows[f"[{study.shows}](studies/{study.name}.md)"]
            assert row[1] and re.search(r"\b(yes|no|cannot tell)\b", row[2]), study.name


def test_the_summary_fits_on_a_few_screens(page):
    assert len(page.splitlines()) < 200 and len(page) < 40_000


def test_links_lead_somewhere(page):
    others = [(DOCS / name).read_text(encoding="utf-8") for name in ("promises.md", "evidence.md")]
    for text in (page, *others):
        targets = re.findall(r'(?:\]\(|href="|src=")([^)"]+)', text)
        assert targets and not [t for t in targets if not (DOCS / t).exists()]


RUN = [name for name in catalogue() if (STUDIES / f"{name}.csv").exists()]


def test_what_was_not_run_is_said_to_be_not_run():
    """Tables and figures of the papers are all there; promises without rows are on the page."""
    missing = [study for name, study in catalogue().items() if name not in RUN]
    assert all(study.paper == OURS for study in missing)
    promises = (DOCS / "promises.md").read_text(encoding="utf-8")
    for study in missing:
        rows = [line for line in promises.splitlines() if line.startswith(f"| {study.name} |")]
        assert rows and all("**not run**" in line for line in rows)


@pytest.mark.parametrize("name", RUN)
def test_a_study_s_page_is_made_from_its_rows_and_they_are_those_of_the_study(name):
    """Every cell and seed of the full size, and no other; and the page that they make."""
    study = catalogue()[name]
    results, facts = read_study(study, STUDIES)
    assert facts["size"] == "full"
    names = list(dict.fromkeys(key for cell in study.full.cells for key in cell))
    expected = {
        (*(cell.get(key) for key in names), seed)
        for cell in study.full.cells
        for seed in range(study.full.replications)
    }
    assert {tuple(row.get(key) for key in (*names, "seed")) for row in results.rows} == expected
    text = (STUDIES / f"{name}.md").read_text(encoding="utf-8")
    assert study_page(study, results, read_others(study, STUDIES), facts) == text
    assert (STUDIES / f"{name}.png").is_file()
    assert b"\r" not in (STUDIES / f"{name}.csv").read_bytes()


@pytest.mark.parametrize("name", [n for n, s in catalogue().items() if s.paper != OURS])
def test_every_entry_has_our_figure(name):
    study = catalogue()[name]
    results = read_study(study, STUDIES)[0]
    claims = study.claims(results, *read_others(study, STUDIES))
    assert claims
    open_ = [c.entry for c in claims if str(c.ours) in ("", "not run", "nan", "no number")]
    assert not open_
