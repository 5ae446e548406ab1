"""Groups of sites that borrow from each other: means, covariances and weights by empirical Bayes.

Group r at site k has n rows with mean x and scatter C about it, which is packed as its kind of
covariance has it (`fedkin.models.packed_matrices`). The model, for each group:

| what | at site k | in common |
|---|---|---|
| mean | mu ~ N(center, between) | `centers`, `between` |
| covariance | inverse Wishart with mean `covariance` and `degrees` | `covariances`, `degrees` |
| weights | Dirichlet | `concentration` |

Given what is common a site's own values follow in closed form (`Posterior`). What is common is
found by marginal likelihood (`learn`): the amount of borrowing is estimated, none of it is tuned.

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

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, psi

from fedkin.arrays import Floats, Indices
from fedkin.models.packed_matrices import packed, products, unpacked
from fedkin.models.small_matrices import (
    Tridiagonal,
    inverse_roots,
    log_determinants,
    traces,
    tridiagonal,
)
from fedkin.shrinkage import site_shifts
from fedkin.shrinkage.spread import belonging

KINDS = ("full", "diag", "spherical", "tied", "identity")
# Kinds in which every group of a site has a covariance of its own.
OWN_KINDS = ("full", "diag", "spherical")
# Degrees beyond the least that has a mean: from hardly any borrowing to no differences to speak of.
# Neighbours differ by a fifth, which changes a site's covariance by a few per cent at most.
DEGREES = np.geomspace(1.0, 1e5, 64)
# How they are tried: so far apart first, then by halves about the best.
WIDE_STEP, HALVES = 8, (4, 2, 1)
# Passes of the Dirichlet's fixed point inside one round; rounds go on from where they ended.
PASSES = 10
# Bounds of the Dirichlet's total: no borrowing, and all of it.
LEAST_TOTAL, MOST_TOTAL = 1e-2, 1e5
# Eigenvalues of a covariance are at least this share of their mean.
LEAST_EIGENVALUE = 1e-6
# Where rows of groups do not scatter, so do they as this share of how groups of sites do.
LEAST_SCATTER = 1e-12
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
        turned = np.einsum("rij,mrj,rkj->mrik", self.back, self.open, self.back, optimize=True)
        return np.asarray(turned if self.moved is None else turned + self.moved)


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
    axes, back, spread = _axes(common)
    held = _held_means(counts, means, common, axes, back, spread)
    rows, total = _about_means(counts, means, scatter, held.means, held.taken, kind)
    numbers = _held_covariances(total, rows, common, kind)
    members = counts if members is None else members
    weights = _held_weights(members, common.concentration, own_weights)
    own = held.means, numbers, held.open, back, held.belongs, held.distances, rows
    return Posterior(weights, *own, common.covariances, kind, held.moved)


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
        variances, d = _turned(np.square(own.back), own.open), own.means.shape[-1]
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


def _axes(common: Common) -> tuple[Floats, Floats, Floats]:
    """Coordinates A (R, d, d) in which the covariance is the identity and `between` diagonal.

    Also the way back, and the diagonal (R, d).
    """
    root = np.linalg.cholesky(common.covariances)
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ common.between @ inverse.swapaxes(-1, -2))
    axes = vectors.swapaxes(-1, -2) @ inverse
    return axes, root @ vectors, np.maximum(values, LEAST_BETWEEN)


def _about_means(counts, means, scatter, about, taken, kind):
    """Rows that are left to tell of a covariance, and their scatter about the held means."""
    away, some = means - about, np.where(counts > FEW, counts, 0.0)[..., None]
    total = products(some * away, away, kind)
    total += scatter
    return np.maximum(counts - taken, 0.0), total


class _Held(NamedTuple):
    """Means of sites given what is common; `taken` (m, R), what they take of the rows.

    The rest as in `Posterior`.
    """

    means: Floats
    open: Floats
    belongs: Floats
    distances: Floats
    taken: Floats
    moved: Floats | None = None


def _held_means(counts, means, common, axes, back, spread):
    """Posterior means, and what is uncertain of them as variances along the axes."""
    known, centers = counts > FEW, common.centers
    noise = 1.0 / np.where(known, counts, 1.0)[..., None]
    away = np.where(known[..., None], means - centers, 0.0)
    white, d = _turned(axes, away), centers.shape[-1]
    if common.shift is None:
        distances = np.where(known, (white**2 / (spread + noise)).sum(axis=-1), 0.0)
    else:
        precision = site_shifts.precisions(axes, known[..., None] / (spread + noise))
        both = site_shifts.with_shifts(precision, common.shift)
        distances = site_shifts.distances(both, away)
    belongs = np.where(known, belonging(distances, d, common.n_estimates), 1.0)
    kept = np.where(known[..., None], 1.0 - belongs[..., None] * (noise / (spread + noise)), 0.0)
    held = centers + _turned(back, kept * white)
    left = np.where(known[..., None], kept * noise, spread)
    taken = np.where(known, kept.mean(axis=-1), 0.0)
    if common.shift is None:
        return _Held(held, left, belongs, distances, taken)
    # As far as means are pulled, they are pulled to where the shift has moved the centre.
    precision *= belongs[..., None, None]
    shifts = site_shifts.expected(precision, away, common.shift)
    pulled = (back * (1.0 - kept)[..., None, :]) @ axes
    held = held + (pulled @ shifts.means[:, None, :, None])[..., 0]
    open_ = pulled @ shifts.doubt[:, None]
    taken = taken + np.einsum("mrij,mrji->mr", open_, precision) / d
    return _Held(held, left, belongs, distances, taken, open_ @ pulled.swapaxes(-1, -2))


def _turned(matrices: Floats, vectors: Floats) -> Floats:
    """Vectors (m, R, d) multiplied by their group's matrix (R, d, d)."""
    turned = vectors.swapaxes(0, 1) @ matrices.swapaxes(-1, -2)
    return np.ascontiguousarray(turned.swapaxes(0, 1))


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


# ------------------------------------------------------------------ what is common


def between_sites(common: Common) -> Floats:
    """Covariances (R, d, d) of the means of groups between sites: shifts, and what is their own."""
    return common.between if common.shift is None else common.between + common.shift


def learn(
    counts: Floats,
    means: Floats,
    scatter: Floats,
    common: Common,
    kind: str,
    alike: bool = False,
    rows: Floats | None = None,
) -> Common:
    """The mixture that sites share, from their counts, means and scatter added up.

    With covariances `alike` all groups have their average. `rows` (m,) of sites that may have kept
    groups back.
    """
    n_rows = counts.sum(axis=0)
    alive = n_rows[:, None] > FEW
    centers = np.einsum("mr,mrd->rd", counts, means) / np.where(alive, n_rows[:, None], 1.0)
    centers = np.where(alive, centers, common.centers)
    if kind != "identity":
        each = _together(counts, means, scatter, centers, kind)
        least = least_variance(counts, means)
        covariances, known = _of_groups(each, n_rows, "tied" if alike else kind, least)
        common = common._replace(covariances=covariances, known=known)
    if rows is not None:
        n_rows = members_of(counts, rows, common.concentration).sum(axis=0)
    shares = (n_rows + FEW) / (n_rows + FEW).sum()
    return common._replace(centers=centers, concentration=common.concentration.sum() * shares)


def _together(counts, means, scatter, centers, kind):
    """Covariances of groups (R, d, d) about centres, sites put together."""
    total = _summed(counts, means - centers, scatter.sum(axis=0), kind)
    return total / np.maximum(counts.sum(axis=0), FEW)[:, None, None]


def _summed(counts, away, scatter, kind):
    """Squares and products (R, d, d) of vectors (m, R, d), so many of each, and scatter (R, q)."""
    return unpacked(scatter, away.shape[-1], kind) + shaped(_squares_of(counts, away), kind)


def _squares_of(weights: Floats, vectors: Floats) -> Floats:
    """Vectors (m, R, d) times themselves, weighted by (m, R) and added up over sites, (R, d, d)."""
    each = vectors.swapaxes(0, 1)
    return np.asarray((weights.T[..., None] * each).swapaxes(-1, -2) @ each)


def numbers_of_covariances(
    counts: Floats, means: Floats, scatter: Floats, centers: Floats, kind: str
) -> float:
    """How many numbers the covariances of groups are that sites share, as far as they are free.

    Each is (1 - share) of its own and share of the average of all. The trace of that map counts
    them: all of every group's where nothing is borrowed, those of one where they are the same.
    """
    d = centers.shape[-1]
    whole = {"identity": 0, "spherical": 1, "diag": d}.get(kind, d * (d + 1) // 2)
    told = np.maximum(counts.sum(axis=0), FEW)
    if not whole or kind not in OWN_KINDS or len(told) == 1:
        return float(whole)
    each = _together(counts, means, scatter, centers, kind)
    average = np.einsum("r,rij->ij", told, each) / told.sum()
    share = _share_of_average(each, told, floored(average, least_variance(counts, means)), kind)
    return float(whole * (1.0 - share + share * told / told.sum()).sum())


def learn_own(
    counts: Floats,
    means: Floats,
    scatter: Floats,
    common: Common,
    kind: str,
    own_weights: bool,
    members: Floats | None = None,
) -> Common:
    """What groups have in common where sites differ, a few steps up the marginal likelihood.

    `members` (m, R) are what counts for weights, where these are not the counts.
    """
    common = common._replace(n_estimates=np.array(float((counts > FEW).sum())))
    common = _learn_means(counts, means, common)
    if kind != "identity":
        common = _learn_covariances(counts, means, scatter, common, kind)
    if own_weights:
        return common
    members = counts if members is None else members
    return common._replace(concentration=learn_weights(members, common.concentration))


def _learn_means(counts: Floats, means: Floats, common: Common) -> Common:
    """Centres, the covariance between sites and that of shifts, by EM; belonging weighs sites."""
    axes, back, spread = _axes(common)
    d, known = means.shape[-1], counts > FEW
    noise = 1.0 / np.where(known, counts, 1.0)[..., None]
    total = spread + noise
    if common.shift is None:
        white, belongs, centers = _learn_centers(means, known, total, axes, back, common)
        squares, moments = white**2, np.zeros(())
    else:
        white, belongs, doubt, common = _learn_shifts(means, known, total, axes, common)
        # What is not known of a site's shift is not known of what is its groups' own.
        open_, share = axes @ doubt[:, None] @ axes.swapaxes(-1, -2), spread / total
        squares, centers = white**2 + np.einsum("mrii->mri", open_), common.centers
        turned = share[..., None] * open_ * share[..., None, :]
        moments = np.einsum("mr,mrij->rij", belongs, turned)
    kept, left = white * spread / total, spread * noise / total
    moments = moments + _squares_of(belongs, kept)
    moments += np.einsum("mr,mri->ri", belongs, left)[..., None] * np.eye(d)
    sites, least = belongs.sum(axis=0), d + 2.0
    level = _level(squares.mean(axis=-1), noise[..., 0], belongs, spread.mean(axis=-1))
    matrix = least * level[:, None, None] * np.eye(d) + moments
    between = back @ (matrix / (least + sites)[:, None, None]) @ back.swapaxes(-1, -2)
    told = (belongs[..., None] * spread / total).mean(axis=-1).sum(axis=0)
    between, _ = _of_groups(between, told, "full")
    return common._replace(centers=centers, between=between)


def _learn_centers(means, known, total, axes, back, common):
    """Means about the centres along the axes, who belongs, and the centres that follow."""
    white = _turned(axes, np.where(known[..., None], means - common.centers, 0.0))
    belongs, pull = _say((white**2 / total).sum(axis=-1), known, common)
    weight = (belongs * pull)[..., None] / total
    move = (weight * white).sum(axis=0) / np.maximum(weight.sum(axis=0), FEW)
    return white, belongs, common.centers + np.einsum("rij,rj->ri", back, move)


def _learn_shifts(means, known, total, axes, common):
    """Means about centres and shifts along the axes, who belongs, and what is not known of shifts.

    Last, what is common with centres and covariance of shifts as they are now.
    """
    shift, unit = common.shift, _unit(common)
    away = np.where(known[..., None], means - common.centers, 0.0)
    precision = site_shifts.precisions(axes, known[..., None] / total)
    if not shift.any():
        # Sites that are all far apart would else all be odd.
        shift = site_shifts.level_of_shifts(precision, away, unit) * unit
    distances = site_shifts.distances(site_shifts.with_shifts(precision, shift), away)
    belongs, pull = _say(distances, known, common)
    move, certain = site_shifts.move_of_centers(
        precision * (belongs * pull)[..., None, None], away, shift
    )
    centers = site_shifts.pulled_together(common.centers + move, certain, unit)
    away = np.where(known[..., None], means - centers, 0.0)
    precision = precision * belongs[..., None, None]
    found = site_shifts.expected(precision, away, shift)
    level = site_shifts.level_of_shifts(precision, away, unit, shift)
    follow = belongs.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    shift = site_shifts.spread_of_shifts(found, follow, level, unit)
    white = _turned(axes, np.where(known[..., None], away - found.means[:, None], 0.0))
    return white, belongs, found.doubt, common._replace(centers=centers, shift=shift)


def _say(distances, known, common):
    """How far means belong to their group, (m, R), and how far they pull its centre."""
    d = common.centers.shape[-1]
    belongs = np.where(known, belonging(distances, d, common.n_estimates), 0.0)
    return belongs, np.minimum(1.0, (np.sqrt(d) + 1.0) / np.sqrt(np.maximum(distances, 1.0)))


def _unit(common: Common) -> Floats:
    """What shifts are measured by, (d, d): the harmonic mean of the groups' covariances.

    A direction in which one group hardly varies tells of shifts by that group.
    """
    share = common.concentration / common.concentration.sum()
    inverse = np.einsum("r,rij->ij", share, np.linalg.inv(common.covariances))
    return np.linalg.inv((inverse + inverse.T) / 2)


def _level(squares: Floats, noise: Floats, belongs: Floats, level: Floats) -> Floats:
    """One variance between sites for all directions (R,): mean excess of squares (m, R) over noise.

    Weights are the inverse variance of a square. Found by itself, not from the matrix that is
    pulled to it: in directions that few rows tell of the two would feed each other.
    """
    total = level + noise
    # In units of the least, so that no square overflows.
    weight = belongs * np.square(total.min(axis=0, initial=np.inf) / total)
    total = np.maximum(weight.sum(axis=0), np.finfo(float).tiny)
    found: Floats = np.maximum((weight * (squares - noise)).sum(axis=0) / total, LEAST_BETWEEN)
    return found


def _learn_covariances(counts, means, scatter, common, kind):
    """Common covariances and degrees of freedom, by marginal likelihood; odd sites have no say."""
    axes, back, spread = _axes(common)
    held = _held_means(counts, means, common, axes, back, spread)
    rows, used = _about_means(counts, means, scatter, held.means, held.taken, kind)
    rows = np.where(held.belongs > 0.5, rows, 0.0)
    degrees, weight = common.degrees, np.where(rows > 0, 1.0, 0.0)
    if kind in OWN_KINDS:
        degrees = best_degrees(used, rows, common.covariances, kind, degrees)
        weight = weight * degrees / (rows + degrees)
    # Scatter over rows is right on average at every site; a site weighs rows * degrees / (rows +
    # degrees): all its rows where sites do not differ, the same as any other where they do.
    told = (weight * rows).sum(axis=0)
    each = np.einsum("mr,mrq->rq", weight, used) / np.maximum(told, FEW)[:, None]
    each = unpacked(each, means.shape[-1], kind)
    each = np.where((told > FEW)[:, None, None], each, common.covariances)
    covariances, known = _of_groups(each, told, kind, least_variance(counts, means))
    return common._replace(covariances=covariances, degrees=degrees, known=known)


def _of_groups(
    covariances: Floats, told: Floats, kind: str, least: float = 0.0
) -> tuple[Floats, Floats]:
    """Covariances of groups (R, d, d), known from `told` rows each, bent to their average.

    And as from how many rows they are known then, (R,).
    """
    told = np.maximum(told, FEW)
    whole = told.sum()
    average = floored(np.einsum("r,rij->ij", told, covariances) / whole, least)
    share = np.ones(len(told))
    if kind == "tied":
        bent = np.broadcast_to(average, covariances.shape).copy()
    elif len(covariances) == 1:
        bent = average[None]
    else:
        share = _share_of_average(covariances, told, average, kind)
        mixed = share[:, None, None] * average + (1.0 - share)[:, None, None] * covariances
        bent = np.stack([floored(one, least) for one in mixed])
    return bent, 1.0 / (share**2 / whole + (1.0 - share) ** 2 / told)


def _share_of_average(covariances, told, average, kind):
    """How far covariances (R, d, d), known from `told` rows each, are bent to their average."""
    scatter = packed(told[:, None, None] * covariances, kind)
    beyond = best_degrees(scatter[:, None], told[:, None], average[None], kind)[0]
    return beyond / (beyond + told)


def best_degrees(
    scatter: Floats, rows: Floats, covariances: Floats, kind: str, before: Floats | None = None
) -> Floats:
    """Degrees of freedom beyond the least (R,), the likeliest of a grid, from scatter (m, R, q).

    In coordinates in which the common covariance is the identity, scatter with two diagonals, all
    degrees are tried at the cost of one. Every eighth of them first, then closer and closer about
    the best: the likelihood has one top. Where those of the round `before` (R,) are likelier than
    their neighbours it is these.
    """
    order, times = block(kind, covariances.shape[-1])
    form, n_rows = in_units_of(scatter, covariances, kind), rows * times
    n_blocks, some = len(form.main), rows > FEW

    def loglik(places: Indices) -> Floats:
        beyond = DEGREES[places]
        whole = beyond + order + 1.0
        gain = log_multigamma((whole + n_rows) / 2, order) - log_multigamma(whole / 2, order)
        if order == 1:
            gain = gain * n_blocks
        level = 0.5 * whole * n_blocks * np.log(beyond)
        spread = 0.5 * (whole + n_rows) * log_determinants(form, beyond)
        return np.asarray(np.where(some, gain + level - spread, 0.0).sum(axis=0))

    if before is not None and (at := _still_best(loglik, before)) is not None:
        return DEGREES[at]
    best = np.zeros(scatter.shape[1], dtype=np.intp)
    reached = loglik(best)
    tried = [np.full_like(best, place) for place in range(WIDE_STEP, len(DEGREES), WIDE_STEP)]
    for step in (0, *HALVES):
        for places in tried if not step else (best - step, best + step):
            inside = np.clip(places, 0, len(DEGREES) - 1)
            found = loglik(inside)
            better = found > reached
            best, reached = np.where(better, inside, best), np.where(better, found, reached)
    return DEGREES[best]


def _still_best(loglik: Callable[[Indices], Floats], before: Floats) -> Indices | None:
    """Places on the grid of degrees that all are likelier than their neighbours; else None."""
    at = np.searchsorted(DEGREES, before)
    if not np.array_equal(DEGREES[np.minimum(at, len(DEGREES) - 1)], before):
        return None
    reached = loglik(at)
    lower, higher = np.maximum(at - 1, 0), np.minimum(at + 1, len(DEGREES) - 1)
    # The first of equals, as in the search.
    top = ((loglik(lower) < reached) | (at == lower)) & (loglik(higher) <= reached)
    return at if top.all() else None


def in_units_of(scatter: Floats, covariances: Floats, kind: str) -> Tridiagonal:
    """Scatter (m, R, q) where the common covariance (R, d, d) is the identity.

    One number a column for "diag", their sum for "spherical".
    """
    if kind not in ("diag", "spherical"):
        return tridiagonal(scatter, inverse_roots(covariances))
    variances = np.einsum("rii->ri", covariances)
    if kind == "spherical":
        variances = variances.mean(axis=1, keepdims=True)
    ratio = (scatter / variances).transpose(2, 0, 1)
    return Tridiagonal(ratio, np.empty((0, *ratio.shape[1:])))


def log_multigamma(values: Floats | float, order: int) -> Floats:
    """Logarithm of the multivariate gamma function, without its constant.

    Gamma functions at steps of one half: two of them, the others by Gamma(x + 1) = x Gamma(x).
    """
    values = np.asarray(values)
    total: Floats = np.zeros(values.shape)
    for last in range(max(order - 2, 0), order):
        n_steps, lowest = last // 2, values - 0.5 * last
        total += (n_steps + 1) * gammaln(lowest)
        for step in range(n_steps):
            total += (n_steps - step) * np.log(lowest + step)
    return total


def floored(covariance: Floats, least: float = 0.0) -> Floats:
    """A covariance (d, d) with no eigenvalue below a share of their mean, or below the least.

    One if all are zero.
    """
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    least = max(LEAST_EIGENVALUE * float(values.mean()), least) or 1.0
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def least_variance(counts: Floats, means: Floats) -> float:
    """Less than this a row is rounding beside how far groups of sites are apart, (m, R, d)."""
    total = max(float(counts.sum()), FEW)
    away = means - np.einsum("mr,mrd->d", counts, means) / total
    return LEAST_SCATTER * float(np.einsum("mr,mrd->", counts, away**2)) / total / means.shape[-1]


def learn_weights(counts: Floats, concentration: Floats) -> Floats:
    """The Dirichlet's parameters (R,), up its marginal likelihood (Minka's fixed point)."""
    rows = counts.sum(axis=1)
    for _ in range(PASSES):
        total = concentration.sum()
        gained = (psi(counts + concentration) - psi(concentration)).sum(axis=0)
        lost = (psi(rows + total) - psi(total)).sum()
        if not lost > 0:
            break
        concentration = np.maximum(concentration * gained / lost, 1e-9)
        total = concentration.sum()
        concentration = concentration * (np.clip(total, LEAST_TOTAL, MOST_TOTAL) / total)
    return concentration
