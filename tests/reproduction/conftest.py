"""Toy runs of studies, each made once a worker and written out as a real run would be."""

import functools

import pytest

from reproduction import catalogue
from reproduction.book import read_study
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
        text = (out / "studies" / f"{name}.md").read_text(encoding="utf-8")
        assert study.claims(found[0]), f"{name} claims nothing"
        assert text.count("\n| ") > len(study.claims(found[0]))
        assert (out / "studies" / f"{name}.png").stat().st_size > 1000
        return found[0]

    return of
