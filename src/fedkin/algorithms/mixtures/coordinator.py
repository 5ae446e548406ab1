"""The server's half of the methods for groups inside sites: what it knows, sends and hears.

The methods differ in what the server makes of the sites' estimates: each is a `Coordinator` with a
`combine` of its own. A site that is not asked or not heard keeps its place: the server uses its
last estimate. One that missed the start begins, when it first answers, at what it is then sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar

import numpy as np

from fedkin.algorithms.mixtures.families import family_of
from fedkin.algorithms.mixtures.federated_start import federated_start
from fedkin.algorithms.mixtures.result import JoinedResult
from fedkin.alignment import align
from fedkin.arrays import Array, Arrays, Bools, Floats
from fedkin.models.gaussian_mixture import SAME_VALUE
from fedkin.protocol import Ask, LastReplies, Replies, Roster, over_roster

# Sites with this many times the median site's scatter a row, or less than one over this many, have
# no say in a common covariance. R components fitted to n rows leave 1 - R/n of the scatter, so that
# an honest site falls short only with fewer than 1.5 R rows; it would make the covariance smaller
# than it is, and is missed by no more than these rows.
ODD_SCATTER = 3.0
# No site counts for more rows than this many times the median site: a count is a claim that nobody
# can check. A site's pull on the centre grows as the root of its rows, to that of 4.5 sites here;
# what an honest site of more rows would add to a centre or a covariance of all is little by then.
MOST_ROWS_OF_MEDIAN = 20.0
# Eigenvalues of a common covariance are at least this share of their mean.
SMALLEST_EIGENVALUE_SHARE = 1e-6
# A mean variance below this share of that between a site's components is rounding, whatever the
# unit of the data.
NO_SCATTER = 1e-12
# Keeps a division by the size of nothing at all defined.
TINY = 1e-300


class Coordinator(ABC):
    """What the server knows of every site, and what it makes of it.

    Attributes
    ----------
    last : every site's last replies; NaN for what it never sent
    begun : components (m, R, p) at which a site that sent none stands
    shared, centers : what `combine` made: components that sites get (m, R, p), and their centre
    order : which of a site's components is our r-th, (m, R), as long as it has not been told
    covariance, noise : what sites share; empty if they share none
    """

    improving: ClassVar[str] = "improve"

    def __init__(self, settings: Any, roster: Roster) -> None:
        m, n_components = len(roster), settings.n_components
        self.settings, self.roster, self.family = settings, roster, family_of(settings)
        self.last = LastReplies(m, missing=np.nan)
        self.begun = self.shared = np.empty((m, n_components, 0))
        self.centers: Floats | None = None
        self.order = np.tile(np.arange(n_components), (m, 1))
        self.ambiguous: Bools = np.zeros(m, dtype=bool)
        self.covariance, self.noise = np.empty((0, 0)), np.empty(0)
        self.outlier_score: Array = np.full(m, np.nan)
        self.between_variance = np.full(n_components, np.nan)

    @abstractmethod
    def combine(self) -> None:
        """Set `shared` and `centers` from the estimates; new arrays each time."""

    # ------------------------------------------------------------ what is known

    @property
    def estimates(self) -> Floats:
        """Every site's last components, (m, R, p)."""
        if "components" not in self.last:
            return self.begun
        sent = self.last["components"]
        return sent if not len(self.begun[0, 0]) else np.where(np.isnan(sent), self.begun, sent)

    @property
    def rows(self) -> Floats:
        """Rows that every site claims, (m,)."""
        return np.nan_to_num(self.last["rows"])

    @property
    def counted_rows(self) -> Floats:
        """Rows for which every site counts, (m,): those it claims, up to MOST_ROWS_OF_MEDIAN."""
        known = self.rows[self.rows > 0]
        most = MOST_ROWS_OF_MEDIAN * np.median(known) if known.size else 0.0
        return np.clip(self.rows, 0.0, most)

    # ------------------------------------------------------------ what goes out

    @property
    def fields(self) -> tuple[str, ...]:
        """What leaves the sites besides components."""
        return self.family.sent_for_scale

    @property
    def common(self) -> Arrays:
        """The covariance and the noise that all sites share, if they do."""
        return {"covariance": self.covariance, "noise": self.noise}

    @property
    def personal(self) -> Arrays:
        """Components, the order a site has to learn, and weights if the server sends them."""
        nothing = np.empty((len(self.order), 0))
        return {"components": self.shared, "order": self.order, "weights": nothing}

    @property
    def usual(self) -> Arrays:
        """How much components differ between sites, where a coordinator can tell."""
        n_estimates = self.last.heard.sum() * self.order.shape[1]
        return {"between": np.empty(0), "n_estimates": np.array(float(n_estimates))}

    def ask(self, note: str, fraction: float = 1.0) -> Ask:
        """The question of a round."""
        return Ask(
            self.improving,
            self.common,
            self.personal,
            fields=self.fields,
            fraction=fraction,
            note=note,
        )

    @property
    def last_question(self) -> Ask:
        """What sites are asked when nothing moves any more."""
        note = "sites settle their weights"
        return Ask("settle", self.common, self.personal, fields=self.last_fields, note=note)

    @property
    def last_fields(self) -> tuple[str, ...]:
        """What leaves the sites then besides their likelihoods."""
        return ()

    # ------------------------------------------------------------ what comes in

    def hear(self, replies: Replies) -> None:
        """Take what sites sent in our order; they have put their memory in it, too."""
        self.order[replies.clients] = np.arange(self.order.shape[1])
        self.last.hear(replies)
        if "scatter" in replies:
            self.covariance = self.pooled_covariance()
        if "residual" in replies:
            noise = np.sqrt(np.nanmedian(self.last["residual"], keepdims=True))
            # Rows that lie on their regressions have none, which no density has: the last stays.
            self.noise = noise if noise[0] > 0 else self.noise

    def hear_in_any_order(self, replies: Replies) -> None:
        """Take what sites that fitted alone sent, each in an order of its own."""
        aligned = align(replies["components"], self.settings.align)
        order, sent = aligned.permutations, dict(replies)
        for name in {"components", "variances", "weights"} & set(sent):
            turn = order[..., None] if sent[name].ndim == 3 else order
            sent[name] = np.take_along_axis(sent[name], turn, axis=1)
        self.hear(Replies(replies.clients, sent))
        self.order[replies.clients] = order
        self.ambiguous[replies.clients] = aligned.ambiguous

    def pooled_covariance(self) -> Floats:
        """The covariance common to all sites and components, from every site's scatter."""
        scatter, rows, counted = self.last["scatter"], self.rows, self.counted_rows
        trace = np.trace(scatter, axis1=1, axis2=2) / np.maximum(rows, 1.0)
        typical = np.median(trace[rows > 0])
        alike = (trace <= ODD_SCATTER * typical) & (trace >= typical / ODD_SCATTER)
        used = alike & (rows > 0)
        share = (counted[used] / rows[used])[:, None, None]
        pooled = (share * scatter[used]).sum(axis=0) / counted[used].sum()
        values, vectors = np.linalg.eigh(pooled)
        # As many groups as rows leave no scatter but rounding: nothing is known, so the identity.
        some = values.mean() > self._no_scatter()
        floor = SMALLEST_EIGENVALUE_SHARE * values.mean() if some else 1.0
        return (vectors * np.maximum(values, floor)) @ vectors.T

    def _no_scatter(self) -> float:
        """A mean variance that the median site's components show to be rounding."""
        heard = self.estimates[self.last.heard]
        between = np.median(heard.var(axis=1).mean(axis=1))
        size = np.median((heard**2).mean(axis=(1, 2)))
        return float(NO_SCATTER * between + SAME_VALUE**2 * size)

    # ------------------------------------------------------------ the start and the end

    def begin(self) -> Generator[Ask, Replies, None]:
        """Every site's first estimates in one order, or given or shared ones."""
        settings = self.settings
        if settings.given_start is not None:
            yield from self._begin_at(settings.given_start)
        elif settings.labels:
            yield from self._begin_at_classes()
        elif settings.start == "federated":
            shared, sigma = yield from federated_start(self.roster, settings)
            self.noise = np.array([sigma])
            yield from self._begin_at(shared)
        else:
            yield from self._begin_alone()

    def _begin_alone(self) -> Generator[Ask, Replies, None]:
        """Sites fit alone; then, if wanted, once more, also from the median of all."""
        step = "start_by_ward" if self.settings.start == "ward" else "start"
        self.hear_in_any_order((yield Ask(step, fields=self.fields, note="sites fit alone")))
        if self.settings.second_fit:
            common = {**self.common, "centers": self.middle, **self.usual}
            personal = {"order": self.order}
            again = Ask("start_again", common, personal, self.fields, note="sites fit again")
            self.hear_in_any_order((yield again))
        self.begun = np.broadcast_to(self.middle, self.last["components"].shape)
        self.shared = self.estimates

    @property
    def middle(self) -> Floats:
        """The median over the sites that were heard, (R, p)."""
        return np.median(self.estimates[self.last.heard], axis=0)

    def _begin_at(self, components: Floats) -> Generator[Ask, Replies, None]:
        """Everybody begins at the same components (R, p), or at given ones per site (m, R, p)."""
        shape = (len(self.order), *components.shape[-2:])
        self.begun = self.shared = np.array(np.broadcast_to(components, shape))
        if "scatter" in self.fields:
            # Not wider than the components lie apart: in small units all rows would look alike.
            between = float(components.var(axis=-2).mean())
            self.covariance = (min(between, 1.0) or 1.0) * np.eye(components.shape[-1])
        self.hear((yield self.ask("first step")))

    def _begin_at_classes(self) -> Generator[Ask, Replies, None]:
        """Everybody begins at the means of all rows of a class; of one that nobody has, of all."""
        replies = yield Ask("classes", note="groups with labels")
        total = replies["class_rows"].sum(axis=0)
        sums = np.einsum("mr,mrp->rp", replies["class_rows"], replies["class_means"])
        every = sums.sum(axis=0) / max(total.sum(), 1.0)
        means = sums / np.where(total > 0, total, 1.0)[:, None]
        yield from self._begin_at(np.where((total > 0)[:, None], means, every))

    def _still_ambiguous(self) -> Bools:
        """Sites whose groups could be matched otherwise at the start, and still can at the end.

        What the fit has made clear since then costs nothing.
        """
        assert self.centers is not None
        ended = align(self.shared, reference=self.centers).ambiguous
        still: Bools = self.ambiguous & ended
        return still

    def result(self, replies: Replies, history: list[float], converged: bool) -> JoinedResult:
        """The fit, when the sites have settled their weights."""
        assert self.centers is not None
        m = len(self.order)
        halvings = self.last["halvings"] if "halvings" in self.last else np.zeros(m)
        return JoinedResult(
            components=self.shared,
            centers=self.centers,
            covariance=self.covariance,
            noise=self.noise,
            between_variance=self.between_variance,
            outlier_score=self.outlier_score,
            ambiguous=self._still_ambiguous(),
            halvings=np.nan_to_num(halvings),
            site_loglik=over_roster(replies["loglik"], replies.clients, m),
            site_rows=self.rows,
            history_change=np.array(history),
            converged=np.array(converged),
        )


def largest_change(before: Floats, after: Floats) -> float:
    """The largest change of a site's numbers (m, R, p), relative to its size or the median site's.

    Relative to the largest number of all, one site with huge values would end everybody's fit.
    """
    size = np.abs(after).max(axis=(1, 2))
    moved = np.abs(after - before).max(axis=(1, 2))
    return float((moved / np.maximum(np.maximum(size, np.median(size)), TINY)).max())
