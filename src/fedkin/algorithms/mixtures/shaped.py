"""FedGrEM with a covariance for every group: means, covariances and weights borrowed by degrees.

`covariance_type` "full", "diag" or "spherical" with the adaptive rule, and any of them with labels.
A site sends, for every group, how many rows it has, their mean and their scatter; the server finds
what groups have in common (`fedkin.shrinkage.borrowed`) and what each site's own values are then.

1. `columns`: mean and spread of every column, so that columns can be compared.
2. `seeds`: every site's rows in a few clusters. Clusters of few rows stay at the site.
3. `shared_moments`: one mixture for all sites from several starts made of these clusters, side by
   side (`shared_start`).
4. `own_moments`: sites depart from each of these, as far as their rows carry them; the mixture goes
   on from which they foretell rows that are left out best (`left_out`, `departures`).

With labels the groups of labelled rows are where it starts, and step 3 is left out if every group
has labels. Where all rows have labels, groups of a site may be moved alike
(`fedkin.shrinkage.site_shifts`), and left-out labels say whether covariances are the groups' own or
one for all, as in quadratic and linear discriminant analysis. A group without rows at a site has
the common mean (then moved as the site's others are) and covariance there.

Where some rows have labels and others not, a site has two sets of values of its own: of its groups,
from all of its rows, and of its classes, from its labelled rows alone. Rows settle in groups that
are likely and not quite the classes; what is common is still better known from all rows. Last,
labels of sites that are left out in turn say how sure of a class the fit may be (`surprise`,
`sureness`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms.mixtures.departures import (
    MOST,
    Departure,
    depart,
    likeliest,
    one_covariance,
    question,
    with_shifts,
)
from fedkin.algorithms.mixtures.foretold import (
    BLENDED,
    FORETOLD,
    WITH_TEMPERATURES,
    WITHOUT,
    blended,
    surprise,
)
from fedkin.algorithms.mixtures.result import FedGremResult
from fedkin.algorithms.mixtures.shared_start import CLUSTER_PASSES, SharedStart
from fedkin.algorithms.mixtures.sites import FAR, FAR_PRODUCTS, rows_with_labels
from fedkin.algorithms.mixtures.sureness import Sure, how_sure
from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import gaussian_mixture_starts as starts
from fedkin.models import shaped_mixture as shaped
from fedkin.models.latent_classes import best_restart, climb, to_posterior
from fedkin.models.left_out_rows import Holding
from fedkin.models.left_out_rows import left_out as left_out_rows
from fedkin.models.misfit import of_groups
from fedkin.protocol import MISFIT, Field, Program, Roster, Step, TracedReply
from fedkin.shrinkage import borrowed
from fedkin.shrinkage.outlier import outlier_score

# A cluster of fewer rows stays at the site.
LEAST_CLUSTER = 3

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
    "weights": Field(("S", "R"), "the site's weights, for each start"),
    "means": Field(("S", "R", "d"), "the site's means"),
    "covariances": Field(("S", "R", "d", "d"), "the site's covariances"),
}
HELD = {
    **OWN,
    "counts": Field(("S", "R"), "rows of every group"),
    "taken": Field(("S", "R"), "share of a group's own mean that the site keeps"),
    "total": Field(("S", "R"), "as from how many rows a group's covariance is known"),
    "usual": Field(("S", "R"), "rows that stand for the common weights"),
    "freedom": Field(("S", "R"), "degrees of freedom of Student's density"),
}
LEFT_OUT = {
    "rows": ROWS,
    "loglik": Field(("S",), "log likelihood of each row given the site's others, for each start"),
    "right": Field(("S",), "log probability of the rows' labels given the others, likewise"),
}

# ------------------------------------------------------------------ client functions


def columns(clients, cache, settings, common, personal, memory, keys):
    """Mean and variance of every column."""
    n_rows = np.maximum(cache.sizes, 1)[:, None]
    reply = {"rows": cache.sizes.astype(float), "middle": cache.centre}
    return {**reply, "variance": cache.squares / n_rows}, memory


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
    found = shaped.labelled_moments(cache, settings.n_components, settings.covariance_type)
    behind = partial(rows_with_labels, clients, settings, ABOUT_GROUPS)
    return TracedReply(_reply(cache, found), behind), memory


def _rows_of_groups(clients, cache, settings, groups):
    """How much every row counts in every group of every start, (N, S, R)."""
    each = []
    for s in range(groups.means.shape[1]):
        joint = shaped.log_joint(cache, shaped.Groups(*(part[:, s : s + 1] for part in groups)))
        joint = joint.T[None].copy()
        to_posterior(joint)
        each.append(joint[0].T)
    found = np.stack(each, axis=1)
    unlabelled = cache.unlabelled[:, None, None]
    misfit = [
        of_groups(partial(shaped.away, cache, groups, s), (found * unlabelled)[:, s], cache.sizes)
        for s in range(found.shape[1])
    ]
    if settings.labels and clients.y is not None:
        same = clients.y[:, None] == np.arange(found.shape[2])
        found = np.where((clients.y >= 0)[:, None, None], same[:, None].astype(float), found)
    return {**dict.fromkeys(ABOUT_GROUPS, found), MISFIT: np.stack(misfit, axis=1)}


def shared_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under mixtures that all sites share, with the site's own weights."""
    groups = shaped.Groups(personal["weights"], common["means"][None], common["covariances"][None])
    return _of_groups(clients, cache, settings, groups), memory


def own_moments(clients, cache, settings, common, personal, memory, keys):
    """The E-step under the site's own mixture."""
    own = (personal[name] for name in ("weights", "means", "covariances"))
    return _of_groups(clients, cache, settings, shaped.Groups(*own)), memory


def _of_groups(clients, cache, settings, groups):
    found = _reply(cache, shaped.expect(cache, groups, settings.covariance_type))
    return TracedReply(found, partial(_rows_of_groups, clients, cache, settings, groups))


def left_out(clients, cache, settings, common, personal, memory, keys):
    """How well the site's rows are foretold by its others."""
    names = ("weights", "means", "covariances"), ("counts", "taken", "total", "usual", "freedom")
    groups, held = ([personal[name] for name in some] for some in names)
    held[-1] = np.where(held[-1] < MOST, held[-1], np.inf)
    kind = settings.covariance_type
    found, right = left_out_rows(cache, shaped.Groups(*groups), Holding(*held), kind)
    return {"rows": cache.sizes.astype(float), "loglik": found, "right": right}, memory


def _reply(cache, found):
    return {
        "rows": cache.sizes.astype(float),
        "counts": found.counts,
        "means": found.means,
        "scatter": found.scatter,
        "loglik": found.loglik,
    }


STEPS = {
    "columns": Step(columns, COLUMNS),
    "seeds": Step(seeds, CLUSTERS, SEEDING),
    "seeds_by_ward": Step(partial(seeds, how="ward"), CLUSTERS, SEEDING),
    "labelled": Step(labelled, OF_LABELS),
    "shared_moments": Step(shared_moments, OF_STARTS, SHARED, SHARED_OWN),
    "own_moments": Step(own_moments, OF_STARTS, personal=OWN),
    "left_out": Step(left_out, LEFT_OUT, personal=HELD),
    "surprise": Step(surprise, FORETOLD, personal=WITHOUT, most=1),
    "blended": Step(blended, BLENDED, personal=WITH_TEMPERATURES, most=1),
}


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Any, aligned: Floats | None = None) -> Program:
    """Shared mixtures; sites depart from the one that suits them best until nothing moves.

    So they do from centres (R, d) to which groups that they found alone were `aligned`.
    """
    start, m = SharedStart(settings, roster), len(roster)
    shared = yield from start.begin(aligned)
    own_weights = settings.share_weights is False
    if start.all_named:
        shared = [with_shifts(one) for one in shared]
    units = start.typical
    ways = [Departure(one, settings.covariance_type, own_weights, m, units) for one in shared]
    if aligned is not None:
        yield from depart(ways[-1])
    if start.all_named and settings.covariance_type == "full":
        ways.append(Departure(one_covariance(shared[0]), "tied", own_weights, m, units))
    by = "right" if start.named else "loglik"
    fit = yield from likeliest(ways, start.trusted, start.turns, start.spread, by)
    history: list[float] = []
    at_rest, loglik = 0, np.full(m, np.nan)
    for _ in range(settings.max_rounds):
        note = f"moved {history[-1]:.1e}" if history else "sites depart"
        replies = yield question([fit], note, settings.fraction)
        history.append(fit.advance(replies, 0))
        at_rest = at_rest + 1 if history[-1] <= settings.tol else 0
        if at_rest >= settings.rounds_at_rest:
            break
    replies = yield question([fit], "sites settle", final=True)
    loglik[replies.clients] = replies["loglik"][:, 0]
    fit.implausible |= start.implausible
    found = result_of(fit, loglik, history, at_rest >= settings.rounds_at_rest)
    if not settings.labels:
        return found
    if start.named and not start.all_named:
        found = with_classes(found, fit, start.labelled)
    sure = yield from how_sure(fit, start, settings)
    return with_sureness(found, sure, start.labelled)


def result_of(
    fit: Departure, loglik: Floats, history: list[float], converged: bool
) -> FedGremResult:
    """The fit."""
    own, common, heard = fit.own, fit.common, fit.last.heard
    counts = np.where(heard[:, None], fit.counts, 0.0)
    members = np.where(heard[:, None], fit.members, 0.0)
    d = common.centers.shape[1]
    known = counts > borrowed.FEW
    spread = np.linalg.solve(common.covariances, borrowed.between_sites(common))
    predictive, freedom = borrowed.predictive(own, common, fit.kind)
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
        shift=common.shift,
        degrees=common.degrees,
        concentration=common.concentration,
        counts=counts,
        lacking=(members < 0.5) & heard[:, None],
        implausible=fit.implausible,
        between_variance=np.einsum("rii->r", spread) / d,
        outlier_score=outlier_score(own.distances.T, known.T, d),
        site_loglik=loglik,
        site_rows=np.where(heard, fit.last["rows"], 0.0),
        history_change=np.array(history),
        converged=np.array(converged),
    )


def with_classes(
    found: FedGremResult, fit: Departure, labelled: tuple[Floats, ...]
) -> FedGremResult:
    """The fit with what is a site's own where classes are asked, from moments of labelled rows."""
    own = fit.by_labels(*labelled)
    predictive, freedom = borrowed.predictive(own, fit.common, fit.kind)
    return replace(
        found,
        class_weights=np.array(own.weights),
        class_means=own.means,
        class_predictive=predictive,
        class_freedom=freedom,
    )


def with_sureness(found: FedGremResult, sure: Sure, labelled: tuple[Floats, ...]) -> FedGremResult:
    """The fit with what left-out labels say of its classes, and classes by labelled rows alone."""
    judged = np.array(sure.judged)
    found = replace(found, class_counts=labelled[0], temperatures=sure.temperatures, judged=judged)
    if sure.taught is None:
        return found
    common, kind = sure.taught.common, sure.taught.kind
    own = sure.taught.by_labels(*labelled)
    predictive, freedom = borrowed.predictive(own, common, kind)
    return replace(
        found,
        taught_weights=np.array(own.weights),
        taught_means=own.means,
        taught_predictive=predictive,
        taught_freedom=freedom,
        taught_centers=common.centers,
        taught_between=common.between,
        taught_covariances=common.covariances,
        taught_degrees=common.degrees,
        taught_concentration=common.concentration,
        taught_known=common.known,
        taught_shift=common.shift,
        taught_alike=np.array(kind == "tied"),
        taught_temperatures=sure.taught_temperatures,
        taught_share=sure.share,
    )
