"""One mixture for all sites: where the sites of FedGrEM with shapes depart from (`shaped`).

Starts are made of clusters that sites found among their rows, or of rows whose labels are known,
and climb side by side. What is likeliest for all sites as one need not be what sites share: all
that settle at different places go on, and the departures are compared.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms.mixtures.departures import moments, one_covariance
from fedkin.algorithms.mixtures.turns import AboutSome, Turns, some_of_each
from fedkin.alignment import by_coordinates
from fedkin.arrays import Bools, Floats
from fedkin.models.packed_matrices import unpacked
from fedkin.protocol import Ask, Replies, Roster, over_roster
from fedkin.shrinkage import borrowed, in_common
from fedkin.shrinkage.borrowed import OWN_KINDS
from fedkin.shrinkage.sound_scatter import sound
from fedkin.ties import tied_order

# Passes of clustering, at a site and among the clusters of all.
CLUSTER_PASSES = 20
# Rounds of the shared mixture, how many every start has, and the gain a row below which one has
# settled; starts that are closer than the last, a row, have settled at the same place.
SHARED_ROUNDS, ROUNDS_OF_ALL, SHARED_TOL, SAME_PLACE = 100, 10, 1e-4, 1e-3
# The most numbers of one round of the shared mixture: 160 MB of doubles.
MOST_NUMBERS = 2e7
# The most groups that are tried where none are given; ends when so many in a row do not help.
MOST_GROUPS, WORSE_IN_A_ROW = 15, 2
# A site that has more than half of a group alone is left out of the shared mixture and departs from
# that of the others, if there are so many sites, it does not have so much of all rows, and no less
# than this share of the sites is left; the mixture is looked for so often at most.
LEAST_SITES, MOST_OF_ALL, MOST_TRUSTED, SEARCHES = 5, 0.25, 0.65, 3
# Where the fit begins: sites differ by this share of the covariance, borrow as from so many rows.
FIRST_BETWEEN, FIRST_DEGREES, FIRST_TOTAL = 0.1, 100.0, 10.0
# Columns of which one spreads so many times as far as another are not compared as they are.
MOST_UNLIKE = 30.0


class Shared(NamedTuple):
    """A mixture that all sites share, its log likelihood, and the sites' rows of groups, (m, R)."""

    common: borrowed.Common
    loglik: float
    shares: Floats


class Counted(NamedTuple):
    """Mixtures with one number of groups, the likeliest first, and what that one says.

    `trusted` (m,) sites; `rows` (m,); `certain` (m,), the log likelihood of rows and the groups
    they are in, expected; `numbers` that were fitted.
    """

    found: list[Shared]
    trusted: Bools
    rows: Floats
    certain: Floats
    numbers: float

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.found[0].common.centers)

    def better_than(self, other: Counted) -> bool:
        """Whether its ICL is less, on sites that both trust."""
        both = self.trusted & other.trusted
        price = np.log(max(self.rows[both].sum(), 1.0))
        mine, its = (one.numbers * price - 2 * one.certain[both].sum() for one in (self, other))
        return bool(mine < its)


class SharedStart:
    """The search for mixtures from which sites may depart."""

    def __init__(self, settings: Any, roster: Roster) -> None:
        self.settings, self.roster, self.kind = settings, roster, settings.covariance_type
        self.trusted: Bools = np.ones(len(roster), dtype=bool)
        # Sites whose labelled rows scatter as no rows can.
        self.implausible: Bools = np.zeros(len(roster), dtype=bool)
        self.n_rows = 0.0
        # Means and deviations of the sites' columns (m, d), and what rows scatter in all, (m,).
        self.middle: Floats = np.empty((0, 0))
        self.deviation: Floats = np.empty((0, 0))
        self.inside: Floats = np.empty(0)
        # Spread of every column in all rows, (d,), and at a typical site.
        self.spread: Floats = np.empty(0)
        self.typical: Floats | None = None
        # Counts, means and scatter of the sites' labelled rows, (m, ...), where there are labels.
        self.labelled: tuple[Floats, ...] = ()
        # Whether every group has labels; whether every row has.
        self.named = self.all_named = False
        self.turns = Turns(len(roster))

    def begin(
        self, aligned: Floats | None = None
    ) -> Generator[Ask, Replies, list[borrowed.Common]]:
        """Mixtures from which sites may depart, the likeliest for all as one first.

        Last, if there are any, groups with given centres (R, d).
        """
        settings, given = self.settings, self.settings.given_start
        replies = yield Ask("columns", note="spread of the columns")
        units, n_rows = spread_of(replies), float(replies["rows"].sum())
        self.spread, self.typical = units, typical_spread(replies)
        who, m = replies.clients, len(self.roster)
        self.turns.expected[who] = True
        self.middle = over_roster(replies["middle"], who, m, missing=0.0)
        self.deviation = over_roster(np.sqrt(replies["variance"]), who, m, missing=0.0)
        self.inside = over_roster(replies["rows"] * replies["variance"].sum(axis=1), who, m, 0.0)
        known = None
        if settings.labels:
            replies = yield Ask("labelled", note="groups with labels")
            *known, wrong = sound(*moments(replies), self.kind, self.typical)
            whose = replies.clients
            self.implausible[whose] = wrong
            self.labelled = tuple(over_roster(part, whose, m, missing=0.0) for part in known)
            self.named = bool((known[0].sum(axis=0) > 0).all())
        if given is not None:
            centers = given if given.ndim == 2 else np.median(given, axis=0)
            found = yield from self._shared([self._at(centers, np.square(units) * FIRST_BETWEEN)])
        elif known is not None and self.named:
            first = self.first(*known)
            self.all_named = bool(known[0].sum() >= n_rows - 0.5)
            if self.all_named:
                return [first]
            # With few labels the rows of all sites tell more of a class than its labelled ones do,
            # and one covariance of all classes more than their own.
            begun = [first, one_covariance(first)] if self.kind in OWN_KINDS else [first]
            found = yield from self._shared(begun)
            return [*begun, *(one.common for one in found)]
        elif settings.n_components is None:
            found = yield from self._choose(units)
        else:
            found = yield from self._search(settings.n_components, units, known)
        if given is None and known is None:
            shared = [in_order(one.common) for one in found]
        else:
            shared = [one.common for one in found]
        if aligned is not None:
            shared.append(self._at(aligned, np.square(units) * FIRST_BETWEEN))
        return shared

    def _choose(self, units: Floats) -> Generator[Ask, Replies, list[Shared]]:
        """As many groups as can be told apart: the shared mixture with the least ICL.

        A site that is odd shows when there is a group to spare for it; fewer are then tried again
        without it.
        """
        everybody = np.ones_like(self.trusted)
        best = yield from self._with(1, units, everybody)
        worse = 0
        for n_groups in range(2, MOST_GROUPS + 1):
            now = yield from self._with(n_groups, units, everybody)
            best, worse = (now, 0) if now.better_than(best) else (best, worse + 1)
            if worse >= WORSE_IN_A_ROW:
                break
        for n_groups in range(best.n_groups - 1, 0, -1):
            if best.trusted.all():
                break
            now = yield from self._with(n_groups, units, best.trusted)
            if not now.better_than(best):
                break
            best = now
        self.trusted = best.trusted
        return best.found

    def _with(
        self, n_groups: int, units: Floats, trusted: Bools
    ) -> Generator[Ask, Replies, Counted]:
        """The shared mixtures of trusted sites, and what the likeliest says of its number."""
        # More groups are more numbers: whether a reply may be about all starts is asked anew.
        self.turns.in_turn = self.turns.in_turn or None
        found = yield from self._search(n_groups, units, trusted=trusted)
        replies = yield self._question([found[0].common])
        return self._counted(found, replies)

    def _counted(self, found: list[Shared], replies: Replies) -> Counted:
        """What the likeliest of these mixtures says of its number of groups."""
        common, kind, d = found[0].common, self.kind, len(self.middle[0])
        counts, means, scatter = (part[:, 0] for part in moments(replies))
        who, n_groups = replies.clients, len(common.centers)
        whole = unpacked(scatter, d, kind)
        if kind == "identity":
            # No scatter was sent: what columns scatter, less what means do, is inside groups.
            away = np.square(means - self.middle[who, None]).sum(axis=-1)
            inside = self.inside[who] - (counts * away).sum(axis=-1)
            share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
            whole = (share * inside[:, None] / d)[..., None, None] * np.eye(d)
        heard = self.trusted[who]
        seen = counts[heard], means[heard], scatter[heard]
        numbers = in_common.numbers_of_covariances(*seen, common.centers, kind, self.typical)
        certain = complete_loglik(counts, means, whole, common)
        trusted, rows, certain = (
            over_roster(part, who, len(self.roster), missing=0.0)
            for part in (heard, counts.sum(axis=1), certain)
        )
        numbers += n_groups * (1 + d) - 1
        return Counted(found, trusted.astype(bool), rows, certain, numbers)

    def _search(
        self, n_groups: int, units: Floats, known: Any = None, trusted: Bools | bool = True
    ) -> Generator[Ask, Replies, list[Shared]]:
        """Shared mixtures in which no site has a group for itself, if there are such."""
        self.trusted[:] = trusted
        for _ in range(SEARCHES):
            found = yield from self._search_once(n_groups, units, known)
            lonely = [alone_in_a_group(one.shares * self.trusted[:, None]) for one in found]
            alone = lonely[0]
            if not alone.any() or (self.trusted & ~alone).mean() < MOST_TRUSTED:
                break
            self.trusted &= ~alone
        return [one for one, by in zip(found, lonely) if not by.any()] or found

    def _search_once(
        self, n_groups: int, units: Floats, known: Any = None
    ) -> Generator[Ask, Replies, list[Shared]]:
        """Shared mixtures from starts among the clusters of trusted sites."""
        step, made = "seeds_by_ward" if self.settings.start == "ward" else "seeds", []
        # Columns compared as they are, and by their spread: neither suits all data.
        for by in (self._as_they_are(units), units):
            common = {"units": by, "wanted": np.zeros(n_groups)}
            replies = yield Ask(step, common, note="clusters at the sites")
            made += self._starts(replies, by, known)
        return (yield from self._shared(made))

    def _as_they_are(self, units: Floats) -> Floats:
        """Units in which columns are compared as they are: one for all.

        Where these spread so unlike that some would not be seen at all: by that at a typical site.
        """
        if self.typical is not None and units.max() > MOST_UNLIKE * units.min():
            return self.typical
        return np.full_like(units, np.sqrt(np.square(units).mean()))

    def first(self, counts: Floats, means: Floats, scatter: Floats) -> borrowed.Common:
        """What labelled groups have in common, sites put together.

        Few labelled rows leave directions without scatter: covariances are bent to the diagonal of
        their average, as by d + 2 rows, the least that has a mean.
        """
        n_groups, d = counts.shape[1], len(self.spread)
        first = self._at(np.zeros((n_groups, d)), np.square(self.spread))
        units = self.typical
        common = in_common.learn(counts, means, scatter, first, self.kind, units=units)
        n_rows = counts.sum(axis=0)
        average = np.einsum("r,rij->ij", n_rows / n_rows.sum(), common.covariances)
        share = (d + 2.0) / (d + 2.0 + n_rows.sum())
        straight = share * np.diag(np.diag(average))
        return common._replace(covariances=(1.0 - share) * common.covariances + straight)

    def _at(self, centers: Floats, spread: Floats) -> borrowed.Common:
        """Groups of one spread (d,) at some centres."""
        n_groups, d = centers.shape
        covariance = np.eye(d) if self.kind == "identity" else np.diag(spread)
        covariances = np.tile(borrowed.shaped(covariance, self.kind), (n_groups, 1, 1))
        even = np.full(n_groups, FIRST_TOTAL / n_groups)
        beyond = np.full(n_groups, FIRST_DEGREES)
        between, known = FIRST_BETWEEN * covariances, np.full(n_groups, np.inf)
        one = np.array(1.0)
        return borrowed.Common(centers, between, covariances, beyond, even, one, known)

    def _starts(self, replies: Replies, units: Floats, known: Any) -> list[borrowed.Common]:
        """Mixtures that begin at centres among the sites' clusters."""
        heard = self.trusted[replies.clients]
        counts, points = replies["counts"][heard], replies["means"][heard] / units
        rng = np.random.default_rng([self.roster.seed, 0x5EED])
        seen, fixed = np.empty(0, dtype=np.intp), np.empty((0, points.shape[-1]))
        if known is not None:
            total = known[0].sum(axis=0)
            seen = np.flatnonzero(total > 0)
            fixed = np.einsum("mr,mrd->rd", known[0], known[1])[seen] / total[seen, None] / units
        (m, n_groups), some = counts.shape, counts > 0
        weights = counts[some]
        if some.any():
            points = points[some]
        else:
            # No site may tell of a cluster: rows drawn by what sites told of their columns.
            who = replies.clients[heard]
            drawn = self.deviation[who, None] * rng.normal(size=(m, n_groups, points.shape[-1]))
            points = ((self.middle[who, None] + drawn) / units).reshape(m * n_groups, -1)
            weights = np.ones(len(points))
        order = np.concatenate([seen, np.setdiff1d(np.arange(n_groups), seen)])
        each = m * n_groups * points.shape[1] ** 2
        n_starts = int(np.clip(MOST_NUMBERS / each, 2, self.settings.n_restarts + 1)) // 2
        inside, made = np.median(replies["variance"]), []
        for _ in range(n_starts):
            centers = seeded(points, weights, fixed, n_groups, rng)
            near = np.average(squares_to(points, centers).min(axis=1), weights=weights)
            spread = np.square(units) * (inside + near / points.shape[1])
            made.append(self._at(centers[np.argsort(order)] * units, spread))
        return made

    def _shared(self, starts: list[borrowed.Common]) -> Generator[Ask, Replies, list[Shared]]:
        """EM of mixtures that all sites share, from several starts; where they settle.

        Weights are common, too: with weights of their own, groups would become kinds of sites.
        """
        found = list(starts)
        replies = yield from self.turns.all_at_once(self._about(found), len(found))
        if self.turns.in_turn:
            found = [found[s] for s in some_of_each(len(found))]
        running, loglik = np.arange(len(found)), np.full(len(found), -np.inf)
        shares = np.zeros((len(self.roster), len(found), len(found[0].centers)))
        for number in range(1, SHARED_ROUNDS + 1):
            if replies is None:
                now = [found[s] for s in running]
                replies = yield from self.turns.ask(self._about(now), len(now))
            heard = self.trusted[replies.clients]
            reached = replies["loglik"][heard].sum(axis=0)
            self.n_rows = float(replies["rows"][heard].sum())
            gain = (reached - loglik[running]) / max(self.n_rows, 1.0)
            loglik[running] = reached
            shares[np.ix_(replies.clients, running)] = replies["counts"]
            who: Any = slice(None) if heard.all() else heard
            rows, parts = replies["rows"][who], [part[who] for part in moments(replies)]
            for place, s in enumerate(running):
                counts, means, scatter = (part[:, place] for part in parts)
                # A group that may be as wide as it likes can swallow others before they are found.
                alike = number <= ROUNDS_OF_ALL and s % 2 == 0
                told = counts, means, scatter, found[s], self.kind, alike, rows, self.typical
                found[s] = in_common.learn(*told)
            if number > ROUNDS_OF_ALL + 1:
                # Groups that are kept back now and then make the likelihood go to and fro.
                running = running[(gain if self.turns.in_turn else np.abs(gain)) > SHARED_TOL]
            if not len(running):
                break
            replies = None
        order = distinct(loglik, SAME_PLACE * max(self.n_rows, 1.0))
        return [Shared(found[s], float(loglik[s]), shares[:, s]) for s in order]

    def _about(self, found: list[borrowed.Common]) -> AboutSome:
        """The question about some of these mixtures."""
        return lambda some: self._question(found[some])

    def _question(self, found: list[borrowed.Common]) -> Ask:
        common = {
            "means": np.stack([one.centers for one in found]),
            "covariances": np.stack([one.covariances for one in found]),
        }
        even = np.stack([one.concentration / one.concentration.sum() for one in found])
        weights = np.repeat(even[None], len(self.roster), axis=0)
        return Ask("shared_moments", common, {"weights": weights}, note="shared mixture")


def distinct(values: Floats, apart: float) -> list[int]:
    """Places of values from the largest on; of those closer than `apart` the first."""
    kept: list[int] = []
    for place in tied_order(-values):
        if not kept or values[kept[-1]] - values[place] > apart:
            kept.append(int(place))
    return kept


def in_order(common: borrowed.Common) -> borrowed.Common:
    """Groups in the order of their centres, not of the starts."""
    order = by_coordinates(common.centers)
    assert common.shift is None
    turned = (part[order] if part.ndim else part for part in common[:-1])
    return borrowed.Common(*turned)


# ------------------------------------------------------------------ starts among clusters


def alone_in_a_group(counts: Floats) -> Bools:
    """Sites (m,) that have more than half of the rows (m, R) of a group, and not half of all.

    Of few sites, each has a large part of every group.
    """
    m, whole = len(counts), np.maximum(counts.sum(axis=0), 1e-300)
    alone: Bools = (counts / whole > 0.5).any(axis=1)
    large = counts.sum(axis=1) > MOST_OF_ALL * np.maximum(counts.sum(), 1e-300)
    return alone & ~large if m >= LEAST_SITES else np.zeros(m, dtype=bool)


def complete_loglik(
    counts: Floats, means: Floats, scatter: Floats, common: borrowed.Common
) -> Floats:
    """Log likelihood (m,) of the sites' rows and of the groups they are in, as far as they are.

    The log likelihood less the entropy of who belongs where, from what an E-step leaves.
    """
    away, d = means - common.centers, means.shape[-1]
    about = scatter + (counts[..., None] * away)[..., None] * away[..., None, :]
    squares = np.einsum("rij,mrji->mr", np.linalg.inv(common.covariances), about)
    volume = np.linalg.slogdet(common.covariances)[1] + d * np.log(2.0 * np.pi)
    weights = np.log(common.concentration / common.concentration.sum())
    return np.asarray((counts * (weights - 0.5 * volume) - 0.5 * squares).sum(axis=1))


def spread_of(replies: Replies) -> Floats:
    """Typical spread of every column, (d,): within sites and between them."""
    rows, middle = replies["rows"][:, None], replies["middle"]
    total = np.maximum(rows.sum(), 1.0)
    mean = (rows * middle).sum(axis=0) / total
    variance = (rows * (replies["variance"] + np.square(middle - mean))).sum(axis=0) / total
    return np.sqrt(np.where(variance > 0, variance, 1.0))


def typical_spread(replies: Replies) -> Floats:
    """How far rows of the median site are from the middle of all, column by column, (d,).

    One site with huge values does not move it, and of two the less is taken: one may lie. Where
    most do not vary it is as by `spread_of`.
    """
    away = replies["middle"] - np.median(replies["middle"], axis=0)
    squares = np.quantile(replies["variance"] + np.square(away), 0.5, axis=0, method="lower")
    return np.sqrt(np.where(squares > 0, squares, np.square(spread_of(replies))))


def seeded(
    points: Floats, weights: Floats, fixed: Floats, n_groups: int, rng: np.random.Generator
) -> Floats:
    """Centres (R, d): the fixed ones, others by k-means++ among weighted points, then Lloyd."""
    centers = list(fixed[:n_groups])
    nearest = squares_to(points, fixed).min(axis=1) if len(fixed) else np.ones(len(points))
    while len(centers) < n_groups:
        chance = weights * nearest
        chance = chance / chance.sum() if chance.sum() > 0 else weights / weights.sum()
        tried = rng.choice(len(points), size=2 + int(np.log(n_groups)), p=chance)
        left = [np.minimum(nearest, squares_to(points, points[t][None])[:, 0]) for t in tried]
        best = int(np.argmin([weights @ one for one in left])) if centers else 0
        nearest = left[best] if centers else squares_to(points, points[tried[0]][None])[:, 0]
        centers.append(points[tried[best]])
    found = np.stack(centers)
    for _ in range(CLUSTER_PASSES):
        chosen = np.eye(n_groups)[squares_to(points, found).argmin(axis=1)] * weights[:, None]
        total = chosen.sum(axis=0)[:, None]
        found = np.where(total > 0, chosen.T @ points / np.where(total > 0, total, 1.0), found)
        found[: len(fixed)] = fixed[:n_groups]
    return found


def squares_to(points: Floats, centers: Floats) -> Floats:
    """Squared distances (n, R)."""
    return np.asarray(((points[:, None] - centers) ** 2).sum(axis=-1))
