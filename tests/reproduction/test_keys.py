"""A kept replication is named by the code that made it, and by nothing else."""

import importlib.util
import sys
from pathlib import Path

import pytest

from reproduction import catalogue, keys

STUDY = '''
"""A study."""
from reproduction.odcl_protocol import CAP
from reproduction.study import Claim

SCALE = 2.0
LIMITS = {"a": 1}
LIMITS["b"] = 2
WORDS = "the paper says"


def helper(x):
    """Doubles."""
    return SCALE * x


def one(seed, cell):
    # A comment.
    return [{"error": helper(seed) + LIMITS[cell] + CAP}]


def claims(results):
    return [Claim("entry", WORDS, "1", "yes")]
'''


@pytest.fixture
def key(tmp_path):
    """The key of `one` in a module of this text."""
    made = iter(range(100))

    def of(text):
        file = tmp_path / str(next(made)) / "some_study.py"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("some_study", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return keys.replication(module.one)

    return of


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("the paper says", "the paper claims"),
        ('"entry"', '"another entry"'),
        ("# A comment.", "# Another comment."),
        ('"""Doubles."""', '"""Twice."""'),
        ("SCALE * x", "(SCALE\n            * x)"),
    ],
)
def test_words_comments_and_layout_discard_nothing(key, before, after):
    assert before in STUDY
    assert key(STUDY) == key(STUDY.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("helper(seed) +", "helper(seed) -"),
        ("SCALE * x", "SCALE + x"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ('LIMITS["b"] = 2', 'LIMITS["b"] = 3'),
        ("odcl_protocol import CAP", "odcl_protocol import SAME_WITHIN as CAP"),
    ],
)
def test_code_that_a_replication_reaches_is_another_replication(key, before, after):
    assert before in STUDY
    assert key(STUDY) != key(STUDY.replace(before, after))


def test_what_an_imported_name_reaches_counts(key, monkeypatch):
    before = key(STUDY)
    # CAP is another number in the file it comes from.
    file = keys.HERE / "odcl_protocol.py"
    top = {**keys._top(file), "CAP": keys.ast.parse("CAP = 7").body}
    seen = keys._top
    monkeypatch.setattr(keys, "_top", lambda path: top if path == file else seen(path))
    assert key(STUDY) != before


@pytest.mark.parametrize("name", catalogue())
def test_no_study_s_replication_reaches_what_people_read(name):
    one = catalogue()[name].one
    found = keys.reached(keys.Name(Path(sys.modules[one.__module__].__file__), one.__name__))
    read = {"Claim", "Check", "Promise", "Study", "STUDIES", "PAPER", "PRINTED", "PROTOCOL"}
    read |= {"LABELS", "SAID", "WHY", "WORDS", "draw", "claims", "checks", "promises", "known"}
    assert one.__name__ in {n.name for n in found}
    assert not {n.name for n in found} & read


@pytest.fixture
def forgotten():
    """The package's key is asked again before and after."""
    keys.package.cache_clear()
    yield
    keys.package.cache_clear()


def test_the_package_s_key_is_of_its_code_only(tmp_path, monkeypatch, forgotten):
    def of(text):
        (tmp_path / "module.py").write_text(text, encoding="utf-8")
        keys.package.cache_clear()
        return keys.package()

    monkeypatch.setattr(keys.fedkin, "__file__", str(tmp_path / "__init__.py"))
    plain = of('"""A room."""\n\nX = 1  # one\n')
    assert of('"""Another room."""\nX = 1\n') == plain != of("X = 2\n")
