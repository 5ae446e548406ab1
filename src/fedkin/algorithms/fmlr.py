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
  (`implausible`). Lies that rows could give are not seen. With "sums", groups and likelihoods are
  compared with what the site's own sums give.
- A start from scratch with restarts side by side in one Ask; the paper assumes one near the truth.
- `robust`: one more group, the null model with large heavy-tailed variance, takes clients that no
  regression explains; clients of a scale of their own stay out of the start.
- `degrees`: clients may depart from their kind's regression by a random effect, and `site_noise`:
  each may have a noise of its own; BIC decides (`fmlr_degrees`). The paper has neither.
- Rows may have weights (`models.weighted_rows`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedkin.algorithms import fmlr_starts as starts
from fedkin.algorithms.fmlr_degrees import NEITHER, Chooser, Tried, carries, common_model
from fedkin.algorithms.fmlr_expectation import (
    NOBODY_POSSIBLE,
    AtServer,
    AtSites,
    Server,
    Sites,
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
    pack_noise,
    responsibilities,
    unpack_noise,
)
from fedkin.models.kinds_degrees_fit import Way
from fedkin.models.least_squares import (
    RANK_TOLERANCE,
    n_coefficients,
    packed_statistics,
    unpack,
)
from fedkin.models.weighted_rows import log_weights
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
    degrees: str | bool = setting("choose", one_of("choose", True, False))
    covariance: str = setting("auto", one_of("auto", "full", "diagonal", "isotropic"))
    site_noise: str = setting("choose", one_of("choose", "common", "own"))
    weighted: bool = setting(False, Flag(), at_site=True)

    @property
    def as_printed(self) -> bool:
        """Whether only regressions without departures and with one noise are fitted.

        So it is where sites do not send their statistics, and where noise, proportions or a start
        are given, unless departures or noises are asked for.
        """
        if self.share != "statistics" or self.told or self.ways == (NEITHER,):
            return True
        return self.given_start is not None and NEITHER in self.ways

    @property
    def told(self) -> bool:
        """Whether noise or proportions are given, as in the paper."""
        return self.sigma is not None or self.weights is not None

    @property
    def ways(self) -> tuple[Way, ...]:
        """What may be chosen among."""
        degrees = (False, True) if self.degrees == "choose" else (bool(self.degrees),)
        own = {"choose": (False, True), "own": (True,), "common": (False,)}[self.site_noise]
        return tuple(Way(d, o) for o in own for d in degrees)

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
        asked = [
            name
            for name, word in (("degrees", True), ("site_noise", "own"))
            if getattr(self, name) == word
        ]
        if asked and self.share != "statistics":
            raise ValueError(f"{asked[0]}={getattr(self, asked[0])!r} needs share='statistics'")
        if asked and self.told:
            raise ValueError(
                f"{asked[0]}={getattr(self, asked[0])!r} learns noise and proportions; leave sigma "
                "and weights at None"
            )
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
LOG_WEIGHTS = Field((), "sum of the logarithms of the rows' weights", reveals="sums")
MASS = Field((), "sum of the rows' weights", least=0.0, reveals="sums")

COEF = Field(("restarts", "components", "d"), "coefficients of each component")
SIGMA = Field(("restarts",), "noise, a standard deviation")
WEIGHTS = Field(("restarts", "groups"), "mixing proportions")
LIMIT = Field((), "sites whose target has a larger mean square stay out of the start")
NOISE = Field(("slots",), "coefficients and variance of the noise group; empty if there is none")


# ------------------------------------------------------------------ client functions


class Cache(NamedTuple):
    """Packed statistics, feature-major (q, m); sums of weights and of their logarithms, (m,)."""

    statistics: Floats
    mass: Floats
    log_weights: Floats

    def take(self, who: Array) -> Cache:
        """Those of some clients."""
        own = np.ascontiguousarray(self.statistics[:, who])
        return Cache(own, self.mass[who], self.log_weights[who])


def prepare(clients: Federation, settings: FmlrSettings) -> Cache:
    """Reduce every client to its statistics."""
    if clients.y is None:
        raise ValueError("FMLR needs a target y at every site")
    if settings.weighted != (clients.weights is not None):
        raise ValueError("rows have weights at some sites only; give them at all sites or at none")
    n = clients.sizes.astype(np.float64)
    mass = n
    if clients.weights is not None:
        mass = np.bincount(clients.owner, clients.weights, len(n)).astype(np.float64)
    return Cache(packed_statistics(clients, settings.fit_intercept), mass, log_weights(clients))


def _statistics(clients, cache, settings, common, personal, memory, keys, fields=()):
    # A view: the server turns it back, and a million sites are not copied twice.
    return {"statistics": cache.statistics.T, **_weights(cache, fields)}, memory


def _weights(cache: Cache, fields: tuple[str, ...]) -> Arrays:
    """What is asked of the rows' weights."""
    return {name: getattr(cache, name) for name in fields}


def _moments(clients, cache, settings, common, personal, memory, keys):
    moments = starts.pair_moments(clients, settings.fit_intercept)
    return {"moments": moments * _plain(cache, common)[:, None]}, memory


def _statistics_and_moments(*arguments, fields=()):
    first, memory = _statistics(*arguments, fields=fields)
    return {**first, **_moments(*arguments)[0]}, memory


def _target(clients, cache, settings, common, personal, memory, keys, fields=()):
    y = clients.y if clients.weights is None else clients.y * clients.weights
    total = np.bincount(clients.owner, y, minlength=len(clients))
    n, square = cache.statistics[-1], cache.statistics[-2]
    n_coef = np.full_like(n, n_coefficients(len(cache.statistics)))
    target = np.stack([n, total, square, n_coef], axis=1)
    return {"target": target, **_weights(cache, fields)}, memory


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
    wanted = settings.n_components
    most = min(settings.max_components, source.n_sites)
    numbers = list(range(1, most + 1)) if wanted is None else [wanted]
    fits: dict[int, _Fit] = {}
    for n_components in numbers:
        fits[n_components] = yield from _fit(source, n_components, settings)
    plain = [fit.tried(source) for fit in fits.values()]
    tried = [each for each in plain if each.carried or len(numbers) == 1]
    beside = [each for each in plain if not any(each is other for other in tried)]
    chooser = None
    if not settings.told and 1 not in fits:
        # Likelihoods under a given noise are not to be compared with others.
        beside.append(_common_model(source, fits[numbers[0]].total))
    if isinstance(source, AtServer) and not settings.told:
        chooser = Chooser(source, settings, tried)
        if not settings.as_printed:
            tried = chooser.look(settings.ways, numbers)
            beside += [each for each in chooser.tried if not each.carried and len(numbers) > 1]
        mixed_model = chooser.mixed_model()
        if mixed_model is not None and not any(each is mixed_model for each in tried):
            beside.append(mixed_model)
    chosen = tried[int(first_least(np.array([each.bic for each in tried]), floor=RELATIVE))]
    if chooser is not None and not settings.as_printed:
        before, chosen = chosen, chooser.without_levels_as_noise(chosen, tried)
        if chosen is not before:
            beside += [each for each in tried if each.way.own_noise]
            tried = [each for each in tried if not each.way.own_noise]
    curve = np.array([*(each.row(True) for each in tried), *(each.row(False) for each in beside)])
    if chosen.kinds is not None:
        assert chooser is not None
        return _compared(chooser.result(chosen, curve), source)
    best = fits[chosen.n_kinds]
    if settings.given_start is None:
        best = _by_weight(best)
    sites = yield from source.settle(best.parameters)
    return _compared(_result(best, curve, chosen, source, sites), source)


def _compared(result: FmlrResult, source: AtServer | AtSites) -> FmlrResult:
    """With errors to be expected beside one model's and those of all alone, where sums are here."""
    if not isinstance(source, AtServer):
        return result
    intercept = source.settings.fit_intercept
    return result.beside_others(source.statistics, source.clients, intercept)


def _common_model(source: AtServer | AtSites, total: Floats) -> Tried:
    """One regression for all sites: shown beside whatever was chosen."""
    return common_model(total, source.n_rows, source.log_volume)


class _Fit(NamedTuple):
    """A fit of K components; the likelihood is per row, because who is heard may differ."""

    parameters: Parameters
    counts: Floats
    loglik_per_row: float
    n_free: int
    converged: bool
    history: Floats
    sums: Floats
    """Statistics of all sites by group, (G, q)."""

    @property
    def total(self) -> Floats:
        """Statistics of all sites, (q,)."""
        return np.asarray(self.sums.sum(axis=0))

    def tried(self, source: AtServer | AtSites) -> Tried:
        """Log likelihood of all rows and BIC."""
        loglik = self.loglik_per_row * source.n_rows + source.log_volume
        bic = -2 * loglik + self.n_free * np.log(source.n_rows)
        coef, sigma = self.parameters.coef[0], float(self.parameters.sigma[0])
        carried = carries(self.sums[: len(coef), -1], coef.shape[1])
        return Tried(NEITHER, coef, sigma, loglik, float(bic), carried=carried)

    def coef_covariance(self) -> Floats:
        """Of the coefficients of every component, given who belongs to it, (K, d, d)."""
        n_components = self.parameters.coef.shape[1]
        gram = unpack(self.sums[:n_components])[0]
        variance = float(self.parameters.sigma[0]) ** 2
        return np.asarray(variance * np.linalg.pinv(gram, RANK_TOLERANCE, hermitian=True))


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
        totals.sums[best],
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
    return fit._replace(parameters=ordered, counts=fit.counts[groups], sums=fit.sums[groups])


def _result(
    best: _Fit, curve: Floats, chosen: Tried, source: AtServer | AtSites, sites: Sites
) -> FmlrResult:
    coef, sigma, weights = (part[0] for part in best.parameters)
    n_components, d = coef.shape
    errors = source.errors(best.parameters)
    result = FmlrResult(
        coef=coef,
        sigma=sigma,
        weights=weights,
        noise=pack_noise(source.noise),
        identified=best.counts[:n_components] >= IDENTIFIED_CLIENTS,
        loglik=np.array(chosen.loglik),
        bic=np.array(chosen.bic),
        coef_covariance=best.coef_covariance(),
        converged=np.array(best.converged),
        history_loglik=best.history,
        curve=curve,
        site_loglik=sites.loglik,
        site_rows=sites.rows,
        implausible=source.implausible,
        random_covariance=np.zeros((d, d)),
        coef_sandwich=errors.covariance,
        coef_degrees=errors.degrees,
        coef_by_sites=errors.by_sites,
    )
    return result.with_responsibilities(sites.responsibilities)


_PARAMETERS = {"coef": COEF, "sigma": SIGMA, "weights": WEIGHTS, "noise": NOISE}

FMLR = Algorithm(
    name="fmlr",
    settings=FmlrSettings,
    prepare=prepare,
    program=program,
    result=FmlrResult,
    steps={
        "statistics": Step(
            _statistics, {"statistics": STATISTICS}, optional={"log_weights": LOG_WEIGHTS}
        ),
        "statistics_and_moments": Step(
            _statistics_and_moments,
            {"statistics": STATISTICS, "moments": MOMENTS},
            {"limit": LIMIT},
            optional={"log_weights": LOG_WEIGHTS},
        ),
        "moments": Step(_moments, {"moments": MOMENTS}, {"limit": LIMIT}),
        "target": Step(
            _target, {"target": TARGET}, optional={"mass": MASS, "log_weights": LOG_WEIGHTS}
        ),
        "random_sums": Step(_random_sums, {"sums": SUMS}, {"weights": WEIGHTS, "limit": LIMIT}),
        "weighted_sums": Step(
            _weighted_sums, {"sums": SUMS, "counts": COUNTS, "loglik": LOGLIK}, _PARAMETERS
        ),
        "residual": Step(_residual, {"residual": RESIDUAL}, {"coef": COEF}),
        "settle": Step(_settle, {"loglik": LOGLIK, "rows": ROWS}, _PARAMETERS),
    },
)
