"""FGPR: one Gaussian-process prior for all sites, a posterior at each (Yue and Kontar 2021).

| paper | here |
|---|---|
| K, N_k, p_k | clients, `rows`, rows over all rows |
| theta_1, theta_2, l | scale, noise and length scales: entries of `theta`, logarithms |
| E, M, eta_t | `local_steps`, `batch_size`, `rates` by `schedule` |
| aggregation with p_k | `_by_local_steps` |
| automatic personalisation | `personalise="posterior"` |

Where we differ from the paper
- `optimizer="exact"` (default): sites send value and gradient of their likelihood and the server
  runs L-BFGS by replay: 12 to 20 rounds to the optimum of the summed likelihood, where local
  steps need 60 and end near it.
- Logarithms with bounds instead of softplus with floors: gradients of one size, no barrier.
- The paper's scripts restart Adam in every round; its first step is the sign of the gradient, so
  averaging settles where signs balance, not gradients. Kept as "adam-restarted" to compare.
- `personalise="choose"` (default): a site keeps hyper-parameters of its own where they beat the
  shared ones by BIC, which repairs negative transfer; "map" pulls them towards the shared ones.
  Fitted to few rows they are over-confident, so predictions average over what the rows leave
  open of them (`models/gp_uncertainty.py`): on CURRIN coverage of 95 % intervals rises from .69
  to .81 and the log score falls from -.9 to -2.0 (shared: .89, -1.6), at the same error.
- `n_priors`: a mixture of priors over sites, when one prior does not suit all.
- `robust`: sites' gradients per row are averaged so that no single site can move the prior at
  will, nor by claiming many rows: none weighs more than three median sites. The population's
  location and scale, and with them the default kernel, are medians over sites. There is no
  objective then, so steps are damped instead of searched.
- A random subset of sites is drawn uniformly and averaged with p_k (the paper: drawn with p_k,
  averaged plainly); both aim at the same point.
- `mean="constant"` (default): the site's mean is integrated out instead of taken as known,
  which matters below 20 rows; "zero" is the paper's.
- Sites whose standardised target does not vary (one row, constant) teach nothing and take the
  population's location and scale.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fedkin.algorithms import fgpr_common as common
from fedkin.algorithms import fgpr_common_sites as common_sites
from fedkin.algorithms import fgpr_sites as sites
from fedkin.algorithms.aggregate import average, capped, weighted_median
from fedkin.algorithms.fgpr_common import CommonFit, chosen, compare, extent_of, find_common
from fedkin.algorithms.fgpr_mixture import Mixture, grow_mixture
from fedkin.algorithms.fgpr_result import FgprResult
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.minimise import Seen, minimise_damped
from fedkin.arrays import Floats
from fedkin.models.gp_errors import neighbours_of, prior_errors
from fedkin.models.gp_priors import Priors, weak_priors
from fedkin.models.gp_rows import centres_only
from fedkin.models.kernels import Form, default_spec, form_of
from fedkin.models.least_squares import MOST_ROWS
from fedkin.protocol import Algorithm, Ask, Field, Program, Replies, Roster, Step, over_roster

Server = Generator[Ask, Replies, Any]

# Local steps count as settled when a round moves no log-parameter by more than this.
SETTLED_STEP = 0.05
# Median of a squared standard normal: turns medians of squares into variances.
MEDIAN_SQUARE = float(ndtri(0.75)) ** 2

# ------------------------------------------------------------------ what leaves a client

ROWS = Field((), "number of rows the site learns from", bound=MOST_ROWS, least=0.0, reveals="count")
FEATURES = Field((), "number of features", least=0.0, reveals="nothing")
MOMENTS = Field(
    (2,), "mean and standard deviation of the target; coarse below 5 rows, 0 of one", reveals="sums"
)
SPREAD = Field(
    ("d",),
    "standard deviation of every feature; coarse below 5 rows, 0 of one",
    least=0.0,
    reveals="sums",
)
CENTRE = Field(
    ("d",), "mean of every feature, to an eighth of its spread; 0 of one row", reveals="sums"
)
LOW = Field(("d",), "lower edge of a box around the features, to a quarter of their spread")
HIGH = Field(("d",), "its upper edge")
VALUE = Field(("priors",), "negative log likelihood of the site's rows under each prior")
GRADIENT = Field(("priors", "p"), "its gradient by the log hyper-parameters")
LOCAL = Field(("p",), "log hyper-parameters after the site's own steps", reveals="model")
LOCAL_VALUE = Field((), "negative log likelihood per row of the site's mini-batches")
LOGLIK = Field((), "log likelihood of the site's rows under the hyper-parameters it uses")
OWN = Field(
    (), "1 if the site keeps hyper-parameters of its own; they are not sent", bound=1.0, least=0.0
)

THETA = Field(("priors", "p"), "shared log hyper-parameters of each prior")
ONE_THETA = Field(("p",), "shared log hyper-parameters")
WEIGHTS = Field(("priors",), "shares of the priors")
RATES = Field(("steps",), "step sizes")
LIMIT = Field(("p",), "bound of the log hyper-parameters")


EXTENT_FIELDS = ("centre", "low", "high")

# ------------------------------------------------------------------ server program


class TypicalTarget(NamedTuple):
    """Location and scale of the standardisation at a typical site, variance of the locations
    between sites, and of the standardised target."""

    location: float
    scale: float
    between: float
    variance: float


class Population(NamedTuple):
    """What is known of all sites: rows (m,), the prior's form, spread of features, target."""

    rows: Floats
    form: Form
    spread: Floats
    target: TypicalTarget


def program(roster: Roster, settings: FgprSettings) -> Program:
    """Describe, find the prior or priors, let every site settle."""
    # One site has nobody to share a curve with.
    looks = settings.looks_for_common and (len(roster) > 1 or settings.common is True)
    wanted = EXTENT_FIELDS if looks else ()
    replies = yield Ask("describe", fields=wanted, note="sizes and spreads")
    population = _population(replies, len(roster), settings)
    extent = extent_of(replies) if looks else None
    start = _start(population.form, settings)
    if settings.optimizer == "none" or not start.size:
        mixture = Mixture.of(start[0])
    elif settings.optimizer != "exact":
        mixture = yield from _by_local_steps(population.form, start[0], settings)
    elif not settings.searched:
        mixture = yield from _by_damped_steps(population.form, start[0], settings)
    else:
        priors = _priors(population) if settings.weak_priors else None
        mixture = yield from grow_mixture(start, population.form, settings, priors)
    errors = None
    if settings.standard_errors and start.size:
        errors = yield from _errors(mixture, population, settings)
    told = {"theta": mixture.theta, "weights": mixture.weights, **_limits(population.form)}
    settled = yield Ask("settle", told, note="sites settle")
    result = _result(mixture, population, settled, len(roster), errors)
    if extent is None:
        return result
    fit: CommonFit | None = yield from find_common(extent, len(roster), settings)
    if fit is None:
        return result
    if settings.common is True:
        # It was asked for: nobody has to say whether it suits them.
        return result.with_common(fit, None, np.ones(len(roster) + 1, dtype=bool))
    limits = _limits(population.form)
    replies = yield compare(fit.shared, mixture.theta, np.array(population.target), limits)
    left_out = over_roster(replies["left_out"], replies.clients, len(roster), missing=0.0)
    way = over_roster(replies["way"], replies.clients, len(roster), missing=0.0)
    use = chosen(left_out, way, settings)
    return result.with_common(fit, left_out, use)


def _errors(mixture: Mixture, population: Population, settings: FgprSettings) -> Server:
    """Standard errors of log hyper-parameters (P, p): one more round like those of the search."""
    near = neighbours_of(mixture.theta, population.form.lower, population.form.upper)
    replies = yield Ask("likelihood", {"theta": near.theta}, note="standard errors")
    taught = replies["rows"] > 0
    priors = _priors(population) if settings.weak_priors else None
    told = replies["value"][taught], replies["gradient"][taught]
    return prior_errors(told, near, mixture.weights, priors)


def _priors(population: Population) -> Priors:
    """Weakly informative ones, in units of all sites."""
    spread = float(np.sqrt(population.target.variance))
    return weak_priors(population.form.names, spread, population.spread)


def _population(replies: Replies, n_clients: int, settings: FgprSettings) -> Population:
    d = int(np.median(replies["features"]))
    told = replies["spread"][replies["spread"].any(axis=1)]
    spread = np.median(told, axis=0) if len(told) else np.ones(d)
    target = _typical_target(replies, settings)
    spec = settings.kernel or default_spec(spread, target.variance)
    rows = over_roster(replies["rows"], replies.clients, n_clients, missing=0.0)
    return Population(rows, form_of(spec, d), spread, target)


def _typical_target(replies: Replies, settings: FgprSettings) -> TypicalTarget:
    mean, deviation = replies["moments"].T
    known = (deviation > 0) & (replies["rows"] > 0)
    if not known.any():
        return TypicalTarget(0.0, 1.0, 0.0, 1.0)
    moments_of = _moments if settings.robust is False else _median_moments
    location, within, between = moments_of(mean[known], deviation[known], replies["rows"][known])
    if settings.normalize_y is True:
        return TypicalTarget(location, within**0.5, between, 1.0)
    if centres_only(settings.normalize_y, settings.mean):
        return TypicalTarget(location, 1.0, between, within)
    return TypicalTarget(0.0, 1.0, 0.0, within + between + location**2)


def _moments(mean: Floats, deviation: Floats, rows: Floats) -> tuple[float, float, float]:
    """Location, variance within sites and between them, (m,) to one site of the population."""
    share = rows / rows.sum()
    location, within = float(share @ mean), float(share @ deviation**2)
    return location, within, float(share @ (mean - location) ** 2)


def _median_moments(mean: Floats, deviation: Floats, rows: Floats) -> tuple[float, float, float]:
    """Location and variances by medians, which no single site moves at will."""
    weights = capped(rows)
    location, within = weighted_median(mean, weights), weighted_median(deviation**2, weights)
    return location, within, weighted_median((mean - location) ** 2, weights) / MEDIAN_SQUARE


def _start(form: Form, settings: FgprSettings) -> Floats:
    """The priors (k, p) to begin with: the kernel's, or those given."""
    given, most, p = settings.init, settings.most_priors, len(form.start)
    if isinstance(given, str):
        return form.start[None]
    start = np.atleast_2d(given)
    if start.ndim > 2 or start.shape[1] != p or not 1 <= len(start) <= most:
        rows = "a row" if most == 1 else f"up to {most} rows"
        raise ValueError(
            f"init has shape {given.shape}; the kernel has {p} free log-parameters: give them as "
            f"an array ({p},) or as {rows} of a table"
        )
    return start


def _limits(form: Form) -> dict[str, Floats]:
    return {"lower": form.lower, "upper": form.upper}


def _by_damped_steps(form: Form, start: Floats, settings: FgprSettings) -> Server:
    """Averages of gradients per row, robust or of some sites only; no objective to search."""
    fraction = settings.fraction

    def evaluate(theta: Floats) -> Generator[Ask, Replies, Seen]:
        replies = yield Ask("likelihood", {"theta": theta[None]}, fraction=fraction, note="prior")
        who = replies.clients.tobytes()
        if not replies["rows"].any():
            return Seen(np.nan, np.zeros_like(theta), who)
        both = np.column_stack([replies["value"][:, 0], replies["gradient"][:, 0]])
        per_row = both / np.maximum(replies["rows"], 1.0)[:, None]
        mean = average(per_row, replies["rows"], settings.robust)
        return Seen(float(mean[0]), mean[1:], who)

    limits, decay = (form.lower, form.upper), fraction < 1.0
    minimum = yield from minimise_damped(
        evaluate, start, *limits, settings.tol, settings.max_rounds, decay
    )
    return Mixture.at(minimum)


def _by_local_steps(form: Form, start: Floats, settings: FgprSettings) -> Server:
    """The paper's rounds: sites step by themselves, the server averages."""
    theta, robust = np.clip(start, form.lower, form.upper), settings.robust
    path, values, moved = [theta], [], np.inf
    for rates in step_sizes(settings):
        told = {"theta": theta, "rates": rates, **_limits(form)}
        replies = yield Ask("local_steps", told, fraction=settings.fraction, note="prior")
        if replies["rows"].sum() > 0:
            new = average(replies["theta"], replies["rows"], robust)
            moved = float(np.abs(new - theta).max(initial=0.0))
            theta = np.clip(new, form.lower, form.upper)
            values.append(average(replies["value"][:, None], replies["rows"], robust)[0])
        path.append(theta)
    settled = moved <= SETTLED_STEP
    return Mixture(theta[None], np.ones(1), settled, np.array(path), np.array(values))


def step_sizes(settings: FgprSettings) -> Floats:
    """Step sizes (rounds, local steps): 1/t over local steps, the others over rounds."""
    n_rounds, n_steps = settings.max_rounds, settings.local_steps
    t = 1.0 + np.arange(n_rounds * n_steps).reshape(n_rounds, n_steps)
    number = np.repeat(np.arange(n_rounds)[:, None], n_steps, axis=1)
    share = {
        "inverse": 1.0 / t,
        "inverse-sqrt": 1.0 / np.sqrt(1.0 + number),
        "cosine": 0.5 * (1.0 + np.cos(np.pi * number / n_rounds)),
        "constant": np.ones_like(t),
    }
    sizes: Floats = settings.learning_rate * share[settings.schedule]
    return sizes


def _result(
    mixture: Mixture, population: Population, settled: Replies, m: int, errors: Floats | None
) -> FgprResult:
    return FgprResult(
        theta=mixture.theta,
        weights=mixture.weights,
        converged=np.array(mixture.converged),
        history_theta=mixture.path,
        history_value=mixture.values,
        curve=mixture.curve,
        spread=population.spread,
        target=np.array(population.target),
        loglik=np.array(settled["loglik"].sum() if settled["rows"].any() else np.nan),
        site_loglik=over_roster(settled["loglik"], settled.clients, m),
        site_own=over_roster(settled["own"], settled.clients, m, missing=0.0),
        site_rows=over_roster(settled["rows"], settled.clients, m, missing=population.rows),
        theta_errors=errors,
    )


_LIMITS: dict[str, Field] = {"lower": LIMIT, "upper": LIMIT}
_SUMS: dict[str, Field] = {
    "gram": common.GRAM,
    "log_det": common.LOG_DET,
    "missed": common.MISSED,
    "rows": ROWS,
}
_AT: dict[str, Field] = {
    "theta": common.PARAMETERS,
    "kinds": common.KINDS,
    "places": common.PLACES,
    "frame": common.FRAME,
    "units": common.UNITS,
}

FGPR = Algorithm(
    name="fgpr",
    settings=FgprSettings,
    prepare=sites.prepare_sites,
    program=program,
    result=FgprResult,
    steps={
        "describe": Step(
            sites.describe,
            {"rows": ROWS, "features": FEATURES, "moments": MOMENTS, "spread": SPREAD},
            optional={"centre": CENTRE, "low": LOW, "high": HIGH},
        ),
        "likelihood": Step(
            sites.likelihood,
            {"value": VALUE, "gradient": GRADIENT, "rows": ROWS},
            {"theta": THETA},
        ),
        "local_steps": Step(
            sites.local_steps,
            {"theta": LOCAL, "value": LOCAL_VALUE, "rows": ROWS},
            {"theta": ONE_THETA, "rates": RATES, **_LIMITS},
        ),
        "settle": Step(
            sites.settle,
            {"loglik": LOGLIK, "own": OWN, "rows": ROWS},
            {"theta": THETA, "weights": WEIGHTS, **_LIMITS},
        ),
        "slopes": Step(common_sites.slopes, _SUMS, _AT, trusts=True),
        "totals": Step(common_sites.totals, _SUMS, _AT, trusts=True),
        "compare": Step(
            common_sites.compare,
            {"left_out": common.LEFT_OUT, "way": common.WAY, "rows": ROWS},
            {
                "places": common.PLACES,
                "frame": common.FRAME,
                "units": common.UNITS,
                "kinds": common.CLOUD_KINDS,
                "theta": common.CLOUD,
                "weights": common.CLOUD_WEIGHTS,
                "mean": common.MEAN,
                "covariance": common.COVARIANCE,
                "prior": common.PRIOR,
                "target": common.TARGET,
                "lower": common.LIMIT,
                "upper": common.LIMIT,
            },
        ),
    },
)
