"""The other ways an estimator is compared with, and what rows left out say of a fit.

`ways` gives, for any estimator, what it would be to stay alone and to be one; `row_scores` gives
every left-out row its log density and, as it may be, squared error or error. `fedkin.inference`
reaches them through the estimator, so that it need not know any.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from fedkin.federation import Federation
from fedkin.inference.spread import tells_spread

ALONE, JOINING, ONE = "alone", "joining", "one model"
# Log densities below this are all as bad: a row that a fit held impossible.
LOWEST = -1e4
# Rows by which a site's residual spread is pulled to that of all, where a fit tells no spread.
PULL = 5.0


def kind(estimator: Any) -> str:
    """What is predicted: a "number", "classes", or the "rows" themselves."""
    if getattr(estimator, "family", None) in ("multinomial", "binomial"):
        return "classes"
    if getattr(estimator, "loss", None) == "logistic":
        return "classes"
    return "number" if estimator._uses_target() else "rows"


def ways(estimator: Any) -> dict[str, Any]:
    """Alone, joining in the estimator's way, and one model for all; unfitted."""
    joining = clone(estimator).set_params(engine=None)
    alone, one = _others(estimator)
    return {ALONE: alone, JOINING: joining, ONE: one}


def _others(estimator: Any) -> tuple[Any, Any]:
    from fedkin.estimators.curves import CurveEstimator
    from fedkin.estimators.mixture_use import FittedMixture

    if isinstance(estimator, FittedMixture):
        return _mixtures(estimator)
    if isinstance(estimator, CurveEstimator):
        return _curves(estimator)
    if kind(estimator) == "classes":
        return _plain_classes(estimator)
    if getattr(estimator, "family", None) == "poisson":
        raise ValueError(
            "benefit has no model of counts to stay alone with; compare family='gaussian' on the "
            "logarithm, or scores of your own"
        )
    if not hasattr(estimator, "fit_intercept"):
        raise ValueError(f"{type(estimator).__name__} predicts nothing that could be compared")
    from fedkin.estimators.site_models import PlainRegression

    intercept = estimator.fit_intercept
    pair = (PlainRegression(pooled, fit_intercept=intercept) for pooled in (False, True))
    return next(pair), next(pair)


def _plain_classes(estimator: Any) -> tuple[Any, Any]:
    from fedkin.estimators.site_models import PlainClasses

    if getattr(estimator, "trials", None) is not None:
        raise ValueError("benefit compares single outcomes: give a row for each trial")
    return PlainClasses(), PlainClasses(True)


def _mixtures(estimator: Any) -> tuple[Any, Any]:
    from fedkin.estimators.mixture_rivals import LocalEM, PooledEM

    pair = _with_common(LocalEM, estimator), _with_common(PooledEM, estimator)
    if getattr(estimator, "covariance_type", None) == "full":
        # Of few rows nobody alone has a covariance for every group: variances, as in `candidates`.
        for way in pair:
            way.set_params(covariance_type="diag")
    return pair


def _curves(estimator: Any) -> tuple[Any, Any]:
    from fedkin.estimators.gp_rivals import LocalGP, PooledGP

    return _with_common(LocalGP, estimator), _with_common(PooledGP, estimator)


# What another way takes over from an estimator: what is fitted, not how it is searched for.
_TAKEN_OVER = (
    *("n_components", "family", "covariance_type", "fit_intercept", "sigma"),
    *("kernel", "mean", "normalize_y", "max_points", "large_sites", "random_state"),
)


def _with_common(other: type, estimator: Any) -> Any:
    """The other estimator with the parameters that mean the same in both."""
    own, taken = inspect.signature(other).parameters, {}
    for name in _TAKEN_OVER:
        if name in own and hasattr(estimator, name):
            taken[name] = getattr(estimator, name)
    return other(**taken)


# ------------------------------------------------------------------ scores of rows


def row_scores(model: Any, test: Federation, train: Federation) -> dict[str, np.ndarray]:
    """Scores of every left-out row, the more the better: "log", and "rmse" or "error".

    "rmse" holds negative squared errors, beside it "residual"; "error" is -1 for a wrong class.
    Where rows themselves are modelled, `y` are classes that the fit did not see; each site's groups
    are named after the classes they have most in common with on the rows of training. Rows are in
    the federation's own order, by site, whatever table it was made from.
    """
    test, train = (replace(clients, of_table=0) for clients in (test, train))
    if hasattr(model, "predict_proba") and hasattr(model, "classes_"):
        return _of_classes(model, test)
    if hasattr(model, "score_samples") and not model._uses_target():
        found = {"log": model.score_samples(_without_target(test))}
        if test.y is not None and train.y is not None:
            found["error"] = -_wrong_groups(model, test, train)
        return _bounded(found)
    mean = np.asarray(model.predict(test))
    target = np.asarray(test.y)
    found = {"log": _log_density(model, test, train, mean), "rmse": -((target - mean) ** 2)}
    return _bounded({**found, "residual": target - mean})


def _bounded(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with np.errstate(invalid="ignore"):
        log = np.maximum(np.nan_to_num(scores["log"], nan=LOWEST), LOWEST)
    return {**scores, "log": log}


def _of_classes(model: Any, test: Federation) -> dict[str, np.ndarray]:
    probability, target = model.predict_proba(test), np.asarray(test.y)
    place = np.minimum(np.searchsorted(model.classes_, target), len(model.classes_) - 1)
    known = model.classes_[place] == target
    with np.errstate(divide="ignore"):
        log = np.log(probability[np.arange(len(place)), place])
    wrong = (probability.argmax(axis=1) != place) | ~known
    return _bounded({"log": np.where(known, log, LOWEST), "error": -wrong.astype(float)})


def _log_density(model: Any, test: Federation, train: Federation, mean: np.ndarray) -> np.ndarray:
    """Log density of targets: the model's own, or the normal one with the spread it tells."""
    if hasattr(model, "log_predictive_density"):
        return np.asarray(model.log_predictive_density(test))
    if hasattr(model, "score_samples"):
        return np.asarray(model.score_samples(test))
    own = spread_of(model, train)
    if own is None:
        spread = np.asarray(model.predict(test, return_std=True)[1])
    else:
        # A site left out as a whole has the spread of all.
        places = {name: k for k, name in enumerate(train.names)}
        typical = np.sqrt(np.mean(own**2))
        of_site = [own[places[name]] if name in places else typical for name in test.names]
        spread = np.array(of_site)[test.owner]
    spread = np.maximum(spread, np.finfo(float).tiny)
    with np.errstate(over="ignore", divide="ignore"):
        ratio = (test.y - mean) / spread
        return np.asarray(-0.5 * np.log(2 * np.pi) - np.log(spread) - 0.5 * ratio**2)


def spread_of(model: Any, train: Federation) -> np.ndarray | None:
    """Residual spread of every site's training rows, pulled to that of all, (m,).

    None if the model tells a spread of its own, or predicts no number.
    """
    if tells_spread(model) or hasattr(model, "score_samples") or hasattr(model, "predict_proba"):
        return None
    square = (train.y - model.predict(train)) ** 2
    total = np.bincount(train.owner, square, minlength=train.n_clients)
    free = train.n_features + 1.0
    overall = square.sum() / max(len(square) - free, 1.0)
    return np.asarray(np.sqrt((total + PULL * overall) / (train.sizes + PULL)))


def _without_target(clients: Federation) -> Federation:
    return replace(clients, y=None)


def _wrong_groups(model: Any, test: Federation, train: Federation) -> np.ndarray:
    """Whether each row's group is not that of its class, (n,)."""
    from scipy.optimize import linear_sum_assignment

    classes = np.unique(np.concatenate([train.y, test.y]))
    size = max(len(classes), model.n_components_)
    found, learnt = (np.asarray(model.predict(_without_target(c))) for c in (test, train))
    code, known = (np.searchsorted(classes, np.asarray(c.y)) for c in (test, train))
    counts = np.zeros((train.n_clients, size, size))
    np.add.at(counts, (train.owner, learnt, known), 1.0)
    names = np.array([linear_sum_assignment(-table)[1] for table in counts])
    return np.asarray((names[test.owner, found] != code).astype(float))
