"""How sure FedGrEM may be of a class: by labels that it has not learnt from.

Probabilities of classes by groups are too sure: groups are not quite normal, and where few labels
are known rows settle in a group whether or not it is of their class. Labels that a fit has learnt
from do not show it. So the fit is made again without each of a few parts of the sites, whose
replies the server leaves unused (no site is asked for anything else for that), and a site tells
once how likely its labels are by the groups of the other sites, bent by its own labels of other
folds; and by those of the other sites alone, as at a site that nothing is known of. It tells so at
several temperatures: log probabilities are divided by a temperature, which makes them less sure and
changes no order. The likeliest are taken, one for sites with labels and one for others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from fedkin.algorithms.mixtures.departures import (
    MOST,
    Departure,
    about,
    one_covariance,
    with_shifts,
)
from fedkin.algorithms.mixtures.shared_start import MOST_NUMBERS, SharedStart
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.shaped_mixture import TEMPERATURES
from fedkin.protocol import Ask, Replies
from fedkin.shrinkage import borrowed

# Parts of the sites, and how many where each is a question of its own; rounds without each.
PARTS, PARTS_IN_TURN, ROUNDS = 5, 2, 5
# Spread of the logarithm of a temperature before any label is seen: few labels tell little of it.
SPREAD = np.log(4.0)
# What one site says counts as that of so many usual ones at most, and no label surprises more
# than this (nats, beside its best temperature): whatever a site says, others have a say, too.
MOST_USUAL, MOST_SURPRISE = 3.0, 3.0


def temperatures(
    fit: Departure, start: SharedStart, max_rounds: int
) -> Generator[Ask, Replies, Floats]:
    """The temperatures (2,) at which labels are likeliest, at sites with labels and at others.

    One where there are labels at a single site, or no site tells of them.
    """
    counts, *_ = start.labelled
    part = dealt(counts, n_parts(counts, start))
    if part.max() < 1:
        return np.ones(2)
    without = [_without(fit, start, part != k) for k in range(part.max() + 1)]
    for _ in range(min(ROUNDS, max_rounds)):
        asked = about(without, "parts of the sites are left out")
        replies = yield from start.turns.ask(asked, len(without))
        for k, one in enumerate(without):
            one.advance(_of_some(replies, part != k), k)
    own = in_common_of(without, part)
    replies = yield Ask("surprise", personal=own, note="labels foretold", needed=False)
    told, labels = replies["foretold"], counts.sum(axis=1)[replies.clients]
    return np.array([likeliest_temperature(together(told[:, way], labels)) for way in range(2)])


def n_parts(counts: Floats, start: SharedStart) -> int:
    """Parts of the sites: fewer where each is a question of its own, or sites are very many."""
    if start.turns.in_turn:
        return PARTS_IN_TURN
    d = len(start.spread)
    return int(np.clip(MOST_NUMBERS / (counts.size * d**2), PARTS_IN_TURN, PARTS))


def dealt(counts: Floats, n: int) -> Indices:
    """The part of every site, (m,), so that every part has labels of most classes.

    `counts` (m, R) of labelled rows. Sites are dealt by the class they have most labels of; those
    without labels are dealt last.
    """
    some = counts.sum(axis=1) > 0
    n = min(n, int(some.sum()))
    main = np.where(some, counts.argmax(axis=1), counts.shape[1])
    part = np.zeros(len(counts), dtype=np.intp)
    part[np.argsort(main, kind="stable")] = np.arange(len(counts)) % max(n, 1)
    return part


def _without(fit: Departure, start: SharedStart, kept: Bools) -> Departure:
    """Sites that are kept depart from their labelled groups; a group without any, from the fit's.

    What `fit` has learnt of a class came from all labels: it is not where others may begin.
    """
    counts, means, scatter = (part[kept] for part in start.labelled)
    first = _with_others(start.first(counts, means, scatter), fit.common, counts.sum(axis=0) <= 0)
    first = first if fit.kind in borrowed.OWN_KINDS else one_covariance(first)
    first = first if fit.common.shift is None else with_shifts(first)
    return Departure(first, fit.kind, fit.own_weights, len(kept))


def _with_others(first: borrowed.Common, other: borrowed.Common, lacking: Bools) -> borrowed.Common:
    """`first` with the groups that it is lacking from another."""

    def either(mine: Floats, its: Floats) -> Floats:
        return np.where(lacking.reshape(-1, *[1] * (mine.ndim - 1)), its, mine)

    return first._replace(
        centers=either(first.centers, other.centers),
        between=either(first.between, other.between),
        covariances=either(first.covariances, other.covariances),
        degrees=either(first.degrees, other.degrees),
        concentration=either(first.concentration, other.concentration),
    )


def _of_some(replies: Replies, kept: Bools) -> Replies:
    """Replies of sites that are kept."""
    some = kept[replies.clients]
    return Replies(replies.clients[some], {name: a[some] for name, a in replies.items()})


def in_common_of(without: Sequence[Departure], part: Indices) -> dict[str, Floats]:
    """What is common without its own part, for every site (m, ...)."""
    none = np.zeros_like(without[0].common.between[0])
    flags = {"alike": without[0].kind == "tied", "own_weights": without[0].own_weights}
    each = [
        one.common if one.common.shift is not None else one.common._replace(shift=none)
        for one in without
    ]
    found = dict(zip(borrowed.Common._fields, map(np.stack, zip(*each))))
    found["known"] = np.minimum(found["known"], MOST)
    found = {name: array[part] for name, array in found.items()} | {"part": part.astype(float)}
    return found | {name: np.full(len(part), float(flag)) for name, flag in flags.items()}


def together(foretold: Floats, labels: Floats) -> Floats:
    """Log probability (T,) of labels at all sites, from those of each, (m, T), beside its best.

    `labels` (m,) are how many there are at a site.
    """
    some = labels > 0
    if not some.any():
        return np.zeros(foretold.shape[1])
    each = (foretold - foretold.max(axis=1, keepdims=True))[some] / labels[some, None]
    weight = np.minimum(labels[some], MOST_USUAL * np.median(labels[some]))
    return np.asarray(weight @ np.maximum(each, -MOST_SURPRISE))


def likeliest_temperature(foretold: Floats) -> float:
    """From the log probability of all labels at each of `TEMPERATURES`; between these, a parabola.

    One, if none is likelier or nothing was told.
    """
    logs = np.log(TEMPERATURES)
    told = foretold - 0.5 * np.square(logs / SPREAD)
    best = int(np.argmax(told))
    if not foretold.any() or best == 0:
        return 1.0
    if best == len(logs) - 1:
        return float(TEMPERATURES[-1])
    below, at, above = told[best - 1 : best + 2]
    step = 0.5 * (below - above) / (below - 2.0 * at + above)
    return float(np.exp(logs[best] + step * (logs[1] - logs[0])))
