"""A mixed model whose sites have noise of their own: exact marginal likelihood and slope.

    y_i = X_i beta + Z_i u_i + noise,   u_i ~ N(0, V),   noise ~ N(0, t_i),   t_i ~ IG(a, a s^2)

The noise variances t_i of the sites are inverse gamma with mean precision 1 / s^2; 1 / a is the
squared coefficient of variation of the precisions, and a -> infinity is one noise for all.

Why V does not scale with t_i: with u_i ~ N(0, t_i W) the integral over t_i is a multivariate t in
closed form, but it says that a site with a good instrument has a level near the others'. How sites
differ and how exactly they measure are two things; so V is common and t_i is integrated out by
quadrature. With V = A A', A'Z'Z A = Q D Q' and h = Q'A'Z'(y - X beta), at given t

    -2 log p(y_i | t) = n log 2 pi + (n - q) log t + sum_j log(t + d_j)
                        + r0 / t + sum_j g_j / (t + d_j),   g = h^2 / d,  r0 = |y - X beta|^2 - g,

so one eigendecomposition serves all t, and the integral over log t is a sum over nodes, denser near
the mode (a sinh grid; the trapezoid rule converges geometrically). Slopes are posterior means over
the nodes of the slopes at given t (Fisher's identity), exact as far as the quadrature is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.models.linear_mixed import LOG_2PI, Prepared
from fedkin.models.random_covariance import Shape

Floats = NDArray[np.float64]

# Nodes a client: 1e-9 in the log likelihood of anything from no row to thousands.
N_NODES = 40
# The integrand is left where it has fallen to exp(-DROP) of its largest value.
DROP = 34.0
# A site's residual variance counts as at least this share of the target's: rows that lie on a line
# (interpolated scores do) would else outvote all others by any factor.
LEAST_NOISE = 1e-6
N_SCANNED = 12
N_NEWTON = 4
# Doubles of one node array worked on at once.
CHUNK_CLIENTS = 4096


@dataclass(frozen=True, eq=False)
class NoiseData:
    """`prepared` sums and, in the same columns, every client's own (X, y)'(X, y), (p+1, p+1, m)."""

    prepared: Prepared
    squares: Floats

    def of_clients(self, who: NDArray[np.intp] | slice) -> NoiseData:
        """Some clients; the totals stay everybody's."""
        index = np.arange(self.squares.shape[2])[who]
        return NoiseData(self.prepared.of_clients(index), self.squares[:, :, who])


class Parameters(NamedTuple):
    """Coefficients (p,), absolute factor A (q, q), log s^2, log a; in `prepared`'s units."""

    coef: Floats
    factor: Floats
    log_variance: float
    log_shape: float


class Terms(NamedTuple):
    """What the integrand needs of every client at given beta and A."""

    values: Floats
    """d (q, m)."""
    pulled: Floats
    """h (q, m)."""
    explained: Floats
    """g = h^2 / d (q, m)."""
    left: Floats
    """r0 (m,)."""
    n_rows: Floats
    rotation: Floats
    """Q (q, q, m)."""
    gram: Floats
    """Z'Z A Q (q, q, m)."""
    own: Floats
    """Z'(y - X beta) (q, m)."""


class Nodes(NamedTuple):
    """Noise variances `t` (K, m), their posterior weights (K, m), log marginal likelihood (m,)."""

    t: Floats
    weight: Floats
    loglik: Floats


class Evaluation(NamedTuple):
    """Log marginal likelihood of every client and its slope in (beta, A's numbers, log s^2, log a).

    Their sums are what a search needs.
    """

    loglik: Floats
    slope: Floats


# ------------------------------------------------------------------ the integral


def terms(data: NoiseData, at: Parameters) -> Terms:
    """Eigendecomposition of A'Z'Z A of every client and the residuals in its coordinates."""
    p = data.prepared.rank
    products = data.prepared.products
    toward = np.append(-at.coef, 1.0)
    own = np.einsum("irm,r->im", products[:, : p + 1], toward)
    gram = products[:, p + 1 :]
    inner = np.matmul(at.factor.T, np.tensordot(at.factor.T, gram, 1))
    values, vectors = np.linalg.eigh(np.moveaxis(inner, -1, 0))
    rotation = np.ascontiguousarray(np.moveaxis(vectors, 0, -1))
    values = np.maximum(values.T, 0.0)
    turned = np.einsum("ij,jkm->ikm", at.factor, rotation)
    pulled = np.einsum("ikm,im->km", turned, own)
    square = np.einsum("rsm,r,s->m", data.squares, toward, toward)
    rounding = np.finfo(float).eps * np.maximum(np.einsum("iim->m", gram), 1e-300)
    real = values > 1e-4 * rounding * float(np.sum(at.factor**2))
    explained = np.where(real, pulled**2 / np.where(real, values, 1.0), 0.0)
    least = LEAST_NOISE * np.maximum(data.prepared.n_rows - len(values), 0.0)
    left = np.maximum(square - explained.sum(axis=0), least)
    whole = np.einsum("ijm,jkm->ikm", gram, turned)
    return Terms(values, pulled, explained, left, data.prepared.n_rows, rotation, whole, own)


def log_integrand(client: Terms, x: Floats, log_variance: float, log_shape: float) -> Floats:
    """log p(y | t) p(t) dt/dx at x = log t, (K, m), without constants of the client's size."""
    t = np.exp(x)
    q = len(client.values)
    out = (client.n_rows - q) * x + client.left / t
    for value, explained in zip(client.values, client.explained):
        out = out + np.log(t + value) + explained / (t + value)
    away = x - log_variance
    return np.asarray(-0.5 * out - np.exp(log_shape) * (away + np.expm1(-away)))


def integrate(client: Terms, log_variance: float, log_shape: float) -> Nodes:
    """Nodes of every client and its log marginal likelihood."""
    shape, variance = np.exp(log_shape), np.exp(log_variance)
    q, n = len(client.values), client.n_rows
    # No mode lies outside [low, high]: the slope of the integrand has one sign beyond them.
    low = np.log((client.left + 2 * shape * variance) / (n + 2 * shape))
    whole = client.left + client.explained.sum(axis=0)
    free = np.maximum(n - q, 0.0) + 2 * shape
    high = np.maximum(np.log((whole + 2 * shape * variance) / free), low)
    centre, width = _mode(client, low, high, log_variance, log_shape)
    reach_left = (centre - low) + _fall(DROP / (0.5 * n + shape), left=True)
    reach_right = (high - centre) + _fall(DROP / (0.5 * free), left=False)
    begin, end = -np.arcsinh(reach_left / width), np.arcsinh(reach_right / width)
    step = (end - begin) / (N_NODES - 1)
    s = begin + step * np.arange(N_NODES)[:, None]
    x = centre + width * np.sinh(s)
    logs = log_integrand(client, x, log_variance, log_shape) + np.log(width * np.cosh(s) * step)
    largest = logs.max(axis=0)
    weight = np.exp(logs - largest)
    total = weight.sum(axis=0)
    constant = -0.5 * n * LOG_2PI + _log_norming(log_shape)
    return Nodes(np.exp(x), weight / total, largest + np.log(total) + constant)


def _mode(
    client: Terms, low: Floats, high: Floats, log_variance: float, log_shape: float
) -> tuple[Floats, Floats]:
    """About the highest point of the integrand, and its width there; precision is not needed."""
    scanned = low + (high - low) * np.linspace(0.0, 1.0, N_SCANNED)[:, None]
    levels = log_integrand(client, scanned, log_variance, log_shape)
    x = np.take_along_axis(scanned, levels.argmax(axis=0)[None], axis=0)[0]
    for _ in range(N_NEWTON):
        slope, curve = _derivatives(client, x, log_variance, log_shape)
        x = np.clip(x + slope / np.maximum(curve, 0.1), low, high)
    curve = _derivatives(client, x, log_variance, log_shape)[1]
    return x, 1.0 / np.sqrt(np.maximum(curve, 0.05))


def _derivatives(
    client: Terms, x: Floats, log_variance: float, log_shape: float
) -> tuple[Floats, Floats]:
    """Slope of the log integrand, and minus its second derivative."""
    t, shape = np.exp(x), np.exp(log_shape)
    q = len(client.values)
    prior = shape * np.exp(log_variance) / t
    slope = -0.5 * (client.n_rows - q) - shape + 0.5 * client.left / t + prior
    curve = 0.5 * client.left / t + prior
    for value, explained in zip(client.values, client.explained):
        share = t / (t + value)
        pull = explained * share / (t + value)
        slope = slope - 0.5 * share + 0.5 * pull
        curve = curve + 0.5 * share * (1 - share) - 0.5 * pull * (1.0 - 2.0 * share)
    return np.asarray(slope), np.asarray(curve)


def _fall(height: Floats, left: bool) -> Floats:
    """u > 0 with exp(u) - 1 - u = height (left) or exp(-u) - 1 + u = height (right)."""
    u = (
        np.minimum(np.sqrt(2 * height), np.log1p(2 * height))
        if left
        else height + np.sqrt(2 * height)
    )
    for _ in range(6):
        if left:
            u = u - (np.expm1(u) - u - height) / np.maximum(np.expm1(u), 1e-300)
        else:
            u = u - (np.expm1(-u) + u - height) / np.maximum(-np.expm1(-u), 1e-300)
    return np.asarray(u)


def _log_norming(log_shape: float) -> float:
    """a log a - a - log Gamma(a): what is left of the inverse gamma's constant."""
    from scipy.special import gammaln

    a = float(np.exp(log_shape))
    if a > 1e4:
        return 0.5 * (log_shape - LOG_2PI) - 1.0 / (12.0 * a)
    return float(a * log_shape - a - gammaln(a))


# ------------------------------------------------------------------ slopes


def evaluate(data: NoiseData, shape: Shape, at: Parameters) -> Evaluation:
    """Log marginal likelihoods and slopes of all clients, chunk by chunk."""
    m = data.squares.shape[2]
    parts = [
        _evaluate(data.of_clients(slice(begin, begin + CHUNK_CLIENTS)), shape, at)
        for begin in range(0, m, CHUNK_CLIENTS)
    ]
    return Evaluation(
        np.concatenate([part.loglik for part in parts]),
        np.concatenate([part.slope for part in parts]),
    )


def _evaluate(data: NoiseData, shape: Shape, at: Parameters) -> Evaluation:
    from scipy.special import digamma

    client = terms(data, at)
    nodes = integrate(client, at.log_variance, at.log_shape)
    precision = (nodes.weight / nodes.t).sum(axis=0)
    in_coef = coef_slope(data, client, nodes, at)
    in_factor = shape.gather(np.moveaxis(_factor_slope(client, nodes), -1, 0))
    a, variance = np.exp(at.log_shape), np.exp(at.log_variance)
    in_variance = a * (1.0 - variance * precision)
    mean_log = (nodes.weight * np.log(nodes.t)).sum(axis=0)
    in_shape = a * (
        at.log_shape - digamma(a) + 1.0 + at.log_variance - mean_log - variance * precision
    )
    slope = np.concatenate([in_coef.T, in_factor, in_variance[:, None], in_shape[:, None]], axis=1)
    return Evaluation(nodes.loglik, slope)


def coef_slope(data: NoiseData, client: Terms, nodes: Nodes, at: Parameters) -> Floats:
    """Slope of every client's log likelihood in beta, (p, m): E[X' Sigma^-1 (y - X beta)]."""
    p = data.prepared.rank
    toward = np.append(-at.coef, 1.0)
    own = np.einsum("rsm,s->rm", data.squares[:p], toward)
    precision = (nodes.weight / nodes.t).sum(axis=0)
    both = np.stack([(nodes.weight / nodes.t / (nodes.t + d)).sum(axis=0) for d in client.values])
    effects = np.einsum("ij,jkm,km->im", at.factor, client.rotation, both * client.pulled)
    through = np.einsum("irm,im->rm", data.prepared.products[:, :p], effects)
    return np.asarray(own * precision - through)


def _factor_slope(client: Terms, nodes: Nodes) -> Floats:
    """Slope of every client's log likelihood in the entries of A, (q, q, m)."""
    q = len(client.values)
    inverse = [1.0 / (nodes.t + d) for d in client.values]
    over = nodes.weight / nodes.t
    columns = []
    for k in range(q):
        single = (over * inverse[k]).sum(axis=0)
        out = client.own * (single * client.pulled[k])
        for j in range(q):
            pair = (over * inverse[k] * inverse[j]).sum(axis=0)
            out = out - client.gram[:, j] * (pair * client.pulled[j] * client.pulled[k])
        columns.append(out - client.gram[:, k] * (nodes.weight * inverse[k]).sum(axis=0))
    return np.asarray(np.einsum("ikm,jkm->ijm", np.stack(columns, axis=1), client.rotation))
