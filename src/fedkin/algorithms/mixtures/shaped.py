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
from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms.mixtures.coordinator import largest_change
from fedkin.algorithms.mixtures.result import FedGremResult
from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import gaussian_mixture_starts as starts
from fedkin.models import shaped_mixture as shaped
from fedkin.models.latent_classes import best_restart, climb
from fedkin.protocol import Ask, Field, LastReplies, Program, Replies, Roster, Step
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
# Where the fit begins: sites differ by this share of the covariance, borrow as from so many rows.
FIRST_BETWEEN, FIRST_DEGREES, FIRST_TOTAL = 0.1, 100.0, 10.0

# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows")
_MEAN = "mean of the rows of every group; of a group of one row, that row"
_SCATTER = "scatter of the rows of every group about their mean, by kind of covariance"
OF_GROUPS = {
    "rows": ROWS,
    "counts": Field(("R",), "rows of every group"),
    "means": Field(("R", "d"), _MEAN),
    "scatter": Field(("R", "q"), _SCATTER),
    "loglik": Field((), "log likelihood of the site's rows"),
}
OF_STARTS = {
    "rows": ROWS,
    "counts": Field(("S", "R"), "rows of every group, for each start"),
    "means": Field(("S", "R", "d"), _MEAN),
    "scatter": Field(("S", "R", "q"), _SCATTER),
    "loglik": Field(("S",), "log likelihood of the site's rows, for each start"),
}
COLUMNS = {
    "rows": ROWS,
    "middle": Field(("d",), "mean of every column"),
    "variance": Field(("d",), "variance of every column"),
}
CLUSTERS = {
    "counts": Field(("R",), f"rows of a cluster; 0 for one of fewer than {LEAST_CLUSTER}"),
    "means": Field(("R", "d"), "means of the clusters"),
    "variance": Field((), "mean variance inside clusters, in units of the columns' spread"),
}
UNITS = {"units": Field(("d",), "typical spread of every column")}
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
    rows, n_groups = gaussian.prepare(scaled), settings.n_components
    if how == "ward":
        begin = starts.ward_start(rows, n_groups, "spherical")
    else:
        begin = starts.kmeans_start(rows, n_groups, settings.n_restarts, keys, "spherical")
    ended = best_restart(climb(rows, begin, gaussian.em_step, CLUSTER_PASSES, 1e-4)).parameters
    counts = gaussian.expect(rows, ended).counts
    counts = np.where(counts >= LEAST_CLUSTER, counts, 0.0)
    means = np.where(counts[..., None] > 0, ended.means, rows.centre[:, None]) * common["units"]
    return {"counts": counts, "means": means, "variance": ended.covariance}, memory


def labelled(clients, cache, settings, common, personal, memory, keys):
    """Counts, means and scatter of the rows whose labels are known."""
    found = shaped.labelled_moments(cache, settings.n_components)
    return _reply(cache, found, settings), memory


def shared_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under mixtures that all sites share, with the site's own weights."""
    groups = shaped.Groups(personal["weights"], common["means"][None], common["covariances"][None])
    found = shaped.expect(cache, groups)
    packed = borrowed.packed(found.scatter, settings.covariance_type)
    rows = cache.sizes.astype(float)
    reply = {"rows": rows, "counts": found.counts, "means": found.means, "scatter": packed}
    return {**reply, "loglik": found.loglik}, memory


def own_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under the site's own mixture."""
    own = (personal[name][:, None] for name in ("weights", "means", "covariances"))
    found = shaped.expect(cache, shaped.Groups(*own))
    found = shaped.Moments(*(part[:, 0] for part in found))
    return _reply(cache, found, settings), memory


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
    "seeds": Step(seeds, CLUSTERS, UNITS),
    "seeds_by_ward": Step(partial(seeds, how="ward"), CLUSTERS, UNITS),
    "labelled": Step(labelled, OF_GROUPS),
    "shared_moments": Step(shared_moments, OF_STARTS, SHARED, SHARED_OWN),
    "own_moments": Step(own_moments, OF_GROUPS, personal=OWN),
}


# ------------------------------------------------------------------ server program


class Borrowing:
    """What the server knows of every site, and what it makes of it."""

    def __init__(self, settings: Any, roster: Roster) -> None:
        self.settings, self.roster, self.kind = settings, roster, settings.covariance_type
        self.own_weights = not settings.shares_weights
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
            step, made = "seeds_by_ward" if settings.start == "ward" else "seeds", []
            # Columns compared as they are, and by their spread: neither suits all data.
            for by in (np.full_like(units, np.sqrt(np.square(units).mean())), units):
                replies = yield Ask(step, {"units": by}, note="clusters at the sites")
                made += self._starts(replies, by, known)
            yield from self._shared(made)
        self._depart()

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
        counts, points = replies["counts"], replies["means"] / units
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

    def _shared(self, found: list[borrowed.Common]) -> Generator[Ask, Replies, None]:
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
            loglik = replies.total("loglik")
            found = self._raised(found, replies)
            gain = (loglik - before) / max(replies.total("rows"), 1.0)
            kept = np.arange(len(found))
            if len(found) > 1 and number % ROUNDS_OF_ALL == 0:
                kept = np.sort(tied_order(-loglik)[: (len(found) + 1) // 2])
            found, before = [found[s] for s in kept], loglik[kept]
            if number > 2 and np.abs(gain[kept]).max() <= SHARED_TOL:
                break
        self.common = found[int(first_best(before, floor=RELATIVE))]

    def _raised(self, found: list[borrowed.Common], replies: Replies) -> list[borrowed.Common]:
        """The M-step of every start."""
        counts, means, scatter = self._of(replies)
        return [
            borrowed.learn(*(part[:, s] for part in (counts, means, scatter)), one, self.kind)
            for s, one in enumerate(found)
        ]

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
    history, at_rest, loglik = [], 0, np.full(len(roster), np.nan)
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
