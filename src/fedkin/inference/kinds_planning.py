"""Sites of kinds that are not surely told apart: errors to expect, from simulated federations.

Kinds are equally far from each other and equally frequent; noise is 1. No formula says how often a
site is taken for another, and how much finding the kinds together with who belongs to them costs:
federations are drawn, and their kinds found as the methods find them.

Soft (`FMLR`): EM from the truth, which ends where EM from scratch does; a site has the
coefficients of the kinds, weighed by their chances.

Hard (`ODCL`): its own clusters and averages, in which sites count by the noise they seem to have.

What chance adds to a draw is taken off, where its mean is known: the error of least squares that is
told who belongs together (exact), and what mistakes cost who knows the kinds, whose mean comes from
many sites, with the rare mistake between two kinds known for every design. Beyond `MOST_SITES` the
variance of the kinds' coefficients falls as 1 / m, and the rest stays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.models.least_squares import upper_triangle

# Sites of a simulated federation at most, sites in all, federations.
MOST_SITES, SITES, FEDERATIONS = 1_000, 15_000, (15, 100)
# Sites by which the mean cost of mistakes is found.
MANY_SITES = 50_000
# EM's steps, and when nothing moves any more.
STEPS, SETTLED = 300, 1e-5
# Rows a term from which on ODCL clusters models, not predictions.
MODELS = 2.0
# Standard deviations of a log ratio, and standard normal values, by which a mean is tabulated.
SPREADS, VALUES = np.linspace(0.0, 40.0, 801), np.linspace(-9.0, 30.0, 1951)
HOW = ("soft", "hard")


@lru_cache(maxsize=256)
def excess_of_kinds(
    n_sites: int, n_rows: int, n_features: int, n_kinds: int, separation: float, way: str
) -> float:
    """Excess error in units of the noise variance."""
    p = n_features + 1
    if way not in HOW:
        raise ValueError(f"way must be 'soft' or 'hard', not {way!r}")
    if not (separation > 0 and n_kinds >= 1):
        raise ValueError("separation must be positive, and there must be a kind")
    if n_kinds > p + 1:
        raise ValueError(f"{n_kinds} kinds cannot be equally far in {p} dimensions")
    if n_kinds > n_sites:
        raise ValueError(f"there are fewer sites ({n_sites}) than kinds ({n_kinds})")
    rng = np.random.default_rng(0)
    centres, n_drawn = equally_far(n_kinds, p, separation), min(n_sites, MOST_SITES)
    usual = draw_sites(MANY_SITES, n_rows, centres, rng).mean_cost(way)
    excess, found, told = [], [], []
    for _ in range(int(np.clip(SITES // n_drawn, *FEDERATIONS))):
        sites = draw_sites(n_drawn, n_rows, centres, rng)
        kinds, own = (_soft if way == "soft" else _hard)(sites, rng)
        lucky = float(sites.cost(way).mean()) - usual
        excess.append(float(((own - sites.truth) ** 2).sum(axis=1).mean()) - lucky)
        found.append(kinds)
        told.append(sites.told_the_kinds())
    share, exact = sites.told_errors()
    off = (np.array(told) ** 2).sum(axis=2).mean(axis=0) - exact
    falls = _variances(found) - _variances(told) + exact
    return float(np.mean(excess) - share @ off - (1.0 - n_drawn / n_sites) * (share @ falls))


def equally_far(n_kinds: int, n_terms: int, separation: float) -> Floats:
    """Coefficients (K, p) whose distances are all the same."""
    # The corners of a simplex in the K - 1 axes of Helmert's contrasts.
    found = np.zeros((n_kinds, n_terms))
    for k in range(1, n_kinds):
        found[:k, k - 1], found[k, k - 1] = 1.0, -k
        found[:, k - 1] /= np.sqrt(k * (k + 1.0))
    return found * separation / np.sqrt(2.0)


# ------------------------------------------------------------------ sites


class Sites(NamedTuple):
    """Sites drawn: `root` (S, r, p) with root' root = X'X, and what their noise is in those axes.

    `noise` (S, r) is that part, `left` (S,) the sum of squares of the rest; n_rows each.
    """

    centres: Floats
    kind: Indices
    n_rows: int
    root: Floats
    noise: Floats
    left: Floats

    @property
    def truth(self) -> Floats:
        """Coefficients of every site, (S, p)."""
        return self.centres[self.kind]

    @property
    def gram(self) -> Floats:
        """X'X, (S, p, p)."""
        return np.asarray(self.root.mT @ self.root)

    @property
    def pull(self) -> Floats:
        """X' noise, (S, p)."""
        return np.einsum("sri,sr->si", self.root, self.noise)

    @property
    def apart(self) -> Floats:
        """Every kind less the site's own, (S, K, p)."""
        return np.asarray(self.centres - self.truth[:, None])

    @property
    def squares(self) -> Floats:
        """Their squared distances, (S, K)."""
        return np.asarray((self.apart**2).sum(axis=2))

    @property
    def statistics(self) -> Floats:
        """Sums of products of columns, intercept and target, and n, (S, q)."""
        target = np.einsum("sri,si->sr", self.root, self.truth) + self.noise
        both = np.concatenate([self.root, target[:, :, None]], axis=2)
        products = both.mT @ both
        products[:, -1, -1] += self.left
        rows, columns = upper_triangle(products.shape[1])
        n = np.full((len(self.kind), 1), float(self.n_rows))
        return np.concatenate([products[:, rows, columns], n], axis=1)

    # ------------------------------------------------------------ who knows the kinds

    def gains(self, way: str) -> tuple[Floats, Floats, Floats]:
        """What speaks for each kind more than for the own one: normal, with mean and deviation.

        (S, K) each. The likelihood speaks, or half squared distances of models (`ODCL` with rows
        enough).
        """
        if way == "hard" and self.n_rows >= MODELS * self.centres.shape[1]:
            solved = np.linalg.solve(self.gram, self.apart.mT).mT
            mean = -0.5 * self.squares
            spread = np.sqrt(np.einsum("ski,ski->sk", self.apart, solved))
        else:
            solved = self.apart
            square = ((self.root @ self.apart.mT) ** 2).sum(axis=1)
            mean, spread = -0.5 * square, np.sqrt(square)
        return np.einsum("ski,si->sk", solved, self.pull) + mean, mean, spread

    def cost(self, way: str) -> Floats:
        """Squared error of who knows the kinds and must guess which is the own, (S,)."""
        gain = self.gains(way)[0]
        if way == "hard":
            return self.squares[np.arange(len(gain)), gain.argmax(axis=1)]
        share = np.exp(gain - gain.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        return np.asarray((np.einsum("sk,ski->si", share, self.apart) ** 2).sum(axis=1))

    def mean_cost(self, way: str) -> float:
        """Its mean: that of guessing between two kinds is known, the rest is seen."""
        from scipy.special import expit, ndtr

        gain, mean, spread = self.gains(way)
        if way == "hard":
            between, known = gain > 0, ndtr(mean / np.where(spread > 0, spread, 1.0))
        else:
            between, known = expit(gain) ** 2, _mean_square_share(spread)
        rest = self.cost(way) - (self.squares * between).sum(axis=1)
        return float((rest + (self.squares * known).sum(axis=1)).mean())

    def told_the_kinds(self) -> Floats:
        """By how much least squares that is told who belongs together is off the kinds, (K, p).

        Zero where rows are too few for its error to have a mean.
        """
        one = self.kind == np.arange(len(self.centres))[:, None]
        if not self.told_errors()[1].all():
            return np.zeros_like(self.centres)
        gram = np.einsum("ks,sij->kij", one, self.gram)
        return np.asarray(np.linalg.solve(gram, (one @ self.pull)[:, :, None])[:, :, 0])

    def told_errors(self) -> tuple[Floats, Floats]:
        """Shares of the kinds (K,), and its mean squared error of each; zeros where it has none."""
        from fedkin.inference.planning import plan

        count = np.bincount(self.kind, minlength=len(self.centres))
        n_features = self.centres.shape[1] - 1
        exact = np.array([plan(1, int(c) * self.n_rows, n_features).alone for c in count])
        return count / count.sum(), exact if np.isfinite(exact).all() else np.zeros(len(count))


def _variances(found: list[Floats]) -> Floats:
    """Variances of the kinds' coefficients over federations, added over the terms, (K,)."""
    return np.asarray(np.var(found, axis=0, ddof=1).sum(axis=1))


def draw_sites(n_drawn: int, n_rows: int, centres: Floats, rng: np.random.Generator) -> Sites:
    """Sites with so many rows of standard normal columns and an intercept.

    A site of many rows is drawn by the triangular root of its sums of products (Bartlett).
    """
    p = centres.shape[1]
    many = n_rows > p
    root = rng.normal(size=(n_drawn, p if many else n_rows, p))
    if many:
        # About the mean n - 1 rows are free; the last axis is that of the intercept.
        free = n_rows - 1.0 - np.arange(p - 1)
        root[:, :-1] = np.triu(root[:, :-1], 1)
        root[:, np.arange(p - 1), np.arange(p - 1)] = np.sqrt(rng.chisquare(free, (n_drawn, p - 1)))
        root[:, :-1, -1], root[:, -1, -1] = 0.0, np.sqrt(n_rows)
    else:
        root[:, :, -1] = 1.0
    spare = n_rows - root.shape[1]
    left = rng.chisquare(spare, n_drawn) if spare else np.zeros(n_drawn)
    noise = rng.normal(size=root.shape[:2])
    return Sites(centres, np.arange(n_drawn) % len(centres), n_rows, root, noise, left)


def _mean_square_share(spread: Floats) -> Floats:
    """Mean of expit(x)^2 where x is normal with variance spread^2 and mean -spread^2 / 2."""
    from scipy.special import expit

    weight = np.exp(-0.5 * VALUES**2)
    share = expit(SPREADS[:, None] * VALUES - 0.5 * SPREADS[:, None] ** 2) ** 2
    known = np.log(share @ weight / weight.sum())
    return np.where(spread < SPREADS[-1], np.exp(np.interp(spread, SPREADS, known)), 0.0)


# ------------------------------------------------------------------ the methods


def _soft(sites: Sites, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The kinds' coefficients (K, p) by EM, and those of every site (S, p)."""
    from fedkin.models.grouped_regression import (
        Parameters,
        expect,
        largest_change,
        maximise,
        responsibilities,
    )

    statistics = np.ascontiguousarray(sites.statistics.T)
    n_kinds = len(sites.centres)
    even = np.full((1, n_kinds), 1.0 / n_kinds)
    found = Parameters(sites.centres[None].copy(), np.ones(1), even)
    for _ in range(STEPS):
        before, found = found, maximise(expect(statistics, found), found, True, True)
        if float(largest_change(found, before)[0]) <= SETTLED:
            break
    share = responsibilities(statistics, found)[0][0]
    return found.coef[0], np.asarray(share.T @ found.coef[0])


def _hard(sites: Sites, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The clusters' coefficients (K, p), in the order of the kinds, and those of every site."""
    from scipy.optimize import linear_sum_assignment

    from fedkin.algorithms.odcl_choice import group_by_evidence
    from fedkin.algorithms.odcl_evidence import Evidence
    from fedkin.algorithms.odcl_settings import OdclSettings

    n_kinds = len(sites.centres)
    evidence = Evidence(sites.statistics, fit_intercept=True)
    settings = OdclSettings.from_mapping({"n_clusters": n_kinds})
    labels = group_by_evidence(evidence, settings, rng).labels
    models = evidence.shared_models(labels, n_kinds)
    own = models[labels]
    models = np.where(np.isfinite(models), models, sites.centres)
    away = ((sites.centres[:, None] - models) ** 2).sum(axis=2)
    return models[linear_sum_assignment(away)[1]], own
