"""Sites of kinds that are not surely told apart: errors to expect, from simulated sites.

Kinds are equally far from each other, equally frequent, and known up to what the federation leaves
open; noise is 1. Sites are drawn with their rows, so that no formula has to guess how often one is
taken for another.

Soft (`FMLR`): a site's coefficients are those of the kinds, weighed by their chances w given its
rows. Off are the kinds' coefficients, by the inverse of m times Fisher's information, the variance
of a site's score, and the chances.

Hard (`ODCL`): a site has the coefficients of the kind that its own least squares is nearest to.
Kinds are what sites nearest to them have in the mean, weighed by their precision, and vary as such
means do.
"""

from __future__ import annotations

import numpy as np

from fedkin.arrays import Floats, Indices

# Simulated numbers, and sites at least and at most.
NUMBERS, LEAST_SITES, MOST_SITES = 2_000_000, 500, 20_000
# Rounds in which nearest sites and centres are found from each other.
ROUNDS = 30
SETTLED = 1e-6
HOW = ("soft", "hard")


def excess_of_kinds(
    n_sites: int, n_rows: int, n_features: int, n_kinds: int, separation: float, way: str
) -> float:
    """Excess error in units of the noise variance; infinite where least squares is not there."""
    p = n_features + 1
    if way not in HOW:
        raise ValueError(f"way must be 'soft' or 'hard', not {way!r}")
    if not (separation > 0 and n_kinds >= 1):
        raise ValueError("separation must be positive, and there must be a kind")
    if n_kinds > p + 1:
        raise ValueError(f"{n_kinds} kinds cannot be equally far in {p} dimensions")
    if way == "hard" and n_rows <= n_features + 2:
        return float("inf")
    drawn = _Drawn(n_rows, n_features, equally_far(n_kinds, p, separation))
    return (_soft if way == "soft" else _hard)(drawn, n_sites)


def equally_far(n_kinds: int, n_terms: int, separation: float) -> Floats:
    """Coefficients (K, p) whose distances are all the same."""
    # The corners of a simplex in the K - 1 axes of Helmert's contrasts.
    found = np.zeros((n_kinds, n_terms))
    for k in range(1, n_kinds):
        found[:k, k - 1], found[k, k - 1] = 1.0, -k
        found[:, k - 1] /= np.sqrt(k * (k + 1.0))
    return found * separation / np.sqrt(2.0)


class _Drawn:
    """Sites drawn: of which kind they are, and their rows' products (S, p, p)."""

    def __init__(self, n_rows: int, n_features: int, centres: Floats) -> None:
        rng = np.random.default_rng(0)
        p = n_features + 1
        n_drawn = int(np.clip(NUMBERS // (n_rows * p), LEAST_SITES, MOST_SITES))
        self.centres = centres
        self.kind = np.arange(n_drawn) % len(centres)
        X = rng.normal(size=(n_drawn, n_rows, p))
        X[:, :, -1] = 1.0
        noise = rng.normal(size=(n_drawn, n_rows))
        self.gram = np.einsum("sni,snj->sij", X, X, optimize=True)
        self.pull = np.einsum("sni,sn->si", X, noise)
        self.off = centres[self.kind][:, None] - centres  # (S, K, p), from each kind

    @property
    def scores(self) -> Floats:
        """Of every kind's coefficients if the site were of it, (S, K, p)."""
        return self.pull[:, None] + np.einsum("sij,skj->ski", self.gram, self.off)

    def shares(self) -> Floats:
        """Chance of every kind given the site's rows, (S, K)."""
        square = np.einsum("ski,sij,skj->sk", self.off, self.gram, self.off, optimize=True)
        logs = -0.5 * square - np.einsum("ski,si->sk", self.off, self.pull)
        logs -= logs.max(axis=1, keepdims=True)
        share = np.exp(logs)
        return np.asarray(share / share.sum(axis=1, keepdims=True))

    def own(self) -> Floats:
        """Least squares of every site, (S, p)."""
        return self.centres[self.kind] + np.linalg.solve(self.gram, self.pull[:, :, None])[:, :, 0]


def _soft(drawn: _Drawn, n_sites: int) -> float:
    share = drawn.shares()
    n_drawn, n_kinds = share.shape
    p = drawn.centres.shape[1]
    score = (share[:, :, None] * drawn.scores).reshape(n_drawn, n_kinds * p)
    information = score.T @ score / n_drawn
    covariance = np.linalg.pinv(n_sites * information, hermitian=True)
    between = np.einsum("kili->kl", covariance.reshape(n_kinds, p, n_kinds, p))
    mistaken = np.einsum("sk,skp->sp", share, drawn.off)
    estimated = np.einsum("sk,kl,sl->s", share, between, share)
    return float(((mistaken**2).sum(axis=1) + estimated).mean())


def _hard(drawn: _Drawn, n_sites: int) -> float:
    own, centres = drawn.own(), drawn.centres.copy()
    label = drawn.kind
    for _ in range(ROUNDS):
        away = ((own[:, None] - centres) ** 2).sum(axis=2)
        label = away.argmin(axis=1)
        moved = np.array(
            [_centre(drawn.gram[label == k], own[label == k]) for k in range(len(centres))]
        )
        shift, centres = float(np.abs(moved - centres).max()), moved
        if shift <= SETTLED:
            break
    bias = ((centres[label] - drawn.centres[drawn.kind]) ** 2).sum(axis=1).mean()
    return float(bias + _variance_of_centres(drawn, own, centres, label) / n_sites)


def _centre(gram: Floats, own: Floats) -> Floats:
    """The mean of sites' models weighed by their precision."""
    return np.linalg.solve(gram.sum(axis=0), np.einsum("sij,sj->i", gram, own))


def _variance_of_centres(drawn: _Drawn, own: Floats, centres: Floats, label: Indices) -> float:
    """Squared error of the centre that a site has, times the number of sites."""
    total, n_drawn = 0.0, len(own)
    for k in range(len(centres)):
        who = label == k
        pulled = np.einsum("sij,sj->si", drawn.gram[who], own[who] - centres[k])
        inverse = np.linalg.inv(drawn.gram[who].sum(axis=0))
        spread = inverse @ (pulled.T @ pulled) @ inverse
        total += float(np.trace(spread)) * n_drawn * who.mean()
    return total
