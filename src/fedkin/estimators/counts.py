"""The numbers that estimators leave open (groups, kinds, priors), and what a fit with one says.

`fedkin.inference.how_many` reaches these through the estimator, so that it need not know any.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax, xlogy
from sklearn.base import clone

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, residual_coefficients, solve

# Coefficients up to which a mixed model beside clusters has a full covariance of departures, and up
# to which each has a variance of its own.
FULL, DIAGONAL = 4, 12
# Steps for the noise of kinds, which comes to rest much sooner.
NOISE_STEPS, NOISE_TOL = 50, 1e-10
# Residual squares no smaller than this share of the target's.
ROUNDING = 1e-14


class Account(NamedTuple):
    """What a fit with one number says of the data.

    loglik : log likelihood, departures and memberships summed over; penalty : what BIC adds to
    -2 loglik; entropy : of memberships, in nats; labels : of the sites, or of rows where groups are
    inside sites
    """

    loglik: float
    penalty: float
    entropy: float
    labels: Indices

    @property
    def bic(self) -> float:
        """-2 log likelihood and log rows for every number that was fitted."""
        return -2.0 * self.loglik + self.penalty

    @property
    def icl(self) -> float:
        """BIC and twice the entropy of who belongs where."""
        return self.bic + 2.0 * self.entropy


class Open(NamedTuple):
    """What a number is called in the estimator and in words, how many are tried, what decides."""

    name: str
    one: str
    many: str
    most: int
    criterion: str = "bic"


def open_number(estimator: Any) -> Open:
    """The number that the estimator leaves open."""
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.gp_rivals import LocalGP, PooledGP
    from fedkin.estimators.ifca import IFCA
    from fedkin.estimators.mixture_use import FittedMixture
    from fedkin.estimators.odcl import ODCL

    if isinstance(estimator, FMLR):
        return Open("n_components", "kind", "kinds", 8)
    if isinstance(estimator, ODCL | IFCA):
        return Open("n_clusters", "kind", "kinds", 12)
    if isinstance(estimator, FittedMixture):
        return Open("n_components", "group", "groups", 8)
    if isinstance(estimator, FGPR) and not isinstance(estimator, LocalGP | PooledGP):
        return Open("n_priors", "prior", "priors", 4, "icl")
    name = type(estimator).__name__
    raise ValueError(
        f"{name} has no number of groups to choose; take FMLR, ODCL, IFCA, FedGrEM or FGPR"
    )


def with_codes(estimator: Any, data: Federation) -> Federation:
    """The data, two classes as 0 and 1 where the estimator has classes."""
    from fedkin.estimators.clustered import ClusteredEstimator

    if not isinstance(estimator, ClusteredEstimator) or estimator.loss != "logistic":
        return data
    y = np.asarray(data.y)
    return replace(data, y=(y == y.max()).astype(float)) if len(np.unique(y)) == 2 else data


def most_that_fit(estimator: Any, data: Federation) -> int:
    """The largest number that the data can have: of sites, or of rows at the largest site."""
    from fedkin.estimators.mixture_use import FittedMixture

    if isinstance(estimator, FittedMixture):
        return int(data.sizes.max(initial=0))
    return int((data.sizes > 0).sum())


def with_number(estimator: Any, number: int) -> Any:
    """The estimator with a number of groups and nothing else open."""
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR

    chosen = clone(estimator).set_params(engine=None)
    chosen.set_params(**{open_number(estimator).name: number})
    if isinstance(estimator, FMLR):
        chosen.set_params(degrees=False)
    if isinstance(estimator, FGPR):
        chosen.set_params(common=False)
    return chosen


def by_degrees(estimator: Any, data: Federation) -> Any:
    """What fits sites that differ by degrees and not by kind; None if the method has none."""
    from fedkin.estimators.clustered import ClusteredEstimator
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixed_model import MixedModel

    if isinstance(estimator, FMLR):
        chosen = clone(estimator).set_params(engine=None, n_components=1, degrees=True)
        return chosen.set_params(share="statistics")
    if not isinstance(estimator, ClusteredEstimator):
        return None
    q = data.n_features + estimator.fit_intercept
    form = "full" if q <= FULL else "diagonal" if q <= DIAGONAL else "isotropic"
    family = "binomial" if estimator.loss == "logistic" else "gaussian"
    return MixedModel(
        family=family, method="ml", covariance=form, fit_intercept=estimator.fit_intercept
    )


def kinds_by_degrees(estimator: Any, number: int) -> Any:
    """Several kinds from which sites depart by degrees; None if the method has no such thing."""
    from fedkin.estimators.fmlr import FMLR

    if not isinstance(estimator, FMLR) or estimator.degrees is False:
        return None
    return with_number(estimator, number).set_params(degrees=True, share="statistics")


# ------------------------------------------------------------------ accounts


def account(model: Any, data: Federation) -> Account:
    """What a fitted model with a given number says of the data."""
    from fedkin.estimators.clustered import ClusteredEstimator
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixture_use import FittedMixture

    if isinstance(model, FMLR):
        penalty = model.bic_ + 2.0 * model.loglik_
        return Account(model.loglik_, penalty, _entropy(model.responsibilities_), model.labels_)
    if isinstance(model, ClusteredEstimator):
        return _of_clusters(model, data)
    if isinstance(model, FittedMixture):
        return _of_mixture(model, data, departing=True)
    if isinstance(model, FGPR):
        return _of_priors(model)
    # A mixed model: one kind, by degrees.
    one = np.zeros(len(model.client_names_), dtype=np.intp)
    return Account(model.loglik_, model.bic_ + 2.0 * model.loglik_, 0.0, one)


def _entropy(share: Floats) -> float:
    return float(-xlogy(share, share).sum())


def _of_clusters(model: Any, data: Federation) -> Account:
    """Clusters as a mixture of kinds: which one a site is of is summed over."""
    place = {str(name): int(label) for name, label in zip(model.client_names_, model.labels_)}
    labels = np.array([place.get(name, -1) for name in data.names], dtype=np.intp)
    known, made = labels >= 0, labels.copy()
    made[known] = np.unique(labels[known], return_inverse=True)[1]
    n_kinds = int(made.max(initial=0)) + 1
    count = np.bincount(made[known], minlength=n_kinds)
    prior = np.log(count / max(count.sum(), 1))
    if model.loss == "logistic":
        joint, n_coef, noise = _logistic(model, data, np.unique(labels[known])) + prior, 0, 0
        n_coef = data.n_features + model.fit_intercept
    else:
        joint, n_coef = _squared(model, data, made, prior)
        noise = 1
    n_parameters = n_kinds * n_coef + n_kinds - 1 + noise
    penalty = n_parameters * np.log(max(len(data.X), 1))
    share = softmax(joint, axis=1)
    return Account(float(logsumexp(joint, axis=1).sum()), penalty, _entropy(share), labels)


def _logistic(model: Any, data: Federation, kinds: Indices) -> Floats:
    """Log likelihood of every site under every cluster's model, (m, K)."""
    sign = 2.0 * model._codes(np.asarray(data.y)) - 1.0
    eta = data.X @ model.cluster_coef_[kinds].T + model.cluster_intercept_[kinds]
    rows = -np.logaddexp(0.0, -sign[:, None] * eta)
    return np.stack(
        [np.bincount(data.owner, column, minlength=len(data.names)) for column in rows.T], axis=1
    )


def _squared(model: Any, data: Federation, labels: Indices, prior: Floats) -> tuple[Floats, int]:
    """Log joint densities (m, K) of sites and kinds with least squares and one noise."""
    statistics = packed_statistics(data, model.fit_intercept).T
    member = (labels == np.arange(len(prior))[:, None]).astype(float)
    coef = solve(member @ statistics)[0]
    residual = np.maximum(statistics @ residual_coefficients(coef).T, 0.0)
    rows, n_rows = statistics[:, -1:], float(statistics[:, -1].sum())
    floor = max(ROUNDING * float(statistics[:, -2].sum()) / n_rows, np.finfo(float).tiny)
    own = np.where(labels >= 0, labels, residual.argmin(axis=1))
    noise = max(float(residual[np.arange(len(own)), own].sum()) / n_rows, floor)
    for _ in range(NOISE_STEPS):
        joint = prior - 0.5 * residual / noise - 0.5 * rows * np.log(2.0 * np.pi * noise)
        again = max(float((softmax(joint, axis=1) * residual).sum()) / n_rows, floor)
        moved, noise = abs(again - noise), again
        if moved <= NOISE_TOL * noise:
            break
    return prior - 0.5 * residual / noise - 0.5 * rows * np.log(2.0 * np.pi * noise), coef.shape[1]


def _of_priors(model: Any) -> Account:
    """The row of the fit's own table."""
    table = model.choice_
    row = [int(n) for n in table["n_priors"]].index(model.n_priors_)
    loglik, bic = float(table["loglik"][row]), float(table["bic"][row])
    share = model.responsibilities_
    return Account(loglik, bic + 2.0 * loglik, _entropy(share), model.labels_)


def _of_mixture(model: Any, data: Federation, departing: bool) -> Account:
    """Groups inside sites: weights are every site's own, departures are summed over (Laplace)."""
    rows = replace(data, y=data.y if model._uses_target() else None, of_table=0)
    weights, components, *scale = model._at(rows)
    if not departing:
        components = np.broadcast_to(components.mean(axis=0), components.shape)
    joint = model._family.log_joint(model._family.prepare(rows), (weights, components, *scale))
    share = softmax(joint, axis=1)
    loglik = float(logsumexp(joint, axis=1).sum())
    (m, n_groups, p), centers = components.shape, np.asarray(model._result.centers)
    between = np.asarray(model.between_variance_ if departing else np.zeros(n_groups))
    n_shared = float(n_groups * p)
    if between.size and np.isfinite(between).all():
        count = np.stack(
            [np.bincount(rows.owner, column, minlength=m) for column in share.T], axis=1
        )
        squares = ((components - centers) ** 2).sum(axis=2)
        moved = np.where(between > 0, squares / np.where(between > 0, between, 1.0), 0.0)
        loglik -= 0.5 * float((moved + p * np.log1p(count * between)).sum())
        n_shared += float((between > 0).sum())
    elif not np.allclose(components, components[:1]):
        n_shared *= m
    own = (n_groups - 1) * float(np.log(np.maximum(data.sizes, 1.0)).sum())
    penalty = n_shared * np.log(max(len(data.X), 1)) + own
    return Account(loglik, penalty, _entropy(share), share.argmax(axis=1))


# ------------------------------------------------------------------ by degrees, from one fit


def degrees_beside(model: Any, data: Federation) -> tuple[Account, Account] | None:
    """One group without and with departures of the sites, from a fit with one group.

    None where another estimator fits that (`by_degrees`).
    """
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.mixture_use import FittedMixture

    if isinstance(model, FittedMixture):
        return _of_mixture(model, data, departing=False), _of_mixture(model, data, departing=True)
    if isinstance(model, FGPR):
        alike = _of_priors(model)
        return alike, _departing_priors(model, data, alike)
    return None


def _departing_priors(model: Any, data: Federation, alike: Account) -> Account:
    """One prior about which sites have hyper-parameters of their own (Laplace).

    With u the score and J the information of a site, its likelihood gains
    u' inv(inv(D) + J) u / 2 - log det(I + D J) / 2 by departures with variances D.
    """
    from scipy.optimize import minimize

    evidence = model._site_evidence(data)
    assert evidence.pull is not None
    score, information = evidence.pull[0], evidence.information
    p = score.shape[1]

    def less(logs: Floats) -> float:
        spread = np.exp(logs)
        inner = np.eye(p) + information * spread[:, None]
        pulled = np.linalg.solve(inner, (score * spread)[:, :, None])[:, :, 0]
        return float(-0.5 * (score * pulled).sum() + 0.5 * np.linalg.slogdet(inner)[1].sum())

    best = min(
        (minimize(less, np.full(p, start), method="Nelder-Mead") for start in (-4.0, -1.0)),
        key=lambda found: found.fun,
    )
    loglik = alike.loglik + max(-float(best.fun), 0.0)
    penalty = alike.penalty + p * np.log(max(len(data.X), 1))
    return Account(loglik, penalty, 0.0, alike.labels)
