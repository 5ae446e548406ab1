"""What every site says by itself of what a fitted estimator shares, for any estimator.

`fedkin.inference` reaches these through the estimator, so that it need not know any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.alignment import align
from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, unpack
from fedkin.models.mixture_steps import (
    Scored,
    SiteMixture,
    n_simulated,
    one_step,
    scored,
)
from fedkin.models.site_evidence import SiteEvidence, inverse, ranks, scores_at_centres
from fedkin.shrinkage import borrowed
from fedkin.shrinkage.spread import belonging

# Residual squares below this share of the squares of the target are rounding.
ROUNDING = 1e-13
TINY = 1e-300
# Simulated curves a site, and the operations that all of them may take.
MOST_DRAWS, LEAST_DRAWS, OPERATIONS = 400, 100, 2e9
# Steps in which curves are found whose fit is the one at hand; differences, directions without a
# slope, and the longest move, of logarithms.
MATCHES, MATCH_STEP, NO_SLOPE, LONGEST_MOVE = 2, 0.1, 0.05, 1.5
# Of log hyper-parameters, for differences.
DIFFERENCE = 1e-4
# Of a mean between 0 and 1, no nearer to its ends than this.
NEAR_END = 1e-10


def site_evidence(model: Any, data: Federation) -> SiteEvidence:
    """What sites say by themselves, by a fitted model of their rows."""
    from fedkin.estimators.clustered import ClusteredEstimator
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.gp_rivals import LocalGP, PooledGP
    from fedkin.estimators.mixed_model import MixedModel
    from fedkin.estimators.mixture_use import FittedMixture
    from fedkin.estimators.odcl import LocalERM

    if isinstance(model, LocalERM):
        raise ValueError(f"LocalERM shares nothing that a site could be odd to: {INSTEAD}")
    if isinstance(model, MixedModel):
        return _of_mixed_model(model, data)
    if isinstance(model, FMLR):
        return of_sums(model, data.names, packed_statistics(data, model.fit_intercept).T)
    if isinstance(model, ClusteredEstimator) and model.loss == "squared":
        return of_sums(model, data.names, packed_statistics(data, model.fit_intercept).T)
    if isinstance(model, ClusteredEstimator):
        return _of_logistic(model, data)
    if isinstance(model, FittedMixture):
        return _of_mixture(model, data)
    if isinstance(model, FGPR) and not isinstance(model, LocalGP | PooledGP):
        around = model._result.uses_common[-1]
        return _of_departures(model, data) if around else _of_curves(model, data)
    raise ValueError(f"{type(model).__name__} does not tell which sites are odd: {INSTEAD}")


INSTEAD = "take MixedModel, FMLR, ODCL, IFCA, FedGrEM (or another mixture) or FGPR"


# ------------------------------------------------------------------ linear models


def of_sums(model: Any, names: tuple[str, ...], statistics: Floats) -> SiteEvidence:
    """Of a linear model with a normal target, from the sites' sums of products (m, .)."""
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixed_model import MixedModel

    q = unpack(statistics[:1])[1].shape[1]
    if isinstance(model, MixedModel):
        one = np.zeros(len(names), dtype=np.intp)
        found = linear_evidence(names, statistics, one, _random(model, q))
        return found._replace(own_noise=model.site_noise == "own", bounded=bool(model.robust))
    every = np.ones(q, dtype=bool)
    found = linear_evidence(names, statistics, _labels_by_name(model, names), every, False)
    if isinstance(model, FMLR):
        return found._replace(
            by_degrees=bool(model.degrees_),
            own_noise=model.site_noise_ == "own",
            bounded=bool(model.robust),
        )
    return found._replace(pull=_of_averages(model, found))


def _of_averages(model: Any, found: SiteEvidence) -> tuple[Floats, Floats]:
    """How ODCL and its rivals average the sites' models of a cluster."""
    from fedkin.estimators.ifca import IFCA

    assert found.squares is not None and found.degrees is not None
    same = np.broadcast_to(np.eye(found.n_parameters), found.information.shape)
    if isinstance(model, IFCA):
        return scores_at_centres(_of_local_steps(model, found), found.estimates, found.labels)
    how = model._used.aggregate
    if how in ("auto", "precision"):
        noise = np.maximum(found.squares, TINY) / np.maximum(found.degrees, 1.0)
        weights = found.information / noise[:, None, None]
    elif how in ("mean", "median"):
        weights = same * (found.rows > 0)[:, None, None]
    elif how == "size":
        weights = same * found.rows[:, None, None]
    else:
        weights = found.information
    return scores_at_centres(weights, found.estimates, found.labels)


def _of_local_steps(model: Any, found: SiteEvidence) -> Floats:
    """How far IFCA's local steps take a model to the site's own: I - (I - step G)^steps."""
    mean = found.information / np.maximum(found.rows, 1.0)[:, None, None]
    steepest = float(np.linalg.eigvalsh(mean).max(initial=TINY))
    length = model.step_size if model.step_size is not None else 1.0 / steepest
    steps = model.local_steps if model.averaging == "model" else 1
    left = np.eye(found.n_parameters) - length * mean
    return np.asarray(np.eye(found.n_parameters) - np.linalg.matrix_power(left, steps))


def _labels_by_name(model: Any, names: tuple[str, ...]) -> Indices:
    place = {str(name): int(label) for name, label in zip(model.client_names_, model.labels_)}
    return np.array([place.get(name, -1) for name in names], dtype=np.intp)


def _random(model: Any, q: int) -> Bools:
    """Which columns differ between sites."""
    departs = np.zeros(q, dtype=bool)
    departs[model._result.random] = True
    return departs


def linear_evidence(
    names: tuple[str, ...],
    statistics: Floats,
    labels: Indices,
    departs: Bools,
    by_degrees: bool = True,
) -> SiteEvidence:
    """Least squares of every site, from sums of products (m, .)."""
    gram, cross, square, rows = unpack(statistics)
    estimates = np.einsum("mij,mj->mi", inverse(gram), cross)
    fitted = np.einsum("mi,mi->m", estimates, cross)
    degrees = np.maximum(rows - ranks(gram), 0.0)
    left = np.maximum(square - fitted, 0.0)
    # What is lost in rounding is no noise.
    left = np.where(left > ROUNDING * np.maximum(square, TINY), left, 0.0)
    return SiteEvidence(names, rows, estimates, gram, labels, departs, by_degrees, left, degrees)


# ------------------------------------------------------------------ counts and classes


def _of_mixed_model(model: Any, data: Federation) -> SiteEvidence:
    """Sums of products, or one step of Newton's from each site's own coefficients."""
    used = model._used
    if used.gaussian:
        statistics = packed_statistics(used.features(data), used.fit_intercept).T
        return of_sums(model, data.names, statistics)
    if used.family == "multinomial":
        raise ValueError(
            "family='multinomial' does not tell which sites are odd; with two classes take "
            "MixedModel(family='binomial'), with more look at one against the rest"
        )
    rows = used.features(data)
    place = model._run.roster.positions
    where = np.array([place[name] for name in data.names])
    coef = np.column_stack([model.site_coef_[where], model.site_intercept_[where]])
    often = np.ones(len(data.X)) if data.weights is None else data.weights
    offset = used.column(data, used.offset, 0.0)
    trials = used.column(data, used.trials, 1.0)
    eta = _linear(rows, coef) + offset
    if used.family == "poisson":
        mean = np.exp(np.minimum(eta, 300.0))
        slope = often * mean
    else:
        chance = 1.0 / (1.0 + np.exp(-eta))
        mean, slope = trials * chance, often * trials * chance * (1.0 - chance)
    found = _one_step(rows, coef, often * (np.asarray(data.y) - mean), slope, used.fit_intercept)
    departs = _random(model, found[0].shape[1])
    labels = np.zeros(len(data.names), dtype=np.intp)
    return SiteEvidence(data.names, data.sizes.astype(float), *found, labels, departs, True)


def _linear(data: Federation, coef: Floats) -> Floats:
    own = coef[data.owner]
    return np.asarray(np.einsum("nd,nd->n", data.X, own[:, :-1]) + own[:, -1])


def _one_step(
    data: Federation, coef: Floats, residual: Floats, slope: Floats, intercept: bool
) -> tuple[Floats, Floats]:
    """Estimates (m, q) one Newton step from coef (m, q), and the information there."""
    level = np.ones((len(data.X), int(intercept)))
    design = np.concatenate([data.X, level], axis=1)
    coef = coef if intercept else coef[:, :-1]
    m, q = len(coef), design.shape[1]
    score, information = np.zeros((m, q)), np.zeros((m, q, q))
    np.add.at(score, data.owner, design * residual[:, None])
    np.add.at(information, data.owner, slope[:, None, None] * design[:, :, None] * design[:, None])
    return coef + np.einsum("mij,mj->mi", inverse(information), score), information


def _of_logistic(model: Any, data: Federation) -> SiteEvidence:
    """Sites with two classes, one step from the model of each site's cluster."""
    labels = _labels_by_name(model, data.names)
    place = {str(name): k for k, name in enumerate(model.client_names_)}
    where = np.array([place[name] for name in data.names])
    coef = np.column_stack([model.coef_[where], model.intercept_[where]])
    chance = 1.0 / (1.0 + np.exp(-_linear(data, coef)))
    chance = np.clip(chance, NEAR_END, 1.0 - NEAR_END)
    codes = model._codes(np.asarray(data.y))
    slope = chance * (1.0 - chance)
    found = _one_step(data, coef, codes - chance, slope, model.fit_intercept)
    every = np.ones(found[0].shape[1], dtype=bool)
    return SiteEvidence(data.names, data.sizes.astype(float), *found, labels, every, False)


# ------------------------------------------------------------------ mixtures


def _of_mixture(model: Any, data: Federation) -> SiteEvidence:
    """Every site's own components, one step from those of the fit."""
    target = data.y if model._uses_target() else None
    clients = replace(data, y=target, of_table=0)
    weights, components, *scale = model._at(clients)
    m, n_groups, p = components.shape
    found = []
    for k in range(m):
        fit = weights[k], components[k], [_of_site(part, k) for part in scale]
        found.append(_mixture_site(model, clients.take([k]), fit, k))
    size = n_groups * p
    estimates = np.array([site.estimate for site in found]).reshape(m, size)
    information = np.array([site.information for site in found]).reshape(m, size, size)
    return SiteEvidence(
        data.names,
        data.sizes.astype(float),
        estimates,
        information,
        np.zeros(m, dtype=np.intp),
        np.ones(size, dtype=bool),
        True,
        np.array([site.square for site in found]),
        np.array([site.degrees for site in found]),
        _unit(scale[0], n_groups, p, target is None),
        chi_squared=np.array([site.chi_squared for site in found]),
        bounded=True,
        says=_say_in_groups(model, estimates, information),
    )


def _say_in_groups(model: Any, estimates: Floats, information: Floats) -> Floats | None:
    """How much of their say sites have in every number of a group, (m, q), by the fit's own rule.

    FedGrEM asks of every group of a site whether it is too far from the others'; None where a fit
    has no such rule.
    """
    result = model._result
    between = _between(result, model)
    if between is None:
        return None
    m, (n_groups, p) = len(estimates), result.centers.shape
    away = estimates.reshape(m, n_groups, p) - result.centers
    sampling = inverse(information).reshape(m, n_groups, p, n_groups, p)
    total = np.einsum("mrirj->mrij", sampling) + between
    distances = np.einsum("mri,mri->mr", away, np.linalg.solve(total, away[..., None])[..., 0])
    return np.repeat(belonging(distances, p, m * n_groups), p, axis=1)


def _between(result: Any, model: Any) -> Floats | None:
    """Covariances (R, p, p) of components between sites, where the fit weighs sites by them."""
    if getattr(result, "shaped", False):
        return borrowed.between_sites(result.common)
    variance = result.between_variance
    if variance is None or not np.isfinite(variance).all():
        return None
    p = result.centers.shape[1]
    common = result.covariance if np.size(result.covariance) == p * p else np.eye(p)
    return np.asarray(variance)[:, None, None] * common


def _mixture_site(model: Any, site: Federation, fit: Any, seed: int) -> SiteMixture:
    """One site's estimate from its rows, and from rows drawn from its fit."""
    weights, components, scale = fit
    n_groups, p = components.shape
    size = n_groups * p
    if not len(site.X):
        return SiteMixture(components.reshape(size), np.zeros((size, size)), 0.0, 0.0, 1.0)
    rng = np.random.default_rng(seed)
    times = n_simulated(len(site.X), size + n_groups)
    group = rng.choice(n_groups, size=times * len(site.X), p=weights / weights.sum())
    X = np.tile(site.X, (times, 1))
    if site.y is None:
        covariance = _covariance(scale[0], n_groups, p)
        roots = np.linalg.cholesky(covariance)
        noise = np.einsum("nij,nj->ni", roots[group], rng.normal(size=X.shape))
        X, y, width = components[group] + noise, None, float(p)
    else:
        covariance = np.full(1, float(np.ravel(scale[0])[0]) ** 2)
        mean = np.einsum("np,np->n", _design(X, p), components[group])
        y, width = mean + np.sqrt(covariance[0]) * rng.normal(size=len(X)), 1.0
    drawn = Federation(X, np.array([0, len(X)]), site.names, y, site.feature_names)
    rows, simulated = (_scored(model, each, fit, covariance) for each in (site, drawn))
    return one_step(rows, simulated, components.reshape(size), weights, width)


def _design(X: Floats, p: int) -> Floats:
    return np.concatenate([X, np.ones((len(X), p - X.shape[1]))], axis=1)


def _scored(model: Any, site: Federation, fit: Any, covariance: Floats) -> Scored:
    """Scores of the rows of one site by a fit of the site."""
    weights, components, scale = fit
    safe = np.maximum(weights, TINY)[None]
    prepared = model._family.prepare(site)
    joint = model._family.log_joint(prepared, (safe, components[None], *scale))
    if site.y is None:
        off = site.X[:, None] - components
        score = np.einsum("rij,nrj->nri", np.linalg.inv(covariance), off)
        return scored(joint, score, np.einsum("nri,nri->nr", off, score))
    design = _design(site.X, components.shape[1])
    off = np.asarray(site.y)[:, None] - design @ components.T
    return scored(joint, off[:, :, None] * design[:, None] / covariance[0], off**2 / covariance[0])


def _of_site(part: Any, k: int) -> Any:
    """A site's part of what holds for all or each of them."""
    if part is None:
        return None
    part = np.asarray(part)
    return part if len(part) == 1 else part[k : k + 1]


def _covariance(scale: Any, n_groups: int, d: int) -> Floats:
    """Covariances (R, d, d) of a site's groups: one for all, of a diagonal, or each its own."""
    if scale is None:
        return np.tile(np.eye(d), (n_groups, 1, 1))
    own = np.asarray(scale)[0]
    if own.ndim == 0:
        return np.tile(float(own) * np.eye(d), (n_groups, 1, 1))
    if own.shape == (d,):
        return np.tile(np.diag(own), (n_groups, 1, 1))
    if own.shape == (d, d):
        return np.tile(own, (n_groups, 1, 1))
    if own.shape == (n_groups,):
        return own[:, None, None] * np.eye(d)
    if own.shape == (n_groups, d):
        return own[:, :, None] * np.eye(d)
    return own


def _unit(scale: Any, n_groups: int, p: int, gaussian: bool) -> Floats | None:
    """Departures are alike in all directions, in units of the spread within groups."""
    if not gaussian:
        return np.eye(n_groups * p)
    within = np.zeros((n_groups, p, n_groups, p))
    typical = scale if scale is None else np.median(scale, axis=0, keepdims=True)
    for r, own in enumerate(_covariance(typical, n_groups, p)):
        within[r, :, r] = own
    return within.reshape(n_groups * p, n_groups * p)


# ------------------------------------------------------------------ curves


def _of_departures(model: Any, data: Federation) -> SiteEvidence:
    """Levels and slopes of what lies between sites' rows and the common curve, and what is left.

    Hyper-parameters of curves from one prior tell nothing here: curves that share one are more
    alike than any that are drawn, whatever one of them does.
    """
    away = np.asarray(data.y) - model._prior_curve().predict(data.X)[0]
    lines = replace(data, X=_in_frame(model, data.X), y=away, of_table=0)
    one = np.zeros(data.n_clients, dtype=np.intp)
    every = np.ones(data.n_features + 1, dtype=bool)
    return linear_evidence(data.names, packed_statistics(lines, True).T, one, every)


def _in_frame(model: Any, X: Floats) -> Floats:
    """Rows in the units of the common curve."""
    return np.asarray(model._result.shared.units.rows(X))


def _line_of_common(model: Any, like: Any) -> Floats:
    """Slopes and level of the common curve at the rows of a fit, `like`, (1, q)."""
    X = like._data.X
    design = np.column_stack([_in_frame(like, X), np.ones(len(X))])
    line = np.linalg.lstsq(design, model._prior_curve().predict(X)[0], rcond=None)[0]
    return np.asarray(line[None])


def _of_curves(model: Any, data: Federation) -> SiteEvidence:
    """Scores of the shared hyper-parameters, beside those of curves drawn from the prior."""
    from fedkin.models.gaussian_process import evaluate

    labels = np.maximum(_labels_by_name(model, data.names), 0)
    theta = model.theta_[labels]
    prepared = model._prepared(data)
    score = -evaluate(prepared, model._form, theta).gradient
    draws = _drawn_scores(model, data, theta, labels)
    # Half of the draws say how large scores are, the other half how far they then lie: the same
    # ones would be nearer than others.
    first, second = draws[: len(draws) // 2], draws[len(draws) // 2 :]
    information = np.einsum("bmi,bmj->mij", first, first) / max(len(first), 1)
    estimates = theta + np.einsum("mij,mj->mi", inverse(information), score)
    return SiteEvidence(
        data.names,
        data.sizes.astype(float),
        estimates,
        information,
        labels,
        np.ones(theta.shape[1], dtype=bool),
        by_degrees=False,
        draws=second,
        pull=(score, _curvatures(model, prepared, theta)),
        bounded=model.robust is not False,
    )


def _curvatures(model: Any, prepared: Any, theta: Floats) -> Floats:
    """Second derivatives of the sites' negative log likelihoods, (m, p, p), by differences."""
    from fedkin.models.gaussian_process import evaluate

    found = []
    for step in DIFFERENCE * np.eye(theta.shape[1]):
        ends = (evaluate(prepared, model._form, theta + s).gradient for s in (step, -step))
        found.append((next(ends) - next(ends)) / (2 * DIFFERENCE))
    second = np.stack(found, axis=1)
    return np.asarray(0.5 * (second + second.swapaxes(1, 2)))


def _drawn_scores(model: Any, data: Federation, theta: Floats, labels: Indices) -> Floats:
    """Scores (B, m, p) of curves drawn at the sites' rows, whose fit is the one that was found.

    Targets in units of their own spread are not curves of a Gaussian process: a fit to them has
    more noise than they had, and curves drawn from the fit would have more still, and larger
    scores. So they are drawn from where the mean score at the fit is zero, as it is of the sites.
    """
    from fedkin.models.gp_rows import thinned

    few = thinned(replace(data, of_table=0), model.max_points)
    work = float((few.sizes.astype(float) ** 3).sum())
    n_draws = int(np.clip(OPERATIONS / max(work, 1.0), LEAST_DRAWS, MOST_DRAWS))
    own_units = model.normalize_y is True
    origin = _whose_fit_is(model, few, theta, labels) if own_units else theta
    return _scores_of_draws(model, few, (theta, origin), n_draws, seed=0)


def _whose_fit_is(model: Any, few: Federation, theta: Floats, labels: Indices) -> Floats:
    """Hyper-parameters (m, p) of curves whose mean scores at theta are zero for every kind.

    Gauss and Newton's steps by differences, with the same random numbers all along. In units of
    their own spread curves tell of no scale: that direction stays as it is.
    """
    kinds, place = np.unique(labels, return_inverse=True)

    def mean_scores(origin: Floats) -> tuple[Floats, Floats]:
        found = _scores_of_draws(model, few, (theta, origin), LEAST_DRAWS, seed=1)
        by_kind = [found[:, place == k].reshape(-1, theta.shape[1]) for k in range(len(kinds))]
        return np.array([u.mean(axis=0) for u in by_kind]), np.array(
            [u.std(axis=0) for u in by_kind]
        )

    shift = np.zeros((len(kinds), theta.shape[1]))
    for _ in range(MATCHES):
        mean, unit = mean_scores(theta + shift[place])
        unit = np.maximum(unit, TINY)
        steps = MATCH_STEP * np.eye(theta.shape[1])
        moved = [mean_scores(theta + shift[place] + step)[0] - mean for step in steps]
        slopes = np.stack(moved, axis=2) / MATCH_STEP / unit[:, :, None]
        for k in range(len(kinds)):
            move = np.linalg.lstsq(slopes[k], -mean[k] / unit[k], rcond=NO_SLOPE)[0]
            shift[k] += np.clip(move, -LONGEST_MOVE, LONGEST_MOVE)
    return np.asarray(theta + shift[place])


def _scores_of_draws(
    model: Any, few: Federation, at: tuple[Floats, Floats], n_draws: int, seed: int
) -> Floats:
    """Scores (B, m, p) at the first hyper-parameters of curves drawn from the second."""
    from fedkin.models.gaussian_process import evaluate
    from fedkin.models.gp_posterior import own_covariance

    theta, origin = at
    rng = np.random.default_rng(seed)
    targets = np.zeros((n_draws, len(few.X)))
    for k, (start, end) in enumerate(zip(few.offsets[:-1], few.offsets[1:])):
        if end > start:
            covariance = own_covariance(model._form, origin[k], few.X[start:end])
            values, vectors = np.linalg.eigh(covariance)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            targets[:, start:end] = rng.normal(size=(n_draws, end - start)) @ root.T
    found = [
        -evaluate(model._prepared(replace(few, y=y)), model._form, theta).gradient for y in targets
    ]
    return np.array(found)


# ------------------------------------------------------------------ what is shared


def for_sites(model: Any, kept: Indices, fixed: bool) -> Any:
    """An unfitted copy for some of the sites of a fit; `fixed`: with the number that it chose."""
    from sklearn.base import clone

    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixture_use import FittedMixture
    from fedkin.estimators.odcl import ODCL

    copy, chosen = clone(model).set_params(engine=None), model.get_params(deep=False)
    labels = chosen.get("true_labels")
    if labels is not None and not isinstance(labels, Mapping):
        copy.set_params(true_labels=dict(zip(model.client_names_, labels)))
    if isinstance(model, FittedMixture) and np.ndim(chosen["init"]) == 3:
        copy.set_params(init=np.asarray(chosen["init"])[kept])
    if fixed and isinstance(model, ODCL):
        copy.set_params(n_clusters=model.n_clusters_)
    elif fixed and isinstance(model, FMLR | FittedMixture):
        copy.set_params(n_components=model.n_components_)
    elif fixed and isinstance(model, FGPR):
        around = bool(model._result.uses_common[-1])
        copy.set_params(n_priors=model.n_priors_, common=around)
    return copy


def shared_estimate(model: Any, like: Any = None) -> Floats:
    """What a fitted model shares, a row for every kind, (K, q), as the sites' estimates have it.

    Groups inside sites come in the order of those of another fit, `like`.
    """
    from fedkin.estimators.clustered import ClusteredEstimator
    from fedkin.estimators.fgpr import FGPR
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixture_use import FittedMixture

    if isinstance(model, FMLR):
        return np.asarray(model._result.coef)
    if isinstance(model, ClusteredEstimator):
        return np.asarray(model._result.cluster_models)
    if isinstance(model, FittedMixture):
        centers = np.asarray(model._result.centers)
        if like is not None:
            centers = centers[align(centers[None], reference=like._result.centers).permutations[0]]
        return centers.reshape(1, -1)
    if isinstance(model, FGPR) and model._result.uses_common[-1]:
        return _line_of_common(model, model if like is None else like)
    if isinstance(model, FGPR):
        return np.asarray(model.theta_)
    return np.asarray(model._result.coef)[None]
