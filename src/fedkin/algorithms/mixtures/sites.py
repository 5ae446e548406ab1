"""The sites' half of the methods for groups inside sites, but for what is FedGrEM's own.

Weights and scale are a site's memory; components come from the server each round and go back
improved. What else leaves a site is what a question names among `OPTIONAL`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from fedkin.algorithms.mixtures.families import LOCAL_TOL, family_of
from fedkin.models import gaussian_mixture as gaussian
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import EMPTY_COMPONENT, climb, mixture_weights
from fedkin.models.mixture_information import score_and_information
from fedkin.models.shaped_mixture import labelled_moments
from fedkin.protocol import MISFIT, Field, Step, TracedReply
from fedkin.shrinkage import unusualness

# A variance that stands for "this site knows nothing of this component": infinity may not travel.
UNKNOWN_VARIANCE = 1e90
# Passes in which a site that gets components from outside finds its weights and scale to them: the
# spread of all its rows, where the scale begins, would blur the groups it was sent.
FIRST_PASSES = 30
# The t-th mini-batch moves a site's own running mean by t^-RATE of the way: batches average out,
# and the way is long enough (Robbins and Monro: between 1/2 and 1).
BATCH_RATE = 0.7

# Two ends of one climb differ by far less than this in log likelihood.
CLEAR = 1.0

# Beyond so many times the median site's values, squares leave nothing of the other sites'.
FAR = 1e7
# Likewise where products of values are added up.
FAR_PRODUCTS = FAR**2

# ------------------------------------------------------------------ what may leave a client

ROWS = Field((), "number of rows", least=0.0, reveals="count")
COMPONENTS = Field(("R", "p"), "the site's means or coefficients", reach=FAR, reveals="model")
# A component with few rows behind it is the one that the site was sent.
IMPROVED = replace(COMPONENTS, empty="components")
LOGLIK = Field((), "log likelihood of the site's rows")
HALVINGS = Field((), "how often the gradient step had to be halved so far", least=0.0)
SUMS = Field(
    ("R", "q"),
    "rows (or their products), weighted by responsibility and added up",
    reach=FAR_PRODUCTS,
    reveals="products",
    empty=0.0,
)
OPTIONAL = {
    "variances": Field(
        ("R",),
        "sampling variance of each component; group sizes follow",
        least=0.0,
        empty=UNKNOWN_VARIANCE,
    ),
    "weights": Field(("R",), "the site's mixture weights", bound=1.0, least=0.0),
    "scatter": Field(
        ("d", "d"),
        "squares and products of the rows about their component's mean",
        reach=FAR_PRODUCTS,
        reveals="products",
    ),
    "residual": Field((), "mean squared residual of the site's rows"),
}

ORDER = Field(("R",), "which of the site's components is the r-th", dtype="int64", bound=1e6)
COMMON = {
    "covariance": Field(("e", "e"), "covariance common to all sites; empty if there is none"),
    "noise": Field(("z",), "noise at which a site without its own begins; empty if not known"),
}
PERSONAL = {
    "components": COMPONENTS,
    "order": ORDER,
    "weights": Field(("s",), "weights the site shall use; empty if it shall keep its own"),
}


OF_CLASSES = {
    "class_rows": Field(
        ("R",), "rows with the label of every group", least=0.0, reveals="count", empty=0.0
    ),
    "class_means": Field(
        ("R", "p"),
        "mean of the labelled rows of every group; of one row, that row",
        reach=FAR,
        reveals="model",
        empty=0.0,
    ),
}


# ------------------------------------------------------------------ client functions


def classes(clients, cache, settings, common, personal, memory, keys):
    """Counts and means of the rows whose labels are known."""
    found = labelled_moments(cache, settings.n_components, "identity")
    reply = {"class_rows": found.counts, "class_means": found.means}
    return TracedReply(reply, partial(rows_with_labels, clients, settings, OF_CLASSES)), memory


def rows_with_labels(clients, settings, fields):
    """Whether every row has the label of every group, (N, R), for every field."""
    same = clients.y[:, None] == np.arange(settings.n_components)
    return dict.fromkeys(fields, same.astype(float))


def start(clients, cache, settings, common, personal, memory, keys, fields, how="kmeans++"):
    """Fit alone; components leave, weights and scale stay."""
    family = family_of(settings)
    weights, components, scale = fit = family.alone(cache, keys, how)
    kept = {
        "weights": weights,
        "first_weights": weights,
        "components": components,
        "halvings": np.zeros(len(weights)),
    }
    if scale is not None:
        kept["scale"] = scale
    reply = {"components": components, "rows": cache.sizes.astype(float)}
    reply = with_optional(reply, fields, family, cache, family.expect(cache, fit), fit)
    return TracedReply(reply, partial(rows_of_groups, family, cache, fit)), kept


def start_again(clients, cache, settings, common, personal, memory, keys, fields):
    """Fit alone once more, also from the sites' common centres; the likelier fit counts.

    A site whose own start went astray finds its groups with everybody's help; one that is
    different stays different, because its own likelihood decides. Where the spread between sites
    is known it has a say: a handful of rows that make a group of their own are a little likelier
    than the group that everybody has, and far less usual.
    """
    family, m = family_of(settings), len(clients)
    centers = np.broadcast_to(common["centers"], (m, *common["centers"].shape))
    sent = {**personal, "components": centers, "weights": np.empty((m, 0))}
    memory, scale = remembered(family, cache, common, sent, memory)
    own = memory.get("components", centers)
    own = np.take_along_axis(own, personal["order"][..., None], axis=1)
    if scale is not None:
        scale = np.broadcast_to(scale, (m, *scale.shape[1:]))
    both = [
        np.stack([memory["weights"], equal_weights(centers)], axis=1),
        np.stack([own, centers], axis=1),
        None if scale is None else np.stack([scale] * 2, axis=1),
    ]
    fit = family.likeliest(cache, both)
    if common["between"].size:
        fit = likelier_of(family, cache, fit, (equal_weights(centers), centers, scale), common)
    weights, components, new_scale = fit
    kept = {**memory, "weights": weights, "first_weights": weights, "components": components}
    if "scale" in memory:
        kept["scale"] = scale = new_scale
    fit = weights, components, scale
    reply = {"components": components, "rows": cache.sizes.astype(float)}
    reply = with_optional(reply, fields, family, cache, family.expect(cache, fit), fit)
    return TracedReply(reply, partial(rows_of_groups, family, cache, fit)), kept


def likelier_of(family, rows, alone, begin, common):
    """Fits (m, ...) of sites on their own, or with their groups held near the others'.

    The marginal likelihood decides, components integrated out: of a site that is like the others,
    or of one whose components may be anywhere (`unusualness`). It has to decide clearly: usually
    both ways lead to the same place, and then the site's own fit is the start.
    """
    prior = CommonPrior(common)
    held = climb(
        rows,
        family.model.Parameters(*begin),
        partial(held_step, family, prior),
        family.settings.local_max_iter,
        LOCAL_TOL,
    )
    statistics = family.expect(rows, held.parameters)
    noise = family.noise(statistics, held.parameters)
    usual = held.loglik - prior.spread_out(noise)
    statistics = family.expect(rows, alone)
    away, noise = prior.away(alone[1]), family.noise(statistics, alone)
    own = statistics.loglik - unusualness(away, noise, prior.between, prior.n_estimates).sum(axis=1)
    better = usual > own + CLEAR
    # As in any round, the site's own estimate leaves; the server pulls it.
    weights, components, scale = held.parameters
    statistics = family.expect(rows, held.parameters)
    freed = weights, family.model.maximise(statistics.packed, components), scale
    return tuple(
        None if a is None else np.where(better.reshape(-1, *[1] * (a.ndim - 1)), b, a)
        for a, b in zip(alone, freed)
    )


class CommonPrior:
    """Where components of sites are: N(centre, between), in the metric of a common covariance."""

    def __init__(self, common):
        self.centers, self.between = common["centers"], common["between"]
        self.n_estimates, covariance = common["n_estimates"], common["covariance"]
        self.root = np.linalg.cholesky(covariance) if covariance.size else None

    def away(self, components):
        """Offsets of components from the centres (m, R, p)."""
        away = components - self.centers
        return away if self.root is None else np.linalg.solve(self.root, away[..., None])[..., 0]

    def cost(self, components):
        """Half the squared distance from the centres in units of the spread between sites, (m,)."""
        squares = (self.away(components) ** 2).sum(axis=-1)
        spread = np.where(self.between > 0, self.between, 1.0)
        return 0.5 * np.where(self.between > 0, squares / spread, 0.0).sum(axis=1)

    def spread_out(self, noise):
        """What is lost to the components' other places, (m,)."""
        p = self.centers.shape[-1]
        return 0.5 * p * np.log1p(self.between / noise).sum(axis=1)

    def held(self, components, noise):
        """Components pulled to the centres as far as their sampling variance warrants."""
        share = self.between / (self.between + noise)
        share = np.where(np.isfinite(noise), share, 0.0)
        return self.centers + share[..., None] * (components - self.centers)


def held_step(family, prior, rows, now):
    """E-step and M-step of a site whose components have a prior, and the likelihood with it."""
    weights, components, scale = now
    statistics = family.expect(rows, now)
    new = family.model.maximise(statistics.packed, components)
    new = prior.held(new, family.noise(statistics, now))
    if family.keeps_scale:
        scale = family.own_scale(rows, statistics, new, scale)
    reached = statistics.loglik - prior.cost(components)
    return type(now)(mixture_weights(statistics.counts, weights), new, scale), reached


def settle(clients, cache, settings, common, personal, memory, keys):
    """Take the final components and bring own weights up to date; only the likelihood leaves."""
    family = family_of(settings)
    memory, scale = remembered(family, cache, common, personal, memory)
    weights, components = memory["weights"], personal["components"]
    statistics = family.expect(cache, (weights, components, scale))
    if not personal["weights"].size:
        weights = mixture_weights(statistics.counts, weights)
    return {"loglik": statistics.loglik}, {**memory, "weights": weights, "components": components}


def settle_surely(clients, cache, settings, common, personal, memory, keys, fields):
    """As `settle`; if asked for, also slope and curvature of the likelihood by the components."""
    reply, memory = settle(clients, cache, settings, common, personal, memory, keys)
    if not fields:
        return reply, memory
    family = family_of(settings)
    scale = family.scale_in_use(memory.get("scale"), common)
    given = bool(personal["weights"].size)
    found = family.informations(clients, cache, (memory["weights"], memory["components"], scale))
    told = [score_and_information(rows, None if given else w) for rows, w in found]
    upper = np.triu_indices(np.prod(personal["components"].shape[1:]))
    made = {
        "slope": np.array([slope for slope, _ in told]),
        "curvature": np.array([information[upper] for _, information in told]),
    }
    return {**reply, **made}, memory


# ------------------------------------------------------------------ what a site remembers


def remembered(family, rows, common, personal, memory):
    """Memory in the server's order, and the scale in use; a site without memory begins here."""
    components, order = personal["components"], personal["order"]
    if memory is None or "weights" not in memory:
        scale = family.first_scale(rows, common["noise"])
        weights, scale = found_to(family, rows, components, scale, common)
        memory = {"weights": weights, "first_weights": weights, "halvings": np.zeros(len(weights))}
        if scale is not None:
            memory["scale"] = scale
    turned = ("weights", "first_weights")
    memory = {**memory, **{n: np.take_along_axis(memory[n], order, axis=1) for n in turned}}
    if personal["weights"].size:
        memory["weights"] = personal["weights"]
    return memory, family.scale_in_use(memory.get("scale"), common)


def found_to(family, rows, components, scale, common):
    """Weights (m, R) and own scale that go with given components, from equal weights."""
    weights = equal_weights(components)
    for _ in range(FIRST_PASSES):
        used = family.scale_in_use(scale, common)
        statistics = family.expect(rows, (weights, components, used))
        weights = mixture_weights(statistics.counts, weights)
        if used is scale:
            scale = family.own_scale(rows, statistics, components, scale)
    return weights, scale


def equal_weights(components):
    """Weights (m, R) for components (m, R, p) of which nothing is known."""
    return np.full(components.shape[:2], 1.0 / components.shape[1])


class Batch:
    """The rows of one step: all of them, or a mini-batch of each site, which stands for all.

    What batches give is averaged over time. The mean is the site's own: the server's pull must not
    enter it, or it would add up.
    """

    def __init__(self, cache, settings, keys, memory):
        self.rows, self.memory, self._rate = cache, memory, None
        self.drawn = None
        if settings.batch_size:
            self.drawn = partial(cache.drawn, keys, settings.batch_size)
            self.rows = cache.batch(keys, settings.batch_size)
            n_batches = memory.get("n_batches", np.zeros(len(cache.sizes))) + 1.0
            self.memory = {**memory, "n_batches": n_batches}
            self._rate = np.where(self.rows.sizes < cache.sizes, n_batches**-BATCH_RATE, 1.0)

    def averaged(self, name, new):
        """The running mean of what the batches gave, (m, ...); without batches it is the new."""
        if self._rate is None:
            return new
        old = self.memory.get(f"batch_{name}", new)
        mean = old + self._rate.reshape(-1, *[1] * (new.ndim - 1)) * (new - old)
        self.memory = {**self.memory, f"batch_{name}": mean}
        return mean


# ------------------------------------------------------------------ rows behind what leaves


def rows_of_groups(family, rows, fit, drawn=None, asked=False):
    """How much every row counts in every group (N, R), for every field about groups.

    A group that nobody belongs to keeps the component it had: no row is behind it. `drawn` tells
    which rows are in a mini-batch, `asked` that the components came with a question: how far rows
    are from them is told then.
    """
    shares = family.shares(rows, fit)
    misfit = {MISFIT: family.misfit(rows, fit, shares)} if asked else {}
    if drawn is not None:
        shares = shares * drawn[:, None]
    owner = np.repeat(np.arange(len(rows.sizes)), rows.sizes)
    counts = np.zeros((len(rows.sizes), shares.shape[1]))
    np.add.at(counts, owner, shares)
    shares = np.where(counts[owner] > EMPTY_COMPONENT, shares, 0.0)
    return {**dict.fromkeys(("components", "sums", "variances"), shares), **misfit}


# ------------------------------------------------------------------ what else leaves


def with_optional(reply, fields, family, rows, statistics, fit, about=None):
    """The reply with the optional fields that were asked for.

    A mini-batch stands for all rows. Scatter and residuals are about the components `about`, those
    of the fit unless others are given.
    """
    weights, components, _ = fit
    about = components if about is None else about
    n_used = np.maximum(statistics.n_rows, 1.0)
    share = reply["rows"] / n_used
    made = dict(reply)
    if "variances" in fields:
        own = family.noise(statistics, fit) / np.maximum(share, 1.0)[:, None]
        made["variances"] = np.where(np.isfinite(own), own, UNKNOWN_VARIANCE)
    if "weights" in fields:
        made["weights"] = weights
    if "scatter" in fields:
        scatter = gaussian.within_scatter(rows, statistics, about, "tied")
        made["scatter"] = share[:, None, None] * scatter
    if "residual" in fields:
        made["residual"] = regression.residual_squares(statistics, about) / n_used
    return made


_FIT = {"components": COMPONENTS, "rows": ROWS}
START = {
    "start": Step(start, _FIT, optional=OPTIONAL),
    "start_by_ward": Step(partial(start, how="ward"), _FIT, optional=OPTIONAL),
}
CLASSES = Step(classes, OF_CLASSES)
USUAL = {
    "centers": COMPONENTS,
    "between": Field(("v",), "variance of a component between sites; empty if not known"),
    "n_estimates": Field((), "number of components of sites behind the centres"),
}
_FITTED_AGAIN = {**_FIT, "components": replace(COMPONENTS, empty="centers")}
START_AGAIN = Step(start_again, _FITTED_AGAIN, {**COMMON, **USUAL}, {"order": ORDER}, OPTIONAL)
# Asked once: a likelihood at parameters of the server's is no row, many of them could be.
SETTLE = Step(settle, {"loglik": LOGLIK}, COMMON, PERSONAL, most=1)
SETTLE_SURELY = Step(
    settle_surely,
    {"loglik": LOGLIK},
    COMMON,
    PERSONAL,
    {
        "slope": Field(("R", "p"), "slope of the site's log likelihood by its components"),
        "curvature": Field(
            ("c",),
            "its curvature, upper triangle, the site's weights profiled out: products of its rows, "
            "weighted by responsibility",
            reveals="products",
        ),
    },
    most=1,
)
