"""Methods in words: the question each answers, what leaves a site, rounds, when it fails.

Kept apart from the methods so that `fedkin --help` and `fedkin methods` need not load them. A
method that has no entry here is described by the first line of its docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fedkin.registry import ESTIMATORS

AUTO = "Best"
"""The estimator that `fedkin fit auto` stands for."""


@dataclass(frozen=True)
class Words:
    """A method in words."""

    question: str
    leaves: str
    rounds: str
    fails: str
    difference: str
    """In which way sites differ: kinds, degrees, curves, groups; or "rival", "oracle", "step"."""


WORDS = {
    "Best": Words(
        "Which way of sharing fits my sites, and how much does it help each of them?",
        "what the ways that are tried send",
        "those of the ways that are tried",
        "when sites have so few rows that nothing can be left out to compare",
        "any",
    ),
    "FMLR": Words(
        "Which sites follow the same regression, and what are the regressions?",
        "sums of products of features and target, once (share=sums: weighted, each round)",
        "1 (share=sums: one per EM step)",
        "when sites differ by degrees rather than by kind: BIC then wants ever more kinds",
        "kinds",
    ),
    "ODCL": Words(
        "Which sites are of a kind, and what is the model of each kind, in one round?",
        "each site's own model, and its covariance where the number of kinds is chosen",
        "1 (and refine_rounds)",
        "when sites have fewer rows than a model of their own needs",
        "kinds",
    ),
    "MixedModel": Words(
        "What is common to all sites, how far does each depart, with honest errors?",
        "sums of products of features and target, once (counts: values and slopes, each round)",
        "1 (counts: about a dozen)",
        "when sites fall into kinds that have little in common",
        "degrees",
    ),
    "FGPR": Words(
        "What does my site's curve look like, with honest bands, also at a new site?",
        "value and gradient of the log likelihood, each round; never rows or curves",
        "about a dozen",
        "with many features or thousands of rows a site: it is slow there",
        "curves",
    ),
    "FedGrEM": Words(
        "What groups are in my data, if everybody's data help to find them?",
        "means (or coefficients) of each site's groups and their sampling variances, each round",
        "tens",
        "when groups overlap so much that a site cannot find a start of its own",
        "groups",
    ),
    "FedEM": Words(
        "What groups are in the data of all sites, if all sites have the same ones?",
        "sums of rows weighted by group, each round",
        "tens",
        "when sites' groups differ: it has one set for all",
        "rival",
    ),
    "FedGMM": Words(
        "Regressions whose shares depend on where a row lies",
        "weighted sums of products, each round",
        "tens",
        "with few rows: it has many parameters",
        "rival",
    ),
    "TGMM": Words(
        "Groups of a site with the other sites' first estimates as sources",
        "first estimates of each site's groups",
        "a few",
        "when other sites' groups differ",
        "rival",
    ),
    "LocalEM": Words(
        "What groups does each site find alone?",
        "nothing but its likelihood",
        "1",
        "groups mean something else at every site",
        "rival",
    ),
    "PooledEM": Words(
        "What groups would be found if all rows could be in one place?",
        "all rows: for comparison only",
        "none",
        "it shares data",
        "rival",
    ),
    "IFCA": Words(
        "Which sites are of a kind, by many rounds of choosing among K models?",
        "models or gradients, each round",
        "tens to hundreds",
        "its start decides where it ends",
        "rival",
    ),
    "LocalERM": Words(
        "What does each site find alone?",
        "its own model",
        "1",
        "with few rows a site: nothing is shared",
        "rival",
    ),
    "NaiveAveraging": Words(
        "What is the mean of all sites' models, as if they were all of a kind?",
        "its own model",
        "1",
        "when sites are of several kinds",
        "rival",
    ),
    "OracleAveraging": Words(
        "The mean of models of each true kind, if somebody told us the kinds",
        "its own model",
        "1",
        "nobody knows the true kinds",
        "oracle",
    ),
    "ClusterOracle": Words(
        "One model per true kind, if somebody told us the kinds",
        "sums of products (logistic: rows)",
        "1",
        "nobody knows the true kinds",
        "oracle",
    ),
    "LocalGP": Words(
        "What does each site's curve look like from its own rows alone?",
        "nothing but its likelihood",
        "1",
        "with few rows: it is too sure of itself",
        "rival",
    ),
    "PooledGP": Words(
        "What is the one curve through all rows in one place?",
        "all rows: for comparison only",
        "none",
        "it shares data, and sites' curves must be one",
        "rival",
    ),
    "FedAvgPolynomial": Words(
        "One polynomial for all sites, by averaging",
        "coefficients after local steps, each round",
        "tens",
        "when sites' curves differ",
        "rival",
    ),
    "FedAvgNetwork": Words(
        "One small network for all sites, by averaging",
        "weights after local steps, each round",
        "hundreds",
        "when sites' curves differ",
        "rival",
    ),
    "CoKriging": Words(
        "Cheap and dear measurements of one thing: what does the dear one look like?",
        "all rows: for comparison only",
        "none",
        "it shares data",
        "rival",
    ),
    "Standardizer": Words(
        "Common means, scales and shape of columns, before any other method",
        "sums and sums of squares of columns",
        "1 to 2",
        "whitening needs more rows than features",
        "step",
    ),
}


def plain(name: str) -> str:
    """A name without case, hyphens and underlines, by which methods are looked up."""
    return name.lower().replace("-", "").replace("_", "")


def command_names() -> list[str]:
    """What methods are called on the command line, the main ones first."""
    order = {name: k for k, name in enumerate(WORDS)}
    names = sorted(ESTIMATORS, key=lambda name: (order.get(name, len(order)), name))
    return ["auto", *(_hyphened(name) for name in names if name != AUTO)]


def estimator_name(command: str) -> str:
    """The estimator that a method's name on the command line stands for."""
    if plain(command) in ("auto", plain(AUTO)):
        if AUTO not in ESTIMATORS:
            raise ValueError("this version has no 'auto' yet; name a method: fedkin methods")
        return AUTO
    known = {plain(name): name for name in ESTIMATORS}
    if plain(command) not in known:
        raise ValueError(f"there is no method {command!r}; there are {', '.join(command_names())}")
    return known[plain(command)]


def estimator_class(command: str) -> Any:
    """The estimator itself."""
    name = estimator_name(command)
    return getattr(import_module(ESTIMATORS[name]), name)


def words_of(name: str) -> Words:
    """The method in words; the first line of its docstring where there are none."""
    if name in WORDS:
        return WORDS[name]
    told = (getattr(import_module(ESTIMATORS[name]), name).__doc__ or name).strip()
    return Words(told.splitlines()[0], "see its summary", "see its summary", "not told", "other")


def _hyphened(name: str) -> str:
    """MixedModel is mixed-model, LocalERM local-erm, FedGrEM fedgrem."""
    kept = {"FedGrEM", "FedEM", "FedGMM"}
    if name in kept or name.isupper():
        return name.lower()
    text = ""
    for k, letter in enumerate(name):
        begins = letter.isupper() and k and name[k - 1].islower()
        text += ("-" if begins else "") + letter.lower()
    return text
