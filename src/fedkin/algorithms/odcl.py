"""ODCL: sites of a kind in one round (Armacki, Bajovic, Jakovetic, Kar 2024, Algorithm 1).

Every site fits its own model and sends it; the server clusters the models and averages clusters.

| paper | here |
|---|---|
| theta_i hat, f_i | `model` of a site, its loss (`models.local_loss`) |
| Xi, eta | `clustering`, `n_clusters` or `penalty` |
| C'_k, theta_k tilde | `labels`, `cluster_models` |
| I-ODCL, T (section 4.4) | `solver="sgd"`, `n_steps` |
| oracle averaging, naive averaging, local ERM | `given_clusters`: "true", "one", "own" |

Where we differ from the paper
- The number of clusters is chosen, up to every site alone: by BIC, and by the errors to be expected
  at further rows (`odcl_choice`). That needs the sites' sums of products (squared loss), or a
  covariance with each model (n >= d + 5 rows and 200 coefficients at most). Where sites send models
  alone the silhouette decides, with a gap test against one cluster.
- Sites that cannot carry a model of their own join where their rows are likeliest, and are named.
- `aggregate`: "precision" is the default and weighs sites by what they know ("auto"; without
  covariances it is "size"); "mean" is the paper's, in which one site of two rows has as much say as
  one of 600; "median" bears wild sites; "statistics" pools X'X and X'y of the cluster, which is
  what training on its joint rows would give (half the error at n = 2.5 d).
- Fewer than twice as many rows as coefficients: models are useless as points (error .4 at
  n = d / 2), so sites are clustered by what a shared model predicts of them (error .005, that of
  known clusters).
- `robust`: sites far from every neighbour are set aside and named, and keep their own model.
- `refine_rounds`: sites choose the model that fits them best and clusters are averaged again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedkin.algorithms import better_off
from fedkin.algorithms.clustered_result import NO_CLUSTER, ClusteredResult
from fedkin.algorithms.odcl_choice import expected_beside
from fedkin.algorithms.odcl_errors import cluster_errors, new_targets
from fedkin.algorithms.odcl_evidence import LEAST_FREEDOM
from fedkin.algorithms.odcl_groups import Grouping
from fedkin.algorithms.odcl_rivals import RIVALS, in_words, rival_bics
from fedkin.algorithms.odcl_settings import ASKED, SUMS, OdclSettings
from fedkin.algorithms.odcl_sites import Sites, group_sites
from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.descent import lots_of, sgd, times_drawn
from fedkin.models.least_squares import upper_triangle
from fedkin.models.local_loss import LocalLoss, local_loss
from fedkin.names import listed
from fedkin.protocol import Algorithm, Ask, Field, Program, Roster, Step, TracedReply
from fedkin.protocol.runs import About
from fedkin.tables import Table
from fedkin.ties import first_least

# A covariance of more coefficients than this is not sent: 160 kB a site.
MOST_COVARIANCES = 200

# ------------------------------------------------------------------ what leaves a client

MODEL = Field(("d",), "coefficients of the site's own fit, the intercept last", reveals="model")
ROWS = Field((), "number of rows", least=0.0, reveals="count")
COVARIANCE = Field(
    ("u",),
    "sampling covariance of that fit, upper triangle; zeros where the rows do not give one",
    reveals="products",
)
STATISTICS = Field(
    ("q",),
    "sums over the site's rows of products of features and target, and n",
    reveals="products",
)
CHOICE = Field((), "which of the shared models fits the site's rows best", bound=1e9, least=0.0)

MODELS = {"models": Field(("K", "d"), "the shared model of every cluster")}


def question(word: str) -> Ask:
    """The question after one of the words of `ASKED`."""
    step, *besides = ASKED[word]
    return Ask(step, fields=tuple(besides), note="sites fit their own models")


# ------------------------------------------------------------------ client functions


def prepare(clients: Federation, settings: Any) -> LocalLoss:
    """The clients behind their loss."""
    return local_loss(clients, settings.loss, settings.fit_intercept, settings.alpha)


def _own_models(clients, local, settings, memory, keys):
    """Every client's fit (m, d): exact, or by stochastic steps; made once and remembered."""
    if memory is not None:
        return memory["model"]
    if settings.solver == "exact":
        return local.fit()
    how = (settings.n_steps, settings.batch_size, settings.iterate, settings.radius)
    return sgd(clients, local, keys, *how)


def _packed_covariances(local: LocalLoss, models: Floats) -> Floats:
    """Upper triangles (m, u) of the fits' covariances; (m, 0) where they would be too long."""
    d = models.shape[1]
    if d > MOST_COVARIANCES:
        return np.zeros((len(models), 0))
    covariances = local.covariances(models)
    covariances[local.sizes < d + LEAST_FREEDOM] = 0.0
    upper = upper_triangle(d)
    return covariances[:, upper[0], upper[1]]


def _described(clients, cache, settings, memory, keys, fields):
    """What of the site's own fit is asked for, and the memory with that fit."""
    if "model" not in fields:
        return ({"statistics": cache.statistics.copy()} if "statistics" in fields else {}), memory
    models = _own_models(clients, cache, settings, memory, keys)
    reply = {"model": models}
    if "rows" in fields:
        reply["rows"] = np.array(cache.sizes)
    if "covariance" in fields:
        reply["covariance"] = _packed_covariances(cache, models)
    if "statistics" in fields:
        long = models.shape[1] > MOST_COVARIANCES
        reply["statistics"] = cache.statistics[:, : 0 if long else None].copy()
    if settings.solver != "exact" and memory is None:
        reply = TracedReply(reply, partial(_rows_drawn, clients, settings, keys))
    return reply, {"model": models}


def _rows_drawn(clients, settings, keys):
    """A model of a few steps is about the rows that these drew."""
    filled = np.flatnonzero(clients.sizes > 0)
    lots = lots_of(keys, settings.n_steps, settings.batch_size, filled)
    return {"model": times_drawn(clients, lots, filled)}


def _model(clients, cache, settings, common, personal, memory, keys, fields=()):
    return _described(clients, cache, settings, memory, keys, ("model", *fields))


def _statistics(clients, cache, settings, common, personal, memory, keys):
    return _described(clients, cache, settings, memory, keys, ("statistics",))


def _choose(clients, cache, settings, common, personal, memory, keys, fields=()):
    """Which shared model fits best; with the own fit of sites that may not have been heard yet."""
    choice = first_least(cache.losses(common["models"]), axis=1).astype(np.float64)
    reply, memory = _described(clients, cache, settings, memory, keys, fields)
    return {"choice": choice, **reply}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: OdclSettings) -> Program:
    """Collect the models, cluster them, average; refine if asked to."""
    rng = np.random.default_rng([roster.seed, 0x0DC1])
    truth = settings.true_clusters(roster.names)
    sites = Sites(len(roster), settings)
    sites.hear((yield question(settings.sent)))
    grouping = group_sites(sites, truth, rng)
    labels = grouping.labels.copy()
    aside = sites.heard & (labels == NO_CLUSTER)
    n_clusters = int(labels.max()) + 1
    models = sites.average(labels, n_clusters)
    changes = []
    for _ in range(settings.refine_rounds):
        fields = () if sites.all_heard else ASKED[settings.sent]
        ask = Ask("choose", {"models": models}, fields=fields, note="sites choose")
        replies = yield replace(ask, fraction=settings.fraction)
        if fields:
            sites.hear(replies)
        before, choice = labels.copy(), replies["choice"]
        free = sites.heard[replies.clients] & ~aside[replies.clients]
        free &= np.isin(choice, np.arange(n_clusters))
        labels[replies.clients[free]] = choice[free].astype(np.intp)
        changes.append((labels != before).sum())
        again = sites.average(labels, n_clusters)
        models = np.where(np.isfinite(again), again, models)
    return _result(sites, grouping, labels, aside, models, np.array(changes, dtype=np.float64))


def _result(
    sites: Sites,
    grouping: Grouping,
    labels: Indices,
    aside: Bools,
    models: Floats,
    changes: Floats,
) -> OdclResult:
    own = np.where(sites.heard[:, None], sites.models, np.nan)
    evidence = sites.evidence()
    if evidence is not None and sites.settings.given_clusters is None:
        clustered = np.flatnonzero(labels >= 0)
        rivals = rival_bics(evidence.take(clustered), labels[clustered])
    else:
        rivals = None
    joined = np.where((labels >= 0)[:, None], models[np.maximum(labels, 0)], own)
    shares = sites.settings.given_clusters != "own" and (labels >= 0).sum() > 1
    beside = None
    if evidence is not None and shares:
        clustered = np.flatnonzero(labels >= 0)
        beside = expected_beside(evidence.take(clustered), labels[clustered])
    sure, targets = cluster_errors(sites, labels, models), new_targets(sites, labels, models)
    return OdclResult(
        cluster_models=models,
        models=joined,
        local_models=own,
        labels=labels,
        heard=sites.heard,
        aside=aside,
        implausible=sites.implausible,
        without_covariance=sites.without_covariance(),
        site_rows=np.where(sites.heard, sites.rows, np.nan),
        history_changes=changes,
        population_model=sites.population(labels),
        rival_bic=rivals,
        expected_beside=beside,
        cluster_errors=sure.errors,
        cluster_covariance=sure.covariance,
        cluster_degrees=sure.degrees,
        cluster_by_sites=sure.by_sites,
        cluster_noise=None if targets is None else targets.cluster_noise,
        noise_degrees=None if targets is None else targets.degrees,
        site_noise=None if targets is None else targets.site_noise,
        **grouping.evidence,
    )


# ------------------------------------------------------------------ in words

ACCOUNT = {
    "model": "Each site sent its own model once.",
    "rows": "Each site sent its own model and its number of rows once.",
    "covariance": "Each site sent its own model, its number of rows and the sampling covariance "
    "of the model once.",
    "statistics": "Each site sent its sums of products of features and target once.",
    SUMS: "Each site sent its own model, its number of rows and its sums of products of features "
    "and target once.",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class OdclResult(ClusteredResult):
    """Clusters sought or given in one round; `without_covariance` (m,) had none to send.

    `rival_bic` (4,) are those of `RIVALS`, on the same rows. `expected_beside` (3,) are errors to
    be expected at further rows: of these clusters, of one model and of every site alone; NaN of
    what is not better.
    """

    without_covariance: Bools | None = None
    rival_bic: Floats | None = None
    expected_beside: Floats | None = None
    choice_errors: Floats | None = None
    choice_bic: Floats | None = None

    def choice(self) -> Table | None:
        """What speaks for which number of clusters, and for models of another form."""
        if self.choice_curve is None or self.choice_candidates is None:
            return None
        columns: dict[str, Array] = {
            "n_clusters": self.choice_candidates,
            "curve": self.choice_curve,
        }
        if self.choice_errors is not None and self.choice_bic is not None:
            columns["expected error"] = self.choice_errors
            columns["bic"] = self.choice_bic
        if self.rival_bic is not None:
            mixed, common = self.rival_bic[RIVALS.index("mixed model")], self.rival_bic[0]
            columns["bic of one common model"] = np.full(len(self.choice_curve), common)
            columns["bic of a mixed model"] = np.full(len(self.choice_curve), mixed)
        return Table(columns, f"Number of clusters ({self.choice_method})")

    def tables(self, about: About) -> dict[str, Table]:
        """Clusters, sites, the choice of the clusters' number, and models of another form."""
        tables = super().tables(about)
        if self.rival_bic is not None:
            columns = {"model": np.array(RIVALS), "bic": self.rival_bic}
            tables["rivals"] = Table(columns, "The same rows, other models")
        return tables

    def remarks(self, about: About) -> list[str]:
        """Also who joined by likelihood, and which form of model the rows prefer."""
        remarks = super().remarks(about)
        if self.rival_bic is not None:
            remarks.append(in_words(self.rival_bic))
        return [*remarks, *better_off.in_words(self.expected_beside)]

    def of_pooled(self, owner: Indices, rows: Indices) -> OdclResult:
        """The result of clients that hold the rows of several sites, as that of these sites.

        `owner` (m,) is each site's client, `rows` (m,) its number of rows.
        """
        everyone = np.ones(len(owner), dtype=bool)
        return OdclResult(
            cluster_models=self.cluster_models,
            models=self.cluster_models[owner],
            labels=owner,
            heard=everyone,
            site_rows=rows.astype(np.float64),
            history_changes=self.history_changes,
        )

    def account(self, about: About) -> list[str]:
        """What left the sites."""
        if self.local_models is None:
            return ["The rows of each true cluster were pooled in this process: an oracle."]
        settings, account = about.settings, [ACCOUNT[about.settings.sent]]
        without = about.sites[self.flagged(self.without_covariance)]
        if len(without):
            account.append(
                f"No covariance came from {len(without)} sites whose rows do not give one, or of "
                f"too many coefficients: {listed(without, 3)}."
            )
        if len(without) and settings.averaging == "precision":
            account.append("A cluster of such sites alone was weighted by rows, not by precision.")
        if settings.refine_rounds:
            account.append("In each refining round a site also said which shared model it chose.")
        if settings.penalty == "interval" and settings.clustering == "convex":
            account.append("The penalty was computed from the true clusters: an oracle.")
        return account


_OWN_FIT = {"model": MODEL, "rows": ROWS, "covariance": COVARIANCE, "statistics": STATISTICS}

ODCL = Algorithm(
    name="odcl",
    settings=OdclSettings,
    prepare=prepare,
    program=program,
    result=OdclResult,
    steps={
        "model": Step(
            _model,
            {"model": MODEL},
            optional={"rows": ROWS, "covariance": COVARIANCE, "statistics": STATISTICS},
        ),
        "statistics": Step(_statistics, {"statistics": STATISTICS}),
        "choose": Step(_choose, {"choice": CHOICE}, MODELS, optional=_OWN_FIT),
    },
)
