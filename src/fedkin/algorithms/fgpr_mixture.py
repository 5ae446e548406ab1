"""A mixture of Gaussian-process priors over sites, grown one prior at a time.

The log likelihood of a federation is sum_k log sum_j w_j exp(-value_kj) with the sites' exact
values; its gradient needs only the sites' gradients weighted by their responsibilities, so EM's
fixed point is found by L-BFGS directly. A new prior starts at the neighbour of the current ones
(one log-parameter moved) that explains the sites best beside them; no random restarts. With one
prior all this is the plain fit of the summed likelihood.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms.minimise import Minimum, Seen, minimise_by_replay
from fedkin.models.kernels import Form
from fedkin.protocol import Ask, Replies, Settings
from fedkin.ties import RELATIVE, first_least, tied_order

Floats = NDArray[np.float64]
Server = Generator[Ask, Replies, Any]

# How far the candidates for a new prior lie from the current ones, in log-parameters.
REACH = 1.5
# Shares of priors are kept above exp(-2 LOGIT_BOUND).
LOGIT_BOUND = 6.0


class Mixture(NamedTuple):
    """Priors `theta` (P, p) with shares (P,), how they were found, and the curve over P.

    `path` and `values` are of the last search; `curve` has rows (priors, log likelihood, BIC).
    """

    theta: Floats
    weights: Floats
    converged: bool
    path: Floats
    values: Floats
    curve: Floats = np.zeros((0, 3))

    @classmethod
    def of(cls, theta: Floats) -> Mixture:
        """One prior that was not searched for."""
        return cls(theta[None], np.ones(1), True, theta[None], np.zeros(0))

    @classmethod
    def of_search(cls, found: Minimum) -> Mixture:
        """One prior."""
        return cls(found.point[None], np.ones(1), found.converged, found.path, found.values)


def grow_mixture(start: Floats, form: Form, settings: Settings) -> Server:
    """Fit one prior more and more beyond those of `start` (k, p); the wanted number, or the one
    with the least BIC."""
    wanted = settings["n_priors"]
    most = wanted or settings["max_priors"]
    fits: list[Mixture] = []
    curve: list[tuple[float, float, float]] = []
    theta = start
    for n_priors in range(len(start), most + 1):
        problem = _Problem(n_priors, form, settings)
        found = yield from problem.search(theta)
        fits.append(found)
        curve.append(problem.bic(found))
        if wanted is None and len(curve) > 1 and curve[-1][2] > curve[-2][2]:
            break
        if n_priors < most:
            theta = yield from _with_one_more(found, form, settings)
    table = np.array(curve)
    best = len(fits) - 1 if wanted else int(first_least(table[:, 2], floor=RELATIVE))
    order = tied_order(-fits[best].weights)
    chosen = fits[best]
    return chosen._replace(theta=chosen.theta[order], weights=chosen.weights[order], curve=table)


class _Problem:
    """Priors and logits of their shares as one vector, one evaluation per Ask."""

    def __init__(self, n_priors: int, form: Form, settings: Settings) -> None:
        self.n_priors, self.settings = n_priors, settings
        self.n_theta = len(form.start)
        extra = np.full(n_priors - 1, LOGIT_BOUND)
        self.lower = np.concatenate([np.tile(form.lower, n_priors), -extra])
        self.upper = np.concatenate([np.tile(form.upper, n_priors), extra])
        self.n_rows = 1.0

    def search(self, theta: Floats) -> Server:
        """The mixture nearest below `theta` (P, p)."""
        start = np.concatenate([theta.ravel(), np.zeros(self.n_priors - 1)])
        found: Minimum = yield from minimise_by_replay(
            self.evaluate,
            start,
            self.lower,
            self.upper,
            self.settings["tol"],
            self.settings["max_rounds"],
        )
        priors, weights, _ = self.read(found.point)
        return Mixture(priors, weights, found.converged, found.path, found.values)

    def read(self, point: Floats) -> tuple[Floats, Floats, Floats]:
        """Priors (P, p), their shares and the logarithms of these."""
        cut = self.n_priors * self.n_theta
        logits = np.concatenate([[0.0], point[cut:]])
        logs = logits - np.logaddexp.reduce(logits)
        return point[:cut].reshape(self.n_priors, -1), np.exp(logs), logs

    def evaluate(self, point: Floats) -> Generator[Ask, Replies, Seen]:
        """Negative log likelihood per row and its gradient."""
        theta, weights, logs = self.read(point)
        note = f"{self.n_priors} priors" if self.n_priors > 1 else "prior"
        replies = yield Ask("likelihood", {"theta": theta}, note=note)
        taught = replies["rows"] > 0
        self.n_rows = max(float(replies["rows"].sum()), 1.0)
        value, share = expectation(replies["value"][taught], logs)
        by_theta = np.einsum("kj,kjp->jp", share, replies["gradient"][taught])
        by_logit = len(share) * weights - share.sum(axis=0)
        gradient = np.concatenate([by_theta.ravel(), by_logit[1:]]) / self.n_rows
        return Seen(value / self.n_rows, gradient, replies.clients.tobytes())

    def bic(self, found: Mixture) -> tuple[float, float, float]:
        """Number of priors, log likelihood, BIC."""
        loglik = -float(found.values.min()) * self.n_rows
        free = self.n_priors * self.n_theta + self.n_priors - 1
        return self.n_priors, loglik, -2.0 * loglik + free * np.log(self.n_rows)


def expectation(value: Floats, log_weights: Floats) -> tuple[float, Floats]:
    """Negative log likelihood of all sites and their responsibilities (m, P)."""
    joint = log_weights - value
    top = joint.max(axis=1, keepdims=True) if len(joint) else joint
    share = np.exp(joint - top)
    total = share.sum(axis=1, keepdims=True)
    return -float((top + np.log(total)).sum()), share / total


def _with_one_more(found: Mixture, form: Form, settings: Settings) -> Server:
    """The priors found and the candidate that helps most beside them."""
    steps = REACH * np.concatenate([np.eye(len(form.start)), -np.eye(len(form.start))])
    around = (found.theta[:, None] + steps).reshape(-1, len(form.start))
    candidates = np.clip(around, form.lower, form.upper)
    everything = np.concatenate([found.theta, candidates])
    replies = yield Ask("likelihood", {"theta": everything}, note="candidates")
    taught = replies["rows"] > 0
    value = replies["value"][taught]
    n = len(found.theta)
    logs = np.append(np.log(found.weights) + np.log(n / (n + 1.0)), -np.log(n + 1.0))
    scores = [
        expectation(np.concatenate([value[:, :n], value[:, [n + c]]], axis=1), logs)[0]
        for c in range(len(candidates))
    ]
    return np.concatenate([found.theta, candidates[[int(first_least(scores, floor=RELATIVE))]]])
