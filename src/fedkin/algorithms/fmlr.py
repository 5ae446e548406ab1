"""FMLR-EM: every client belongs to one of K linear regressions (Tao, Chandak, Kulkarni 2024).

| paper | here |
|---|---|
| m, n, K, d | clients, rows of a client, components, coefficients |
| theta_k, sigma, pi_k | `coef`, `sigma` (a standard deviation), `weights` |
| w_j(theta_k) | `responsibilities` |
| Algorithm 1, Proposition 3.3 | `_improve`: one Ask (or none) per EM step |

Where we differ from the paper
- Noise and mixing proportions are learnt unless given: nobody knows them.
- A client is reduced to packed statistics once (`models.least_squares`), so a round costs the
  same whatever n is, and any n >= 1 will do, also n < d.
- `share="statistics"`: the statistics travel once and EM runs at the server: one round.
  `share="sums"`: the paper's rounds, responsibility-weighted sums each time.
- Sites may miss rounds or answer in turns (`fraction`): a site's last reply stands until its next
  (incremental EM), and likelihoods are scaled to all rows before they are compared.
- A site that sends statistics no rows can give is left out from then on and reported
  (`implausible`). Lies that rows could give are not seen.
- A start from scratch with restarts side by side in one Ask; the paper assumes one near the truth.
- `robust`: one more group, the null model with large heavy-tailed variance, takes clients that no
  regression explains; clients of a scale of their own stay out of the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms import fmlr_starts as starts
from fedkin.algorithms.fmlr_expectation import (
    NOBODY_POSSIBLE,
    AtServer,
    AtSites,
    Server,
    Sites,
    pack_noise,
    unpack_noise,
)
from fedkin.algorithms.fmlr_result import FmlrResult
from fedkin.arrays import Array, Arrays, Floats
from fedkin.federation import Federation
from fedkin.models.grouped_regression import (
    IDENTIFIED_CLIENTS,
    Parameters,
    Totals,
    best_residuals,
    largest_change,
    maximise,
    noise_density,
    responsibilities,
)
from fedkin.models.least_squares import n_coefficients, packed_statistics
from fedkin.protocol import Algorithm, Field, Program, Roster, Step
from fedkin.settings import FRACTION, Flag, Number, Settings, Start, Whole, one_of, setting
from fedkin.ties import RELATIVE, first_best, first_least, tied_order


class FmlrSettings(Settings):
    """What can be set; `fedkin.FMLR` says what each does."""

    n_components: int | None = setting(None, Whole(or_none=True))
    share: str = setting("statistics", one_of("statistics", "sums"))
    init: Any = setting("auto", Start(("auto", "ridge", "spectral", "random"), least_axes=2))
    n_restarts: int = setting(10, Whole())
    max_components: int = setting(8, Whole())
    sigma: float | None = setting(None, Number(above=0.0, or_none=True))
    weights: str | None = setting(None, one_of(None, "uniform"))
    robust: bool = setting(False, Flag())
    fit_intercept: bool = setting(True, Flag(), at_site=True)
    max_rounds: int = setting(500, Whole())
    tol: float = setting(1e-6, Number())
    fraction: float = setting(1.0, FRACTION)

    @property
    def given_start(self) -> Floats | None:
        """Coefficients to start from, (K, d); None if the fit finds its own."""
        return None if isinstance(self.init, str) else self.init

    def check_together(self) -> None:
        """Complain about values that do not go together."""
        if self.share == "sums" and isinstance(self.init, str) and self.init == "ridge":
            raise ValueError(
                "init='ridge' needs every site's own fit; with share='sums' use 'random', "
                "'spectral' or an array"
            )
        if self.given_start is not None and self.n_components is None:
            raise ValueError("init given as an array needs n_components")
        if self.fraction < 1 and self.share == "statistics":
            raise ValueError(
                "fraction is for share='sums'; with share='statistics' there is one round, in "
                "which every site is asked"
            )


# ------------------------------------------------------------------ what leaves a client

STATISTICS = Field(
    ("q",),
    "sums over the site's rows of products of features and target, and n",
    reveals="products",
)
MOMENTS = Field(
    ("u",), "unbiased estimate of coef coef', from products of pairs of rows", reveals="products"
)
TARGET = Field(
    (4,), "number of rows, sum and sum of squares of the target, number of coefs", reveals="sums"
)
SUMS = Field(
    ("restarts", "groups", "q"),
    "the statistics times the site's responsibility for each group; added over the groups they "
    "are the statistics themselves",
    reveals="products",
)
COUNTS = Field(
    ("restarts", "groups"), "the site's responsibility for each group", bound=1.0, least=0.0
)
RESIDUAL = Field(("restarts",), "mean squared residual under the component that fits best")
LOGLIK = Field(("restarts",), "log likelihood of the site's rows")
ROWS = Field((), "number of rows", least=0.0, reveals="count")

COEF = Field(("restarts", "components", "d"), "coefficients of each component")
SIGMA = Field(("restarts",), "noise, a standard deviation")
WEIGHTS = Field(("restarts", "groups"), "mixing proportions")
LIMIT = Field((), "sites whose target has a larger mean square stay out of the start")
NOISE = Field(("slots",), "coefficients and variance of the noise group; empty if there is none")


# ------------------------------------------------------------------ client functions


class Cache(NamedTuple):
    """Packed statistics, feature-major (q, m)."""

    statistics: Floats

    def take(self, who: Array) -> Cache:
        """Those of some clients."""
        return Cache(np.ascontiguousarray(self.statistics[:, who]))


def prepare(clients: Federation, settings: FmlrSettings) -> Cache:
    """Reduce every client to its statistics."""
    if clients.y is None:
        raise ValueError("FMLR needs a target y at every site")
    return Cache(packed_statistics(clients, settings.fit_intercept))


def _statistics(clients, cache, settings, common, personal, memory, keys):
    # A view: the server turns it back, and a million sites are not copied twice.
    return {"statistics": cache.statistics.T}, memory


def _moments(clients, cache, settings, common, personal, memory, keys):
    moments = starts.pair_moments(clients, settings.fit_intercept)
    return {"moments": moments * _plain(cache, common)[:, None]}, memory


def _statistics_and_moments(*arguments):
    first, memory = _statistics(*arguments)
    return {**first, **_moments(*arguments)[0]}, memory


def _target(clients, cache, settings, common, personal, memory, keys):
    total = np.bincount(clients.owner, clients.y, minlength=len(clients))
    n, square = cache.statistics[-1], cache.statistics[-2]
    n_coef = np.full_like(n, n_coefficients(len(cache.statistics)))
    return {"target": np.stack([n, total, square, n_coef], axis=1)}, memory


def _random_sums(clients, cache, settings, common, personal, memory, keys):
    """Statistics under a group drawn by lot for every restart."""
    n_restarts, n_groups = common["weights"].shape
    drawn = (keys.uniform(n_restarts) * n_groups).astype(np.intp)
    share = (drawn[..., None] == np.arange(n_groups)) * _plain(cache, common)[:, None, None]
    return {"sums": share[..., None] * cache.statistics.T[:, None, None, :]}, memory


def _weighted_sums(clients, cache, settings, common, personal, memory, keys):
    """The site's half of an EM step (Proposition 3.3)."""
    share, loglik = _posterior(cache, common)
    sums = share[..., None] * cache.statistics.T[:, None, None, :]
    return {"sums": sums, "counts": share, "loglik": loglik}, memory


def _residual(clients, cache, settings, common, personal, memory, keys):
    return {"residual": best_residuals(cache.statistics, common["coef"]).T.copy()}, memory


def _settle(clients, cache, settings, common, personal, memory, keys):
    """The site learns and keeps its own group; only its log likelihood leaves."""
    share, loglik = _posterior(cache, common)
    reply = {"loglik": loglik, "rows": np.ascontiguousarray(cache.statistics[-1])}
    return reply, {"responsibilities": np.ascontiguousarray(share[:, 0])}


def _posterior(cache: Cache, common: Arrays) -> tuple[Floats, Floats]:
    """Responsibilities (m, R, G) and log likelihoods (m, R)."""
    parameters = Parameters(common["coef"], common["sigma"], common["weights"])
    noise = unpack_noise(common["noise"])
    outside = None if noise is None else noise_density(cache.statistics, noise)
    share, loglik = responsibilities(cache.statistics, parameters, outside)
    return np.ascontiguousarray(share.transpose(2, 0, 1)), np.ascontiguousarray(loglik.T)


def _plain(cache: Cache, common: Arrays) -> Floats:
    """1 for clients whose mean square of the target is within the limit, else 0, (m,)."""
    n, square = cache.statistics[-1], cache.statistics[-2]
    return (square <= common["limit"] * np.maximum(n, 1.0)).astype(np.float64)


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: FmlrSettings) -> Program:
    """Choose K if it is open, fit, and tell every site its group."""
    rng = np.random.default_rng([roster.seed, 0xF31A])
    source = (AtServer if settings.share == "statistics" else AtSites)(roster, settings, rng)
    yield from source.open()
    if not source.n_sites:
        raise ValueError(NOBODY_POSSIBLE)
    most = min(settings.max_components, source.n_sites)
    wanted = settings.n_components
    candidates = range(1, most + 1) if wanted is None else [wanted]
    fits: list[_Fit] = []
    for n_components in candidates:
        fits += [(yield from _fit(source, n_components, settings))]
    curve = np.array([fit.criterion(source.n_rows) for fit in fits])
    chosen = int(first_least(curve[:, 2], floor=RELATIVE))
    best = fits[chosen]
    if settings.given_start is None:
        best = _by_weight(best)
    sites = yield from source.settle(best.parameters)
    return _result(best, curve, chosen, source, sites)


class _Fit(NamedTuple):
    """A fit of K components; the likelihood is per row, because who is heard may differ."""

    parameters: Parameters
    counts: Floats
    loglik_per_row: float
    n_free: int
    converged: bool
    history: Floats

    def criterion(self, n_rows: float) -> tuple[int, float, float]:
        """Number of components, log likelihood of all rows, BIC."""
        loglik = self.loglik_per_row * n_rows
        bic = -2 * loglik + self.n_free * np.log(n_rows)
        return self.parameters.coef.shape[1], loglik, bic


def _fit(source: AtServer | AtSites, n_components: int, settings: FmlrSettings) -> Server:
    """EM from every start side by side; the likeliest end."""
    parameters = yield from _start(source, n_components, settings)
    source.begin()
    parameters, history, settled = yield from _improve(source, parameters, settings)
    totals = yield from source.expect(parameters, np.arange(len(parameters.coef)), 1.0)
    per_row = _per_row(totals)
    best = int(first_best(per_row, floor=RELATIVE))
    final = Parameters(*(part[best : best + 1] for part in parameters))
    d = final.coef.shape[-1]
    free = n_components * d + (settings.sigma is None)
    free += final.weights.shape[1] - 1 if settings.weights is None else 0
    return _Fit(
        final,
        totals.counts[best],
        float(per_row[best]),
        int(free),
        bool(settled[best]),
        np.concatenate([logliks[which == best] for which, logliks in history]),
    )


def _per_row(totals: Totals) -> Floats:
    """Log likelihood per row heard, (R,): sums of different sites cannot be compared."""
    per_row: Floats = totals.loglik / totals.sums[..., -1].sum(axis=1)
    return per_row


def _improve(source: AtServer | AtSites, parameters: Parameters, settings: FmlrSettings) -> Server:
    """EM steps until no restart moves; restarts that have settled are not computed again.

    A restart has settled when it has not moved since the oldest reply that it rests on.
    """
    n_restarts = len(parameters.coef)
    active, calm = np.arange(n_restarts), np.zeros(n_restarts, dtype=np.intp)
    history = []
    for _ in range(settings.max_rounds):
        current = Parameters(*(part[active] for part in parameters))
        totals = yield from source.expect(current, active, settings.fraction)
        new = maximise(totals, current, settings.sigma is None, settings.weights is None)
        for whole, part in zip(parameters, new):
            whole[active] = part
        history.append((active, _per_row(totals) * source.n_rows))
        moved = largest_change(new, current) > settings.tol
        calm[active] = np.where(moved, 0, calm[active] + 1)
        active = active[calm[active] <= source.oldest]
        if not len(active):
            break
    return parameters, history, ~np.isin(np.arange(n_restarts), active)


def _start(source: AtServer | AtSites, n_components: int, settings: FmlrSettings) -> Server:
    """Coefficients of all restarts, a first guess of the noise, equal proportions.

    From scratch the noise starts at the scale of the target, which acts like annealing; from
    given coefficients it starts at what they leave unexplained at the median site.
    """
    given = settings.given_start
    if given is None and n_components == 1:
        coef = yield from source.starts(1, "random", 1)  # one regression: pooled least squares
    elif given is None:
        coef = yield from source.starts(n_components, settings.init, settings.n_restarts)
    else:
        coef = given[None]
        if settings.fit_intercept and coef.shape[-1] == source.n_coefficients - 1:
            coef = np.concatenate([coef, np.zeros((*coef.shape[:-1], 1))], axis=-1)
        if coef.shape[1:] != (n_components, source.n_coefficients):
            raise ValueError(
                f"init has shape {coef.shape[1:]}; expected ({n_components} components, "
                f"{source.n_coefficients} coefficients with the intercept last)"
            )
    n_groups = n_components + (source.noise is not None)
    sigma = settings.sigma
    if sigma is None and given is None:
        sigma = source.scale
    elif sigma is None:
        sigma = np.sqrt((yield from source.residual(coef))) or source.scale
    weights = np.full((len(coef), n_groups), 1.0 / n_groups)
    return Parameters(coef.copy(), np.full(len(coef), float(sigma)), weights)


def _by_weight(fit: _Fit) -> _Fit:
    """Components in the order of their proportions; the noise group stays last."""
    coef, sigma, weights = fit.parameters
    order = tied_order(-weights[0, : coef.shape[1]])
    groups = np.append(order, np.arange(len(order), weights.shape[1]))
    ordered = Parameters(coef[:, order], sigma, weights[:, groups])
    return fit._replace(parameters=ordered, counts=fit.counts[groups])


def _result(
    best: _Fit, curve: Floats, chosen: int, source: AtServer | AtSites, sites: Sites
) -> FmlrResult:
    parameters = best.parameters
    return FmlrResult(
        coef=parameters.coef[0],
        sigma=parameters.sigma[0],
        weights=parameters.weights[0],
        noise=pack_noise(source.noise),
        identified=best.counts[: parameters.coef.shape[1]] >= IDENTIFIED_CLIENTS,
        loglik=curve[chosen, 1],
        converged=np.array(best.converged),
        history_loglik=best.history,
        curve=curve,
        site_loglik=sites.loglik,
        site_rows=sites.rows,
        implausible=source.implausible,
        responsibilities=sites.responsibilities,
    )


_PARAMETERS = {"coef": COEF, "sigma": SIGMA, "weights": WEIGHTS, "noise": NOISE}

FMLR = Algorithm(
    name="fmlr",
    settings=FmlrSettings,
    prepare=prepare,
    program=program,
    result=FmlrResult,
    steps={
        "statistics": Step(_statistics, {"statistics": STATISTICS}),
        "statistics_and_moments": Step(
            _statistics_and_moments,
            {"statistics": STATISTICS, "moments": MOMENTS},
            {"limit": LIMIT},
        ),
        "moments": Step(_moments, {"moments": MOMENTS}, {"limit": LIMIT}),
        "target": Step(_target, {"target": TARGET}),
        "random_sums": Step(_random_sums, {"sums": SUMS}, {"weights": WEIGHTS, "limit": LIMIT}),
        "weighted_sums": Step(
            _weighted_sums, {"sums": SUMS, "counts": COUNTS, "loglik": LOGLIK}, _PARAMETERS
        ),
        "residual": Step(_residual, {"residual": RESIDUAL}, {"coef": COEF}),
        "settle": Step(_settle, {"loglik": LOGLIK, "rows": ROWS}, _PARAMETERS),
    },
)
