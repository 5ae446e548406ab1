"""What ODCL's server can say of sites from their sums of products: noise, fits, errors to expect.

A site is its packed statistics; a covariance sent with a model is turned into them. Errors are in
units of the usual noise (`Evidence.unit`), and are those to be expected at further rows:

| the site | its squared residuals | raised by n^2 / (n - df)^2 (generalised cross-validation) |
|---|---|---|
| stays alone | of its own ridge fit | with its rows and degrees of freedom |
| shares a model | under the shared model | with those of the cluster: its fit's, and its sites' |

A site's are what choosing among clusters has cost it (`_spent_on_labels`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedkin.algorithms.aggregate import members
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.least_squares import (
    RANK_TOLERANCE,
    least_norm,
    n_coefficients,
    penalised,
    residual_coefficients,
    solve,
    solve_many,
    unpack,
    upper_triangle,
)
from fedkin.models.ridge_choice import (
    RESIDUAL_ROUNDING,
    RidgeChoice,
    carries_own_model,
    choose_ridge,
)

# Rows more than coefficients from which on a site's own fit is a point worth clustering.
LEAST_FREEDOM = 5
# A site's noise variance is estimated as if it had so many more rows of the usual noise: with few
# rows of its own it might seem to have none at all.
NOISE_ROWS = 4.0
# Sites this many times noisier than the median one do not count for what noise is usual.
FAR_NOISIER = 10.0
# Of a cluster's rows, left by its fit: without any to spare its errors could be anything.
LEAST_SPARE = 0.02
# No site counts for more than this many times what it would with the usual noise.
MOST_PRECISE = 100.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """Sites by their packed statistics (m, q), zero for a site that sent none.

    `ridge` is "auto", a strength, or None: no penalty on what sites share, "auto" for a site that
    stays alone. With `as_sent` the statistics stand for fits that are made already and have noise
    of variance one (logistic loss). `models` (m, d) are what sites sent, where they sent models.
    """

    statistics: Floats
    fit_intercept: bool
    ridge: float | str | None = None
    as_sent: bool = False
    models: Floats | None = None

    def take(self, who: Indices) -> Evidence:
        """Some sites, in the order given."""
        models = None if self.models is None else self.models[who]
        return replace(self, statistics=self.statistics[who], models=models)

    # ------------------------------------------------------------ sites on their own

    @property
    def n_rows(self) -> Floats:
        """Rows of every site, (m,)."""
        return self.statistics[:, -1]

    @property
    def known(self) -> Bools:
        """Whose sums are known, (m,)."""
        return self.n_rows > 0

    @cached_property
    def gram(self) -> Floats:
        """X'X of every site, (m, d, d)."""
        return unpack(self.statistics)[0]

    @property
    def n_coefficients(self) -> int:
        """Coefficients d of a model."""
        return n_coefficients(self.statistics.shape[1])

    @cached_property
    def plain_fits(self) -> tuple[Floats, Floats]:
        """Least squares (m, d) of every site and the rank of its design (m,)."""
        coef, rank = solve_many(self.statistics)
        return coef, np.asarray(rank)

    @property
    def rank(self) -> Floats:
        """Coefficients that a site's own rows determine, (m,)."""
        return self.plain_fits[1]

    @cached_property
    def plain_residual(self) -> Floats:
        """Squared residuals of every site's least squares, (m,)."""
        own = np.einsum("mq,mq->m", residual_coefficients(self.plain_fits[0]), self.statistics)
        return np.maximum(own, RESIDUAL_ROUNDING * self.statistics[:, -2])

    @cached_property
    def chosen(self) -> RidgeChoice:
        """The penalty of every site that would stay alone."""
        if self.ridge in (None, "auto") and not self.as_sent:
            return choose_ridge(self.statistics, self.fit_intercept, common=True)
        strength = 0.0 if self.as_sent or self.ridge is None else float(self.ridge)
        return self._of_strength(strength)

    def _of_strength(self, alpha: float) -> RidgeChoice:
        """The same for one strength that is given, in the columns' units."""
        d, n = self.n_coefficients, np.maximum(self.n_rows, 1.0)
        strengths = np.full((len(n), d), alpha)
        if self.fit_intercept:
            strengths[:, -1] = 0.0
        coef = self._ridge_fits(strengths)
        residual = np.einsum("mq,mq->m", residual_coefficients(coef), self.statistics)
        freedom = self.rank.copy()
        if alpha > 0:
            with_penalty = self.gram + (n[:, None] * strengths)[:, :, None] * np.eye(d)
            freedom = np.einsum(
                "mij,mji->m", np.linalg.pinv(with_penalty, hermitian=True), self.gram
            )
        spare = 1.0 - freedom / n
        floor = RESIDUAL_ROUNDING * self.statistics[:, -2]
        with np.errstate(divide="ignore"):
            score = np.where(spare > 1e-9, np.maximum(residual, floor) / n / spare**2, np.inf)
        return RidgeChoice(np.full(len(n), alpha), strengths, freedom, score)

    @cached_property
    def own_models(self) -> Floats:
        """The model of every site that stays alone, (m, d)."""
        return self._ridge_fits(self.chosen.strengths)

    def _ridge_fits(self, strengths: Floats) -> Floats:
        p = self.n_coefficients - self.fit_intercept
        sums = penalised(self.statistics, strengths[:, :p], self.fit_intercept)
        coef, rank = solve_many(sums)
        several = rank < self.n_coefficients
        coef[several] = least_norm(sums[several])
        return coef

    @cached_property
    def can_stay_alone(self) -> Bools:
        """Whose rows are enough for a model of its own, (m,)."""
        return self.known & carries_own_model(self.n_rows, self.chosen.freedom)

    @cached_property
    def noise(self) -> Floats:
        """Noise variance of every site, drawn towards the usual one, (m,)."""
        if self.as_sent:
            return np.ones(len(self.n_rows))
        residual, spare = self._left_over()
        enough = spare >= 1.0
        if not enough.any():
            return np.full(len(spare), self._common_noise)
        each = residual[enough] / spare[enough]
        counted = each <= FAR_NOISIER * np.median(each)
        usual = residual[enough][counted].sum() / spare[enough][counted].sum()
        usual = max(float(usual), np.finfo(float).tiny)
        own = np.where(enough, residual, 0.0) + NOISE_ROWS * usual
        return np.maximum(own / (np.where(enough, spare, 0.0) + NOISE_ROWS), usual / MOST_PRECISE)

    def _left_over(self) -> tuple[Floats, Floats]:
        """Squared residuals of the sites' own fits and their degrees of freedom, (m,) each.

        Of least squares, which is not biased, if half the sites have rows enough; else of ridge.
        """
        spare = np.where(self.known, self.n_rows - self.rank, 0.0)
        if (spare >= 1.0).sum() >= 0.5 * self.known.sum():
            return self.plain_residual, spare
        spare = np.where(self.known, self.n_rows - self.chosen.freedom, 0.0)
        return self.chosen.score * np.maximum(spare, 0.0) ** 2 / np.maximum(self.n_rows, 1.0), spare

    @cached_property
    def _common_noise(self) -> float:
        """Noise variance around one model for all, where no site has rows to tell its own."""
        total = self.statistics.sum(axis=0)
        coef, rank = solve(total)
        residual = float(residual_coefficients(coef) @ total)
        floor = max(RESIDUAL_ROUNDING * float(total[-2]), np.finfo(float).tiny)
        return max(residual, floor) / max(float(total[-1] - rank), 1.0)

    # ------------------------------------------------------------ sites that share

    @cached_property
    def precision(self) -> Floats:
        """What a row of each site counts beside rows of the usual noise, (m,)."""
        return np.where(self.known, self._usual_noise / self.noise, 0.0)

    @cached_property
    def _usual_noise(self) -> float:
        return float(np.median(self.noise[self.known])) if self.known.any() else 1.0

    @cached_property
    def unit(self) -> Floats:
        """The noise variance in which errors of every site are counted, (m,).

        One for all: in units of its own noise a site whose few rows lie near its own fit by chance
        would speak for staying alone twice, by the fit and by its weight. Only who is far noisier
        than usual counts for less, so that one wild site does not decide for everybody.
        """
        return np.maximum(self._usual_noise, self.noise / FAR_NOISIER)

    @cached_property
    def weighted(self) -> Floats:
        """The sites' statistics, each in units of its noise, (m, q)."""
        return self.statistics * self.precision[:, None]

    def shared_models(self, labels: Indices, n_clusters: int) -> Floats:
        """The model of every cluster by precision (K, d); NaN for one without known sites."""
        share = members(labels, n_clusters)
        total = share @ self.weighted
        models = self._pooled(total)
        models[total[:, -1] == 0] = np.nan
        if len(labels) == 1:
            return models
        count = share.sum(axis=1)
        single = np.flatnonzero((labels >= 0) & (count[np.maximum(labels, 0)] == 1))
        own = np.where(self.can_stay_alone[:, None], self.own_models, self.population)
        models[labels[single]] = own[single]
        return models

    def _pooled(self, total: Floats) -> Floats:
        """Fits (..., d) to statistics that were added up, with the penalty that is asked for."""
        if self.ridge == "auto" and not self.as_sent:
            strengths = choose_ridge(total.reshape(-1, total.shape[-1]), self.fit_intercept)
            p = self.n_coefficients - self.fit_intercept
            own = strengths.strengths[:, :p].reshape(*total.shape[:-1], p)
            return solve(penalised(total, own, self.fit_intercept))[0]
        strength = float(self.ridge) if isinstance(self.ridge, float) and not self.as_sent else 0.0
        return solve(penalised(total, strength, self.fit_intercept))[0]

    def strengths(self, labels: Indices, n_clusters: int) -> Floats:
        """Penalty of a row on every coefficient in the model of each site's cluster, (m, d).

        A site that is a cluster by itself has its own.
        """
        m, d = len(labels), self.n_coefficients
        share = members(labels, n_clusters)
        out = np.zeros((m, d))
        if self.as_sent:
            return out
        if self.ridge == "auto":
            total = share @ self.weighted
            out = choose_ridge(total, self.fit_intercept).strengths[np.maximum(labels, 0)]
        elif isinstance(self.ridge, float):
            out[:, : d - self.fit_intercept] = self.ridge
        alone = (share.sum(axis=1)[np.maximum(labels, 0)] == 1) & (m > 1)
        return np.where(alone[:, None], self.chosen.strengths, out)

    @cached_property
    def population(self) -> Floats:
        """One model for all sites by precision, (d,)."""
        return self._pooled(self.weighted.sum(axis=0))

    def residuals(self, models: Floats) -> Floats:
        """Squared residuals of every site under every model (K, d), (m, K).

        A site that sent a model without sums is taken to have the usual design around it: as many
        rows as a coefficient has, which is enough to say whose model it is nearest to.
        """
        found = np.maximum(self.statistics @ residual_coefficients(models).T, 0.0)
        silent = np.flatnonzero(~self.known)
        if self.models is not None and len(silent) and self.known.any():
            total = self.gram[self.known].sum(axis=0) / self.n_rows.sum()
            apart = self.models[silent, None] - models
            found[silent] = np.einsum("mki,ij,mkj->mk", apart, total * self.n_coefficients, apart)
        return found

    # ------------------------------------------------------------ errors to be expected

    def errors(self, labels: Indices) -> Floats:
        """Squared errors of every site to be expected under a partition, in its `unit`, (m,)."""
        n_clusters = int(labels.max()) + 1
        models = self.shared_models(labels, n_clusters)
        count = np.bincount(labels, minlength=n_clusters)
        alone = count[labels] == 1
        stays = alone & self.can_stay_alone
        out = np.where(stays, self.chosen.score, 0.0) * self.n_rows / self.unit
        shares = np.flatnonzero(~stays & self.known)
        if not len(shares):
            return out
        # A site that cannot stay alone falls back on everybody's model.
        label = np.where(alone, n_clusters, labels)[shares]
        residual = self.residuals(np.vstack([models, self.population]))[shares]
        freedom = self._leverages(label, shares, labels, n_clusters)
        own = residual[np.arange(len(shares)), label]
        if n_clusters > 1 and not alone.all():
            shared = count > 1
            freedom += _spent_on_labels(
                residual[:, :-1][:, shared], own, count[shared], self.noise[shares]
            )
        freedom = np.minimum(freedom, self.rank[shares])
        own = np.maximum(own, RESIDUAL_ROUNDING * self.statistics[shares, -2])
        out[shares] = own / self.unit[shares] * _raised(freedom, self.n_rows[shares], label)
        return out

    def _leverages(
        self, label: Indices, sites: Indices, labels: Indices, n_clusters: int
    ) -> Floats:
        """Degrees of freedom of their cluster's fit that fall to each of some sites, (k,)."""
        weight = self.precision[:, None, None] * self.gram
        total = np.zeros((n_clusters + 1, *self.gram.shape[1:]))
        np.add.at(total, labels, weight)
        total[n_clusters] = weight.sum(axis=0)
        inverse = _scaled_inverse(total)
        return np.asarray(np.einsum("mij,mji->m", weight[sites], inverse[label]))

    def kinds_bic(self, labels: Indices) -> float:
        """BIC of so many kinds of sites, up to what all partitions have in common.

        The likelihood is that of a mixture: which kind a site belongs to is summed over, so that
        sorting noise into clusters gains nothing. Noise is each site's own.
        """
        count = np.bincount(labels)
        models = solve(members(labels, len(count)) @ self.weighted)[0]
        residual = self.residuals(models)[self.known]
        logs = np.log(count / count.sum()) - 0.5 * residual / self.noise[self.known, None]
        top = logs.max(axis=1)
        value = -2.0 * float((top + np.log(np.exp(logs - top[:, None]).sum(axis=1))).sum())
        n_parameters = len(count) * self.n_coefficients + len(count) - 1
        return value + n_parameters * float(np.log(self.n_rows.sum()))

    def profile_bic(self, labels: Indices) -> float:
        """BIC of a partition with one noise variance, where sites' rows do not tell their own."""
        n_clusters = int(labels.max()) + 1
        models = solve(members(labels, n_clusters) @ self.statistics)[0]
        residual = self.residuals(models)
        total = residual[np.arange(len(labels)), labels].sum()
        n_rows = float(self.n_rows.sum())
        least = max(RESIDUAL_ROUNDING * self.statistics[:, -2].sum(), np.finfo(float).tiny)
        noise = max(float(total), least) / n_rows
        return float(n_rows * np.log(noise) + n_clusters * self.n_coefficients * np.log(n_rows))

    @cached_property
    def tells_noise(self) -> bool:
        """Whether half the sites have rows that tell their noise."""
        return bool((self.known & (self.n_rows > self.rank)).sum() >= 0.5 * self.known.sum())

    @cached_property
    def testable(self) -> Bools:
        """Sites with at least five rows more than the coefficients they determine, (m,)."""
        return self.known & (self.n_rows - self.rank >= LEAST_FREEDOM)

    @cached_property
    def full_models(self) -> Bools:
        """Testable sites whose rows determine all that the federation's rows determine, (m,)."""
        together = solve(self.weighted.sum(axis=0))[1]
        return self.testable & (self.rank >= together)

    def covariances(self) -> Floats:
        """Sampling covariance of every site's least squares (m, d, d); zero where there is none."""
        spare = self.n_rows - self.rank
        noise = self.plain_residual / np.maximum(spare, 1.0)
        if self.as_sent:
            noise = np.ones(len(noise))
        usable = self.known & (spare >= LEAST_FREEDOM)
        return np.where(usable, noise, 0.0)[:, None, None] * _scaled_inverse(self.gram)

    def metric(self, who: Indices) -> Floats:
        """Factor L (d, d): models times L are points whose distance is that of predictions.

        L L' is the mean over the sites `who` of X'X in units of their noise.
        """
        mean = (self.gram[who] / self.noise[who, None, None]).mean(axis=0)
        scale = np.sqrt(np.maximum(np.diag(mean), np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(mean / np.outer(scale, scale))
        return np.asarray(scale[:, None] * vectors * np.sqrt(np.maximum(values, 0.0)))


def _spent_on_labels(residual: Floats, own: Floats, count: Indices, noise: Floats) -> Floats:
    """Degrees of freedom that choosing among clusters' models has cost each site, (k,).

    With the chances of each cluster given the site's rows, it is how much larger its expected
    squared residual is than the chosen model's, as in the deviance information criterion: nothing
    where the cluster is clear, and nearly as much as a fit of its own where clusters are many. That
    the clusters' models were found together with who chooses them costs half of log K more.
    """
    logs = np.log(count / count.sum()) - 0.5 * residual / noise[:, None]
    logs -= logs.max(axis=1, keepdims=True)
    chance = np.exp(logs)
    chance /= chance.sum(axis=1, keepdims=True)
    ambiguous = np.maximum(((chance * residual).sum(axis=1) - own) / noise, 0.0)
    return ambiguous + 0.5 * float(np.log(len(count)))


def _raised(freedom: Floats, n_rows: Floats, label: Indices) -> Floats:
    """How much larger errors at further rows are than residuals, by cluster, (k,)."""
    spent, rows = np.bincount(label, freedom), np.bincount(label, n_rows)
    spare = 1.0 - spent / np.maximum(rows, 1.0)
    return np.where(spare > LEAST_SPARE, np.maximum(spare, LEAST_SPARE) ** -2.0, np.inf)[label]


def _scaled_inverse(gram: Floats) -> Floats:
    """Pseudo-inverses (..., d, d), columns of unit length."""
    diagonal = np.einsum("...dd->...d", gram)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    unit = scale[..., :, None] * scale[..., None, :]
    values, vectors = np.linalg.eigh(gram / unit)
    kept = values > RANK_TOLERANCE
    inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    return np.asarray((vectors * inverse[..., None, :]) @ vectors.mT / unit)


# ------------------------------------------------------------------ from models and covariances


def sums_of(models: Floats, covariances: Floats, rows: Floats, known_noise: bool) -> Floats:
    """Packed statistics (m, q) of sites that sent a model, its covariance and their rows.

    The covariance is s^2 (X'X)^-1: with an intercept, the last column, s^2 follows from the number
    of rows; with `known_noise` it counts as 1. Zero for a site without covariance.
    """
    m, d = models.shape
    out = np.zeros((m, (d + 1) * (d + 2) // 2 + 1))
    known = np.flatnonzero(np.einsum("mdd->m", covariances) > 0)
    if not len(known):
        return out
    precision = _scaled_inverse(covariances[known])
    noise = np.ones(len(known))
    if not known_noise:
        noise = rows[known] / np.maximum(precision[:, -1, -1], np.finfo(float).tiny)
    gram = precision * noise[:, None, None]
    cross = np.einsum("mij,mj->mi", gram, models[known])
    square = np.einsum("mi,mi->m", cross, models[known]) + noise * np.maximum(rows[known] - d, 0.0)
    full = np.zeros((len(known), d + 1, d + 1))
    full[:, :d, :d], full[:, :d, d] = gram, cross
    full[:, d, :d], full[:, d, d] = cross, square
    upper = upper_triangle(d + 1)
    out[known, :-1] = full[:, upper[0], upper[1]]
    out[known, -1] = rows[known]
    return out
