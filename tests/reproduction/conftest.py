"""Toy runs of studies, each made once a worker and written out as a real run would be."""

import functools
import math

import pytest

from reproduction import Results, catalogue
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


@pytest.fixture
def kept_promises(toy):
    """The promises whose cells a toy run has, after seeing that all of them hold.

    `but` names in a word those that so few draws cannot tell.
    """

    def of(name, but=None):
        study = catalogue()[name]
        found = study.promises(toy(name), *(Results([]) for _ in study.beside))
        judged = [p for p in found if math.isfinite(p.value) and not p.withdrawn]
        judged = [p for p in judged if but is None or but not in p.what]
        assert [f"{p.what}: {p.shown} ({p.bounds})" for p in judged if not p.holds] == []
        return judged

    return of
