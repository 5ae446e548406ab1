"""What every site says by itself of the parameters that all share, and how far that is from it.

A site's own estimate e of q shared parameters has information J, so that its error has covariance
inv(J); about the centre of its kind sites are spread by a covariance D. Without the site k itself,
the centre c and D are found from the other sites of the federation, and

    r = e - c,    distance = r' J inv(I + (D + C) J) r,

with C the error covariance of the centre, is a sum of rank(J) squares. Nothing has to be inverted
that a site with few rows leaves open. D is known from few sites: as Hotelling has it, the distance
is compared with an F law whose second degrees of freedom say how well D is known (Satterthwaite).

Where D has no room for a full matrix it is a multiple of a given `unit`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices

# Eigenvalues of an information below this share of the largest are none.
NO_INFORMATION = 1e-10
# A full covariance of departures needs so many sites a parameter beyond the kinds.
SITES_PER_PARAMETER = 3
# Sites of a kind differ if they do so by this many standard deviations more than chance has it.
BEYOND_CHANCE = 1.0
# How often spread and weights are found from each other.
PASSES = 2
TINY = 1e-300
# No fewer degrees of freedom than this are believed.
LEAST_FREEDOM = 1.0
# More degrees of freedom than this are as good as infinitely many.
MOST_FREEDOM = 1e8


class SiteEvidence(NamedTuple):
    """What m sites say by themselves of q shared parameters.

    estimates : (m, q); information : (m, q, q), with noise of variance 1 where there are `squares`
    labels : (m,) kind of each site, -1 for none
    squares, degrees : (m,) residual squares and their degrees of freedom; None without noise
    departs : (q,) in which parameters sites of a kind may depart from each other; `by_degrees`
        whether the model says so itself
    unit : (q, q) the shape of the spread where it is a multiple of one; None: from the sites
    draws : (B, m, q) scores of simulated sites, where these are far from normal
    chi_squared : (m,) share of the degrees of freedom that the law of distances really has
    pull : scores (m, q) and curvatures (m, q, q) of the sites where the fit stands, if what is
        shared does not weigh sites by their information
    own_noise : whether the fit weighs sites by noises of their own
    bounded : whether odd sites have no say in what is shared
    says : (m, q) how much of its say each site has in each parameter, in [0, 1], where the fit has
        a rule of its own for it
    """

    names: tuple[str, ...]
    rows: Floats
    estimates: Floats
    information: Floats
    labels: Indices
    departs: Bools
    by_degrees: bool
    squares: Floats | None = None
    degrees: Floats | None = None
    unit: Floats | None = None
    draws: Floats | None = None
    chi_squared: Floats | None = None
    pull: tuple[Floats, Floats] | None = None
    own_noise: bool = False
    bounded: bool = False
    says: Floats | None = None

    @property
    def n_parameters(self) -> int:
        """Number of shared parameters q of a kind."""
        return self.estimates.shape[1]


class Distances(NamedTuple):
    """Of every site, (m,): squared distance from the others, its rank and degrees of freedom, the
    kind that is nearest; and the spread of the sites of a kind, (q, q)."""

    square: Floats
    rank: Floats
    freedom: Floats
    nearest: Indices
    spread: Floats
    weights: Floats
    """What each site counts, (m, q, q): J inv(I + (D + C) J)."""
    away: Floats
    """How far each site is from the centre without it, (m, q)."""
    full: bool
    """Whether the spread is a matrix of its own, and not a multiple of one."""


def ranks(information: Floats) -> Indices:
    """How many directions every site tells of, (m,)."""
    scale = np.sqrt(np.einsum("mqq->mq", information))
    safe = np.where(scale > 0, scale, 1.0)
    values = np.linalg.eigvalsh(information / safe[:, :, None] / safe[:, None, :])
    most = values.max(axis=1, initial=0.0, keepdims=True)
    return np.asarray((values > NO_INFORMATION * np.maximum(most, 1e-300)).sum(axis=1))


def weight_of(information: Floats, spread: Floats) -> Floats:
    """J inv(I + D J), the inverse of inv(J) + D where J has one; (m, q, q)."""
    q = information.shape[-1]
    inner = np.eye(q) + spread @ information
    weight = np.linalg.solve(inner.swapaxes(-1, -2), information.swapaxes(-1, -2))
    weight = weight.swapaxes(-1, -2)
    return np.asarray(0.5 * (weight + weight.swapaxes(-1, -2)))


def scores_at_centres(weights: Floats, estimates: Floats, kinds: Indices) -> tuple[Floats, Floats]:
    """Scores (m, q) and curvatures (m, q, q) where kinds are weighted means of their sites."""
    pulled = np.einsum("mij,mj->mi", weights, estimates)
    scores = np.zeros_like(pulled)
    for k in np.unique(kinds):
        who = kinds == k
        centre = inverse(weights[who].sum(axis=0)[None])[0] @ pulled[who].sum(axis=0)
        scores[who] = np.einsum("mij,mj->mi", weights[who], estimates[who] - centre)
    return scores, weights


def real_kinds(labels: Indices, counts: Bools) -> Indices:
    """Labels (m,) in which kinds of a single site are none; one kind if nothing is left."""
    made = np.where(counts, labels, -1)
    named, size = np.unique(made[made >= 0], return_counts=True)
    kept = {int(kind): place for place, kind in enumerate(named[size > 1])}
    if not kept:
        return np.where(counts, 0, -1)
    return np.array([kept.get(int(kind), -1) for kind in made], dtype=np.intp)


# ------------------------------------------------------------------ centre and spread


class _Kind:
    """Weighted sums over the sites of a kind, from which any one of them can be taken away.

    Sites are weighed by one over the mean variance that they have about the centre. With W the sum
    of weights, scatter about the mean has the expectation sum of (w - w^2 / W) (D + S).
    """

    def __init__(self, estimates: Floats, sampling: Floats, spread: Floats, who: Bools) -> None:
        size = np.trace(spread + sampling, axis1=1, axis2=2)
        self.weights = np.where(who, 1.0 / np.maximum(size, TINY), 0.0)
        if who.any():
            self.weights /= self.weights[who].mean()
        w, self.total = self.weights, float(self.weights.sum())
        self.away = estimates - w @ estimates / max(self.total, TINY)
        self.scatter = np.einsum("m,mi,mj->ij", w, self.away, self.away)
        self.first = np.einsum("m,mij->ij", w, sampling)
        self.second = np.einsum("m,mij->ij", w**2, sampling)
        self.sampling = sampling

    def without(self) -> tuple[Floats, Floats, Floats]:
        """Scatter, what sampling gives of it, and the factor of the spread, without each site."""
        w, left = self.weights, self.total - self.weights
        some = left > NO_INFORMATION * max(self.total, TINY)
        safe = np.where(some, left, 1.0)
        outer = self.away[:, :, None] * self.away[:, None, :]
        scatter = self.scatter - (w * self.total / safe)[:, None, None] * outer
        own = self.sampling
        second = self.second - (w**2)[:, None, None] * own
        expected = self.first - w[:, None, None] * own - second / safe[:, None, None]
        squares = float((w**2).sum()) - w**2
        free = np.where(some, left - squares / safe, 0.0)
        none = ~some[:, None, None]
        return np.where(none, 0.0, scatter), np.where(none, 0.0, expected), free


class _Spread:
    """How sites of a kind are spread about its centre, with everybody and without each site."""

    def __init__(self, evidence: SiteEvidence, information: Floats, labels: Indices) -> None:
        self.evidence, self.labels = evidence, labels
        self.n_kinds = int(labels.max(initial=-1)) + 1
        q = evidence.n_parameters
        self.known = (labels >= 0) & (ranks(information) == q)
        self.sampling = np.zeros_like(information)
        self.sampling[self.known] = inverse(information[self.known])
        self.full = self._has_room()
        self.unit = self._unit()
        self.each = np.zeros((len(labels), q, q))
        self.differ = self._differ(information)
        if self.differ:
            for _ in range(PASSES):
                self.each = self._without_each(self.all_sites)

    @property
    def all_sites(self) -> Floats:
        """The spread as everybody who counts has it, (q, q)."""
        if not self.known.any():
            return np.zeros(self.each.shape[1:])
        return np.asarray(np.median(self.each[self.known], axis=0))

    def _differ(self, information: Floats) -> bool:
        """Whether sites of a kind are further apart than their sampling errors have it."""
        square, free = 0.0, 0.0
        for k in range(self.n_kinds):
            who = self.known & (self.labels == k)
            if who.sum() < 2:
                continue
            weight, own = information[who], self.evidence.estimates[who]
            pulled = np.einsum("mij,mj->i", weight, own)
            off = own - inverse(weight.sum(axis=0)[None])[0] @ pulled
            square += float(np.einsum("mi,mij,mj->", off, weight, off))
            free += (who.sum() - 1.0) * own.shape[1]
        return square > free + BEYOND_CHANCE * np.sqrt(2.0 * free)

    def _has_room(self) -> bool:
        free = int(self.known.sum()) - self.n_kinds
        wide = int(self.evidence.departs.sum())
        return self.evidence.by_degrees and free >= SITES_PER_PARAMETER * wide + 2

    def _unit(self) -> Floats:
        departs = self.evidence.departs
        unit = self.evidence.unit
        if unit is None:
            q = self.evidence.n_parameters
            some = self.known.any()
            unit = np.median(self.sampling[self.known], axis=0) if some else np.eye(q)
            unit = _positive(unit)
        return np.where(np.outer(departs, departs), unit, 0.0)

    def _without_each(self, spread: Floats) -> Floats:
        """Covariances of departures by moments, without each site, (m, q, q)."""
        sums: list[Any] = [0.0, 0.0, 0.0]
        for k in range(self.n_kinds):
            who = self.known & (self.labels == k)
            kind = _Kind(self.evidence.estimates, self.sampling, spread, who)
            sums = [a + b for a, b in zip(sums, kind.without())]
        free = np.broadcast_to(np.asarray(sums[2], dtype=float), len(self.labels))
        safe = np.where(free > NO_INFORMATION, free, 1.0)[:, None, None]
        excess = np.where(free[:, None, None] > NO_INFORMATION, (sums[0] - sums[1]) / safe, 0.0)
        return self._shaped(np.broadcast_to(excess, self.each.shape))

    def _shaped(self, excess: Floats) -> Floats:
        departs = self.evidence.departs
        if self.full:
            # An eigenvalue problem in the columns that depart alone; zeros stand beside it.
            kept = np.where(np.outer(departs, departs), excess, 0.0)
            return _positive(kept)
        back = inverse(self.unit[None])[0]
        size = np.einsum("ij,mji->m", back, excess) / max(int(departs.sum()), 1)
        return np.maximum(size, 0.0)[:, None, None] * self.unit

    def freedom(self, information: Floats) -> Floats:
        """How well the spread is known where it matters to each site, (m,).

        Satterthwaite: the variance of the spread is that of its Fisher information.
        """
        departs = self.evidence.departs
        m = len(self.labels)
        if not self.differ or not departs.any():
            return np.full(m, MOST_FREEDOM)
        back = inverse(_inside(self.sampling[self.known] + self.all_sites, departs))
        here = _inside(inverse(information) + self.all_sites, departs)
        unit = _inside(self.unit[None], departs)[0]
        wide = len(here[0])
        if self.full:
            pairs = np.einsum("mij,mkl->ikjl", back, back).reshape(wide**2, wide**2)
            flat = here.transpose(0, 2, 1).reshape(m, -1)
            found = np.einsum("ma,ab,mb->m", flat, pairs, flat) / wide
        else:
            scaled = back @ unit
            known = float(np.einsum("mij,mji->", scaled, scaled))
            share = np.trace(inverse(here) @ unit, axis1=1, axis2=2) / wide
            found = known / np.maximum(share, TINY) ** 2
        n_known = int(self.known.sum())
        left = max(n_known - 1 - self.n_kinds, 0)
        most = left if self.full else MOST_FREEDOM
        return np.clip(found * left / n_known, LEAST_FREEDOM, max(most, LEAST_FREEDOM))


def _inside(matrices: Floats, some: Bools) -> Floats:
    """Rows and columns that are wanted of matrices (m, q, q)."""
    return np.asarray(matrices[:, some][:, :, some])


def inverse(matrices: Floats) -> Floats:
    """Inverses, of what has one."""
    scale = np.sqrt(np.abs(np.einsum("mqq->mq", matrices)))
    safe = np.where(scale > 0, scale, 1.0)
    outer = safe[:, :, None] * safe[:, None, :]
    return (
        np.asarray(np.linalg.pinv(matrices / outer, rcond=NO_INFORMATION, hermitian=True)) / outer
    )


def _positive(matrices: Floats) -> Floats:
    """The nearest matrices without negative eigenvalues."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2))


# ------------------------------------------------------------------ distances


def distances(
    evidence: SiteEvidence, information: Floats, labels: Indices, counts: Bools
) -> Distances:
    """How far every site is from the nearest kind, both without the site itself.

    `counts` (m,) says which sites have a part in centres and spread.
    """
    m, q = evidence.estimates.shape
    spread = _Spread(evidence, information, np.where(counts, labels, -1))
    rank = ranks(information)
    square, nearest = np.full(m, np.inf), np.full(m, -1, dtype=np.intp)
    weights, away = np.zeros((m, q, q)), np.zeros((m, q))
    typical = weight_of(information, spread.all_sites)
    pulled = np.einsum("mij,mj->mi", typical, evidence.estimates)
    for k in range(spread.n_kinds):
        who = (spread.known & (spread.labels == k)).astype(float)
        left = np.tensordot(who, typical, 1) - who[:, None, None] * typical
        anybody = who.sum() - who > 0
        error = inverse(left)
        centre = np.einsum("mij,mj->mi", error, who @ pulled - who[:, None] * pulled)
        weight = weight_of(information, spread.each + error)
        off = evidence.estimates - centre
        distance = np.where(anybody, np.einsum("mi,mij,mj->m", off, weight, off), np.inf)
        nearer = distance < square
        square[nearer], nearest[nearer] = distance[nearer], k
        weights[nearer], away[nearer] = weight[nearer], off[nearer]
    square = np.where((rank > 0) & np.isfinite(square), square, np.nan)
    freedom = spread.freedom(information)
    return Distances(
        square, rank.astype(float), freedom, nearest, spread.all_sites, weights, away, spread.full
    )
