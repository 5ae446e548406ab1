"""Groups of sites that borrow from each other: means, covariances and weights by empirical Bayes.

Group r at site k has n rows with mean x and scatter C about it, which is packed as its kind of
covariance has it (`fedkin.models.packed_matrices`). The model, for each group:

| what | at site k | in common |
|---|---|---|
| mean | mu ~ N(center, between) | `centers`, `between` |
| covariance | inverse Wishart with mean `covariance` and `degrees` | `covariances`, `degrees` |
| weights | Dirichlet | `concentration` |

Given what is common a site's own values follow in closed form (`Posterior`): this file. What is
common is found by marginal likelihood (`fedkin.shrinkage.in_common`): the amount of borrowing is
estimated, none of it is tuned.

- Means are seen in coordinates in which the covariance is the identity and `between` is diagonal.
  Between sites means may differ more in some directions than in others; `between` is pulled to a
  multiple of the covariance as by d + 2 sites, the least that has a mean.
- A mean that was fitted to the rows takes some of their scatter with it: n rows have n - 1 degrees
  of freedom where the mean is the site's own, n where it is the common one, and in between what the
  pull leaves, so that nothing collapses.
- The common covariance of a group is itself bent to the average of all groups, by degrees found
  likewise: six groups of 20 features have 1,260 numbers, and few rows do not tell them.
- A site whose mean is too far for the others neither pulls nor is pulled (`belonging`).
- Where all labels are known, the means of a site have a shift in common
  (`fedkin.shrinkage.site_shifts`), by which all its groups are moved: mu ~ N(center + shift,
  between). Centres are then pulled to their mean as far as they are not known.

A group without rows at a site takes the common values, moved by the site's shift.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import psi

from fedkin.arrays import Floats
from fedkin.models.packed_matrices import packed, products, unpacked
from fedkin.models.small_matrices import (
    traces,
)
from fedkin.shrinkage import site_shifts
from fedkin.shrinkage.spread import belonging

KINDS = ("full", "diag", "spherical", "tied", "identity")
# Kinds in which every group of a site has a covariance of its own.
OWN_KINDS = ("full", "diag", "spherical")
# Between sites means differ by at least this share of the covariance (a variance).
LEAST_BETWEEN = 1e-8
# A group with fewer rows than this at a site says nothing of its covariance or its place.
FEW = 1e-6
# Fewer rows than this are rounding beside the counts of groups.
LEAST_KEPT_BACK = 0.5
# exp() of less is nothing.
LEAST_EXPONENT = -500.0


class Common(NamedTuple):
    """What groups have in common: see the module's table.

    `centers` (R, d), `between` (R, d, d), `covariances` (R, d, d), `degrees` (R,),
    `concentration` (R,); `n_estimates`, the groups of sites that are compared; `known` (R,), as
    from how many rows the covariances are known; `shift` (d, d), the covariance of sites' shifts,
    None where every group is moved by itself.
    """

    centers: Floats
    between: Floats
    covariances: Floats
    degrees: Floats
    concentration: Floats
    n_estimates: Floats
    known: Floats
    shift: Floats | None = None


class Posterior(NamedTuple):
    """A site's own values given what is common.

    `weights` (m, R), `means` (m, R, d); `numbers` (m, R, q), its covariances as its kind has them;
    `open` (m, R, d), what is not known of the means, variances along the columns of `back`
    (R, d, d); `belongs` (m, R) in [0, 1]; `distances` (m, R) of the means, chi-squared with d
    degrees of freedom; `rows` (m, R), degrees of freedom of the scatter about the means; `common`
    covariances (R, d, d) and their kind; `moved` (m, R, d, d), what is not known of the means
    because the site's shift is not.
    """

    weights: Floats
    means: Floats
    numbers: Floats
    open: Floats
    back: Floats
    belongs: Floats
    distances: Floats
    rows: Floats
    common: Floats
    kind: str
    moved: Floats | None = None

    @property
    def covariances(self) -> Floats:
        """(m, R, d, d); the common ones where a kind knows no others."""
        return self.shaped(self.numbers)

    def shaped(self, numbers: Floats) -> Floats:
        """Covariances from their numbers."""
        d = self.means.shape[-1]
        if self.kind in OWN_KINDS:
            return unpacked(numbers, d, self.kind)
        return np.broadcast_to(self.common, (*self.means.shape, d))

    @property
    def doubt(self) -> Floats:
        """Covariances of the means' own uncertainty, (m, R, d, d)."""
        own = np.einsum("rij,mrj,rkj->mrik", self.back, self.open, self.back, optimize=True)
        return np.asarray(own if self.moved is None else own + self.moved)


# ------------------------------------------------------------------ a site's own values


def posterior(
    counts: Floats,
    means: Floats,
    scatter: Floats,
    common: Common,
    kind: str,
    own_weights: bool,
    members: Floats | None = None,
) -> Posterior:
    """A site's own values from its counts (m, R), means (m, R, d) and scatter (m, R, q).

    Scatter is packed by kind (`fedkin.models.packed_matrices`), as sites send it. `members` (m, R)
    are what counts for weights, where these are not the counts (`members_of`).
    """
    axes, back, spread = axes_of(common)
    held = held_means(counts, means, common, axes, back, spread)
    rows, total = about_means(counts, means, scatter, held.means, held.taken, kind)
    numbers = _held_covariances(total, rows, common, kind)
    members = counts if members is None else members
    weights = _held_weights(members, common.concentration, own_weights)
    own = held.means, numbers, held.open, back, held.belongs, held.distances, rows
    return Posterior(weights, *own, common.covariances, kind, held.moved)


def by_labels(
    counts: Floats, means: Floats, scatter: Floats, common: Common, kind: str, own_weights: bool
) -> Posterior:
    """The same where rows with labels tell of classes.

    A class of which no label is known at a site is not one that the site never has: weights of its
    own count one row more for every class, dealt by the common weights.
    """
    usual = len(common.concentration) * common.concentration / common.concentration.sum()
    members = counts + usual if own_weights else counts
    return posterior(counts, means, scatter, common, kind, own_weights, members)


def block(kind: str, d: int) -> tuple[int, int]:
    """Size of the Wishart blocks of a kind, and how many of a row's columns one block has."""
    return (d if kind in ("full", "tied") else 1), (d if kind == "spherical" else 1)


def working(
    own: Posterior, common: Common, members: Floats, kind: str, own_weights: bool
) -> tuple[Floats, Floats]:
    """Weights (m, R) and covariances for the E-step: expected logarithms, not logarithms of means.

    With values that are themselves uncertain (variational Bayes): where few rows tell of a group it
    claims fewer, so that the spread between sites does not feed on itself. The weights do not sum
    to one.
    """
    d = own.means.shape[-1]
    weights = own.weights
    if not own_weights:
        held = members + common.concentration
        weights = np.exp(psi(held) - psi(held.sum(axis=-1, keepdims=True)))
    numbers, loss, doubt = own.numbers, 0.0, _relative_doubt(own)
    if kind in OWN_KINDS:
        order, times = block(kind, d)
        nu = common.degrees + order + 1.0 + times * own.rows
        each = _sum_of_psi(nu / 2, order) - order * np.log(nu / 2)
        loss = 0.5 * each * (1 if order > 1 else d)
        narrower = (nu - order - 1.0) / nu
        numbers, doubt = numbers * narrower[..., None], doubt / narrower
    weights = weights * np.exp(np.maximum(loss - 0.5 * doubt, LEAST_EXPONENT))
    return weights, own.shaped(numbers)


def _relative_doubt(own: Posterior) -> Floats:
    """Trace of covariance^-1 doubt, (m, R)."""
    if own.kind not in OWN_KINDS:
        # What is open is measured along axes in which the common covariance is the identity.
        found = own.open.sum(axis=-1)
    elif own.kind == "full":
        found = traces(own.numbers, own.back, own.open)
    else:
        variances, d = turned(np.square(own.back), own.open), own.means.shape[-1]
        found = (variances / (own.numbers / (d if own.kind == "spherical" else 1))).sum(axis=-1)
    if own.moved is not None:
        found = found + np.einsum("mrii->mr", np.linalg.solve(own.covariances, own.moved))
    return np.asarray(found)


def _sum_of_psi(values: Floats, order: int) -> Floats:
    """psi at `order` steps of one half down from values: two of them, the others follow."""
    total: Floats = np.zeros(values.shape)
    for last in range(max(order - 2, 0), order):
        n_steps, lowest = last // 2, values - 0.5 * last
        total += (n_steps + 1) * psi(lowest)
        for step in range(n_steps):
            total += (n_steps - step) / (lowest + step)
    return total


def axes_of(common: Common) -> tuple[Floats, Floats, Floats]:
    """Coordinates A (R, d, d) in which the covariance is the identity and `between` diagonal.

    Also the way back, and the diagonal (R, d).
    """
    root = np.linalg.cholesky(common.covariances)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ common.between @ inverse.swapaxes(-1, -2))
    axes = vectors.swapaxes(-1, -2) @ inverse
    return axes, root @ vectors, np.maximum(values, LEAST_BETWEEN)


def about_means(
    counts: Floats, means: Floats, scatter: Floats, about: Floats, taken: Floats, kind: str
) -> tuple[Floats, Floats]:
    """Rows that are left to tell of a covariance, and their scatter about the held means."""
    away, some = means - about, np.where(counts > FEW, counts, 0.0)[..., None]
    total = products(some * away, away, kind)
    total += scatter
    return np.maximum(counts - taken, 0.0), total


class Held(NamedTuple):
    """Means of sites given what is common; `taken` (m, R), what they take of the rows.

    The rest as in `Posterior`.
    """

    means: Floats
    open: Floats
    belongs: Floats
    distances: Floats
    taken: Floats
    moved: Floats | None = None


def held_means(
    counts: Floats, means: Floats, common: Common, axes: Floats, back: Floats, spread: Floats
) -> Held:
    """Posterior means, and what is uncertain of them as variances along the axes."""
    known, centers = counts > FEW, common.centers
    noise = 1.0 / np.where(known, counts, 1.0)[..., None]
    away = np.where(known[..., None], means - centers, 0.0)
    white, d = turned(axes, away), centers.shape[-1]
    if common.shift is None:
        distances = np.where(known, (white**2 / (spread + noise)).sum(axis=-1), 0.0)
    else:
        precision = site_shifts.precisions(axes, known[..., None] / (spread + noise))
        both = site_shifts.with_shifts(precision, common.shift)
        distances = site_shifts.distances(both, away)
    belongs = np.where(known, belonging(distances, d, common.n_estimates), 1.0)
    kept = np.where(known[..., None], 1.0 - belongs[..., None] * (noise / (spread + noise)), 0.0)
    held = centers + turned(back, kept * white)
    left = np.where(known[..., None], kept * noise, spread)
    taken = np.where(known, kept.mean(axis=-1), 0.0)
    if common.shift is None:
        return Held(held, left, belongs, distances, taken)
    # As far as means are pulled, they are pulled to where the shift has moved the centre.
    precision *= belongs[..., None, None]
    shifts = site_shifts.expected(precision, away, common.shift)
    pulled = (back * (1.0 - kept)[..., None, :]) @ axes
    held = held + (pulled @ shifts.means[:, None, :, None])[..., 0]
    open_ = pulled @ shifts.doubt[:, None]
    taken = taken + np.einsum("mrij,mrji->mr", open_, precision) / d
    return Held(held, left, belongs, distances, taken, open_ @ pulled.swapaxes(-1, -2))


def turned(matrices: Floats, vectors: Floats) -> Floats:
    """Vectors (m, R, d) multiplied by their group's matrix (R, d, d)."""
    by_group = vectors.swapaxes(0, 1) @ matrices.swapaxes(-1, -2)
    return np.ascontiguousarray(by_group.swapaxes(0, 1))


def _held_covariances(scatter, rows, common, kind):
    """Posterior means of covariances, packed; none where a kind knows the common ones alone."""
    if kind not in OWN_KINDS:
        return scatter[..., :0]
    _, times = block(kind, common.centers.shape[-1])
    total = common.degrees + times * rows
    held = (common.degrees / total)[..., None] * packed(common.covariances, kind)
    held += scatter * (times / total)[..., None]
    return held


def _held_weights(counts, concentration, own_weights):
    """Posterior mean of the weights; shares of the rows if a site keeps its own."""
    total = counts.sum(axis=-1, keepdims=True)
    if own_weights:
        even = concentration / concentration.sum()
        return np.where(total > 0, counts / np.where(total > 0, total, 1.0), even)
    return (counts + concentration) / (total + concentration.sum())


def members_of(counts: Floats, rows: Floats, concentration: Floats) -> Floats:
    """Rows of groups (m, R) as far as weights are concerned: with those that a site kept back.

    A site with rules does not tell of groups of few rows: their counts are zero, its rows (m,) are
    more than its counts. The rest belongs to these groups, by their usual weights.
    """
    rest = rows - counts.sum(axis=-1)
    usual = np.where(counts > 0, 0.0, concentration)
    kept_back = (rest >= LEAST_KEPT_BACK) & (usual > 0).any(axis=-1)
    if not kept_back.any():
        return counts
    share = usual / np.where(kept_back, usual.sum(axis=-1), 1.0)[:, None]
    return counts + np.where(kept_back, rest, 0.0)[:, None] * share


def shaped(matrices: Floats, kind: str) -> Floats:
    """Matrices (..., d, d) with what their kind leaves of them."""
    if kind in ("full", "tied"):
        return matrices
    diagonal = np.einsum("...ii->...i", matrices)
    if kind == "spherical":
        diagonal = np.repeat(diagonal.mean(axis=-1, keepdims=True), matrices.shape[-1], axis=-1)
    return np.asarray(diagonal[..., None] * np.eye(matrices.shape[-1]))


def predictive(own: Posterior, common: Common, kind: str) -> tuple[Floats, Floats]:
    """Covariances (m, R, d, d) of a new row, and degrees of freedom of Student's density (m, R).

    What a mean or a covariance is not known to adds to what rows scatter.
    """
    infinite = np.full(own.rows.shape, np.inf)
    if kind == "identity":
        return own.covariances + own.doubt, infinite
    order, _ = block(kind, own.means.shape[-1])
    taken, uncertain = np.ones_like(own.rows), np.zeros_like(own.rows)
    if kind in OWN_KINDS:
        total = told(own, common, kind)
        taken, uncertain = common.degrees / total, 1.0 / total
    wider = 1.0 + taken * (order + 1.0) / np.maximum(common.known, order + 1.0)
    covariances = own.covariances * wider[..., None, None] + own.doubt
    freedom = 2.0 + 1.0 / (taken**2 / common.known + uncertain)
    return covariances, freedom if order > 1 else infinite


def told(own: Posterior, common: Common, kind: str) -> Floats:
    """As from how many rows a site's covariances are known, (m, R); the common ones for certain."""
    if kind not in OWN_KINDS:
        return np.full(own.rows.shape, np.inf)
    _, times = block(kind, own.means.shape[-1])
    return common.degrees + times * own.rows


def between_sites(common: Common) -> Floats:
    """Covariances (R, d, d) of the means of groups between sites: shifts, and what is their own."""
    return common.between if common.shift is None else common.between + common.shift
