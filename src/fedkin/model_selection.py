"""Cross-validation that knows of sites: rows left out within each, or whole sites left out.

scikit-learn's own functions do as well, if its metadata routing is switched on
(`sklearn.set_config(enable_metadata_routing=True)`) and groups are given as
`params={"groups": groups}`; estimators here ask for them by themselves. With routing off, groups
reach the splitter alone and every fit is to one site (`OneSiteWarning`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any, Literal

import numpy as np

from fedkin.arrays import Array, Indices
from fedkin.federation import Federation
from fedkin.names import canonical_names, site_labels
from fedkin.randomness import name_keys, row_uniforms


class RowsWithinSites:
    """Splits that leave out a share of the rows of every site: how well are known sites predicted?

    Parameters
    ----------
    n_splits : int
        Number of parts; each is left out once.
    random_state : int
        Decides who is in which part.

    Examples
    --------
    >>> from fedkin.model_selection import RowsWithinSites
    >>> splits = RowsWithinSites(2).split([[0.0]] * 4, groups=["a", "a", "b", "b"])
    >>> [len(test) for train, test in splits]
    [2, 2]
    """

    def __init__(self, n_splits: int = 5, random_state: int = 0) -> None:
        if n_splits < 2:
            raise ValueError(f"n_splits must be at least 2, not {n_splits}")
        self.n_splits, self.random_state = n_splits, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of parts."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Indices, Indices]]:
        """Positions of rows to fit and of rows left out, part by part."""
        if groups is None:
            raise ValueError("rows are left out within sites: groups must name the site of each")
        part = self._parts(canonical_names(site_labels(groups)))
        for number in range(self.n_splits):
            yield np.flatnonzero(part != number), np.flatnonzero(part == number)

    def _parts(self, sites: Array) -> Indices:
        """The part of every row; within a site parts differ in size by one at most."""
        names, codes = np.unique(sites.astype(str), return_inverse=True)
        cuts = np.cumsum(np.bincount(codes, minlength=len(names))) - np.bincount(codes)
        order = np.argsort(codes, kind="stable")
        within = np.empty(len(codes), dtype=np.intp)
        within[order] = np.arange(len(codes)) - cuts[codes[order]]
        keys = name_keys(tuple(map(str, names)), self.random_state)
        draw = row_uniforms(keys[codes], within.astype(np.uint64))
        rank = np.empty(len(codes), dtype=np.intp)
        by_lot = np.lexsort((draw, codes))
        rank[by_lot] = np.arange(len(codes)) - cuts[codes[by_lot]]
        return rank % self.n_splits


def cross_val_score(
    estimator: Any,
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    cv: int | Any = 5,
    leave_out: Literal["rows", "sites"] = "rows",
    scoring: Any = None,
    n_jobs: int | None = None,
) -> Array:
    """Scores of an estimator, or of a pipeline that ends in one, on what it was not fitted to.

    Parameters
    ----------
    estimator : estimator
        Of this package, or a scikit-learn pipeline or search with one inside.
    X : rows, or a Federation
    y : target of each row
    groups : the site of each row
    cv : int or splitter
        Number of parts, or a scikit-learn splitter, which gets the groups.
    leave_out : {"rows", "sites"}
        With a number of parts: rows of every site (how well are known sites predicted?), or whole
        sites (how well are new ones?).
    scoring : str, callable or None
        As scikit-learn has it; None is the estimator's own `score`.
    n_jobs : int or None
        Fits side by side.

    Returns
    -------
    array of shape (n_splits,)

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import FMLR
    >>> from fedkin.model_selection import cross_val_score
    >>> rng = np.random.default_rng(0)
    >>> X, sites = rng.normal(size=(120, 1)), np.repeat([f"s{k}" for k in range(6)], 20)
    >>> y = np.where(np.arange(120) < 60, 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=120)
    >>> bool(cross_val_score(FMLR(2, random_state=0), X, y, sites, cv=3).min() > 0.9)
    True
    """
    import sklearn
    from sklearn.model_selection import GroupKFold
    from sklearn.model_selection import cross_val_score as plain

    if leave_out not in ("rows", "sites"):
        raise ValueError(f"leave_out must be 'rows' or 'sites', not {leave_out!r}")
    if isinstance(X, Federation):
        if y is not None or groups is not None:
            raise ValueError("a Federation brings its own target and sites")
        X, y, groups = X.X, X.y, X.groups
    if groups is None:
        raise ValueError("groups must name the site of each row")
    if isinstance(cv, int):
        cv = RowsWithinSites(cv) if leave_out == "rows" else GroupKFold(cv)
    splits = list(cv.split(X, y, groups))
    with sklearn.config_context(enable_metadata_routing=True):
        return plain(
            estimator,
            X,
            y,
            cv=splits,
            scoring=_routed(scoring, estimator),
            params={"groups": np.asarray(groups)},
            n_jobs=n_jobs,
            error_score="raise",
        )


def _routed(scoring: Any, estimator: Any) -> Any:
    """A scorer by name that predicts with the sites; None is the estimator's own `score`."""
    if scoring is None or callable(scoring):
        return scoring
    from sklearn.metrics import get_scorer

    by_name = get_scorer(scoring)

    def score(fitted: Any, X: Any, y: Any, groups: Any = None) -> float:
        return float(by_name(_AtSites(fitted, groups), X, y))

    return _Requesting(score)


class _AtSites:
    """A fitted estimator that knows the sites of the rows it will be asked about."""

    def __init__(self, fitted: Any, groups: Any) -> None:
        self._fitted, self._groups = fitted, groups

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fitted, name)
        if name not in ("predict", "predict_proba", "decision_function"):
            return found
        # scikit-learn looks at the name of what it calls.
        return wraps(found)(lambda X: found(X, groups=self._groups))

    def __sklearn_tags__(self) -> Any:
        return self._fitted.__sklearn_tags__()


class _Requesting:
    """A scoring function that asks scikit-learn's routing for the groups."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, estimator: Any, X: Any, y: Any, **given: Any) -> float:
        return float(self.function(estimator, X, y, **given))

    def get_metadata_routing(self) -> Any:
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner="scoring")
        request.score.add_request(param="groups", alias=True)
        return request
