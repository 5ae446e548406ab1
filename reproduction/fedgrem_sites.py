"""FedGrEM with covariances of groups on real sites: test likelihood, groups, and labels.

Peers are scikit-learn's mixtures and discriminant analyses, of all rows together and at every site.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reproduction.mixed_classes import LEAST_PROBABILITY, measured
from reproduction.mixture_protocol import matched_error
from reproduction.pictures import dots
from reproduction.real_sites import CLASSES, Table, activities, split
from reproduction.study import Promise, Results, Size, Study, cells

OURS, TODAY = "FedGrEM, full", "FedGrEM, identity"
# The same in units in which one column is a million times as wide as another.
OTHER_UNITS, UNLIKE = "FedGrEM, full, other units", 1e6
SHAPES = ("spherical", "diag", "tied", "full")
POOLED = ("all rows", "all rows, own weights")
ALONE = tuple(f"alone, {shape}" for shape in SHAPES)
# Starts of a mixture of all rows and of one site's; passes that learn a site's weights.
POOLED_STARTS, OWN_STARTS, WEIGHT_PASSES = 3, 1, 100
ROWS: tuple[int | str, ...] = (10, 20, 40, 80, "all")
# Of the labels, where some are known.
KNOWN = 0.1
# Shrinkage of scikit-learn's covariances that too few rows leave without an inverse.
LACKING_ROWS = 0.1
# Error above the least of the peers that is let pass.
MORE_ERROR = 0.02


class Rows:
    """A table split into rows to learn from and rows to test."""

    def __init__(
        self, table: str | Table, rows: int | str, seed: int, sites: int | None = None
    ) -> None:
        data = CLASSES[table]() if isinstance(table, str) else table
        train, test = split(data.site, None if rows == "all" else int(rows), seed, sites)
        code = np.unique(data.y, return_inverse=True)[1]
        self.n_classes = int(code.max()) + 1
        X = (data.X - data.X[train].mean(axis=0)) / data.X[train].std(axis=0)
        self.X, self.y, self.site = X[train], code[train], data.site[train]
        self.X_test, self.y_test, self.site_test = X[test], code[test], data.site[test]

    def by_site(self, answer: Callable[..., np.ndarray]) -> np.ndarray:
        """`answer(X, y, X_test)` at every site, in the order of the rows to test."""
        found = None
        for name in np.unique(self.site):
            own, asked = self.site == name, self.site_test == name
            said = np.asarray(answer(self.X[own], self.y[own], self.X_test[asked]))
            found = np.zeros((len(self.X_test), *said.shape[1:])) if found is None else found
            found[asked] = said
        assert found is not None
        return found


# ------------------------------------------------------------------ without labels


def groups(seed: int, table: str, rows: int | str, sites: int | None) -> list[dict[str, Any]]:
    """Log likelihood of test rows, and how many are in a group of another class."""
    from fedkin import FedGrEM

    data, found = Rows(table, rows, seed, sites), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, shape in ((OURS, "full"), (TODAY, "identity")):
            model = FedGrEM(data.n_classes, covariance_type=shape, random_state=seed)
            model.fit(data.X, groups=data.site)
            asked = {"X": data.X_test, "groups": data.site_test}
            found[name] = model.score_samples(**asked), model.predict(**asked)
        found[OTHER_UNITS] = in_other_units(data, seed)
        found |= all_rows(data, seed)
        for shape, name in zip(SHAPES, ALONE):
            found[name] = alone(data, shape, seed)
    return [
        {
            "method": name,
            "log likelihood": float(np.mean(density)),
            "error": matched_error(np.asarray(group, dtype=int), data.y_test),
        }
        for name, (density, group) in found.items()
    ]


def in_other_units(data: Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ours by columns in units that have nothing to do with each other; density in the first."""
    from fedkin import FedGrEM

    d = data.X.shape[1]
    units = np.random.default_rng([18, seed]).permutation(np.geomspace(1.0, UNLIKE, d))
    model = FedGrEM(data.n_classes, covariance_type="full", random_state=seed)
    model.fit(data.X * units, groups=data.site)
    asked = {"X": data.X_test * units, "groups": data.site_test}
    return model.score_samples(**asked) + np.log(units).sum(), model.predict(**asked)


def mixture(X: np.ndarray, n_groups: int, shape: str, n_starts: int, seed: int) -> Any:
    """A mixture of scikit-learn."""
    from sklearn.mixture import GaussianMixture

    n_groups = min(n_groups, len(X))
    model = GaussianMixture(n_groups, covariance_type=shape, n_init=n_starts, random_state=seed)
    return model.fit(X)


def all_rows(data: Rows, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """One mixture with full covariances of all rows; and with weights of every site's own."""
    from scipy.special import logsumexp

    model = mixture(data.X, data.n_classes, "full", POOLED_STARTS, seed)
    joint = model._estimate_weighted_log_prob(data.X_test)
    density = model._estimate_log_prob(data.X), model._estimate_log_prob(data.X_test)
    own = np.empty_like(joint)
    for name in np.unique(data.site):
        here, asked = density[0][data.site == name], data.site_test == name
        weights = model.weights_
        for _ in range(WEIGHT_PASSES):
            terms = here + np.log(np.maximum(weights, LEAST_PROBABILITY))
            weights = np.exp(terms - logsumexp(terms, axis=1, keepdims=True)).mean(axis=0)
        own[asked] = density[1][asked] + np.log(np.maximum(weights, LEAST_PROBABILITY))
    return {
        name: (logsumexp(terms, axis=1), terms.argmax(axis=1))
        for name, terms in zip(POOLED, (joint, own))
    }


def alone(data: Rows, shape: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Every site a mixture of its own."""

    def answer(X: np.ndarray, y: np.ndarray, asked: np.ndarray) -> np.ndarray:
        model = mixture(X, data.n_classes, shape, OWN_STARTS, seed)
        return np.column_stack([model.score_samples(asked), model.predict(asked)])

    density, group = data.by_site(answer).T
    return density, group


def promises(results: Results) -> list[Promise]:
    """At every n at least the best peer's likelihood, at most its error and a little."""
    found = []
    for table in results.distinct("table") or list(CLASSES):
        for rows in ROWS:
            run = results.where(table=table, rows=rows)
            words = f"{table}, {rows} rows a site"
            peers = (TODAY, *POOLED, *ALONE)
            best = max(
                (run.estimate("log likelihood", method=name) for name in peers),
                key=lambda one: one.mean,
            )
            ours = run.estimate("log likelihood", method=OURS)
            spread = float(np.nan_to_num(max(ours.se, best.se)))
            what = f"{words}: log likelihood of a test row above the best peer's less one se"
            found.append(Promise(what, ours.mean - best.mean + spread, least=0.0))
            other = run.estimate("log likelihood", method=OTHER_UNITS)
            spread = float(np.nan_to_num(max(other.se, best.se)))
            what = f"{words}: log likelihood in other units above the best peer's less one se"
            found.append(Promise(what, other.mean - best.mean + spread, least=0.0))
            least = np.min([run.estimate("error", method=name).mean for name in peers])
            more = run.estimate("error", method=OURS).mean - least
            what = f"{words}: error with one matching above the best peer's"
            found.append(Promise(what, more, most=MORE_ERROR))
    return found


# ------------------------------------------------------------------ with labels


def labelled(seed: int, table: str, rows: int | str, sites: int | None) -> list[dict[str, Any]]:
    """Error and log loss with all labels known, and with a tenth of them."""
    from fedkin import FedGrEM

    data = Rows(table, rows, seed, sites)
    some = np.random.default_rng([17, seed]).random(len(data.y)) < KNOWN
    few, found = np.where(some, data.y, -1), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, labels, init in (
            (OURS, data.y, "auto"),
            (SOME, few, "auto"),
            (BEGUN, few, class_means(data, some)),
        ):
            model = FedGrEM(data.n_classes, covariance_type="full", init=init, random_state=seed)
            model.fit(data.X, labels, groups=data.site)
            found[name] = probabilities(model, data)
        found |= discriminants(data) | of_few(data, some)
    return [{"method": name, **measured(share, data.y_test)} for name, share in found.items()]


def class_means(data: Rows, some: np.ndarray) -> np.ndarray:
    """Means of the classes by all labels; those with labels among `some` first, as a fit has them.

    A class that is not among the rows at all has the mean of all.
    """
    order = np.argsort(~np.isin(np.arange(data.n_classes), data.y[some]), kind="stable")
    own = [data.X[data.y == c] for c in order]
    return np.stack([(rows if len(rows) else data.X).mean(axis=0) for rows in own])


def of_few(data: Rows, some: np.ndarray) -> dict[str, np.ndarray]:
    """Probabilities by scikit-learn from some labels: rows that have them, and all rows."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Lda
    from sklearn.semi_supervised import LabelSpreading

    rule = partial(Lda, solver="lsqr", shrinkage="auto")
    lda = discriminant(rule, data.n_classes, data.X[some], data.y[some], data.X_test)
    spread = LabelSpreading(kernel="knn").fit(data.X, np.where(some, data.y, -1))
    share = np.zeros((len(data.X_test), data.n_classes))
    share[:, spread.classes_] = np.nan_to_num(spread.predict_proba(data.X_test))
    return dict(zip(FEW, (lda, share)))


def probabilities(model: Any, data: Rows) -> np.ndarray:
    """Of all classes, (n, C); one without a label among those that are known has none."""
    said = model.predict_proba(data.X_test, groups=data.site_test)
    found = np.zeros((len(said), data.n_classes))
    found[:, model.classes_] = said[:, : len(model.classes_)]
    return found


def discriminants(data: Rows) -> dict[str, np.ndarray]:
    """Probabilities by discriminant analyses, of all rows and at every site alone."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Lda
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as Qda

    found = {}
    for word, rule in (("LDA", Lda), ("QDA", Qda)):
        answer = partial(discriminant, rule, data.n_classes)
        found[f"{word}, all rows"] = answer(data.X, data.y, data.X_test)
        found[f"{word}, alone"] = data.by_site(answer)
    return found


def discriminant(
    rule: Any, n_classes: int, X: np.ndarray, y: np.ndarray, asked: np.ndarray
) -> np.ndarray:
    """Probabilities of all classes by scikit-learn; classes of a single row do not take part."""
    share = np.zeros((len(asked), n_classes))
    counts = np.bincount(y, minlength=n_classes)
    seen = np.flatnonzero(counts > 1)
    kept = np.isin(y, seen)
    if len(seen) < 2:
        share[:, counts.argmax()] = 1.0
        return share
    try:
        fitted = rule().fit(X[kept], y[kept])
    except np.linalg.LinAlgError:  # fewer rows of a class than columns
        fitted = rule(solver="eigen", shrinkage=LACKING_ROWS).fit(X[kept], y[kept])
    said = fitted.predict_proba(asked)
    share[:, seen] = np.nan_to_num(said, nan=1.0 / len(seen))
    return share


SOME = "FedGrEM, a tenth of the labels"
BEGUN = "a tenth, begun at the means of all"
FEW = ("LDA, a tenth of the labels", "label spreading, a tenth of the labels")
RULES = ("LDA, all rows", "LDA, alone", "QDA, all rows", "QDA, alone")


def label_promises(results: Results, unlabelled: Results) -> list[Promise]:
    """At most the peers' error and log loss; a tenth of the labels halves the error of none."""
    found = []
    for table in results.distinct("table") or list(CLASSES):
        for rows in ROWS:
            run = results.where(table=table, rows=rows)
            words = f"{table}, {rows} rows a site"
            for measure in ("error", "log loss"):
                best = np.min([run.estimate(measure, method=name).mean for name in RULES])
                ours = run.estimate(measure, method=OURS).mean
                what = f"{words}, all labels: {measure} over that of the best other"
                found.append(Promise(what, ours / best, most=1.0))
            none = unlabelled.estimate("error", table=table, rows=rows, method=OURS).mean
            some = run.estimate("error", method=SOME).mean
            what = f"{words}: error with a tenth of the labels over that with none"
            why = ""
            if rows in MISSED:
                tried = (BEGUN, *FEW)
                others = [run.estimate("error", method=name).mean / none for name in tried]
                why = MISSED[rows].format(*(f"{one:.3f}" for one in others))
            found.append(Promise(what, some / none, most=0.5, withdrawn=why))
            for measure in ("error", "log loss"):
                ours = run.estimate(measure, method=SOME).mean
                best = np.min([run.estimate(measure, method=name).mean for name in FEW])
                what = f"{words}, a tenth of the labels: {measure} over that of the best other"
                found.append(Promise(what, ours / best, most=1.0))
    return found


# Where a tenth of the labels does not halve the error, in words.
MISSED: dict[int | str, str] = {
    10: (
        "one label a person, four or five a class: nothing that was tried reaches it, neither a "
        "fit begun at the means of all labels ({}) nor linear discriminants of all labelled rows "
        "({}) nor label spreading over all rows ({})"
    )
}

REAL = (
    "Six activities of 30 people (20 principal components of unit variance) and ten digits of 44 "
    "writers (16 coordinates). Thirty per cent of every site's rows are held out; {} of the others "
    "are learnt from, columns in units of their spread. "
)
MEASURES = ("log likelihood", "error")
LABEL_MEASURES = ("error", "log loss", "calibration error")
CELLS = cells(table=tuple(CLASSES), rows=ROWS, sites=(None,))
QUICK = cells(table=tuple(CLASSES), rows=(20,), sites=(None,))
TOY = [{"table": "activities", "rows": 20, "sites": 8}]
STUDIES = (
    Study(
        name="fedgrem-real-sites",
        paper="fedkin",
        shows="groups",
        title="FedGrEM with covariances of groups on real sites",
        protocol=(
            REAL.format("10, 20, 40, 80 or all")
            + f'As many groups as classes, no labels. {OURS}: covariance_type="full", the rest '
            f"defaults; {TODAY}: all defaults. Peers: scikit-learn's mixtures, full covariances of "
            "all rows (likeliest of three starts), the same with every site's own weights, and "
            "every site alone. *log likelihood*: of a test row. *error*: test rows in a group of "
            "another class, one matching of groups to classes for all sites."
        ),
        one=groups,
        figure=partial(dots, by=("table", "rows", "method"), measures=("error",)),
        promises=promises,
        by=("table", "rows", "method"),
        measures=MEASURES,
        full=Size(CELLS, 5),
        quick=Size(QUICK, 1),
        toy=Size(TOY, 1),
        needs=(activities,),
    ),
    Study(
        name="fedgrem-labels",
        paper="fedkin",
        shows="labels",
        title="FedGrEM with labels on real sites",
        protocol=(
            REAL.format("10, 20, 40, 80 or all")
            + f'FedGrEM(covariance_type="full") with all labels known, and with {KNOWN:.0%} of '
            f"them. *{BEGUN}*: the same, but its start is the classes' means by all labels, which "
            "nobody has: how far a better start would lead. Peers: linear and quadratic "
            "discriminant analysis of scikit-learn, of all rows and at "
            f"every site (shrinkage={LACKING_ROWS:g} where too few rows leave no inverse; classes "
            "with a single row do not take part; a class has at least probability "
            f"{LEAST_PROBABILITY:g} in the log loss). With a tenth of the labels: linear "
            'discriminants of all labelled rows (solver="lsqr", shrinkage="auto") and '
            'LabelSpreading(kernel="knn") over all rows.'
        ),
        one=labelled,
        figure=partial(dots, by=("table", "rows", "method"), measures=("error", "log loss")),
        promises=label_promises,
        beside=("fedgrem-real-sites",),
        by=("table", "rows", "method"),
        measures=LABEL_MEASURES,
        full=Size(CELLS, 5),
        quick=Size(QUICK, 1),
        toy=Size(TOY, 1),
        needs=(activities,),
    ),
)
