"""Every public estimator shows in its docstring how it is used, and what it shows is true."""

import doctest
import inspect
import re

import pytest

import fedkin
from fedkin.registry import ESTIMATORS


@pytest.mark.parametrize("name", ["Federation", *sorted(ESTIMATORS)])
def test_the_example_in_the_docstring_gives_what_it_says(name):
    estimator = getattr(fedkin, name)
    finder = doctest.DocTestFinder(recurse=False)
    # The class's own docstring: a parent's example would show the parent.
    shown = finder.find(estimator, name) if estimator.__doc__ else []
    examples = [example for found in shown for example in found.examples]
    used = [example for example in examples if re.search(rf"\b{name}[.(]", example.source)]
    assert used, f"{name} shows no example of its use"
    assert any(example.want for example in examples), f"the example of {name} shows no result"
    report: list[str] = []
    for found in shown:
        doctest.DocTestRunner(verbose=False).run(found, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_the_docstring_has_a_line_for_every_parameter(name):
    estimator = getattr(fedkin, name)
    lines = inspect.getdoc(estimator).splitlines()
    told = {line.split(" : ")[0] for line in lines if " : " in line}
    assert not set(inspect.signature(estimator).parameters) - told
