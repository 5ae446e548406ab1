"""What kinds and degrees say of a client's next rows: mixtures over kinds, departures and noise.

A client of the fit is of kind k with its responsibility and departs by its own predicted effect; a
new one is of kind k with the kind's weight and may depart as far as any. Every part of the mixture
is a Student's t: its scale has the noise, what is not known of the departure and of the kind's
coefficients; its degrees of freedom say how well the variances themselves are known (Satterthwaite,
with departures known from as many clients as there are beyond the kinds).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.grouped_regression import CLIENT_BLOCK
from fedkin.models.kinds_degrees import (
    Likelihood,
    OwnNoiseAndDegrees,
    away_from,
    mixed,
    noise_shape,
)
from fedkin.models.kinds_degrees_fit import Clients, KindsFit, likelihood_of
from fedkin.models.linear_mixed import eliminate
from fedkin.models.linear_mixed_scales import products_of
from fedkin.models.sandwich import Errors, Kinds, kinds_errors
from fedkin.models.site_noise import LEAST_NOISE, Nodes, NoiseData, integrate, terms
from fedkin.models.site_noise import Parameters as NoiseParameters
from fedkin.models.site_noise_fit import Posterior, noise_data
from fedkin.models.site_noise_fit import posterior as noise_posterior
from fedkin.models.site_noise_search import coef_information
from fedkin.models.small_matrices import backward, forward

# Steps towards a quantile; a dozen are usual. The last ones are this share of a part's spread.
MOST_STEPS, NEAR = 200, 1e-10
# Student's t with more degrees of freedom is taken for a normal.
NEARLY_NORMAL = 1e5
# Of a normal, one standard deviation to either side.
MIDDLE = 0.6826894921370859
# A standard deviation so many times the median part's comes from a tail without end.
WILD = 1e3
# A client whose probability of all kinds together is less is taken for one of them by lot.
HARDLY_REGULAR = 1e-12
# Degrees of freedom below which a variance is hardly known at all.
LEAST_DEGREES = 3.0
# Step of finite differences of scores, in coefficients of columns and a target of spread one.
DIFFERENCE = 1e-4


class Mixture(NamedTuple):
    """Of every row: weights, means, squared scales and degrees of freedom of C parts, (n, C)."""

    weights: Floats
    means: Floats
    scales: Floats
    degrees: Floats

    def mean(self) -> Floats:
        """(n,)."""
        return np.asarray((self.weights * self.means).sum(axis=1))

    def variance(self) -> Floats:
        """Within and between the parts, (n,)."""
        less = np.where(np.isinf(self.degrees), 1e18, self.degrees) - 2.0
        wider = np.where(less > 0, 1.0 + 2.0 / np.where(less > 0, less, 1.0), np.inf)
        away = self.means - self.mean()[:, None]
        within = np.where(self.weights > 0, self.weights * self.scales * wider, 0.0)
        return np.asarray((within + self.weights * away**2).sum(axis=1))

    def std(self) -> Floats:
        """Standard deviations, (n,); half the width of the middle 68 % where there is none.

        A new client's noise may have no mean.
        """
        spread = np.sqrt(self.variance())
        wild = ~(spread < WILD * np.sqrt(np.median(self.scales, axis=1)))
        if wild.any():
            some = Mixture(*(part[wild] for part in self))
            low, high = some.intervals(MIDDLE).T
            spread[wild] = 0.5 * (high - low)
        return spread

    def quantile(self, level: float) -> Floats:
        """The outcome below which `level` of the probability lies, (n,).

        Newton's steps, halving where they leave what is known to hold it.
        """
        from scipy.special import ndtri

        reach = 60.0 * np.sqrt(self.scales.max(axis=1))
        low, high = self.means.min(axis=1) - reach, self.means.max(axis=1) + reach
        between = (self.weights * (self.means - self.mean()[:, None]) ** 2).sum(axis=1)
        usual = np.sqrt(np.median(self.scales, axis=1) + between)
        x = np.clip(self.mean() + float(ndtri(level)) * usual, low, high)
        rows = np.arange(len(x))
        for _ in range(MOST_STEPS):
            part = Mixture(*(each[rows] for each in self))
            below, slope = part._below(x[rows])
            less = below < level
            low[rows] = np.where(less, x[rows], low[rows])
            high[rows] = np.where(less, high[rows], x[rows])
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = x[rows] - (below - level) / slope
            inside = (step > low[rows]) & (step < high[rows])
            new = np.where(inside, step, 0.5 * (low[rows] + high[rows]))
            moved, x[rows] = np.abs(new - x[rows]), new
            rows = rows[moved > NEAR * np.sqrt(part.scales.min(axis=1))]
            if not len(rows):
                break
        return np.asarray(x)

    def _below(self, x: Floats) -> tuple[Floats, Floats]:
        """Probability of less than x (n,), and the density there."""
        from scipy.special import gammaln, ndtr, stdtr

        spread = np.sqrt(self.scales)
        away = (x[:, None] - self.means) / spread
        below, slope = ndtr(away), np.exp(-0.5 * away**2) / np.sqrt(2.0 * np.pi)
        few = self.degrees < NEARLY_NORMAL
        if few.any():
            df, z = self.degrees[few], away[few]
            below[few] = stdtr(df, z)
            logs = gammaln(0.5 * (df + 1)) - gammaln(0.5 * df) - 0.5 * np.log(df * np.pi)
            slope[few] = np.exp(logs - 0.5 * (df + 1) * np.log1p(z**2 / df))
        return (self.weights * below).sum(axis=1), (self.weights * slope / spread).sum(axis=1)

    def intervals(self, level: float) -> Floats:
        """Ends between which a new outcome lies with probability `level`, (n, 2)."""
        return np.stack([self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)], axis=1)


class Kind(NamedTuple):
    """What is known of clients if they are of one kind, and of the kind."""

    known: Posterior
    covariance: Floats
    """Of the error of the kind's coefficients, as worked with, (p, p)."""
    degrees: Floats
    """Degrees of freedom of every client's noise, (m,); infinite where nodes mix it."""


class Misfit(NamedTuple):
    """Of every client, (m,): its departure's squared length in units of its spread, and in how
    many directions; its squared residuals in units of the typical noise, and of how many rows."""

    departure: Floats
    directions: Floats
    residual: Floats
    rows: Floats


class KindsPosterior:
    """Clients (those of the fit, or others in its coordinates) under a fit."""

    def __init__(self, everybody: Clients, fit: KindsFit, outside: Floats | None = None) -> None:
        self.everybody, self.fit = everybody, fit
        self.likelihood = likelihood_of(everybody, fit.way)
        self.coef = everybody.inside(fit.coef)
        self.log_weights = np.log(np.maximum(fit.weights, 1e-300))
        self.share, self.loglik = self.groups(everybody.data, outside)
        share = self.share
        self.covariances = [self._covariance(k, share[k]) for k in range(len(self.coef))]

    # ------------------------------------------------------------ who is of which kind

    def groups(self, data: NoiseData, outside: Floats | None = None) -> tuple[Floats, Floats]:
        """Responsibilities (G, m) and log likelihoods (m,) of clients, in the target's units."""
        prepared = data.prepared
        clients = self.everybody._replace(data=data)
        found = likelihood_of(clients, self.fit.way).evaluate(self.coef, self.fit.numbers)
        volume = prepared.n_rows * np.log(prepared.scale)
        groups = found.loglik
        if outside is not None:
            groups = np.vstack([groups, outside + volume])
        share, loglik = mixed(groups, self.log_weights[: len(groups)])
        return share, loglik - volume

    def regular(self, share: Floats) -> Floats:
        """Probabilities of the kinds, given that it is one of them, (K, m), from (G, m)."""
        kinds, weights = share[: len(self.coef)], np.exp(self.log_weights[: len(self.coef), None])
        total = kinds.sum(axis=0)
        prior = weights / max(float(weights.sum()), 1e-300)
        return np.where(total > HARDLY_REGULAR, kinds / np.maximum(total, 1e-300), prior)

    def coef_covariance(self) -> Floats:
        """Of every kind's coefficients, (K, d, d)."""
        basis, scale = self.everybody.prepared.basis, self.everybody.prepared.scale
        return np.array([scale**2 * basis @ one @ basis.T for one in self.covariances])

    def coefficient_errors(self) -> Errors:
        """Of every kind's coefficients over clients; spread and noise are taken as known."""
        # Where clients depart it is they that are counted, not their rows.
        spent = 1.0 if self.fit.way.degrees else float(self.coef.shape[1])
        weights = np.exp(self.log_weights[: len(self.share)])
        found = kinds_errors(self._kinds(), weights, spent)
        basis, scale = self.everybody.prepared.basis, self.everybody.prepared.scale
        outside = np.array([scale**2 * basis @ one @ basis.T for one in found.covariance])
        return found._replace(covariance=outside)

    def _kinds(self) -> Iterator[Kinds]:
        """Clients' scores and informations under every kind, block by block."""
        way, n_clients = self.fit.way, self.share.shape[1]
        steps = DIFFERENCE * np.eye(self.coef.shape[1])
        for begin in range(0, n_clients, CLIENT_BLOCK):
            who = np.arange(begin, min(begin + CLIENT_BLOCK, n_clients))
            likelihood = likelihood_of(self.everybody.some(who), way)

            def scores(shift: Floats, at: Likelihood = likelihood) -> Floats:
                return at.evaluate(self.coef + shift, self.fit.numbers).scores()

            bends = np.array([scores(-step) - scores(step) for step in steps])
            information = bends.transpose(3, 1, 0, 2) / (2 * DIFFERENCE)
            information = 0.5 * (information + information.swapaxes(-1, -2))
            n_rows = self.everybody.prepared.n_rows[who]
            size, rows = n_rows, n_rows
            if way.degrees:
                size, rows = np.einsum("mkii->m", information), np.ones(len(who))
            score = scores(np.zeros(len(steps))).transpose(2, 0, 1)
            yield Kinds(self.share[:, who].T, score, information, size, rows)

    def others(self, statistics: Floats) -> NoiseData:
        """Further clients, statistics (., m), in the coordinates of the fit."""
        prepared = self.everybody.prepared
        alone = replace(
            prepared,
            products=products_of(prepared, statistics),
            n_rows=np.asarray(statistics[-1], dtype=float),
            weights=np.ones(statistics.shape[1]),
        )
        return noise_data(statistics, alone)

    # ------------------------------------------------------------ one kind

    def of_kind(self, data: NoiseData, k: int) -> Kind:
        """What is known of clients if they are of kind k."""
        way = self.fit.way
        if way.degrees and way.own_noise:
            assert isinstance(self.likelihood, OwnNoiseAndDegrees)
            at = self.likelihood.parameters(self.coef[k], self.fit.numbers)
            known = noise_posterior(data, at)
            degrees = np.full(data.squares.shape[2], np.inf)
        elif way.degrees:
            known, degrees = self._of_common_noise(data, k), self._rows_beyond(data)
        else:
            known, degrees = self._of_own_noise(data, k)
        return Kind(known, self.covariances[k], degrees)

    def _of_common_noise(self, data: NoiseData, k: int) -> Posterior:
        """Departures given the kind, with one noise for all."""
        p1 = data.prepared.rank + 1
        variance = self.likelihood.variance(self.fit.numbers)
        factor = self.likelihood.spread(self.fit.numbers) / np.sqrt(variance)
        root, half = eliminate(data.prepared.products, factor)
        solved = backward(root, half[:, :p1])
        toward = away_from(self.coef[k : k + 1])[0]
        means = np.einsum("ij,jrm,r->im", factor, solved, toward, optimize=True)
        identity = np.broadcast_to(np.eye(len(factor))[:, :, None], root.shape)
        own = backward(root, forward(root, identity))
        given = variance * np.einsum("ia,abm,jb->ijm", factor, own, factor, optimize=True)
        by_coef = np.tensordot(factor, solved[:, :-1], 1)
        m = data.squares.shape[2]
        nodes = Nodes(np.full((1, m), variance), np.ones((1, m)), np.zeros(m))
        return Posterior(nodes, means[:, None], given[:, :, None], by_coef)

    def _of_own_noise(self, data: NoiseData, k: int) -> tuple[Posterior, Floats]:
        """No departures; the noise is Student's with the client's own degrees of freedom."""
        prepared = data.prepared
        (q, _, m), p = prepared.products.shape, prepared.rank
        a = noise_shape(self.fit.numbers)
        toward = away_from(self.coef[k : k + 1])[0]
        square = np.einsum("r,rsm,s->m", toward, data.squares, toward, optimize=True)
        square = np.maximum(square, LEAST_NOISE * prepared.n_rows)
        power = a + 0.5 * prepared.n_rows
        rate = a * self.likelihood.variance(self.fit.numbers) + 0.5 * square
        nodes = Nodes((rate / power)[None], np.ones((1, m)), np.zeros(m))
        none = Posterior(nodes, np.zeros((q, 1, m)), np.zeros((q, q, 1, m)), np.zeros((q, p, m)))
        return none, 2.0 * power

    def _rows_beyond(self, data: NoiseData) -> Floats:
        """Degrees of freedom of the common noise."""
        prepared = self.everybody.prepared
        used = len(prepared.n_rows) * len(prepared.products)
        left = max(prepared.total_rows - used, LEAST_DEGREES)
        return np.full(data.squares.shape[2], left)

    def _covariance(self, k: int, share: Floats) -> Floats:
        """Error covariance of a kind's coefficients, given who is of the kind, (p, p)."""
        data, way = self.everybody.data, self.fit.way
        p = data.prepared.rank
        if way.degrees and way.own_noise:
            assert isinstance(self.likelihood, OwnNoiseAndDegrees)
            at = self.likelihood.parameters(self.coef[k], self.fit.numbers)
            weighted = NoiseData(replace(data.prepared, weights=share), data.squares)
            client = terms(weighted, at)
            nodes = integrate(client, at.log_variance, at.log_shape)
            information = coef_information(weighted, client, nodes, at)
        elif way.degrees:
            variance = self.likelihood.variance(self.fit.numbers)
            factor = self.likelihood.spread(self.fit.numbers) / np.sqrt(variance)
            own = eliminate(data.prepared.products, factor)[1][:, :p]
            information = data.squares[:p, :p] @ share
            information = information - np.einsum("jrm,jsm,m->rs", own, own, share, optimize=True)
            information = information / variance
        else:
            precision = 1.0 / self._of_own_noise(data, k)[0].nodes.t[0]
            information = data.squares[:p, :p] @ (share * precision)
        return np.asarray(np.linalg.pinv(information, hermitian=True))

    def misfit(self, data: NoiseData, share: Floats) -> Misfit:
        """How far clients are from what the fit says of any client."""
        likeliest = share[: len(self.coef)].argmax(axis=0)
        factor = self.likelihood.spread(self.fit.numbers)
        variance = self.likelihood.variance(self.fit.numbers)
        parts = []
        for k in range(len(self.coef)):
            client = terms(data, NoiseParameters(self.coef[k], factor, 0.0, 0.0))
            nodes = self.of_kind(data, k).known.nodes
            t = (nodes.t * nodes.weight).sum(axis=0)
            real = client.explained > 0
            distance = (client.explained / (t + client.values)).sum(axis=0)
            parts.append(np.stack([distance, real.sum(axis=0), client.left / variance]))
        found = np.take_along_axis(np.array(parts), likeliest[None, None], axis=0)[0]
        rows = np.maximum(data.prepared.n_rows - found[1], 0.0)
        return Misfit(found[0], found[1], found[2], rows)

    # ------------------------------------------------------------ in the target's units

    def effects(self, data: NoiseData, share: Floats) -> tuple[Floats, Floats]:
        """Departures from the kind (m, q), averaged over kinds, and noise variances (m,)."""
        prepared = data.prepared
        regular = self.regular(share)
        effects = np.zeros((data.squares.shape[2], len(prepared.random)))
        noise = np.zeros(len(effects))
        for k in range(len(self.coef)):
            known = self.of_kind(data, k).known
            mean = np.einsum("cm,jcm->mj", known.nodes.weight, known.means)
            effects += regular[k][:, None] * (mean @ prepared.spread.T) * prepared.scale
            noise += regular[k] * (known.nodes.weight * known.nodes.t).sum(axis=0)
        return effects, noise * prepared.scale**2

    def predict(self, X: Floats, data: NoiseData, place: Indices, share: Floats) -> Mixture:
        """Predictive distributions of rows X (n, d) of clients `place` (n,) among `data`'s.

        `share` (K, m) says of which kind the clients are; a new client is one without rows.
        """
        prepared, K = data.prepared, len(self.coef)
        Z, inside = X[:, prepared.random] @ prepared.spread, X @ prepared.basis
        clients = len(self.everybody.prepared.n_rows)
        beyond = max(float(clients - K), LEAST_DEGREES)
        # Maximum likelihood measures departures from coefficients that it fitted itself.
        unseen = np.where(data.prepared.n_rows == 0, clients / max(clients - K, 1.0), 1.0)
        parts = []
        for k in range(K):
            known, covariance, degrees = self.of_kind(data, k)
            means = np.einsum("ni,icn->nc", Z, known.means[:, :, place])
            given = known.covariances[..., place]
            own = np.einsum("ni,ijcn,nj->nc", Z, given, Z, optimize=True) * unseen[place, None]
            moved = inside - np.einsum("ni,irn->nr", Z, known.by_coef[..., place])
            own = own + np.einsum("nr,rs,ns->n", moved, covariance, moved)[:, None]
            noise = known.nodes.t[:, place].T
            unsure = own**2 / beyond + noise**2 / degrees[place, None]
            scales = noise + own
            weights = known.nodes.weight[:, place].T * share[k, place, None]
            centre = (X @ self.fit.coef[k])[:, None] + prepared.scale * means
            freedom = scales**2 / np.maximum(unsure, 1e-300)
            parts.append((weights, centre, prepared.scale**2 * scales, freedom))
        return Mixture(*(np.concatenate(part, axis=1) for part in zip(*parts)))
