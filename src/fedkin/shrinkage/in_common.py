"""What groups of sites have in common, found by marginal likelihood: see `borrowed` for the model.

`learn` is the mixture that sites share, from sums; `learn_own` a few steps up the marginal
likelihood of what sites have of their own: centres and the covariance between sites (by EM),
common covariances and degrees of freedom (`best_degrees`), the Dirichlet of the weights
(`learn_weights`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import psi

from fedkin.arrays import Floats
from fedkin.models.packed_matrices import packed, unpacked
from fedkin.shrinkage import site_shifts
from fedkin.shrinkage.borrowed import (
    FEW,
    LEAST_BETWEEN,
    OWN_KINDS,
    Common,
    about_means,
    axes_of,
    block,
    held_means,
    members_of,
    shaped,
    turned,
)
from fedkin.shrinkage.degrees import best_degrees, share_of_target
from fedkin.shrinkage.sound_scatter import say
from fedkin.shrinkage.spread import belonging

# Passes of the Dirichlet's fixed point inside one round; rounds go on from where they ended.
PASSES = 10
# Bounds of the Dirichlet's total: no borrowing, and all of it.
LEAST_TOTAL, MOST_TOTAL = 1e-2, 1e5
# Kinds that are the same in all units of the columns.
UNIT_FREE = ("full", "diag", "tied")
# Eigenvalues of a covariance are at least this share of their mean.
LEAST_EIGENVALUE = 1e-6
# Where rows of groups do not scatter, so do they as this share of how groups of sites do.
LEAST_SCATTER = 1e-12


class Floor(NamedTuple):
    """What is next to nothing: variances below `least`, in `units` of the columns (d,)."""

    units: Floats | float
    least: float = 0.0


def learn(
    counts: Floats,
    means: Floats,
    scatter: Floats,
    common: Common,
    kind: str,
    alike: bool = False,
    rows: Floats | None = None,
    units: Floats | None = None,
) -> Common:
    """The mixture that sites share, from their counts, means and scatter added up.

    With covariances `alike` all groups have their average. `rows` (m,) of sites that may have kept
    groups back; `units` (d,) of the columns as in `learn_own`.
    """
    n_rows = counts.sum(axis=0)
    alive = n_rows[:, None] > FEW
    centers = np.einsum("mr,mrd->rd", counts, means) / np.where(alive, n_rows[:, None], 1.0)
    centers = np.where(alive, centers, common.centers)
    if kind != "identity":
        heard, floor = _heard(counts, scatter, kind, units), floor_of(counts, means, kind, units)
        told = (heard * counts).sum(axis=0)
        each = _together(heard * counts, means, heard[..., None] * scatter, centers, kind)
        straight = np.diag(np.diag(_average(each, told, floor)))
        covariances, known = _of_groups(each, told, "tied" if alike else kind, floor, straight)
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
    counts: Floats,
    means: Floats,
    scatter: Floats,
    centers: Floats,
    kind: str,
    units: Floats | None = None,
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
    heard = _heard(counts, scatter, kind, units)
    each = _together(heard * counts, means, heard[..., None] * scatter, centers, kind)
    average = _average(each, told, floor_of(counts, means, kind, units))
    share = _share_of_average(each, told, average, kind)
    return float(whole * (1.0 - share + share * told / told.sum()).sum())


def learn_own(
    counts: Floats,
    means: Floats,
    scatter: Floats,
    common: Common,
    kind: str,
    own_weights: bool,
    members: Floats | None = None,
    units: Floats | None = None,
) -> Common:
    """What groups have in common where sites differ, a few steps up the marginal likelihood.

    `members` (m, R) are what counts for weights, where these are not the counts. `units` (d,) are
    spreads of the columns at a typical site: what is next to nothing beside them, or far
    beyond them at a single site, has no say in covariances.
    """
    common = common._replace(n_estimates=np.array(float((counts > FEW).sum())))
    common = _learn_means(counts, means, common, kind, units)
    if kind != "identity":
        common = _learn_covariances(counts, means, scatter, common, kind, units)
    if own_weights:
        return common
    members = counts if members is None else members
    return common._replace(concentration=learn_weights(members, common.concentration))


def _learn_means(
    counts: Floats, means: Floats, common: Common, kind: str, units: Floats | None
) -> Common:
    """Centres, the covariance between sites and that of shifts, by EM; belonging weighs sites."""
    axes, back, spread = axes_of(common)
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
        kept_open = share[..., None] * open_ * share[..., None, :]
        moments = np.einsum("mr,mrij->rij", belongs, kept_open)
    kept, left = white * spread / total, spread * noise / total
    moments = moments + _squares_of(belongs, kept)
    moments += np.einsum("mr,mri->ri", belongs, left)[..., None] * np.eye(d)
    sites, least = belongs.sum(axis=0), d + 2.0
    level = _level(squares.mean(axis=-1), noise[..., 0], belongs, spread.mean(axis=-1))
    matrix = least * level[:, None, None] * np.eye(d) + moments
    between = back @ (matrix / (least + sites)[:, None, None]) @ back.swapaxes(-1, -2)
    told = (belongs[..., None] * spread / total).mean(axis=-1).sum(axis=0)
    between, _ = _of_groups(between, told, "full", Floor(floor_units(kind, units)))
    return common._replace(centers=centers, between=between)


def _learn_centers(means, known, total, axes, back, common):
    """Means about the centres along the axes, who belongs, and the centres that follow."""
    white = turned(axes, np.where(known[..., None], means - common.centers, 0.0))
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
    white = turned(axes, np.where(known[..., None], away - found.means[:, None], 0.0))
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


def _learn_covariances(counts, means, scatter, common, kind, units):
    """Common covariances and degrees of freedom, by marginal likelihood; odd sites have no say."""
    axes, back, spread = axes_of(common)
    held = held_means(counts, means, common, axes, back, spread)
    rows, used = about_means(counts, means, scatter, held.means, held.taken, kind)
    heard = np.where(held.belongs > 0.5, _heard(counts, scatter, kind, units), 0.0)
    rows, used = heard * rows, heard[..., None] * used
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
    floor, seen, target = floor_of(counts, means, kind, units), heard * counts, None
    if seen.sum() > FEW:
        told_of = seen, means, heard[..., None] * scatter
        target = _sites_together(*told_of, common.centers, kind, floor)
    covariances, known = _of_groups(each, told, kind, floor, target, float(rows.sum()))
    return common._replace(covariances=covariances, degrees=degrees, known=known)


def _sites_together(counts, means, scatter, centers, kind, floor):
    """The covariance (d, d) of rows about the centres of their groups, whatever their site.

    It is as wide as what is between sites and inside them together, and known from all rows. Bent
    to its diagonal, as far as they do not tell more.
    """
    n_rows = counts.sum(axis=0)
    each = _together(counts, means, scatter, centers, kind)
    whole = _average(each, n_rows, floor)
    return pulled(whole, float(n_rows.sum()), np.diag(np.diag(whole)), kind)


def _of_groups(
    covariances: Floats,
    told: Floats,
    kind: str,
    floor: Floor,
    target: Floats | None = None,
    n_rows: float | None = None,
) -> tuple[Floats, Floats]:
    """Covariances of groups (R, d, d), known from `told` rows each, bent to their average.

    And as from how many rows they are known then, (R,). The average is itself bent to a target
    (d, d), if there is one, beside `n_rows`; all that are told, unless given. (Where sites differ
    few are told of what is common: bent by so few, covariances would grow to the target, and sites
    differ from them the more.)
    """
    told = np.maximum(told, FEW)
    whole = told.sum()
    average = _average(covariances, told, floor)
    if target is not None:
        average = pulled(average, float(whole if n_rows is None else n_rows), target, kind)
    share = np.ones(len(told))
    if kind == "tied":
        bent = np.broadcast_to(average, covariances.shape).copy()
    elif len(covariances) == 1:
        bent = average[None]
    else:
        share = _share_of_average(covariances, told, average, kind)
        mixed = share[:, None, None] * average + (1.0 - share)[:, None, None] * covariances
        bent = np.stack([floored(one, floor) for one in mixed])
    return bent, 1.0 / (share**2 / whole + (1.0 - share) ** 2 / told)


def _average(covariances: Floats, told: Floats, floor: Floor) -> Floats:
    """The average (d, d) of covariances that are known from `told` rows each."""
    told = np.maximum(told, FEW)
    return floored(np.einsum("r,rij->ij", told, covariances) / told.sum(), floor)


def pulled(covariance: Floats, told: float, target: Floats, kind: str) -> Floats:
    """A covariance (d, d), known from `told` rows, and a target, mixed by likelihood."""
    share = share_of_target(covariance, told, target, kind)
    return np.asarray(share * target + (1.0 - share) * covariance)


def _share_of_average(covariances, told, average, kind):
    """How far covariances (R, d, d), known from `told` rows each, are bent to their average."""
    scatter, (_, times) = packed(told[:, None, None] * covariances, kind), block(kind, len(average))
    beyond = best_degrees(scatter[:, None], told[:, None], average[None], kind)[0]
    return beyond / (beyond + told * times)


def floored(covariance: Floats, floor: Floor) -> Floats:
    """A covariance (d, d) with no eigenvalue below a share of their mean, or below the least.

    In units of the columns; one if all are zero. What is small beside another column only because
    it is told in metres and not in millimetres is not next to nothing.
    """
    scale = np.ones(len(covariance)) * floor.units
    products = scale[:, None] * scale
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2 / products)
    least = max(LEAST_EIGENVALUE * float(values.mean()), floor.least) or 1.0
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T * products)


def floor_of(counts: Floats, means: Floats, kind: str, units: Floats | None) -> Floor:
    """What is next to nothing beside the columns' units and how far groups of sites are apart."""
    by = floor_units(kind, units)
    return Floor(by, least_variance(counts, means / by))


def floor_units(kind: str, units: Floats | None) -> Floats | float:
    """Units in which eigenvalues are compared; kinds with one variance for columns have none."""
    return 1.0 if units is None or kind not in UNIT_FREE else units


def _heard(counts: Floats, scatter: Floats, kind: str, units: Floats | None) -> Floats:
    """How far groups of sites have a say in covariances, (m, R); none without rows."""
    heard = np.ones(counts.shape) if units is None else say(counts, scatter, kind, units)
    return np.where(counts > FEW, heard, 0.0)


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
