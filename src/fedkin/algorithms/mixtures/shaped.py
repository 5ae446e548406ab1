"""FedGrEM with a covariance for every group: means, covariances and weights borrowed by degrees.

`covariance_type` "full", "diag" or "spherical" with the adaptive rule, and any of them with labels.
A site sends, for every group, how many rows it has, their mean and their scatter; the server finds
what groups have in common (`fedkin.shrinkage.borrowed`) and what each site's own values are then.

1. `columns`: mean and spread of every column, so that columns can be compared.
2. `seeds`: every site's rows in a few clusters. Clusters of few rows stay at the site.
3. `shared_moments`: one mixture for all sites from several starts made of these clusters, side by
   side, each site with weights of its own; the likeliest goes on.
4. `own_moments`: sites depart from it, as far as their rows carry them.

With labels the groups of labelled rows are where it starts, and step 3 is left out if every group
has labels. A group without rows at a site has the common mean and covariance there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms.mixtures.coordinator import largest_change
from fedkin.algorithms.mixtures.result import FedGremResult
from fedkin.algorithms.mixtures.sites import FAR, FAR_PRODUCTS
from fedkin.alignment import by_coordinates
from fedkin.arrays import Bools, Floats
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import gaussian_mixture_starts as starts
from fedkin.models import shaped_mixture as shaped
from fedkin.models.latent_classes import best_restart, climb, to_posterior
from fedkin.protocol import Ask, Field, LastReplies, Program, Replies, Roster, Step, TracedReply
from fedkin.shrinkage import borrowed
from fedkin.shrinkage.outlier import outlier_score
from fedkin.ties import RELATIVE, first_best, tied_order

# A cluster of fewer rows stays at the site.
LEAST_CLUSTER = 3
# Passes of a site's own clustering, and of the server's among clusters.
CLUSTER_PASSES = 20
# Rounds of the shared mixture in all, after how many the less likely half of the starts is given
# up, and the gain a row below which it has settled.
SHARED_ROUNDS, ROUNDS_OF_ALL, SHARED_TOL = 100, 10, 1e-4
# The most numbers of one round of the shared mixture: 160 MB of doubles.
MOST_NUMBERS = 2e7
# The most groups that are tried where none are given; ends when so many more in a row do not help.
MOST_GROUPS, WORSE_IN_A_ROW = 15, 2
# A site that has more than half of a group alone is left out of the shared mixture and departs from
# that of the others, if there are so many sites, it does not have so much of all rows, and no less
# than this share of the sites is left; the mixture is looked for so often at most.
LEAST_SITES, MOST_OF_ALL, MOST_TRUSTED, SEARCHES = 5, 0.25, 0.65, 3
# Where the fit begins: sites differ by this share of the covariance, borrow as from so many rows.
FIRST_BETWEEN, FIRST_DEGREES, FIRST_TOTAL = 0.1, 100.0, 10.0

# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows", least=0.0, reveals="count")
_MEAN = "mean of the rows of every group; of a group of one row, that row"
_SCATTER = "scatter of the rows of every group about their mean, by kind of covariance"
# A group with few rows behind it counts as without any: its mean is the one that was sent.
OF_GROUPS = {
    "rows": ROWS,
    "counts": Field(("R",), "rows of every group", least=0.0, reveals="count", empty=0.0),
    "means": Field(("R", "d"), _MEAN, reach=FAR, reveals="model", empty="means"),
    "scatter": Field(("R", "q"), _SCATTER, reach=FAR_PRODUCTS, reveals="products", empty=0.0),
    "loglik": Field((), "log likelihood of the site's rows"),
}
OF_LABELS = {**OF_GROUPS, "means": replace(OF_GROUPS["means"], empty=0.0)}
OF_STARTS = {
    "rows": ROWS,
    "counts": replace(
        OF_GROUPS["counts"], shape=("S", "R"), meaning="rows of every group, for each start"
    ),
    "means": replace(OF_GROUPS["means"], shape=("S", "R", "d")),
    "scatter": replace(OF_GROUPS["scatter"], shape=("S", "R", "q")),
    "loglik": Field(("S",), "log likelihood of the site's rows, for each start"),
}
COLUMNS = {
    "rows": ROWS,
    "middle": Field(("d",), "mean of every column", reveals="sums"),
    "variance": Field(("d",), "variance of every column", least=0.0, reveals="sums"),
}
CLUSTERS = {
    "counts": Field(
        ("R",),
        f"rows of a cluster; 0 for one of fewer than {LEAST_CLUSTER}",
        least=0.0,
        reveals="count",
        empty=0.0,
    ),
    "means": Field(("R", "d"), "means of the clusters", reveals="model", empty=0.0),
    "variance": Field(
        (), "mean variance inside clusters, in units of the columns' spread", least=0.0
    ),
}
# Fields with an entry for every group.
ABOUT_GROUPS = ("counts", "means", "scatter")
SEEDING = {
    "units": Field(("d",), "typical spread of every column"),
    "wanted": Field(("R",), "as many entries as clusters wanted"),
}
SHARED = {
    "means": Field(("S", "R", "d"), "means of the shared mixtures"),
    "covariances": Field(("S", "R", "d", "d"), "covariances of the shared mixtures"),
}
SHARED_OWN = {"weights": Field(("S", "R"), "weights of the shared mixtures")}
OWN = {
    "weights": Field(("R",), "the site's weights"),
    "means": Field(("R", "d"), "the site's means"),
    "covariances": Field(("R", "d", "d"), "the site's covariances"),
}


# ------------------------------------------------------------------ client functions


def prepare(clients: Federation, settings: Any) -> shaped.LabelledRows:
    """The sites' rows, and their labels."""
    return shaped.prepare(clients, settings.labels)


def columns(clients, cache, settings, common, personal, memory, keys):
    """Mean and variance of every column."""
    rows = cache.rows
    n_rows = np.maximum(rows.sizes, 1)[:, None]
    reply = {"rows": rows.sizes.astype(float), "middle": rows.centre}
    return {**reply, "variance": rows.squares / n_rows}, memory


def seeds(clients, cache, settings, common, personal, memory, keys, how="kmeans++"):
    """Clusters of a site's rows, by EM with one variance, in units of the columns' spread."""
    scaled = Federation(clients.X / common["units"], clients.offsets, clients.names)
    rows, n_groups = gaussian.prepare(scaled), len(common["wanted"])
    if how == "ward":
        begin = starts.ward_start(rows, n_groups, "spherical")
    else:
        begin = starts.kmeans_start(rows, n_groups, settings.n_restarts, keys, "spherical")
    ended = best_restart(climb(rows, begin, gaussian.em_step, CLUSTER_PASSES, 1e-4)).parameters
    counts = gaussian.expect(rows, ended).counts
    behind = partial(_rows_of_clusters, rows, ended)
    counts = np.where(counts >= LEAST_CLUSTER, counts, 0.0)
    means = np.where(counts[..., None] > 0, ended.means, rows.centre[:, None]) * common["units"]
    reply = {"counts": counts, "means": means, "variance": ended.covariance}
    return TracedReply(reply, behind), memory


def _rows_of_clusters(rows, ended):
    joint = gaussian.log_joint(rows, ended).T[None].copy()
    to_posterior(joint)
    return dict.fromkeys(("counts", "means"), joint[0].T)


def labelled(clients, cache, settings, common, personal, memory, keys):
    """Counts, means and scatter of the rows whose labels are known."""
    found = shaped.labelled_moments(cache, settings.n_components)
    behind = partial(_rows_with_labels, clients, settings)
    return TracedReply(_reply(cache, found, settings), behind), memory


def _rows_with_labels(clients, settings):
    same = clients.y[:, None] == np.arange(settings.n_components)
    return dict.fromkeys(ABOUT_GROUPS, same.astype(float))


def _rows_of_groups(clients, cache, settings, groups):
    """How much every row counts in every group of every start, (N, S, R)."""
    each = []
    for s in range(groups.means.shape[1]):
        joint = shaped.log_joint(cache, shaped.Groups(*(part[:, s : s + 1] for part in groups)))
        joint = joint.T[None].copy()
        to_posterior(joint)
        each.append(joint[0].T)
    found = np.stack(each, axis=1)
    if settings.labels and clients.y is not None:
        same = clients.y[:, None] == np.arange(found.shape[2])
        found = np.where((clients.y >= 0)[:, None, None], same[:, None].astype(float), found)
    return dict.fromkeys(ABOUT_GROUPS, found)


def _rows_of_own_groups(clients, cache, settings, groups):
    """Likewise of a site's own mixture, (N, R)."""
    shares = _rows_of_groups(clients, cache, settings, groups)["means"][:, 0]
    return dict.fromkeys(ABOUT_GROUPS, shares)


def shared_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under mixtures that all sites share, with the site's own weights."""
    groups = shaped.Groups(personal["weights"], common["means"][None], common["covariances"][None])
    found = shaped.expect(cache, groups)
    packed = borrowed.packed(found.scatter, settings.covariance_type)
    rows = cache.sizes.astype(float)
    reply = {"rows": rows, "counts": found.counts, "means": found.means, "scatter": packed}
    behind = partial(_rows_of_groups, clients, cache, settings, groups)
    return TracedReply({**reply, "loglik": found.loglik}, behind), memory


def own_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under the site's own mixture."""
    own = (personal[name][:, None] for name in ("weights", "means", "covariances"))
    groups = shaped.Groups(*own)
    found = shaped.expect(cache, groups)
    found = shaped.Moments(*(part[:, 0] for part in found))
    behind = partial(_rows_of_own_groups, clients, cache, settings, groups)
    return TracedReply(_reply(cache, found, settings), behind), memory


def _reply(cache, found, settings):
    return {
        "rows": cache.sizes.astype(float),
        "counts": found.counts,
        "means": found.means,
        "scatter": borrowed.packed(found.scatter, settings.covariance_type),
        "loglik": found.loglik,
    }


STEPS = {
    "columns": Step(columns, COLUMNS),
    "seeds": Step(seeds, CLUSTERS, SEEDING),
    "seeds_by_ward": Step(partial(seeds, how="ward"), CLUSTERS, SEEDING),
    "labelled": Step(labelled, OF_LABELS),
    "shared_moments": Step(shared_moments, OF_STARTS, SHARED, SHARED_OWN),
    "own_moments": Step(own_moments, OF_GROUPS, personal=OWN),
}


# ------------------------------------------------------------------ server program


class Borrowing:
    """What the server knows of every site, and what it makes of it."""

    def __init__(self, settings: Any, roster: Roster) -> None:
        self.settings, self.roster, self.kind = settings, roster, settings.covariance_type
        self.own_weights = not settings.shares_weights
        self.trusted: Bools = np.ones(len(roster), dtype=bool)
        self.shares = np.empty((len(roster), 0))
        self.last = LastReplies(len(roster))
        self.common: borrowed.Common
        self.own: borrowed.Posterior

    # ------------------------------------------------------------ the start

    def begin(self) -> Generator[Ask, Replies, None]:
        """The mixture from which sites depart."""
        settings, given = self.settings, self.settings.given_start
        replies = yield Ask("columns", note="spread of the columns")
        units = spread_of(replies)
        known = None
        if settings.labels:
            replies = yield Ask("labelled", note="groups with labels")
            known = self._of(replies)
        if given is not None:
            centers = given if given.ndim == 2 else np.median(given, axis=0)
            yield from self._shared([self._at(centers, np.square(units) * FIRST_BETWEEN)])
        elif known is not None and (known[0].sum(axis=0) > 0).all():
            self.common = self._first(*known, np.square(units))
        else:
            if settings.n_components is None:
                yield from self._choose(units)
            else:
                yield from self._search(settings.n_components, units, known)
            if known is None:
                self._put_in_order()
        self._depart()

    def _put_in_order(self) -> None:
        """The order of groups is that of their centres, not of the starts."""
        order, *parts = by_coordinates(self.common.centers), *self.common
        turned = (part[order] if part.ndim else part for part in parts)
        self.common = borrowed.Common(*turned)

    def _choose(self, units: Floats) -> Generator[Ask, Replies, None]:
        """As many groups as the shared mixture has the least BIC with."""
        best, worse = np.inf, 0
        for n_groups in range(1, MOST_GROUPS + 1):
            loglik, n_rows = yield from self._search(n_groups, units)
            criterion = n_parameters(n_groups, len(units), self.kind) * np.log(n_rows) - 2 * loglik
            worse = worse + 1 if criterion >= best else 0
            if criterion < best:
                best, chosen = criterion, self.common
            if worse >= WORSE_IN_A_ROW:
                break
        self.common = chosen

    def _search(
        self, n_groups: int, units: Floats, known: Any = None
    ) -> Generator[Ask, Replies, tuple[float, float]]:
        """The likeliest shared mixture; without sites that have a group of it for themselves."""
        self.trusted[:] = True
        for _ in range(SEARCHES):
            found = yield from self._search_once(n_groups, units, known)
            alone = alone_in_a_group(self.shares * self.trusted[:, None])
            if not alone.any() or (self.trusted & ~alone).mean() < MOST_TRUSTED:
                break
            self.trusted &= ~alone
        return found

    def _search_once(
        self, n_groups: int, units: Floats, known: Any = None
    ) -> Generator[Ask, Replies, tuple[float, float]]:
        """The likeliest shared mixture from starts among the clusters of trusted sites."""
        step, made = "seeds_by_ward" if self.settings.start == "ward" else "seeds", []
        # Columns compared as they are, and by their spread: neither suits all data.
        for by in (np.full_like(units, np.sqrt(np.square(units).mean())), units):
            common = {"units": by, "wanted": np.zeros(n_groups)}
            replies = yield Ask(step, common, note="clusters at the sites")
            made += self._starts(replies, by, known)
        return (yield from self._shared(made))

    def _first(self, counts: Floats, means: Floats, scatter: Floats, spread: Floats):
        """What labelled groups have in common, sites put together."""
        n_groups = counts.shape[1]
        first = self._at(np.zeros((n_groups, len(spread))), spread)
        return borrowed.learn(counts, means, scatter, first, self.kind)

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
            points, weights = points.mean(axis=1), np.ones(m)
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

    def _shared(self, found: list[borrowed.Common]) -> Generator[Ask, Replies, tuple[float, float]]:
        """EM of mixtures that all sites share, from several starts; the likeliest stays.

        Weights are common, too: with weights of their own, groups would become kinds of sites.
        """
        m, n_groups = len(self.roster), len(found[0].centers)
        before = np.full(len(found), -np.inf)
        for number in range(1, SHARED_ROUNDS + 1):
            common = {
                "means": np.stack([one.centers for one in found]),
                "covariances": np.stack([one.covariances for one in found]),
            }
            even = np.stack([one.concentration / one.concentration.sum() for one in found])
            weights = np.tile(even, (m, 1, 1)).reshape(m, len(found), n_groups)
            replies = yield Ask(
                "shared_moments", common, {"weights": weights}, note="shared mixture"
            )
            heard = self.trusted[replies.clients]
            loglik = replies["loglik"][heard].sum(axis=0)
            found = self._raised(found, replies, alike=number <= ROUNDS_OF_ALL)
            gain = (loglik - before) / max(replies.total("rows"), 1.0)
            kept = np.arange(len(found))
            if len(found) > 1 and number % ROUNDS_OF_ALL == 0:
                kept = np.sort(tied_order(-loglik)[: (len(found) + 1) // 2])
            found, before = [found[s] for s in kept], loglik[kept]
            if number > ROUNDS_OF_ALL + 1 and np.abs(gain[kept]).max() <= SHARED_TOL:
                break
        best = int(first_best(before, floor=RELATIVE))
        self.common = found[best]
        self.shares = np.zeros((m, n_groups))
        self.shares[replies.clients] = replies["counts"][:, kept[best]]
        return float(before[best]), float(replies["rows"][heard].sum())

    def _raised(
        self, found: list[borrowed.Common], replies: Replies, alike: bool
    ) -> list[borrowed.Common]:
        """The M-step of every start; of every other at first with one covariance for all groups.

        A group that may be as wide as it likes can swallow others before they are found.
        """
        parts, heard = self._of(replies), self.trusted[replies.clients]
        made = []
        for s, one in enumerate(found):
            counts, means, scatter = (part[heard, s] for part in parts)
            together = alike and s % 2 == 0
            made.append(borrowed.learn(counts, means, scatter, one, self.kind, together))
        return made

    # ------------------------------------------------------------ rounds

    def _depart(self) -> None:
        """Sites begin at the common values."""
        m, (n_groups, d) = len(self.roster), self.common.centers.shape
        nothing = np.zeros((m, n_groups))
        self.own = borrowed.posterior(
            nothing,
            np.zeros((m, n_groups, d)),
            np.zeros((m, n_groups, d, d)),
            self.common,
            self.kind,
            self.own_weights,
        )

    def ask(self, note: str, fraction: float = 1.0, final: bool = False) -> Ask:
        """Every site's own mixture goes out."""
        weights, covariances = self.own.weights, self.own.covariances
        if not final and "counts" in self.last:
            counts = self.last["counts"]
            weights, covariances = borrowed.working(
                self.own, self.common, counts, self.kind, self.own_weights
            )
        own = {
            "weights": np.ascontiguousarray(weights),
            "means": self.own.means,
            "covariances": np.ascontiguousarray(covariances),
        }
        return Ask("own_moments", personal=own, fraction=fraction, note=note)

    def combine(self) -> None:
        """What is common, and every site's own values given it."""
        counts, means, scatter = self._of_all()
        heard = self.last.heard
        seen = counts[heard], means[heard], scatter[heard]
        self.common = borrowed.learn_own(*seen, self.common, self.kind, self.own_weights)
        self.own = borrowed.posterior(
            counts, means, scatter, self.common, self.kind, self.own_weights
        )

    def _of(self, replies: Any) -> tuple[Floats, Floats, Floats]:
        means = replies["means"]
        scatter = borrowed.unpacked(replies["scatter"], means.shape[-1], self.kind)
        return replies["counts"], means, scatter

    def _of_all(self) -> tuple[Floats, Floats, Floats]:
        return self._of(self.last)

    def result(self, loglik: Floats, history: list[float], converged: bool) -> FedGremResult:
        """The fit."""
        own, common, heard = self.own, self.common, self.last.heard
        counts = np.where(heard[:, None], self.last["counts"], 0.0)
        d = common.centers.shape[1]
        known = counts > borrowed.FEW
        spread = np.linalg.solve(common.covariances, common.between)
        predictive, freedom = borrowed.predictive(own, common, self.kind)
        return FedGremResult(
            components=own.means,
            centers=common.centers,
            weights=np.array(own.weights),
            scale=np.array(own.covariances),
            known=common.known,
            predictive=predictive,
            freedom=freedom,
            covariances=common.covariances,
            between=common.between,
            degrees=common.degrees,
            concentration=common.concentration,
            counts=counts,
            lacking=(counts < 0.5) & heard[:, None],
            between_variance=np.einsum("rii->r", spread) / d,
            outlier_score=outlier_score(own.distances.T, known.T, d),
            site_loglik=loglik,
            site_rows=np.where(heard, self.last["rows"], 0.0),
            history_change=np.array(history),
            converged=np.array(converged),
        )


def program(roster: Roster, settings: Any) -> Program:
    """A shared mixture; sites depart from it until nothing moves."""
    server = Borrowing(settings, roster)
    yield from server.begin()
    history: list[float] = []
    at_rest, loglik = 0, np.full(len(roster), np.nan)
    for _ in range(settings.max_rounds):
        note = f"moved {history[-1]:.1e}" if history else "sites depart"
        replies = yield server.ask(note, settings.fraction)
        server.last.hear(replies)
        before = server.own.means
        server.combine()
        history.append(largest_change(before, server.own.means))
        at_rest = at_rest + 1 if history[-1] <= settings.tol else 0
        if at_rest >= settings.rounds_at_rest:
            break
    replies = yield server.ask("sites settle", final=True)
    loglik[replies.clients] = replies["loglik"]
    return server.result(loglik, history, at_rest >= settings.rounds_at_rest)


# ------------------------------------------------------------------ starts among clusters


def alone_in_a_group(counts: Floats) -> Bools:
    """Sites (m,) that have more than half of the rows (m, R) of a group, and not half of all.

    Of few sites, each has a large part of every group.
    """
    m, whole = len(counts), np.maximum(counts.sum(axis=0), 1e-300)
    alone: Bools = (counts / whole > 0.5).any(axis=1)
    large = counts.sum(axis=1) > MOST_OF_ALL * np.maximum(counts.sum(), 1e-300)
    return alone & ~large if m >= LEAST_SITES else np.zeros(m, dtype=bool)


def n_parameters(n_groups: int, d: int, kind: str) -> int:
    """Numbers that a mixture shared by all sites is made of."""
    whole = d * (d + 1) // 2
    of_each = {"full": whole, "diag": d, "spherical": 1}.get(kind, 0)
    return n_groups * (1 + d + of_each) - 1 + (whole if kind == "tied" else 0)


def spread_of(replies: Replies) -> Floats:
    """Typical spread of every column, (d,): within sites and between them."""
    rows, middle = replies["rows"][:, None], replies["middle"]
    total = np.maximum(rows.sum(), 1.0)
    mean = (rows * middle).sum(axis=0) / total
    variance = (rows * (replies["variance"] + np.square(middle - mean))).sum(axis=0) / total
    return np.sqrt(np.where(variance > 0, variance, 1.0))


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
