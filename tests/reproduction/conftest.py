"""Toy runs of studies, each made once a worker and written out as a real run would be."""

import functools

import pytest

from reproduction import catalogue
from reproduction.book import read_others, read_study
from reproduction.runner import run


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """`toy("fmlr-figure-1")`: the study's results at toy size; skips where its data are missing."""
    out = tmp_path_factory.mktemp("studies")

    @functools.cache
    def of(name):
        study, said = catalogue()[name], []
        run([study], out, "toy", say=said.append)
        found = read_study(study, out / "studies")
        if found is None:
            pytest.skip(said[0])
        rows = [found[0], *read_others(study, out / "studies")]
        judged = study.claims(*rows), study.checks(*rows), study.promises(*rows)
        assert any(judged) or study.paper == "fedkin", f"{name} says nothing"
        text = (out / "studies" / f"{name}.md").read_text(encoding="utf-8")
        assert text.count("\n| ") > sum(map(len, judged))
        assert (out / "studies" / f"{name}.png").stat().st_size > 1000
        return found[0]

    return of
