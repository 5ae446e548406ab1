"""How sure estimates of all sites together are: sandwiches over sites.

Every client has a score s_i (the slope of its log likelihood) and an information A_i (the negative
of its curvature) at the estimate, where the scores add up to zero. Leaving client i out moves the
estimate, in one step, by

    move_i = -(A - A_i)^-1 s_i,    A = sum of A_i,

and the covariance is (m - 1) / m times the sum of move_i move_i' (the jackknife's, or HC3 with
clients for rows). It holds whether or not the model is right within clients. Where too few clients
carry an estimate for their differences to tell anything, the inverse of the information A stands
in, which believes the model.

Clients of K kinds that nobody saw (mixtures over clients) have scores and informations by Louis
(1982): with shares r_k, scores u_k and informations J_k under each kind

    s = sum_k r_k u_k,    A = sum_k r_k J_k - (sum_k r_k u_k u_k' - s s').
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Bools, Floats, Indices

# Clients, counted by what they contribute, from which on their differences tell the errors.
LEAST_CLIENTS = 5.0
# Numbers of informations of all clients up to which each is left out by its matrix, and up to which
# each is left out at all: of more clients none moves the estimate much.
MOST_MATRICES, MOST_KEPT = 1 << 16, 1 << 22
# Leaving a client out is a series in its share of the information; so many terms, and what is so
# small beside the first is none.
MOST_TERMS, LEAST_TERM = 10, 1e-9
# Eigenvalues of an information scaled to unit diagonal below this say that nothing is known.
NOTHING_KNOWN = 1e-9


class Terms(NamedTuple):
    """Scores (m, P) and informations (m, P, P) of clients at the estimate."""

    scores: Floats
    informations: Floats


class Kinds(NamedTuple):
    """Clients under each of K kinds: `share` (m, G) with G >= K, `score` (m, K, p),
    `information` (m, K, p, p); `size` (m,) is what a client contributes beside others, `rows` (m,)
    what it adds to the degrees of freedom of errors that believe the model."""

    share: Floats
    score: Floats
    information: Floats
    size: Floats
    rows: Floats


class Errors(NamedTuple):
    """Covariance of K estimates (K, p, p), degrees of freedom (K,), and whether sites told them."""

    covariance: Floats
    degrees: Floats
    by_sites: Bools


def moves(terms: Terms, total: Floats) -> Floats:
    """How far leaving each client out moves the estimate in one step, (m, P).

    What nothing is known of (nothing on the diagonal of `total`) does not move.
    """
    unit, known = _units(total), np.diagonal(total) != 0
    left = (total - terms.informations) / (unit[:, None] * unit) * (known[:, None] * known)
    left = left + np.diag(np.where(known, NOTHING_KNOWN, 1.0))
    moved = np.linalg.solve(left, (known * terms.scores / unit)[..., None])[..., 0]
    return np.asarray(-moved / unit)


def known_inverse(information: Floats) -> Floats:
    """The inverse (P, P); NaN for what is in a direction of which nothing is known."""
    unit = _units(information)
    values, vectors = np.linalg.eigh(information / (unit[:, None] * unit))
    known = values > NOTHING_KNOWN * max(float(values[-1]), 1.0)
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].T
    lost = (vectors[:, ~known] ** 2).sum(axis=1) > NOTHING_KNOWN
    inverse[lost, :] = inverse[:, lost] = np.nan
    return np.asarray(inverse / (unit[:, None] * unit))


def _units(information: Floats) -> Floats:
    """Roots of the diagonal, 1 where nothing is known."""
    diagonal = np.diagonal(information, axis1=-2, axis2=-1)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


def jackknifed(terms: Terms, total: Floats) -> Floats:
    """Sum (P, P) of squares and products of the moves of leaving each client out."""
    moved = moves(terms, total)
    return np.asarray(moved.T @ moved)


def effective(weights: Floats) -> Floats:
    """How many clients (m, ...) of equal weight would count as much, (...)."""
    total, squares = weights.sum(axis=0), (weights**2).sum(axis=0)
    return np.asarray(total**2 / np.where(squares > 0, squares, 1.0))


# ------------------------------------------------------------------ clients of kinds


def of_kinds(clients: Kinds, weights: Floats | None) -> Terms:
    """Louis' terms in the coefficients of all kinds and the logits of the weights (G,).

    The last weight is what the others leave. Weights that are given, not learnt, are None.
    """
    m, n_kinds, p = clients.score.shape
    share, n_coef = clients.share, n_kinds * p
    n_free = 0 if weights is None else len(weights) - 1
    size = n_coef + n_free
    scores = np.zeros((m, share.shape[1], size))
    information = np.zeros((m, size, size))
    for k in range(n_kinds):
        block = slice(k * p, (k + 1) * p)
        scores[:, k, block] = clients.score[:, k]
        information[:, block, block] = share[:, k, None, None] * clients.information[:, k]
    if weights is not None:
        free = weights[:-1]
        scores[..., n_coef:] = np.eye(len(weights))[:, :-1] - free
        information[:, n_coef:, n_coef:] = np.diag(free) - free[:, None] * free
    score = np.einsum("mg,mgi->mi", share, scores)
    rooted = np.sqrt(share)[..., None] * scores
    information -= rooted.swapaxes(1, 2) @ rooted
    information += score[:, :, None] * score[:, None, :]
    return Terms(score, information)


class _Terms:
    """The same terms of many clients, without a matrix for each of them."""

    def __init__(self, clients: Kinds, weights: Floats | None) -> None:
        self.clients, self.weights = clients, weights
        m, n_kinds, p = clients.score.shape
        self.n_coef = n_kinds * p
        free = np.zeros(0) if weights is None else weights[:-1]
        self.spread = np.diag(free) - free[:, None] * free
        self.logits = np.eye(clients.share.shape[1])[:, : len(free)] - free
        self.share = clients.share[:, :n_kinds, None]
        self.weighted = self.share * clients.score
        self.scores = np.hstack([self.weighted.reshape(m, -1), clients.share @ self.logits])

    def total(self) -> Floats:
        """The sum of the informations, (P, P); without what rounding left where all cancels."""
        clients, n_coef = self.clients, self.n_coef
        total = self.scores.T @ self.scores
        added = np.diagonal(total).copy()
        m, n_kinds, p = clients.score.shape
        for k in range(n_kinds):
            own, weighted = slice(k * p, (k + 1) * p), self.weighted[:, k]
            seen = np.tensordot(clients.share[:, k], clients.information[:, k], 1)
            total[own, own] += seen - weighted.T @ clients.score[:, k]
            added[own] += np.diagonal(seen)
            beside = weighted.sum(axis=0)[:, None] * self.logits[k]
            total[own, n_coef:] -= beside
            total[n_coef:, own] -= beside.T
        squares = (self.logits.T * clients.share.sum(axis=0)) @ self.logits
        total[n_coef:, n_coef:] += m * self.spread - squares
        added[n_coef:] += m * np.diagonal(self.spread)
        known = np.abs(np.diagonal(total)) > NOTHING_KNOWN * added
        return np.asarray(np.where(known[:, None] & known, total, 0.0))

    def times(self, vectors: Floats) -> Floats:
        """Every client's information times its vector, (m, P)."""
        clients = self.clients
        coef: Floats = vectors[:, : self.n_coef].reshape(clients.score.shape)
        last, n_kinds = vectors[:, self.n_coef :], clients.score.shape[1]
        along: Floats = last @ self.logits.T
        along[:, :n_kinds] += np.einsum("mkp,mkp->mk", clients.score, coef)
        found = self.scores * np.einsum("mi,mi->m", self.scores, vectors)[:, None]
        bent = self.share * np.einsum("mkij,mkj->mki", clients.information, coef)
        bent -= self.weighted * along[:, :n_kinds, None]
        found[:, : self.n_coef] += bent.reshape(len(found), -1)
        found[:, self.n_coef :] += last @ self.spread - (clients.share * along) @ self.logits
        return np.asarray(found)

    def some(self, who: Indices) -> Terms:
        """The terms of some clients, with their matrices."""
        return of_kinds(Kinds(*(part[who] for part in self.clients)), self.weights)

    def moves(self, total: Floats) -> Floats:
        """How far leaving each client out moves the estimate, (m, P): `moves`, as a series.

        Of clients with too much of the information for that, by their matrices.
        """
        unit = _units(total)
        scaled = total / (unit[:, None] * unit) + NOTHING_KNOWN * np.eye(len(unit))
        inverse = np.linalg.inv(scaled) / (unit[:, None] * unit)
        term = -self.scores @ inverse
        found, first = term.copy(), np.abs(term * unit).max(axis=1)
        for _ in range(MOST_TERMS):
            term = self.times(term) @ inverse
            found += term
            settled = np.abs(term * unit).max(axis=1) <= LEAST_TERM * first
            if settled.all():
                return found
        heavy = np.flatnonzero(~settled)
        found[heavy] = moves(self.some(heavy), total)
        return found


def kinds_errors(blocks: Iterable[Kinds], weights: Floats | None, spent: float) -> Errors:
    """Errors of the coefficients of K kinds from clients, block by block.

    `spent` is what a kind's estimate takes from the degrees of freedom of errors that believe the
    model.
    """
    sums = _KindSums(weights)
    for block in blocks:
        sums.add(block)
    inverse, count = known_inverse(sums.total), sums.count
    by_sites = count >= LEAST_CLIENTS
    by_moves, factor = sums.by_moves(inverse)
    n_kinds, p = len(count), (len(inverse) - sums.n_free) // len(count)
    covariance = np.empty((n_kinds, p, p))
    for k in range(n_kinds):
        own = slice(k * p, (k + 1) * p)
        covariance[k] = inverse[own, own]
        if by_sites[k]:
            covariance[k] = _where_known(factor[k] * by_moves[own, own], covariance[k])
    degrees = np.where(by_sites, count - 1.0, np.maximum(sums.rows - spent, 1.0))
    return Errors(covariance, degrees, by_sites)


class _KindSums:
    """What is added up over blocks of clients; single terms are kept while they are few."""

    def __init__(self, weights: Floats | None) -> None:
        self.weights = weights
        self.n_free = 0 if weights is None else len(weights) - 1
        self.kept: list[_Terms] = []
        self.keeps = True
        self.numbers = 0
        self.total = self.meat = self.rows = self._weight = self._square = np.zeros(())

    def add(self, block: Kinds) -> None:
        """Some clients more."""
        terms, share = _Terms(block, self.weights), block.share[:, : block.score.shape[1]]
        total = terms.total()
        self.total = self.total + total
        self.meat = self.meat + terms.scores.T @ terms.scores
        each = share * block.size[:, None]
        self._weight = self._weight + each.sum(axis=0)
        self._square = self._square + (each**2).sum(axis=0)
        self.rows = self.rows + (share * block.rows[:, None]).sum(axis=0)
        self.numbers += len(share) * total.size
        self.keeps = self.numbers <= MOST_KEPT
        self.kept = [*self.kept, terms] if self.keeps else []

    @property
    def count(self) -> Floats:
        """How many clients of equal size stand for each kind, (K,)."""
        return np.asarray(self._weight**2 / np.where(self._square > 0, self._square, 1.0))

    def by_moves(self, inverse: Floats) -> tuple[Floats, Floats]:
        """The sandwich (P, P), and the factor for the number of clients of each kind (K,).

        Where clients are too many to be left out one by one, m / (m - 1) stands for their leverage.
        """
        count = np.maximum(self.count, 2.0)
        if not self.keeps:
            return inverse @ self.meat @ inverse, count / (count - 1.0)
        few = self.numbers <= MOST_MATRICES
        moved = np.concatenate(
            [
                moves(block.some(np.arange(len(block.scores))), self.total)
                if few
                else block.moves(self.total)
                for block in self.kept
            ]
        )
        return moved.T @ moved, (count - 1.0) / count


def _where_known(found: Floats, inverse: Floats) -> Floats:
    """A covariance without what the information says is not known."""
    return np.where(np.isnan(inverse), np.nan, found)


# ------------------------------------------------------------------ clients whose kind is known


def group_errors(terms: Terms, labels: Indices, n_groups: int, sizes: Floats) -> Errors:
    """Errors of the estimate of every group of clients (`labels` (m,); below 0: of none).

    Of groups of few clients the inverse information; degrees of freedom are the sums of `sizes`
    less the number of coefficients there.
    """
    d = terms.scores.shape[1]
    covariance = np.full((n_groups, d, d), np.nan)
    degrees, by_sites = np.ones(n_groups), np.zeros(n_groups, dtype=bool)
    for k in range(n_groups):
        own = np.flatnonzero(labels == k)
        if not len(own):
            continue
        part = Terms(terms.scores[own], terms.informations[own])
        total = part.informations.sum(axis=0)
        unit = _units(total)
        inverse = known_inverse(total)
        shares = np.einsum("mdd->m", part.informations / (unit[:, None] * unit))
        count = float(effective(shares))
        by_sites[k] = count >= LEAST_CLIENTS
        degrees[k] = count - 1.0 if by_sites[k] else max(float(sizes[own].sum()) - d, 1.0)
        covariance[k] = inverse
        if by_sites[k]:
            found = (count - 1.0) / count * jackknifed(part, total)
            covariance[k] = _where_known(found, inverse)
    return Errors(covariance, degrees, by_sites)
