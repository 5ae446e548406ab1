"""Sites depart from a mixture that all share: the server's part of FedGrEM's rounds (`shaped`).

Several mixtures to depart from are compared side by side. The likelihood of one mixture for all
sites takes kinds of sites for groups where sites differ; so it is the departed fits that are
compared, by how well a site's rows are foretold by its others (`fedkin.models.left_out_rows`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from fedkin.algorithms.mixtures.coordinator import largest_change
from fedkin.algorithms.mixtures.turns import AboutSome, Turns
from fedkin.arrays import Arrays, Bools, Floats
from fedkin.models.packed_matrices import n_numbers
from fedkin.protocol import Ask, LastReplies, Replies
from fedkin.shrinkage import borrowed, in_common
from fedkin.shrinkage.degrees import DEGREES
from fedkin.shrinkage.sound_scatter import sound
from fedkin.ties import tied_order

# After so many rounds the half that foretells less of the mixtures that are compared is given up.
ROUNDS_COMPARED = 5
# Rows are foretold to this share of a column's spread. To more digits, columns that hardly vary in
# a group (readings at the end of a scale) would outweigh all others.
FINEST = 0.1
# Rounds of a mixture that has not climbed as one of all sites, before it is compared with others.
ROUNDS_ALONE = 20
# After so many rounds a group that a site kept back stays so: about the rule's bound a group that
# leaves in one round and not in the next would keep the fit from settling.
ROUNDS_TO_AND_FRO = 20
# What is infinite travels as this.
MOST = 1e15


class Departure:
    """One shared mixture, every site's last moments, and its own values given what is common.

    `units` (d,) are spreads of the columns at a typical site.
    """

    def __init__(
        self,
        common: borrowed.Common,
        kind: str,
        own_weights: bool,
        m: int,
        units: Floats | None = None,
    ) -> None:
        self.common, self.kind, self.own_weights, self.units = common, kind, own_weights, units
        self.last = LastReplies(m)
        n_groups, d = common.centers.shape
        shapes = (m, n_groups), (m, n_groups, d), (m, n_groups, n_numbers(kind, d))
        # Rows that are behind the groups, and with those whose groups were kept back.
        self.counts: Floats = np.zeros((m, n_groups))
        self.members: Floats = np.zeros((m, n_groups))
        # Groups that sites kept back, and the rounds so far.
        self.silent: Bools = np.zeros((m, n_groups), dtype=bool)
        # Sites whose scatter no rows can have.
        self.implausible: Bools = np.zeros(m, dtype=bool)
        self.n_rounds = 0
        self.own = self._posterior(*(np.zeros(shape) for shape in shapes))

    def _posterior(self, counts: Floats, means: Floats, scatter: Floats) -> borrowed.Posterior:
        known = self.common, self.kind, self.own_weights, self.members
        return borrowed.posterior(counts, means, scatter, *known)

    def by_labels(self, counts: Floats, means: Floats, scatter: Floats) -> borrowed.Posterior:
        """Sites' own values if labelled rows alone tell of them, from moments of these."""
        return borrowed.by_labels(counts, means, scatter, self.common, self.kind, self.own_weights)

    def mixture(self, final: bool = False) -> tuple[Floats, Floats, Floats]:
        """Weights, means and covariances that go out to the sites, (m, ...)."""
        weights, covariances = self.own.weights, self.own.covariances
        if not final and "counts" in self.last:
            weights, covariances = borrowed.working(
                self.own, self.common, self.members, self.kind, self.own_weights
            )
        return weights, self.own.means, covariances

    def holding(self, blur: Floats) -> dict[str, Floats]:
        """What a site needs to leave its rows out one at a time (`models.left_out_rows`).

        Covariances are wider by `blur` (d, d).
        """
        own, common, counts = self.own, self.common, self.counts
        covariances, freedom = borrowed.predictive(own, common, self.kind)
        usual = np.zeros(counts.shape) if self.own_weights else common.concentration
        return {
            "weights": own.weights,
            "means": own.means,
            "covariances": covariances + blur,
            "counts": self.members,
            "taken": np.clip(counts - own.rows, 0.0, 1.0),
            "total": np.minimum(borrowed.told(own, common, self.kind), MOST),
            "usual": np.broadcast_to(usual, counts.shape),
            "freedom": np.minimum(freedom, MOST),
        }

    def advance(self, replies: Replies, start: int) -> float:
        """What is common and every site's own values, once more; how far these moved."""
        arrays: Arrays = {
            name: np.ascontiguousarray(array[:, start] if array.ndim > 1 else array)
            for name, array in replies.items()
        }
        self.last.put(replies.clients, arrays)
        counts, means, scatter = self._told()
        heard, before = self.last.heard, self.own.means
        self.members = borrowed.members_of(counts, self.last["rows"], self.common.concentration)
        who: Any = slice(None) if heard.all() else heard
        self.common = in_common.learn_own(
            counts[who],
            means[who],
            scatter[who],
            self.common,
            self.kind,
            self.own_weights,
            self.members[who],
            self.units,
        )
        self.own = self._posterior(counts, means, scatter)
        by = in_common.floor_units(self.kind, self.units)
        return largest_change(before / by, self.own.means / by)

    def _told(self) -> tuple[Floats, Floats, Floats]:
        """Counts, means and scatter, without groups that their sites keep back for good."""
        counts, means, scatter, wrong = sound(*moments(self.last), self.kind, self.units)
        self.implausible |= wrong
        # Who has sent such once stays out, whatever it sends now.
        counts = np.where(self.implausible[:, None], 0.0, counts)
        scatter = np.where(self.implausible[:, None, None], 0.0, scatter)
        self.n_rounds += 1
        if self.n_rounds > ROUNDS_TO_AND_FRO:
            rest = self.last["rows"] - counts.sum(axis=-1)
            self.silent |= (rest >= borrowed.LEAST_KEPT_BACK)[:, None] & (counts <= 0)
        if self.silent.any():
            counts = np.where(self.silent, 0.0, counts)
            scatter = np.where(self.silent[..., None], 0.0, scatter)
        self.counts = counts
        return counts, means, scatter


def one_covariance(common: borrowed.Common) -> borrowed.Common:
    """The same with one covariance for all groups and sites, as linear discriminants have it."""
    share = common.concentration / common.concentration.sum()
    average = np.einsum("r,rij->ij", share, common.covariances)
    alike = np.broadcast_to(average, common.covariances.shape)
    return common._replace(covariances=alike, degrees=np.full_like(common.degrees, DEGREES[-1]))


def with_shifts(common: borrowed.Common) -> borrowed.Common:
    """The same where groups of a site may be moved alike; how far is not known yet."""
    d = common.centers.shape[1]
    return common._replace(shift=np.zeros((d, d)))


def moments(replies: Any) -> tuple[Floats, Floats, Floats]:
    """Counts, means and scatter that sites sent."""
    return replies["counts"], replies["means"], replies["scatter"]


def question(
    departures: Sequence[Departure],
    note: str,
    fraction: float = 1.0,
    final: bool = False,
    needed: bool = True,
) -> Ask:
    """Every site's own mixtures go out, side by side."""
    names = "weights", "means", "covariances"
    parts = zip(*(one.mixture(final) for one in departures))
    own = {name: np.stack(part, axis=1) for name, part in zip(names, parts)}
    return Ask("own_moments", personal=own, fraction=fraction, note=note, needed=needed)


def about(departures: Sequence[Departure], note: str, needed: bool = True) -> AboutSome:
    """The question about some of these."""
    return lambda some: question(departures[some], note, needed=needed)


def depart(one: Departure) -> Generator[Ask, Replies, None]:
    """Sites depart from one mixture for some rounds, before it is compared with others."""
    for _ in range(ROUNDS_ALONE):
        replies = yield question([one], "sites depart from groups found alone")
        one.advance(replies, 0)


def likeliest(
    departures: Sequence[Departure],
    trusted: Bools,
    turns: Turns,
    spread: Floats,
    by: str = "loglik",
) -> Generator[Ask, Replies, Departure]:
    """The departure under which the rows of trusted sites are foretold best by their others.

    Rows, to a share of the columns' spread (d,); or their labels, if it is to be decided by what is
    "right".
    """
    left = list(departures)
    blur = np.diag(np.square(FINEST * spread)) * (by == "loglik")
    while len(left) > 1:
        for _ in range(ROUNDS_COMPARED):
            replies = yield from turns.ask(about(left, "starts are compared"), len(left))
            for start, one in enumerate(left):
                one.advance(replies, start)
        held = [one.holding(blur) for one in left]
        own = {name: np.stack([one[name] for one in held], axis=1) for name in held[0]}
        replies = yield Ask("left_out", personal=own, note="rows left out")
        reached = replies[by][trusted[replies.clients]].sum(axis=0)
        kept = np.sort(tied_order(-reached)[: len(left) // 2])
        left = [left[start] for start in kept]
    return left[0]
