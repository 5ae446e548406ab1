"""The mutants: one broken line each, and the tests that must notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text that stands once in a file below src/fedkin, what it becomes, and who must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PROTOCOL = ("tests/maths/test_protocol.py",)
GROUPED = ("tests/maths/test_grouped_regression.py",)
IMPLAUSIBLE = ("tests/discordant/test_implausible_sites.py",)

MUTANTS = (
    Mutant(
        "gate without the negative side of the bound",
        "protocol/gate.py",
        "array.max() <= declared.bound and array.min() >= -declared.bound",
        "array.max() <= declared.bound",
        PROTOCOL,
    ),
    Mutant(
        "quorum not met by exactly its share",
        "engines/driver.py",
        "n_answered < rules.quorum",
        "n_answered <= rules.quorum",
        PROTOCOL,
    ),
    Mutant(
        "misses counted in total instead of running",
        "engines/driver.py",
        "self.misses.get(k, 0) + 1 if late else 0",
        "self.misses.get(k, 0) + late",
        PROTOCOL,
    ),
    Mutant(
        "BIC of FMLR without the noise",
        "algorithms/fmlr.py",
        "free = n_components * d + (settings.sigma is None)",
        "free = n_components * d",
        GROUPED,
    ),
    Mutant(
        "BIC of FMLR without the weights",
        "algorithms/fmlr.py",
        "free += final.weights.shape[1] - 1 if settings.weights is None else 0",
        "free += 0",
        GROUPED,
    ),
    Mutant(
        "possible() without the intercept check",
        "models/least_squares.py",
        "fine &= np.abs(diagonal[-2] - n) <= POSSIBLE_SLACK * n",
        "pass",
        IMPLAUSIBLE,
    ),
    Mutant(
        "weighted sums whose counts need not add to one",
        "algorithms/fmlr_expectation.py",
        "fine &= np.all(np.abs(counts.sum(axis=2) - 1) <= POSSIBLE_SLACK, axis=1)",
        "pass",
        IMPLAUSIBLE,
    ),
    Mutant(
        "age of a standing reply",
        "algorithms/fmlr_expectation.py",
        "stands = age < np.ceil",
        "stands = age <= np.ceil",
        GROUPED,
    ),
    Mutant(
        "odd sites without Bonferroni",
        "inference/odd_sites.py",
        "FAMILY_LEVEL / heard.sum()",
        "FAMILY_LEVEL",
        ("tests/maths/test_odd_sites.py",),
    ),
)
