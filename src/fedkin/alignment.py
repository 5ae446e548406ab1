"""Which component of one site is which component of another: permutations of labels, nothing else.

Components found at each site come in an arbitrary order. `align` orders them alike everywhere by
making the sites' components lie close together (Tian, Weng, Feng 2024, appendix C.2), where

    score = sum over components r and pairs of sites k < l of |component r of k - component r of l|

with plain, not squared, distances, so that odd sites cannot dominate.

| method | what it does | for |
|---|---|---|
| "exhaustive" | the least score over all permutations (the paper's algorithm 1) | a handful |
| "stepwise" | site after site against those already placed (the paper's algorithm 2) | m < 500 |
| "assignment" | all sites against one robust reference, to a fixed point | R = 50, m = 10,000 |

Where we differ from the paper
- Stepwise: the best permutation of a site given the others is an assignment problem, solved exactly
  instead of by trying all R!. Several orders of the sites are tried and the least score is kept,
  because one order fails when odd sites come first.
- Assignment is ours: the score costs m^2 distances, a reference m.
- The order of the aligned components does not depend on how any site labelled its own, nor on the
  order of the sites: by the first coordinate of the reference (ties: the next coordinate).
- Sites whose labels remain in doubt are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from itertools import permutations as all_permutations
from math import factorial, log
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.special import chdtri

from fedkin.arrays import Bools, Floats, Indices
from fedkin.ties import RELATIVE, first_least, tied_order, tied_ranks

Method = Literal["auto", "exhaustive", "stepwise", "assignment"]

#: "exhaustive" keeps one number for each way to label all sites: 1e7 of them are 80 MB.
MAX_LABELLINGS = 10_000_000
#: "auto" tries all labellings only if that takes no longer than the other methods.
FEW_LABELLINGS = 10_000
#: Differences of squared distances are exact to about this fraction of squared lengths.
SQUARES_EXACT_TO = 1e-13
#: Entries of the distance tables worked on at a time: 4 MB, about one core's cache.
BLOCK_ENTRIES = 500_000
#: Orders of the sites tried by "stepwise". An order that begins with a few honest sites succeeds;
#: with 30 % odd sites the first three are honest in a third of the orders, so 20 all but surely
#: (1 - 3e-4) contain one.
N_ORDERS = 20
#: Sites whose own components serve as first reference. Any honest one will do: with 30 % odd sites
#: all of 8 drawn blindly are odd with probability 7e-5, and odd ones often recover.
N_STARTS = 8
#: Starts are compared on this many sites: the score's relative error is then a few per cent.
N_TRIAL_SITES = 400
#: Alternating between reference and labels ends after 2 to 5 rounds; the cap only guards cycles.
MAX_ROUNDS = 30
#: A site's labels are in doubt if another labelling is not at least this many times less likely.
CLEAR_ODDS = 20.0


class Alignment(NamedTuple):
    """Result of `align`."""

    permutations: Indices  #: (m, R), components[k][permutations[k]] are aligned
    ambiguous: Bools  #: (m,), the site's labels are in doubt
    reference: Floats  #: (R, d), coordinatewise median of the aligned components


def align(
    components: ArrayLike,
    method: Method = "auto",
    *,
    reference: ArrayLike | None = None,
    random_state: int | np.random.Generator | None = 0,
) -> Alignment:
    """Order every site's components alike.

    Parameters
    ----------
    components : (m, R, d)
        A site with a value that is not finite keeps its own order and is called ambiguous.
    method : {"auto", "exhaustive", "stepwise", "assignment"}
        "auto": exhaustive if there are at most 1e4 labellings, else assignment.
    reference : (R, d), optional
        Align to these instead, for instance a site that joins later to the current centres.
        `method` is then not used, and the reference is returned as given.
    random_state : shuffles the orders of "stepwise", which is the only method to use it.
    """
    points = np.asarray(components, dtype=float)
    if points.ndim != 3:
        raise ValueError(
            f"components must have shape (sites, components, features), got {points.shape}"
        )
    n_sites, n_components, _ = points.shape
    usable = np.isfinite(points).all(axis=(1, 2))
    permutations = np.tile(np.arange(n_components), (n_sites, 1))
    ambiguous = np.ones(n_sites, dtype=bool)
    if not usable.any():
        return Alignment(permutations, ambiguous, np.full(points.shape[1:], np.nan))
    origin = np.median(points[usable], axis=(0, 1))
    points = points[usable] - origin
    if reference is not None:
        target = _checked_reference(reference, points) - origin
        own = _nearest_labels(points, target)
    else:
        aligner = _choose(method, len(points), n_components)
        own = aligner(points, np.random.default_rng(random_state))
        target = _reference(points, own)
        order = by_coordinates(target + origin)
        own, target = own[:, order], target[order]
    permutations[usable] = own
    ambiguous[usable] = _in_doubt(_relabel(points, own), target)
    return Alignment(permutations, ambiguous, target + origin)


def by_coordinates(reference: Floats) -> Indices:
    """Order of the rows (R, d) by their first coordinate; what ties there, by the next."""
    rounding = RELATIVE * np.abs(reference).max(axis=0, initial=0.0)
    columns = list(zip(reference.T, rounding))[::-1]
    return np.lexsort([tied_ranks(column, floor) for column, floor in columns])


Aligner = Callable[[Floats, np.random.Generator], Indices]


def _choose(method: str, n_sites: int, n_components: int) -> Aligner:
    """The function for a method's name."""
    labellings = (n_sites - 1) * log(factorial(n_components))
    if method == "auto":
        method = "exhaustive" if labellings <= log(FEW_LABELLINGS) else "assignment"
    if method == "exhaustive" and labellings > log(MAX_LABELLINGS):
        raise ValueError(
            f"{n_sites} sites with {n_components} components have e^{labellings:.0f} labellings, "
            f"too many to try; use method='assignment'"
        )
    aligners = {"exhaustive": _exhaustive, "stepwise": _stepwise, "assignment": _assignment}
    if method not in aligners:
        raise ValueError(f"method must be 'auto' or one of {sorted(aligners)}, got {method!r}")
    return aligners[method]


# --- the three methods: points (m, R, d) in, permutations (m, R) out ------------------------------


def _exhaustive(points: Floats, _: np.random.Generator) -> Indices:
    """The least score over all labellings; site 0 keeps its own, which loses nothing."""
    n_sites, n_components, _features = points.shape
    if n_components == 1:
        return np.zeros((n_sites, 1), dtype=np.intp)
    candidates = np.array(list(all_permutations(range(n_components))), dtype=np.intp)
    choices = [candidates[:1], *[candidates] * (n_sites - 1)]
    totals = np.zeros(tuple(len(choice) for choice in choices))  # an axis for each site
    for left, right in combinations(range(n_sites), 2):
        table = cdist(points[left], points[right])
        costs = table[choices[left][:, None], choices[right]].sum(axis=2)
        totals += np.expand_dims(
            costs, [site for site in range(n_sites) if site not in (left, right)]
        )
    best = np.unravel_index(int(first_least(totals.ravel())), totals.shape)
    return candidates[np.array(best, dtype=np.intp)]


def _stepwise(points: Floats, random: np.random.Generator) -> Indices:
    """Site after site against those already placed, in several orders; the least score wins."""
    orders = [np.arange(len(points))]
    orders += [random.permutation(len(points)) for _ in range(N_ORDERS - 1)]
    trials = [_place_in_order(points, order) for order in orders]
    return trials[first_least([total for _, total in trials])][0]


def _place_in_order(points: Floats, order: Indices) -> tuple[Indices, float]:
    """Permutations (m, R) and score when the sites are placed in this order."""
    n_sites, n_components, n_features = points.shape
    permutations = np.tile(np.arange(n_components), (n_sites, 1))
    placed = np.empty_like(points)
    placed[0] = points[order[0]]
    total = 0.0
    for count in range(1, n_sites):
        site = order[count]
        distances = cdist(placed[:count].reshape(-1, n_features), points[site])
        costs = distances.reshape(count, n_components, n_components).sum(axis=0)
        slots, chosen = linear_sum_assignment(costs)
        permutations[site] = chosen
        placed[count] = points[site, chosen]
        total += float(costs[slots, chosen].sum())
    return permutations, total


def _assignment(points: Floats, _: np.random.Generator) -> Indices:
    """Labels and a coordinatewise median as reference, in turn to a fixed point, from a good start.

    Starts are compared on a subset of the sites if there are many, then the best is refined on all.
    """
    ranked = _by_centrality(points)
    trial = points[_evenly(ranked, N_TRIAL_SITES)]
    starts = points[_evenly(ranked, N_STARTS)]
    refined = [_to_fixed_point(trial, start) for start in starts]
    best = refined[first_least([fit.cost for fit in refined])]
    return _to_fixed_point(points, best.reference).permutations


def _by_centrality(points: Floats) -> Indices:
    """Sites (m,) from typical to odd, judged by what does not depend on their labels.

    Each coordinate of a site's components is sorted; typical sites are near the median of these.
    Taking starts evenly from this order makes them independent of the order of the sites.
    """
    profiles = np.sort(points, axis=1)
    oddness = np.abs(profiles - np.median(profiles, axis=0)).sum(axis=(1, 2))
    return tied_order(oddness)


def _evenly(sites: Indices, count: int) -> Indices:
    """At most `count` of the sites, evenly spaced, the first one among them."""
    picks = np.arange(min(count, len(sites))) * len(sites) // min(count, len(sites))
    return sites[picks]


class _Fit(NamedTuple):
    """Sites labelled against a reference, and the sum of their distances to it."""

    reference: Floats  #: (R, d)
    permutations: Indices  #: (m, R)
    cost: float


def _fit(points: Floats, reference: Floats) -> _Fit:
    permutations = _nearest_labels(points, reference)
    gaps = _relabel(points, permutations) - reference
    return _Fit(reference, permutations, float(np.linalg.norm(gaps, axis=2).sum()))


def _to_fixed_point(points: Floats, reference: Floats) -> _Fit:
    """Replace the reference by the median of the components it attracts until no label changes."""
    fit = _fit(points, reference)
    for _ in range(MAX_ROUNDS):
        last, fit = fit, _fit(points, _reference(points, fit.permutations))
        if np.array_equal(fit.permutations, last.permutations):
            break
    return fit


def _reference(points: Floats, permutations: Indices) -> Floats:
    return np.median(_relabel(points, permutations), axis=0)


# --- labels against a reference ------------------------------------------------------------------


def _nearest_labels(points: Floats, reference: Floats) -> Indices:
    """Permutations (m, R) with the least sum of distances to the reference (R, d), site by site."""
    n_sites, n_components, _ = points.shape
    permutations = np.empty((n_sites, n_components), dtype=np.intp)
    for block in _blocks(n_sites, n_components):
        permutations[block] = _least_cost_labels(_distance_tables(points[block], reference))
    return permutations


def _least_cost_labels(tables: Floats) -> Indices:
    """Solve one assignment problem for each table (m, R, R) of slot against component.

    Where every slot's nearest component is another one, that is the solution; only the other sites
    need the assignment algorithm.
    """
    labels: Indices = tables.argmin(axis=2)
    clash = (np.sort(labels, axis=1) != np.arange(tables.shape[1])).any(axis=1)
    for site in np.flatnonzero(clash):
        labels[site] = linear_sum_assignment(tables[site])[1]
    return labels


def _distance_tables(points: Floats, reference: Floats) -> Floats:
    """Distances (m, R, R) of reference r (second axis) to component j (third)."""
    n_sites, n_components, n_features = points.shape
    tables = cdist(points.reshape(-1, n_features), reference)
    return tables.reshape(n_sites, n_components, n_components).transpose(0, 2, 1)


def _relabel(points: Floats, permutations: Indices) -> Floats:
    return np.take_along_axis(points, permutations[:, :, None], axis=1)


def _blocks(n_sites: int, n_components: int) -> Iterator[slice]:
    """Slices of the sites whose tables hold about BLOCK_ENTRIES numbers."""
    length = max(1, BLOCK_ENTRIES // n_components**2)
    return (slice(first, first + length) for first in range(0, n_sites, length))


# --- doubt ---------------------------------------------------------------------------------------


def _in_doubt(aligned: Floats, reference: Floats) -> Bools:
    """Whether another labelling of a site (m,) is nearly as likely as the one chosen.

    If components scatter around the reference with variance sigma^2 per coordinate, a labelling
    whose sum of squared distances is larger by g is exp(g / 2 sigma^2) times less likely. sigma^2
    comes from the median squared distance over all sites and components, or over the site's own if
    that is larger: a site far from all references has labels that mean little.
    """
    squares = ((aligned - reference) ** 2).sum(axis=2)
    typical = np.maximum(np.median(squares), np.median(squares, axis=1))
    n_sites, n_features = len(aligned), aligned.shape[2]
    correction = n_sites / max(n_sites - 1, 1)  # the reference is fitted to the same sites
    variance = correction * typical / chdtri(n_features, 0.5)
    longest = (aligned**2).sum(axis=2).max(axis=1) + (reference**2).sum(axis=1).max()
    rounding = SQUARES_EXACT_TO * longest
    return _another_within(aligned, reference, 2 * log(CLEAR_ODDS) * variance + rounding)


def _another_within(aligned: Floats, reference: Floats, slack: Floats) -> Bools:
    """Whether another labelling of a site (m,) raises its sum of squares by at most slack (m,).

    Labellings differ by cycles in which slot r takes the component of slot s, at the cost of
    |component_s - reference_r|^2 - |component_s - reference_s|^2. A cycle has two steps or more: if
    no step costs less than half the slack none is cheap enough, and only the other sites need the
    cheapest cycle.
    """
    n_sites, n_components, _ = aligned.shape
    within = np.zeros(n_sites, dtype=bool)
    for block in _blocks(n_sites, n_components):
        squares = _distance_tables(aligned[block], reference) ** 2
        steps = squares - np.diagonal(squares, axis1=1, axis2=2)[:, None, :]
        steps[:, range(n_components), range(n_components)] = np.inf
        open_ = np.flatnonzero(2 * steps.min(axis=(1, 2)) <= slack[block])
        within[block.start + open_] = _cheapest_cycle(steps[open_]) <= slack[block][open_]
    return within


def _cheapest_cycle(steps: Floats) -> Floats:
    """Cost (m,) of the cheapest cycle, by shortest paths (Floyd and Warshall); steps (m, R, R)."""
    paths = steps.copy()
    for slot in range(steps.shape[1]):
        np.minimum(paths, paths[:, :, slot, None] + paths[:, slot, None, :], out=paths)
    cheapest: Floats = np.diagonal(paths, axis1=1, axis2=2).min(axis=1)
    return cheapest


def _checked_reference(reference: ArrayLike, points: Floats) -> Floats:
    target = np.asarray(reference, dtype=float)
    if target.shape != points.shape[1:] or not np.isfinite(target).all():
        raise ValueError(
            f"reference must be finite with shape {points.shape[1:]}, got {target.shape}"
        )
    return target
