"""What a site does in a mixed model: sums once, or values and slopes of its likelihood."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms.fmlr import STATISTICS
from fedkin.algorithms.mixed_model_data import Coordinates, OwnEffects, glm_rows
from fedkin.algorithms.mixed_model_settings import MixedModelSettings
from fedkin.arrays import Arrays, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.generalised_mixed import Marginal, marginal
from fedkin.models.glm_rows import GlmRows, curve
from fedkin.models.least_squares import upper_triangle
from fedkin.models.linear_mixed import eliminate, target_products
from fedkin.models.linear_mixed_scales import columns_of
from fedkin.models.linear_mixed_shared import answers_from
from fedkin.models.misfit import of_classes
from fedkin.models.random_covariance import Shape
from fedkin.models.small_matrices import backward, solve
from fedkin.models.weighted_rows import log_weights
from fedkin.protocol import MISFIT, Field, Step, TracedReply

# ------------------------------------------------------------------ client functions


def statistics(clients, cache, settings, common, personal, memory, keys, fields):
    """Sums of products, once."""
    reply = {"statistics": cache["statistics"]}
    if fields:
        reply["log_weights"] = log_weights(clients)
    return reply, memory


def moments(clients, cache, settings, common, personal, memory, keys, fields):
    """Sums and sums of squares of every column, for scales that all sites agree on."""
    X = settings.features(clients).X
    owner, m = clients.owner, len(clients)
    reply = {
        "rows": clients.sizes.astype(np.float64),
        "sums": _sums(X, owner, m),
        "squares": _sums(X**2, owner, m),
    }
    if fields:
        offset = settings.column(clients, settings.offset, 0.0)
        y = clients.y - offset if settings.gaussian else clients.y
        beside = y**2 if settings.gaussian else np.exp(offset)
        reply["target"] = _sums(np.stack([y, beside], axis=1), owner, m)
    return reply, memory


def _sums(values: Floats, owner: Indices, m: int) -> Floats:
    columns = [np.bincount(owner, column, minlength=m) for column in values.T]
    return np.stack(columns, axis=1) if columns else np.zeros((m, 0))


def plain(clients, cache, settings, common, personal, memory, keys):
    """Log likelihood, slope and information of the model without effects."""
    rows = glm_rows(clients, settings, Coordinates.of(common))
    found = curve(rows, common["points"][0] @ rows.X + rows.offset)
    upper = upper_triangle(len(rows.X))
    products = rows.X[upper[0]] * rows.X[upper[1]]
    reply = {
        "value": rows.sums(found.loglik) + rows.constant,
        "slope": rows.sums(rows.X * (rows.y - found.mean)).T.copy(),
        "information": rows.sums(products * found.weight).T.copy(),
    }
    # At points chosen on purpose all rows are fitted but one, and the slope is of that one.
    behind = {"slope": np.abs(rows.y - found.mean), "information": found.weight}
    behind |= _misfit(rows, [common["points"][0] @ rows.X + rows.offset])
    return TracedReply(reply, lambda: behind), memory


def slopes(clients, cache, settings, common, personal, memory, keys, fields):
    """-2 log likelihood and its slope at every point."""
    at, points = Coordinates.of(common), common["points"]
    if not settings.gaussian:
        rows = glm_rows(clients, settings, at)
        found = _glm_slopes(rows, at.shape, points, settings)
        values = np.stack([-2.0 * one.loglik for one in found], axis=1)
        reply = {"value": values, "slope": np.stack([-2.0 * one.slope for one in found], axis=1)}
        return TracedReply(reply, partial(_rows_of_slopes, rows, found)), memory
    told = _answers(cache["statistics"].T, at, points, "reml" if fields else "ml")
    return {name: told[name] for name in ("value", "slope", *fields)}, memory


def _glm_slopes(
    rows: GlmRows, shape: Shape, points: Floats, settings: MixedModelSettings
) -> list[Marginal]:
    """The likelihood at every point; modes are looked for from those of the first point."""
    found: list[Marginal] = []
    for point in points:
        start = found[0].modes.b if found else None
        split = len(rows.X)
        found.append(
            marginal(rows, shape, point[:split], point[split:], settings.n_quadrature, start)
        )
    return found


def _rows_of_slopes(rows: GlmRows, found: list[Marginal]) -> Arrays:
    """How much every row counts in the slope at every point, (N, k)."""
    means = [curve(rows, one.modes.eta).mean for one in found]
    away = {"slope": np.stack([np.abs(rows.y - mean) for mean in means], axis=1)}
    return {**away, **_misfit(rows, [one.modes.eta for one in found])}


def _misfit(rows: GlmRows, etas: list[Floats]) -> Arrays:
    """How far outcomes of yes and no are from the linear predictors of a question's points.

    Counts are not cut by a steep one: the mean of the outermost row would be all of their slope.
    """
    if rows.family != "binomial":
        return {}
    eta = np.stack(etas, axis=1)
    hits = np.stack([rows.trials - rows.y, rows.y], axis=1)
    return {MISFIT: of_classes(np.stack([np.zeros_like(eta), eta], axis=2), hits, rows.owner)}


def _answers(packed: Floats, at: Coordinates, points: Floats, method: Any) -> Arrays:
    everything, products = gaussian_products(packed, at)
    found = [
        answers_from(everything, products, packed[-1], at.shape, point, method) for point in points
    ]
    names = ("value", "slope", "information", "information_slope")
    return {name: np.stack(parts, axis=1) for name, parts in zip(names, zip(*found))}


def gaussian_products(packed: Floats, at: Coordinates) -> tuple[Floats, Floats]:
    """(X, y)'(X, y) and Z'(X, y, Z) of every client in the columns worked with."""
    columns = columns_of(at.basis, at.offset, at.scale, at.random, at.spread)
    raw = target_products(packed, np.arange(len(columns)))
    whole = np.matmul(columns.T, np.tensordot(columns.T, raw, 1))
    k1 = at.basis.shape[1] + 1
    return whole[:k1, :k1], np.ascontiguousarray(whole[k1:])


def settle(clients, cache, settings, common, personal, memory, keys, fields):
    """The site learns and keeps its own effects; they leave only if they are asked for."""
    at, point = Coordinates.of(common), common["points"][0]
    own = own_effects(clients, cache, settings, at, point)
    reply = {"rows": clients.sizes.astype(np.float64)}
    if settings.gaussian:
        told = _answers(cache["statistics"].T, at, common["points"], "reml")
        reply |= {name: told[name][:, 0] for name in ("information", "information_slope")}
    reply |= own._asdict()
    if "log_weights" in fields:
        reply["log_weights"] = log_weights(clients)
    wanted = ("rows", *fields)
    known = np.ones(len(clients))
    return {name: np.ascontiguousarray(reply[name]) for name in wanted}, {
        **{name: np.ascontiguousarray(part) for name, part in own._asdict().items()},
        "known": known,
    }


def own_effects(
    clients: Federation, cache: Arrays, settings: Any, at: Coordinates, point: Floats
) -> OwnEffects:
    """Every client's effects at the end of a fit."""
    if settings.gaussian:
        return _gaussian_effects(cache["statistics"].T, at, point)
    return _glm_effects(glm_rows(clients, settings, at), at, point, settings)


def _gaussian_effects(packed: Floats, at: Coordinates, point: Floats) -> OwnEffects:
    k, shape = at.basis.shape[1], at.shape
    factor = shape.factor(point[k:-1])
    outside = at.spread @ factor
    root, half = eliminate(gaussian_products(packed, at)[1], factor)
    solved = backward(root, half)
    toward = np.append(-point[:k], 1.0) * at.scale
    means = np.einsum("jk,krm,r->mj", outside, solved[:, : k + 1], toward)
    variance = float(np.exp(2.0 * point[-1])) * at.scale**2
    given = variance * _outside(outside, solve(root, _identity(root)))
    by_coef = np.einsum("jk,krm->mjr", outside, solved[:, :k]) @ np.linalg.pinv(at.basis)
    return OwnEffects(means, given, by_coef)


def _glm_effects(
    rows: GlmRows, at: Coordinates, point: Floats, settings: MixedModelSettings
) -> OwnEffects:
    k, shape = at.basis.shape[1], at.shape
    found = marginal(rows, shape, point[:k], point[k:], settings.n_quadrature).modes
    factor = shape.factor(point[k:])
    outside, own = at.spread @ factor, factor.T @ rows.Z
    weight = curve(rows, found.eta).weight
    inner = np.stack([rows.sums(rows.X * (one * weight)) for one in own])
    moved = np.einsum("jk,krm->mjr", outside, solve(found.root, inner))
    given = _outside(outside, solve(found.root, _identity(found.root)))
    return OwnEffects((outside @ found.b).T, given, moved @ np.linalg.pinv(at.basis))


def _identity(root: Floats) -> Floats:
    return np.broadcast_to(np.eye(len(root))[:, :, None], root.shape)


def _outside(outside: Floats, inner: Floats) -> Floats:
    """outside inner outside' of every client, (m, q, q)."""
    return np.asarray(np.einsum("ai,ijm,bj->mab", outside, inner, outside, optimize=True))


# ------------------------------------------------------------------ what travels

_COORDINATES = {
    "points": Field(("points", "p"), "coefficients, numbers of the effects' spread, noise"),
    "basis": Field(("d", "k"), "columns worked with"),
    "offset": Field(("d",), "what the target loses before it is scaled"),
    "scale": Field((), "of the target"),
    "random": Field(("q",), "columns with effects", dtype="int64"),
    "spread": Field(("q", "r"), "random columns worked with"),
    "places": Field(("r", "r"), "which number of the spread stands where", dtype="int64"),
}
_VALUE = Field(("points",), "-2 log likelihood of the site's rows at every point")
_SLOPE = Field(("points", "p"), "its slope")
_INFORMATION = Field(
    ("points", "u"), "information of the site's rows about the coefficients", reveals="products"
)
_INFORMATION_SLOPE = Field(("points", "t", "u"), "its slope in the numbers of the spread")
_ROWS = Field((), "number of rows", least=0.0, reveals="count")
_LOG_WEIGHTS = Field((), "sum of the logarithms of the rows' weights", reveals="sums")

STEPS = {
    "statistics": Step(
        statistics, {"statistics": STATISTICS}, optional={"log_weights": _LOG_WEIGHTS}
    ),
    "moments": Step(
        moments,
        {
            "rows": _ROWS,
            "sums": Field(("f",), "sum of every column", reveals="sums"),
            "squares": Field(("f",), "sum of squares of every column", reveals="sums"),
        },
        optional={
            "target": Field(
                (2,), "sum of the target; sum of its squares, or of exp(offset)", reveals="sums"
            ),
        },
    ),
    "plain": Step(
        plain,
        {
            "value": Field((), "log likelihood of the site's rows without effects"),
            "slope": Field(("k",), "its slope"),
            "information": Field(("u",), "information about the coefficients", reveals="products"),
        },
        _COORDINATES,
    ),
    "slopes": Step(
        slopes,
        {"value": _VALUE, "slope": _SLOPE},
        _COORDINATES,
        optional={"information": _INFORMATION, "information_slope": _INFORMATION_SLOPE},
    ),
    "settle": Step(
        settle,
        {"rows": _ROWS},
        _COORDINATES,
        optional={
            "information": Field(("u",), _INFORMATION.meaning, reveals="products"),
            "information_slope": Field(("t", "u"), _INFORMATION_SLOPE.meaning),
            "log_weights": _LOG_WEIGHTS,
            "effects": Field(("q",), "the site's effects", reveals="model"),
            "given": Field(("q", "q"), "their covariance"),
            "by_coef": Field(("q", "d"), "how they move with the common coefficients"),
        },
    ),
}
