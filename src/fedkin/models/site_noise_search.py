"""The search for a mixed model with noise of every site's own.

Maximum likelihood is a search over (beta, A, s^2, a) on sums of the clients' values and slopes. For
"reml" the criterion gets log|H|, H the information about beta (beta is integrated out by Laplace,
which is exact where the noise is common): its slope in the variance parameters is taken by
differences at the point found, added as a linear term, and the search repeated until nothing moves.
The number `a` keeps its maximum likelihood.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.linear_mixed import LOG_2PI, Method
from fedkin.models.linear_mixed_fit import LinearMixedFit
from fedkin.models.linear_mixed_inference import differences
from fedkin.models.random_covariance import Shape
from fedkin.models.site_noise import (
    Nodes,
    NoiseData,
    Parameters,
    Terms,
    evaluate,
    integrate,
    terms,
)
from fedkin.models.smooth_search import minimise

# Searches with a renewed slope of log|H|; each brings the end about ten times nearer.
MOST_REPEATS = 6
SETTLED = 1e-5
# Ranges of log s^2 (the target has variance one) and of log a. With the largest a the sites' noises
# differ by one in a thousand, which is none.
LEAST_LOGS = np.array([-30.0, -1.0])
MOST_LOGS = np.array([5.0, 14.0])
# Degrees of freedom a client's own residuals need to speak for the spread of the noises.
LEAST_DEGREES = 2.0


class NoiseSearch:
    """The criterion as a function of (beta, A's numbers, log s^2, log a)."""

    def __init__(self, data: NoiseData, shape: Shape) -> None:
        self.data, self.shape = data, shape
        self.n_evaluations, self.gradient = 0, np.inf

    def parameters(self, point: Floats) -> Parameters:
        """What the numbers of a point stand for."""
        p = self.data.prepared.rank
        log_variance, log_shape = np.clip(point[-2:], LEAST_LOGS, MOST_LOGS)
        factor = self.shape.factor(point[p:-2])
        return Parameters(point[:p], factor, float(log_variance), float(log_shape))

    def objective(self, point: Floats, tilt: Floats) -> tuple[float, Floats]:
        """-2 log likelihood, with a linear term, and its slope."""
        found = evaluate(self.data, self.shape, self.parameters(point))
        weights = self.data.prepared.weights
        value = -2.0 * float(weights @ found.loglik) + float(tilt @ point)
        slope = -2.0 * weights @ found.slope + tilt
        slope[-2:][(point[-2:] <= LEAST_LOGS) | (point[-2:] >= MOST_LOGS)] = 0.0
        return value, slope

    def run(self, start: Floats, tilt: Floats) -> Floats:
        """The point of the least value."""
        found = minimise(lambda point: self.objective(point, tilt), start)
        self.n_evaluations += found.n_evaluations
        self.gradient = found.gradient
        return found.point

    def restricted(self, found: Floats) -> Floats:
        """From maximum likelihood to that with beta integrated out, as far as it gets better."""
        best, gradient = self.restricted_value(found), self.gradient
        for _ in range(MOST_REPEATS):
            tilt = np.zeros(len(found))
            tilt[self.data.prepared.rank : -1] = self.information_slope(found)
            moved = self.run(found, tilt)
            value = self.restricted_value(moved)
            if not value < best:
                self.gradient = gradient
                break
            change = float(np.abs(moved - found)[:-1].max())
            found, best, gradient = moved, value, self.gradient
            if change <= SETTLED:
                break
        return found

    def restricted_value(self, point: Floats) -> float:
        """-2 log likelihood plus log|H|; infinite where H is no information."""
        sign, volume = np.linalg.slogdet(self.information(point))
        value = self.objective(point, np.zeros(len(point)))[0]
        return value + float(volume) if sign > 0 and np.isfinite(value) else np.inf

    def information(self, point: Floats) -> Floats:
        """H (p, p): minus second derivatives of the log likelihood in beta, by Louis' identity."""
        at = self.parameters(point)
        client = terms(self.data, at)
        nodes = integrate(client, at.log_variance, at.log_shape)
        return coef_information(self.data, client, nodes, at)

    def information_slope(self, point: Floats) -> Floats:
        """Slope of log|H| in A's numbers and log s^2, beta going along to its best."""
        p = self.data.prepared.rank

        def log_volume(numbers: Floats) -> Floats:
            moved = np.concatenate([point[:p], numbers, point[-1:]])
            found = evaluate(self.data, self.shape, self.parameters(moved))
            pull = self.data.prepared.weights @ found.slope[:, :p]
            moved[:p] += np.linalg.solve(self.information(moved), pull)
            self.n_evaluations += 1
            return np.array([np.linalg.slogdet(self.information(moved))[1]])

        return differences(log_volume, point[p:-1])[0] if p else np.zeros(len(point) - 1)

    def best(self, start: Floats, method: Method) -> Floats:
        """The point of the largest (restricted) likelihood."""
        found = self.run(start, np.zeros(len(start)))
        return self.restricted(found) if method == "reml" else found

    def log_likelihood(self, point: Floats, method: Method) -> float:
        """In the units of the target and the columns; for "reml" less log|H| / 2."""
        prepared = self.data.prepared
        loglik = float(
            prepared.weights @ evaluate(self.data, self.shape, self.parameters(point))[0]
        )
        loglik -= prepared.total_rows * float(np.log(prepared.scale))
        if method == "reml":
            volume = float(np.linalg.slogdet(self.information(point))[1]) + prepared.log_volume
            volume -= 2.0 * prepared.rank * float(np.log(prepared.scale))
            loglik -= 0.5 * (volume - prepared.rank * LOG_2PI)
        return loglik


def coef_information(data: NoiseData, client: Terms, nodes: Nodes, at: Parameters) -> Floats:
    """E[X' Sigma^-1 X] - Var[X' Sigma^-1 (y - X beta)] over the noise, summed over clients."""
    p = data.prepared.rank
    weights = data.prepared.weights
    toward = np.append(-at.coef, 1.0)
    own = np.einsum("rsm,s->rm", data.squares[:p], toward)
    turned = np.einsum("ij,jkm->ikm", at.factor, client.rotation)
    through = np.einsum("irm,ikm->rkm", data.prepared.products[:, :p], turned)
    precision = (nodes.weight / nodes.t).sum(axis=0)
    out = np.einsum("rsm,m->rs", data.squares[:p, :p], weights * precision)
    scores = own[:, None, :] / nodes.t
    for k, value in enumerate(client.values):
        inverse = 1.0 / (nodes.t * (nodes.t + value))
        share = weights * (nodes.weight * inverse).sum(axis=0)
        out -= np.einsum("rm,sm,m->rs", through[:, k], through[:, k], share)
        scores = scores - through[:, k, None, :] * (inverse * client.pulled[k])
    centred = scores - (nodes.weight * scores).sum(axis=1)[:, None, :]
    out -= np.einsum("rkm,skm,km,m->rs", centred, centred, nodes.weight, weights, optimize=True)
    return np.asarray(0.5 * (out + out.T))


def start_of(common: LinearMixedFit, data: NoiseData) -> Floats:
    """The common fit, and the spread of the clients' own residual variances."""
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    variance = (common.sigma / common.prepared.scale) ** 2
    away = (common.coef - common.prepared.offset) / common.prepared.scale
    coef = np.linalg.pinv(common.prepared.basis) @ away
    at = Parameters(
        coef, common.shape.factor(common.theta) * np.sqrt(variance), float(np.log(variance)), 0.0
    )
    client = terms(data, at)
    degrees = client.n_rows - (client.values > 0).sum(axis=0)
    use = (degrees >= LEAST_DEGREES) & (client.left > 0) & (data.prepared.weights > 0)
    if use.sum() < 3:
        return np.concatenate([coef, np.sqrt(variance) * common.theta, [np.log(variance), 3.0]])
    logs = np.log(client.left[use] / degrees[use]) - digamma(degrees[use] / 2)
    logs = logs + np.log(degrees[use] / 2)
    extra = float(np.var(logs, ddof=1) - polygamma(1, degrees[use] / 2).mean())
    ends = (-1.0, 6.0)
    trigamma = [float(polygamma(1, np.exp(end))) for end in ends]
    if extra <= trigamma[1]:
        log_shape = ends[1]
    elif extra >= trigamma[0]:
        log_shape = ends[0]
    else:
        log_shape = float(brentq(lambda x: float(polygamma(1, np.exp(x))) - extra, *ends))
    # E log t = log(a s^2) - digamma(a).
    log_variance = float(logs.mean()) - log_shape + float(digamma(np.exp(log_shape)))
    return np.concatenate([coef, np.sqrt(variance) * common.theta, [log_variance, log_shape]])
