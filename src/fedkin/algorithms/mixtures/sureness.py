"""How sure FedGrEM may be of a class, and by which rows: by labels that it has not learnt from.

Probabilities of classes by groups are too sure: groups are not quite normal, and where few labels
are known rows settle in a group whether or not it is of their class. Labels that a fit has learnt
from do not show it. So the fit is made again without each of a few parts of the sites, whose
replies the server leaves unused (no site is asked for anything else for that), and a site tells
once how likely its labels are by the groups of the other sites, bent by its own labels of other
folds; and by those of the other sites alone, as at a site that nothing is known of. It tells so at
several temperatures: log probabilities are divided by a temperature, which makes them less sure and
changes no order. The likeliest are taken, one for sites with labels and one for others.

Where some rows have no label, what classes have in common is found a second time, by labelled rows
alone (`taught`): groups that all rows make need not be the classes. That asks no site anything,
because moments of labelled rows are known. Both ways foretell the left-out labels, and then both
together, at several shares; probabilities are blended by the share that is expected.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from fedkin.algorithms.mixtures.departures import (
    MOST,
    Departure,
    about,
    one_covariance,
    with_shifts,
)
from fedkin.algorithms.mixtures.foretold import SHARES
from fedkin.algorithms.mixtures.shared_start import MOST_NUMBERS, SharedStart
from fedkin.algorithms.mixtures.turns import Turns
from fedkin.arrays import Bools, Floats, Indices
from fedkin.models.shaped_mixture import TEMPERATURES
from fedkin.protocol import Ask, Replies
from fedkin.shrinkage import borrowed
from fedkin.ties import first_best

# Parts of the sites, and how many where each is a question of its own; rounds without each, and
# where rows without labels first have to settle in groups, which may not be the classes.
PARTS, PARTS_IN_TURN, ROUNDS, ROUNDS_TO_SETTLE = 5, 2, 5, 20
# Spread of the logarithm of a temperature before any label is seen: few labels tell little of it.
SPREAD = np.log(4.0)
# What one site says counts as that of so many usual ones at most, and no label surprises more
# than this (nats, beside the best there is for the site's): whatever a site says, others have a
# say, too.
MOST_USUAL, MOST_SURPRISE = 3.0, 3.0


class Sure(NamedTuple):
    """`temperatures` (2,) at which labels are likeliest, at sites with labels and at others.

    Where labelled rows alone have a say: the fit by these, its temperatures, and its share (2,).
    Not `judged` where no site told how likely left-out labels are.
    """

    temperatures: Floats
    taught: Departure | None = None
    taught_temperatures: Floats | None = None
    share: Floats | None = None
    judged: bool = True


NOT_JUDGED = Sure(np.ones(2), judged=False)


def how_sure(fit: Departure, start: SharedStart, settings: Any) -> Generator[Ask, Replies, Sure]:
    """What left-out labels say of temperatures, and of labelled rows alone beside all rows.

    Temperatures of one where there are labels at a single site, or no site tells of them.
    """
    counts, *_ = start.labelled
    parts = yield from _without_parts(fit, start, settings.max_rounds)
    if parts is None:
        return NOT_JUDGED
    part, without = parts
    kinds = kinds_of_taught(settings) if start.named and not start.all_named else ()
    kept = [part != k for k in range(part.max() + 1)]
    ways = [without, *([taught(fit, start, kind, some) for some in kept] for kind in kinds)]
    own = in_common_of(ways, part)
    replies = yield Ask("surprise", personal=own, note="labels foretold", needed=False)
    if not len(replies.clients) or not replies["foretold"].any():
        return NOT_JUDGED
    told, labels = replies["foretold"], counts.sum(axis=1)[replies.clients]
    each = [[together(told[:, b, w], labels) for b in range(2)] for w in range(len(ways))]
    found = np.array([[likeliest_temperature(one) for one in way] for way in each])
    if not kinds:
        return Sure(found[0])
    best = 1 + likeliest_way(told[:, 0, 1:], labels)
    temperatures = np.broadcast_to(found[[0, best]].T, (len(part), 2, 2))
    own = in_common_of([ways[0], ways[best]], part) | {"temperatures": temperatures}
    replies = yield Ask("blended", personal=own, note="labels foretold by both", needed=False)
    if not len(replies.clients) or not replies["blended"].any():
        return Sure(found[0])
    told, labels = replies["blended"], counts.sum(axis=1)[replies.clients]
    share = np.array([expected_share(together(told[:, b], labels)) for b in range(2)])
    whole = taught(fit, start, kinds[best - 1], np.ones(len(part), dtype=bool))
    return Sure(found[0], whole, found[best], share)


def _without_parts(
    fit: Departure, start: SharedStart, max_rounds: int
) -> Generator[Ask, Replies, tuple[Indices, list[Departure]] | None]:
    """Parts of the sites and the fits without each; None if nobody may tell of these.

    Sites that may not tell of all fits in one reply are asked about two, one after the other. What
    cannot be had is not needed: the fit itself stands.
    """
    counts, *_ = start.labelled
    turns = Turns(len(counts))
    turns.in_turn, turns.expected = start.turns.in_turn or None, fit.last.heard
    n = PARTS_IN_TURN if turns.in_turn else n_parts(counts, len(start.spread))
    part, without = _refits(fit, start, n)
    if not without:
        return None
    note, replies = "parts of the sites are left out", None
    if turns.in_turn is None:
        asked = about(without, note, needed=False)
        replies = yield from turns.all_at_once(asked, len(without))
        if turns.in_turn:
            part, without = _refits(fit, start, PARTS_IN_TURN)
    n_rounds = ROUNDS if start.all_named else ROUNDS_TO_SETTLE
    for _ in range(min(n_rounds, max_rounds)):
        if replies is None:
            asked = about(without, note, needed=False)
            replies = yield from turns.ask(asked, len(without))
        if not len(replies.clients):
            return None
        for k, one in enumerate(without):
            one.advance(_of_some(replies, part[replies.clients] != k), k)
        replies = None
    return part, without


def _refits(fit: Departure, start: SharedStart, n: int) -> tuple[Indices, list[Departure]]:
    """The part of every site, of n, and fits that begin without each; none of a single part."""
    part = dealt(start.labelled[0], n)
    last = int(part.max())
    return part, [_without(fit, start, part != k) for k in range(last + 1) if last]


def kinds_of_taught(settings: Any) -> tuple[str, ...]:
    """Covariances that are tried for labelled rows alone: groups' own, and one for all."""
    kind: str = settings.covariance_type
    return (kind, "tied") if kind == "full" else (kind,)


def taught(fit: Departure, start: SharedStart, kind: str, kept: Bools) -> Departure:
    """What labelled rows of sites that are kept have in common, with what is their own.

    Their moments are known: nobody is asked. Rounds are as many with all sites as without a part,
    so that what is used is what was judged.
    """
    first = with_shifts(_beginning(fit, start, kept, kind))
    one = Departure(first, kind, fit.own_weights, len(kept), fit.units)
    counts, means, scatter = start.labelled
    who = np.flatnonzero(kept & (counts.sum(axis=1) > 0))
    known = {"counts": counts[who], "means": means[who], "scatter": scatter[who]}
    arrays = {name: array[:, None] for name, array in known.items()}
    arrays["rows"] = counts[who].sum(axis=1)
    for _ in range(ROUNDS):
        one.advance(Replies(who, arrays), 0)
    return one


def n_parts(counts: Floats, d: int) -> int:
    """Parts of the sites, fewer where these are very many."""
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
    """Sites that are kept depart from their labelled groups as those of the fit did."""
    first = _beginning(fit, start, kept, fit.kind)
    first = first if fit.common.shift is None else with_shifts(first)
    return Departure(first, fit.kind, fit.own_weights, len(kept), fit.units)


def _beginning(fit: Departure, start: SharedStart, kept: Bools, kind: str) -> borrowed.Common:
    """Labelled groups of sites that are kept; a group without any rows there, as the fit has it.

    What `fit` has learnt of a class came from all labels: it is not where others may begin.
    """
    counts, means, scatter = (part[kept] for part in start.labelled)
    first = _with_others(start.first(counts, means, scatter), fit.common, counts.sum(axis=0) <= 0)
    return first if kind in borrowed.OWN_KINDS else one_covariance(first)


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


def _of_some(replies: Replies, some: Bools) -> Replies:
    """Some of the replies."""
    return Replies(replies.clients[some], {name: a[some] for name, a in replies.items()})


def in_common_of(ways: Sequence[Sequence[Departure]], part: Indices) -> dict[str, Floats]:
    """What is common without its own part, for every site and way (m, W, ...)."""
    each = [_in_common(without) for without in ways]
    found = {name: np.stack([one[name][part] for one in each], axis=1) for name in each[0]}
    own_weights = np.full(len(part), float(ways[0][0].own_weights))
    return found | {"part": part.astype(float), "own_weights": own_weights}


def _in_common(without: Sequence[Departure]) -> dict[str, Floats]:
    """What is common without each part, (K, ...)."""
    none = np.zeros_like(without[0].common.between[0])
    each = [
        one.common if one.common.shift is not None else one.common._replace(shift=none)
        for one in without
    ]
    found = dict(zip(borrowed.Common._fields, map(np.stack, zip(*each))))
    found["known"] = np.minimum(found["known"], MOST)
    return found | {"alike": np.full(len(without), float(without[0].kind == "tied"))}


def together(foretold: Floats, labels: Floats) -> Floats:
    """Log probability (T,) of labels at all sites, from those of each, (m, T), beside its best.

    `labels` (m,) are how many there are at a site.
    """
    some = labels > 0
    if not some.any():
        return np.zeros(foretold.shape[1])
    each = (foretold - foretold.max(axis=1, keepdims=True))[some] / labels[some, None]
    weight = np.minimum(labels[some], MOST_USUAL * np.median(labels[some]))
    each = weight[:, None] * np.maximum(each, -MOST_SURPRISE)
    told = each.min(axis=1) < 0
    if not told.any():
        return np.zeros(foretold.shape[1])
    # The less of two in the middle: of two sites one may lie.
    usual = np.quantile(each[told].min(axis=1), 0.5, method="higher")
    return np.asarray(np.maximum(each, MOST_USUAL * usual).sum(axis=0))


def likeliest_way(foretold: Floats, labels: Floats) -> int:
    """The way in which labels are likeliest, each at its best temperature, from (m, W, T).

    By sites that told of all.
    """
    n_ways = foretold.shape[1]
    whole = (foretold != 0).any(axis=2).all(axis=1)
    side_by_side = foretold[whole].reshape(-1, n_ways * len(TEMPERATURES))
    reached = together(side_by_side, labels[whole]).reshape(n_ways, -1)
    return int(first_best(reached.max(axis=1)))


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


def expected_share(told: Floats) -> float:
    """Of `SHARES`, on average, by the log probability of all labels at each.

    None, if nothing was told.
    """
    return float(softmax(told) @ SHARES) if told.any() else 0.0
