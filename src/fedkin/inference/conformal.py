"""Intervals that hold whatever the model: every site's own quantile of what fits missed by.

Rows are left out in folds; a row's score is how far its target is from the prediction, in units of
the spread the model tells (or of the target, if it tells none). A site sends one number: the
quantile of its scores whose rank is the split-conformal one. The interval at a site is the
prediction plus and minus its quantile times the spread.

A quantile of few rows is noisy, and coverage given it is off by as much: logarithms of the sites'
quantiles are pulled to their mean as far as their rows leave them open (`method="shrunk"`). With
`method="exact"` each site keeps its own, which holds in finite samples at every site with 1 / (1 -
level) - 1 rows or more, and is wider on average. A site that was not in the fit gets the quantile
that holds on average over sites left out as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.inference.held_out import rows_left_out, sites_left_out
from fedkin.inference.spread import tells_spread
from fedkin.models.folds import row_folds

SCORE, WAY = "score", "joining"
METHODS = ("shrunk", "exact")
# The density of scores at the quantile is taken between quantiles this far to both sides.
BESIDE = 0.25
SITE_FOLDS = 5
LEAST_SPREAD = 1e-12


@dataclass(frozen=True)
class Conformal:
    """A fitted estimator with intervals; `quantiles` is what each site sent.

    Attributes
    ----------
    estimator : fitted estimator
    level : float
    names : tuple of str
    quantiles : array of shape (m,)
        The sites' own quantiles; infinite where a site has too few rows for one.
    multipliers : array of shape (m,)
        What spreads are multiplied with at each site.
    new_site : float
        The same at a site that was not in the fit.
    """

    estimator: Any
    level: float
    names: tuple[str, ...]
    quantiles: Floats
    multipliers: Floats
    new_site: float

    def predict_interval(self, X: Any, groups: Any = None) -> tuple[Floats, Floats]:
        """Predictions (n,) and ends of their intervals (n, 2)."""
        known = dict(zip(self.names, self.multipliers))
        sites = self._sites(X, groups)
        mean, spread = _prediction(self.estimator, X, groups)
        times = np.array([known.get(str(name), self.new_site) for name in sites])
        return mean, np.stack([mean - times * spread, mean + times * spread], axis=1)

    def predict(self, X: Any, groups: Any = None) -> Floats:
        """Predictions of the estimator."""
        return _prediction(self.estimator, X, groups)[0]

    def _sites(self, X: Any, groups: Any) -> Any:
        if isinstance(X, Federation):
            return X.groups[X.given_order]
        return self.estimator._site_of_each(len(X), groups)


def conformalize(
    estimator: Any,
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    level: float = 0.95,
    folds: int = 5,
    method: str = "shrunk",
    random_state: int = 0,
) -> Conformal:
    """Fit the estimator, and learn from rows left out how wide its intervals have to be.

    Parameters
    ----------
    estimator : estimator that predicts a number
        It is cloned.
    X, y, groups : rows, target and site of each row, or a Federation
    level : float
        Probability with which intervals hold a new target.
    folds : int
        Parts in which rows are left out.
    method : {"shrunk", "exact"}
        Whether sites' quantiles are pulled to their mean.
    random_state : int
        Decides the folds.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    data = X if isinstance(X, Federation) else Federation.from_groups(X, groups, y)
    if data.y is None:
        raise ValueError("intervals of a target need the target y")
    from sklearn.base import clone

    way = {WAY: clone(estimator)}
    held = rows_left_out(_Scores(), way, data, (folds,), random_state)
    scored = row_folds(data, folds, random_state) >= 0
    scores, owner = held.by_row[SCORE][0][scored], data.owner[scored]
    rows = np.bincount(owner, minlength=data.n_clients)
    own = np.array([_rank(np.sort(scores[owner == k]), level) for k in range(data.n_clients)])
    common = _equal_weights(scores, owner, data.n_clients, level)
    times = own
    if method == "shrunk":
        times = _shrunk(scores, owner, rows, level, common)
    new = common
    if data.n_clients > 1:
        left = sites_left_out(_Scores(), way, data, SITE_FOLDS, random_state).by_row[SCORE][0]
        new = _equal_weights(left, data.owner, data.n_clients, level)
    return Conformal(clone(estimator).fit(data), level, data.names, own, times, new)


class _Scores:
    """What rows left out are asked for."""

    def _row_scores(self, model: Any, test: Federation, train: Federation) -> dict[str, Floats]:
        mean, spread = _prediction(model, test, None)
        return {SCORE: np.abs(np.asarray(test.y) - mean) / spread}


def _prediction(model: Any, X: Any, groups: Any) -> tuple[Floats, Floats]:
    """Predictions and the spread that the model tells; 1 if it tells none."""
    if tells_spread(model):
        where = {} if groups is None else {"groups": groups}
        mean, spread = model.predict(X, **where, return_std=True)
        return np.asarray(mean), np.maximum(np.asarray(spread), LEAST_SPREAD)
    mean = np.asarray(model.predict(X) if groups is None else model.predict(X, groups=groups))
    return mean, np.ones(len(mean))


def _rank(scores: Floats, level: float) -> float:
    """The split-conformal quantile of sorted scores; infinite with too few."""
    rank = int(np.ceil((len(scores) + 1) * level))
    return float(scores[rank - 1]) if rank <= len(scores) else float("inf")


def _equal_weights(scores: Floats, owner: Any, n_clients: int, level: float) -> float:
    """The quantile of all scores in which every site counts the same, one site more at infinity."""
    rows = np.bincount(owner, minlength=n_clients)
    filled = int((rows > 0).sum())
    order = np.argsort(scores)
    share = np.cumsum(1.0 / rows[owner[order]]) / (filled + 1.0 / max(len(scores) / filled, 1.0))
    place = int(np.searchsorted(share, level))
    return float(scores[order[min(place, len(order) - 1)]])


def _shrunk(scores: Floats, owner: Any, rows: Any, level: float, common: float) -> Floats:
    """Sites' quantiles, pulled to their mean on the scale of logarithms, (m,)."""
    logs = np.log(np.maximum(scores, LEAST_SPREAD))
    # Variance of a sample quantile: level (1 - level) / (n density^2), the density from all rows.
    away = BESIDE * (1.0 - level)
    centred = logs - _site_medians(logs, owner, len(rows))[owner]
    low, high = np.quantile(centred, [level - away, level + away])
    density = 2.0 * away / max(float(high - low), 1e-12)
    usable = rows > 1
    estimate = np.full(len(rows), np.log(max(common, LEAST_SPREAD)))
    for k in np.flatnonzero(usable):
        estimate[k] = np.quantile(logs[owner == k], min(level * (1.0 + 1.0 / rows[k]), 1.0))
    variance = level * (1.0 - level) / (np.maximum(rows, 1) * density**2)
    spread = _between(estimate[usable], variance[usable])
    weights = 1.0 / (spread + variance[usable])
    mean = float(weights @ estimate[usable] / weights.sum()) if usable.any() else estimate[0]
    # What shrinks towards the mean of logarithms would hold too little: keep the common level.
    kept = spread / (spread + variance)
    pulled = np.where(usable, mean + kept * (estimate - mean), mean)
    return _levelled(np.exp(pulled), scores, owner, level)


def _levelled(times: Floats, scores: Floats, owner: Any, level: float) -> Floats:
    """Multipliers times the one number with which left-out rows are held at the level."""
    ratio = np.sort(scores / times[owner])
    return np.asarray(times * _rank(ratio, level)) if len(ratio) else times


def _site_medians(values: Floats, owner: Any, n_clients: int) -> Floats:
    return np.array(
        [np.median(values[owner == k]) if (owner == k).any() else 0.0 for k in range(n_clients)]
    )


def _between(estimates: Floats, variances: Floats) -> float:
    """Variance between sites (DerSimonian and Laird)."""
    if len(estimates) < 2:
        return 0.0
    weights = 1.0 / variances
    mean = weights @ estimates / weights.sum()
    excess = float(weights @ (estimates - mean) ** 2) - (len(estimates) - 1)
    return max(0.0, excess / float(weights.sum() - (weights**2).sum() / weights.sum()))
