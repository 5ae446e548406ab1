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

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Minimum, Seen, minimise_by_replay
from fedkin.arrays import Floats
from fedkin.models.gaussian_process import prior_responsibilities
from fedkin.models.gp_priors import Priors, penalty
from fedkin.models.kernels import Form
from fedkin.protocol import Ask, Replies
from fedkin.ties import RELATIVE, first_best, first_least, tied_order

Server = Generator[Ask, Replies, Any]

# How far the candidates for a new prior lie from the current ones, in log-parameters.
CANDIDATE_DISTANCE = 1.5
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
    def at(cls, end: Minimum) -> Mixture:
        """One prior, where a search for it ended."""
        return cls(end.point[None], np.ones(1), end.converged, end.path, end.values)


def grow_mixture(
    start: Floats, form: Form, settings: FgprSettings, priors: Priors | None = None
) -> Server:
    """Fit one prior more and more beyond those of `start` (k, p); the wanted number, or the one
    with the least BIC. Log-parameters may have weak priors themselves."""
    wanted, most = settings.n_priors, settings.most_priors
    fits: list[Mixture] = []
    curve: list[tuple[float, float, float]] = []
    theta = start
    for n_priors in range(len(start), most + 1):
        problem = _Problem(n_priors, form, settings, priors)
        mixture = yield from problem.search(theta)
        fits.append(mixture)
        curve.append(problem.bic(mixture))
        if wanted is None and len(curve) > 1 and curve[-1][2] > curve[-2][2]:
            break
        if n_priors < most:
            theta = yield from _with_one_more(mixture, form)
    table = np.array(curve)
    best = len(fits) - 1 if wanted else int(first_least(table[:, 2], floor=RELATIVE))
    chosen = fits[best]
    order = tied_order(-chosen.weights)
    return chosen._replace(theta=chosen.theta[order], weights=chosen.weights[order], curve=table)


class _Problem:
    """Priors and logits of their shares as one vector, one evaluation per Ask."""

    def __init__(
        self, n_priors: int, form: Form, settings: FgprSettings, priors: Priors | None = None
    ) -> None:
        self.n_priors, self.settings, self.priors = n_priors, settings, priors
        self.n_theta = len(form.start)
        extra = np.full(n_priors - 1, LOGIT_BOUND)
        self.lower = np.concatenate([np.tile(form.lower, n_priors), -extra])
        self.upper = np.concatenate([np.tile(form.upper, n_priors), extra])
        self.n_rows = 1.0

    def search(self, theta: Floats) -> Server:
        """The mixture nearest below `theta` (P, p)."""
        start = np.concatenate([theta.ravel(), np.zeros(self.n_priors - 1)])
        limits, settings = (self.lower, self.upper), self.settings
        end: Minimum = yield from minimise_by_replay(
            self.evaluate, start, *limits, settings.tol, settings.max_rounds
        )
        priors, weights, _ = self.read(end.point)
        return Mixture(priors, weights, end.converged, end.path, end.values)

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
        loglik, share = prior_responsibilities(replies["value"][taught], logs)
        by_theta = np.einsum("kj,kjp->jp", share, replies["gradient"][taught])
        by_logit = len(share) * weights - share.sum(axis=0)
        value = -float(loglik.sum())
        if self.priors is not None:
            more, slope = penalty(self.priors, theta)
            value, by_theta = value + float(more.sum()), by_theta + slope
        gradient = np.concatenate([by_theta.ravel(), by_logit[1:]]) / self.n_rows
        return Seen(value / self.n_rows, gradient, replies.clients.tobytes())

    def bic(self, mixture: Mixture) -> tuple[float, float, float]:
        """Number of priors, log likelihood, BIC."""
        loglik = -float(mixture.values.min()) * self.n_rows
        free = self.n_priors * self.n_theta + self.n_priors - 1
        return self.n_priors, loglik, -2.0 * loglik + free * np.log(self.n_rows)


def _with_one_more(mixture: Mixture, form: Form) -> Server:
    """The priors of a mixture and the candidate that helps most beside them."""
    n, p = mixture.theta.shape
    steps = CANDIDATE_DISTANCE * np.concatenate([np.eye(p), -np.eye(p)])
    around = (mixture.theta[:, None] + steps).reshape(-1, p)
    candidates = np.clip(around, form.lower, form.upper)
    everything = np.concatenate([mixture.theta, candidates])
    replies = yield Ask("likelihood", {"theta": everything}, note="candidates")
    value = replies["value"][replies["rows"] > 0]
    logs = np.append(np.log(mixture.weights) + np.log(n / (n + 1.0)), -np.log(n + 1.0))
    besides = (value[:, [*range(n), n + c]] for c in range(len(candidates)))
    logliks = [prior_responsibilities(values, logs)[0].sum() for values in besides]
    return np.concatenate([mixture.theta, candidates[[first_best(logliks, floor=RELATIVE)]]])
