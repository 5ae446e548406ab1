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

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms import fmlr_starts as starts
from fedkin.federation import Federation
from fedkin.models.grouped_regression import (
    IDENTIFIED_CLIENTS,
    SMALLEST_NOISE_SHARE,
    SMALLEST_VARIANCE,
    Noise,
    Parameters,
    Totals,
    best_residuals,
    expect,
    largest_change,
    maximise,
    noise_density,
    responsibilities,
)
from fedkin.models.least_squares import (
    POSSIBLE_SLACK,
    n_coefficients,
    n_statistics,
    packed_statistics,
    possible,
    solve,
)
from fedkin.protocol import (
    DEFAULT_BOUND,
    Algorithm,
    Array,
    Arrays,
    Ask,
    Field,
    Program,
    Replies,
    Result,
    Roster,
    Settings,
    Step,
)

Floats = NDArray[np.float64]
Server = Generator[Ask, Replies, Any]

DEFAULTS: dict[str, Any] = {
    "n_components": None,
    "max_components": 8,
    "share": "statistics",
    "fit_intercept": True,
    "init": "auto",
    "n_restarts": 10,
    "sigma": None,
    "weights": None,
    "robust": False,
    "max_rounds": 500,
    "tol": 1e-6,
    "fraction": 1.0,
}

# A client whose outcome spreads more than this many times the median client's has a scale of its
# own: it counts as just so wide when the scale is set and, with `robust`, stays out of the start.
OWN_SCALE = 1e2
# A site's last reply stands for so many times the rounds in which everybody is asked once. A site
# lost for good must not hold on for ever to groups it was given when nobody knew any.
STANDING_TURNS = 5
# Numbers of weighted sums compared at once; they stay in cache.
SUMS_IN_CACHE = 1 << 16
NOBODY_POSSIBLE = "no site sent statistics that rows can give; look at the sites"

# ------------------------------------------------------------------ what leaves a client

STATISTICS = Field(("q",), "sums over the site's rows of products of features and outcome, and n")
MOMENTS = Field(("u",), "unbiased estimate of coef coef', from products of pairs of rows")
OUTCOME = Field((4,), "number of rows, sum and sum of squares of the outcome, number of coefs")
SUMS = Field(
    ("restarts", "groups", "q"),
    "the statistics times the site's responsibility for each group; added over the groups they "
    "are the statistics themselves",
)
COUNTS = Field(("restarts", "groups"), "the site's responsibility for each group", bound=1.0)
RESIDUAL = Field(("restarts",), "mean squared residual under the component that fits best")
LOGLIK = Field(("restarts",), "log likelihood of the site's rows")
ROWS = Field((), "number of rows")

COEF = Field(("restarts", "components", "d"), "coefficients of each component")
SIGMA = Field(("restarts",), "noise, a standard deviation")
WEIGHTS = Field(("restarts", "groups"), "mixing proportions")
LIMIT = Field((), "sites whose outcome has a larger mean square stay out of the start")
NOISE = Field(("slots",), "coefficients and variance of the noise group; empty if there is none")


# ------------------------------------------------------------------ client functions


class Cache(NamedTuple):
    """Packed statistics, feature-major (q, m)."""

    statistics: Floats

    def take(self, who: Array) -> Cache:
        """Those of some clients."""
        return Cache(np.ascontiguousarray(self.statistics[:, who]))


def prepare(clients: Federation, settings: Settings) -> Cache:
    """Reduce every client to its statistics."""
    if clients.y is None:
        raise ValueError("FMLR needs a target y at every site")
    return Cache(packed_statistics(clients, settings["fit_intercept"]))


def _statistics(clients, cache, settings, common, personal, memory, keys):
    return {"statistics": np.ascontiguousarray(cache.statistics.T)}, memory


def _moments(clients, cache, settings, common, personal, memory, keys):
    moments = starts.pair_moments(clients, settings["fit_intercept"])
    return {"moments": moments * _plain(cache, common)[:, None]}, memory


def _statistics_and_moments(*arguments):
    first, memory = _statistics(*arguments)
    return {**first, **_moments(*arguments)[0]}, memory


def _outcome(clients, cache, settings, common, personal, memory, keys):
    total = np.bincount(clients.owner, clients.y, minlength=len(clients))
    n, square = cache.statistics[-1], cache.statistics[-2]
    n_coef = np.full_like(n, n_coefficients(len(cache.statistics)))
    return {"outcome": np.stack([n, total, square, n_coef], axis=1)}, memory


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
    noise = _unpack_noise(common["noise"])
    outside = None if noise is None else noise_density(cache.statistics, noise)
    share, loglik = responsibilities(cache.statistics, parameters, outside)
    return np.ascontiguousarray(share.transpose(2, 0, 1)), np.ascontiguousarray(loglik.T)


def _plain(cache: Cache, common: Arrays) -> Floats:
    """1 for clients whose mean square of the outcome is within the limit, else 0, (m,)."""
    n, square = cache.statistics[-1], cache.statistics[-2]
    return (square <= common["limit"] * np.maximum(n, 1.0)).astype(np.float64)


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Choose K if it is open, fit, and tell every site its group."""
    rng = np.random.default_rng([roster.seed, 0xF31A])
    source = (_AtServer if settings["share"] == "statistics" else _AtSites)(roster, settings, rng)
    yield from source.open()
    if not source.n_sites:
        raise ValueError(NOBODY_POSSIBLE)
    most = min(settings["max_components"], source.n_sites)
    wanted = settings["n_components"]
    candidates = range(1, most + 1) if wanted is None else [wanted]
    fits: list[_Fit] = []
    for n_components in candidates:
        fits += [(yield from _fit(source, n_components, settings))]
    curve = np.array([fit.criterion(source.n_rows) for fit in fits])
    chosen = int(np.argmin(curve[:, 2]))
    best = fits[chosen]
    if isinstance(settings["init"], str):
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


def _fit(source: _AtServer | _AtSites, n_components: int, settings: Settings) -> Server:
    """EM from every start side by side; the likeliest end."""
    parameters = yield from _start(source, n_components, settings)
    source.begin()
    parameters, history, settled = yield from _improve(source, parameters, settings)
    totals = yield from source.expect(parameters, np.arange(len(parameters.coef)), 1.0)
    per_row = _per_row(totals)
    best = int(np.nanargmax(per_row))
    final = Parameters(*(part[best : best + 1] for part in parameters))
    d = final.coef.shape[-1]
    free = n_components * d + (settings["sigma"] is None)
    free += final.weights.shape[1] - 1 if settings["weights"] is None else 0
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


def _improve(source: _AtServer | _AtSites, parameters: Parameters, settings: Settings) -> Server:
    """EM steps until no restart moves; restarts that have settled are not computed again.

    A restart has settled when it has not moved since the oldest reply that it rests on.
    """
    n_restarts = len(parameters.coef)
    active, calm = np.arange(n_restarts), np.zeros(n_restarts, dtype=np.intp)
    history = []
    for _ in range(settings["max_rounds"]):
        current = Parameters(*(part[active] for part in parameters))
        totals = yield from source.expect(current, active, settings["fraction"])
        new = maximise(totals, current, settings["sigma"] is None, settings["weights"] is None)
        for whole, part in zip(parameters, new):
            whole[active] = part
        history.append((active, _per_row(totals) * source.n_rows))
        moved = largest_change(new, current) > settings["tol"]
        calm[active] = np.where(moved, 0, calm[active] + 1)
        active = active[calm[active] <= source.oldest]
        if not len(active):
            break
    return parameters, history, ~np.isin(np.arange(n_restarts), active)


def _start(source: _AtServer | _AtSites, n_components: int, settings: Settings) -> Server:
    """Coefficients of all restarts, a first guess of the noise, equal proportions.

    From scratch the noise starts at the scale of the outcome, which acts like annealing; from
    given coefficients it starts at what they leave unexplained at the median site.
    """
    init = settings["init"]
    if isinstance(init, str) and n_components == 1:
        coef = yield from source.starts(1, "random", 1)  # one regression: pooled least squares
    elif isinstance(init, str):
        coef = yield from source.starts(n_components, init, settings["n_restarts"])
    else:
        coef = np.array(init, dtype=np.float64, ndmin=2)[None]
        if settings["fit_intercept"] and coef.shape[-1] == source.n_coefficients - 1:
            coef = np.concatenate([coef, np.zeros((*coef.shape[:-1], 1))], axis=-1)
        if coef.shape[1:] != (n_components, source.n_coefficients):
            raise ValueError(
                f"init has shape {coef.shape[1:]}; expected ({n_components} components, "
                f"{source.n_coefficients} coefficients with the intercept last)"
            )
    n_groups = n_components + (source.noise is not None)
    sigma = settings["sigma"]
    if sigma is None and isinstance(init, str):
        sigma = source.scale
    elif sigma is None:
        sigma = np.sqrt((yield from source.residual(coef))) or source.scale
    weights = np.full((len(coef), n_groups), 1.0 / n_groups)
    return Parameters(coef.copy(), np.full(len(coef), float(sigma)), weights)


def _by_weight(fit: _Fit) -> _Fit:
    """Components in the order of their proportions; the noise group stays last."""
    coef, sigma, weights = fit.parameters
    order = np.argsort(-weights[0, : coef.shape[1]], kind="stable")
    groups = np.append(order, np.arange(len(order), weights.shape[1]))
    ordered = Parameters(coef[:, order], sigma, weights[:, groups])
    return fit._replace(parameters=ordered, counts=fit.counts[groups])


class _Sites(NamedTuple):
    """What is known of every site at the end; NaN for sites that were not heard."""

    loglik: Floats
    rows: Floats
    responsibilities: Floats | None


def _result(
    best: _Fit, curve: Floats, chosen: int, source: _AtServer | _AtSites, sites: _Sites
) -> Result:
    parameters = best.parameters
    n_components = parameters.coef.shape[1]
    weights = parameters.weights[0]
    result = {
        "coef": parameters.coef[0],
        "sigma": parameters.sigma[0],
        "weights": weights,
        "noise": _pack_noise(source.noise),
        "identified": best.counts[:n_components] >= IDENTIFIED_CLIENTS,
        "loglik": curve[chosen, 1],
        "converged": np.bool_(best.converged),
        "history_loglik": best.history,
        "curve": curve,
        "site_loglik": sites.loglik,
        "site_rows": sites.rows,
        "implausible": source.implausible,
    }
    if sites.responsibilities is not None:
        result["responsibilities"] = sites.responsibilities
    return {name: np.asarray(array) for name, array in result.items()}


class _Source:
    """Where the server's sums come from, and what it knows of the data's size and scale."""

    def __init__(self, roster: Roster, settings: Settings, rng: np.random.Generator) -> None:
        self.roster, self.settings, self.rng = roster, settings, rng
        self.n_sites = self.n_coefficients = 0
        self.scale = 0.0
        self.limit = DEFAULT_BOUND
        self.noise: Noise | None = None
        self.rows = np.full(len(roster), np.nan)
        self.implausible = np.zeros(len(roster), dtype=bool)
        self.oldest = 0
        """Age in rounds of the oldest reply behind the totals."""

    @property
    def n_rows(self) -> float:
        """Rows of all sites that are believed."""
        return float(np.nansum(self.rows[~self.implausible]))

    def begin(self) -> None:
        """A fit begins: replies about another one are worth nothing."""

    def _measure(self, outcome: Floats, n_coef: int) -> None:
        """Size and scale from (n, sum y, sum y^2) per site."""
        self.n_sites, self.n_coefficients = len(outcome), n_coef
        if not self.n_sites:
            return
        n, total, square = outcome.T
        centre = float(np.median(total / n)) if self.settings["fit_intercept"] else 0.0
        spread = np.maximum(square - 2 * centre * total + n * centre**2, 0.0) / n
        # What is left of a constant outcome is rounding, not a scale.
        spread = np.where(spread > SMALLEST_NOISE_SHARE * square / n, spread, 0.0)
        widest = OWN_SCALE * float(np.median(spread))
        typical = np.minimum(spread, widest) if widest > 0 else spread
        variance = float((typical * n).sum() / n.sum())
        # Without variation the size of the outcome is all there is; without size, nothing is.
        variance = variance or float(np.median(square / n)) or 1.0
        self.scale = float(np.sqrt(max(variance, SMALLEST_VARIANCE)))
        if self.settings["robust"]:
            if widest > 0:
                self.limit = widest + centre**2
            null = np.zeros(n_coef)
            null[-1] = centre if self.settings["fit_intercept"] else 0.0
            self.noise = Noise(null, self.scale**2)


class _AtServer(_Source):
    """share="statistics": the statistics travel once, the rest happens here."""

    def open(self) -> Server:
        spectral = str(self.settings["init"]) == "spectral"
        step = "statistics_and_moments" if spectral else "statistics"
        common = {"limit": np.array(self.limit)} if spectral else {}
        replies = yield Ask(step, common, note="collecting statistics")
        sent = np.ascontiguousarray(replies["statistics"].T)
        fine = possible(sent, self.settings["fit_intercept"])
        self.implausible[replies.clients[~fine]] = True
        self.clients = replies.clients[fine]
        self.statistics = sent if fine.all() else np.ascontiguousarray(sent[:, fine])
        self.rows[self.clients] = self.statistics[-1]
        n_coef = n_coefficients(len(self.statistics))
        n, square = self.statistics[-1], self.statistics[-2]
        # With an intercept, sum y is the product of the last two columns.
        total = self.statistics[-3] if self.settings["fit_intercept"] else np.zeros_like(n)
        self._measure(np.stack([n, total, square], axis=1), n_coef)
        plain = square <= self.limit * n
        self.plain = self.statistics[:, plain]
        self.moments = replies["moments"][fine][plain].sum(axis=0) if spectral else None
        self.outside = None if self.noise is None else noise_density(self.statistics, self.noise)

    def expect(self, parameters: Parameters, which: Array, fraction: float) -> Server:
        yield from ()
        return expect(self.statistics, parameters, self.outside)

    def starts(self, n_components: int, word: str, n_restarts: int) -> Server:
        yield from ()
        n_random = {"random": n_restarts, "auto": n_restarts // 2}.get(word, 0)
        if self.plain.shape[1] < n_components:
            n_random = n_restarts  # too few fits to cluster
        drawn = starts.random_groups(self.plain, n_components, n_random, self.rng)
        clustered = starts.clustered_fits(
            self.plain, n_components, n_restarts - n_random, self.rng, self.moments
        )
        return np.concatenate([clustered, drawn])

    def residual(self, coef: Floats) -> Server:
        yield from ()
        return np.median(best_residuals(self.statistics, coef))

    def settle(self, parameters: Parameters) -> Server:
        yield from ()
        share, loglik = responsibilities(self.statistics, parameters, self.outside)
        everyone = np.tile(parameters.weights[0], (len(self.roster), 1))
        everyone[self.clients] = share[0].T
        return _Sites(
            _spread(loglik[0], self.clients, len(self.roster)),
            self.rows,
            everyone,
        )


class _Standing:
    """Every site's last reply to "weighted_sums" and its age in rounds."""

    def __init__(self, n_sites: int) -> None:
        self.age = np.full(n_sites, np.inf)
        self.parts: list[Floats] = []
        self.borrowed = True

    def put(self, clients: Array, which: Array, replies: list[Floats]) -> None:
        """Keep replies of some sites about some restarts; the first are about all restarts."""
        everybody = len(clients) == len(self.age)
        if not self.parts and not everybody:
            self.parts = [np.zeros((len(self.age), *part.shape[1:])) for part in replies]
            self.borrowed = False
        if everybody and (not self.parts or len(which) == self.parts[0].shape[1]):
            self.parts, self.borrowed = replies, True
            return
        if self.borrowed:  # what came as a reply is not ours to write on
            self.parts, self.borrowed = [part.copy() for part in self.parts], False
        place: Any = np.s_[:, which] if everybody else np.ix_(clients, which)
        for part, reply in zip(self.parts, replies):
            part[place] = reply

    def total(self, stands: Array, which: Array) -> Totals:
        """Sums over the sites whose reply stands, for some restarts."""
        place = np.ix_(np.flatnonzero(stands), which)
        return Totals(*(part[place].sum(axis=0) for part in self.parts))


class _AtSites(_Source):
    """share="sums": the paper's rounds. What the program computes are totals over sites and each
    site's number of rows and scale of the outcome; single replies are only checked for being
    possible, and kept for the rounds a site misses."""

    def open(self) -> Server:
        replies = yield Ask("outcome", note="size and scale")
        outcome = replies["outcome"]
        n_coef = np.median(outcome[:, 3])
        # Packed statistics of a regression on nothing but an intercept.
        fine = possible(np.ascontiguousarray(outcome[:, [0, 1, 2, 0]].T), True)
        fine &= outcome[:, 3] == n_coef
        self._believe(replies.clients, fine)
        m, q = len(self.roster), n_statistics(int(n_coef))
        self.squares, self.statistics = np.full(m, np.nan), np.full((m, q), np.nan)
        heard = replies.clients[fine]
        self.rows[heard], self.squares[heard] = outcome[fine, 0], outcome[fine, 2]
        self._measure(outcome[fine, :3], int(n_coef))

    def begin(self) -> None:
        self.standing = _Standing(len(self.roster))

    def expect(self, parameters: Parameters, which: Array, fraction: float) -> Server:
        common = self._message(parameters)
        replies = yield Ask("weighted_sums", common, fraction=fraction, note="EM")
        fine = self._possible_sums(replies.clients, replies["sums"], replies["counts"])
        kept = self._believe(replies.clients, fine)
        clients, age = replies.clients[kept], self.standing.age
        parts = [replies["sums"], replies["counts"], replies["loglik"]]
        if not kept.all():
            parts = [part[kept] for part in parts]
        self.standing.put(clients, which, parts)
        age += 1.0
        age[clients] = 0.0
        age[self.implausible] = np.inf
        stands = age < np.ceil(STANDING_TURNS / self.settings["fraction"])
        if not stands.any():
            raise ValueError(NOBODY_POSSIBLE)
        self.oldest = int(age[stands].max())
        if not self.oldest:
            return Totals(*(part.sum(axis=0) for part in parts))
        return self.standing.total(stands, which)

    def starts(self, n_components: int, word: str, n_restarts: int) -> Server:
        if word == "spectral":
            replies = yield Ask("moments", {"limit": np.array(self.limit)}, note="start")
            kept = ~self.implausible[replies.clients]
            mean = replies["moments"][kept].mean(axis=0)
            return starts.in_eigenspace(mean, n_components, n_restarts, self.rng)
        weights = np.full((n_restarts, n_components), 1.0 / n_components)
        common = {"weights": weights, "limit": np.array(self.limit)}
        replies = yield Ask("random_sums", common, note="start")
        sums = replies["sums"]
        drawn = (sums[..., -1] != 0).astype(np.float64)
        fine = self._possible_sums(replies.clients, sums, drawn)
        # A site with a scale of its own stays out and sends nothing but zeros.
        fine |= np.all(sums == 0, axis=(1, 2, 3))
        return solve(sums[self._believe(replies.clients, fine)].sum(axis=0))[0]

    def residual(self, coef: Floats) -> Server:
        replies = yield Ask("residual", {"coef": coef}, note="noise of the given start")
        fine: Array = np.all(replies["residual"] >= 0, axis=1)
        return np.median(replies["residual"][self._believe(replies.clients, fine)])

    def settle(self, parameters: Parameters) -> Server:
        replies = yield Ask("settle", self._message(parameters), note="sites learn their group")
        kept = self._believe(
            replies.clients, self._same(self.rows, replies.clients, replies["rows"])
        )
        m, clients = len(self.roster), replies.clients[kept]
        return _Sites(
            _spread(replies["loglik"][kept, 0], clients, m),
            _spread(replies["rows"][kept], clients, m),
            None,
        )

    def _message(self, parameters: Parameters) -> dict[str, Array]:
        return {**parameters._asdict(), "noise": _pack_noise(self.noise)}

    # ------------------------------------------------------------ which replies are possible

    def _believe(self, clients: Array, fine: Array) -> Array:
        """Note sites whose reply is impossible; the replies to use: of sites believed so far."""
        self.implausible[clients[~fine]] = True
        return ~self.implausible[clients]

    def _possible_sums(self, clients: Array, sums: Floats, counts: Floats) -> Array:
        """Whether weighted sums are shares, `counts` (m, R, G), of each site's own statistics.

        These are what its first sums add up to over the groups: possible, and with the rows and
        squares that the site gave before.
        """
        fine: Array = np.all(counts >= 0, axis=(1, 2))
        fine &= np.all(np.abs(counts.sum(axis=2) - 1) <= POSSIBLE_SLACK, axis=1)
        new = fine & np.isnan(self.statistics[clients, -1])
        if new.any():
            fine[new] = self._possible_statistics(clients[new], sums[new, 0].sum(axis=1))
        step = max(1, SUMS_IN_CACHE * len(sums) // max(sums.size, 1))
        for begin in range(0, len(clients), step):
            block = slice(begin, begin + step)
            own = self.statistics[clients[block]]
            gaps = counts[block, ..., None] * own[:, None, None]
            gaps -= sums[block]
            largest = np.abs(gaps, out=gaps).max(axis=(1, 2))
            fine[block] &= np.all(largest <= POSSIBLE_SLACK * np.abs(own), axis=1)
        return fine

    def _possible_statistics(self, clients: Array, statistics: Floats) -> Array:
        """Look at sites' statistics (m, q) for the first time and keep those that are possible."""
        fine: Array = possible(np.ascontiguousarray(statistics.T), self.settings["fit_intercept"])
        fine &= self._same(self.rows, clients, statistics[:, -1])
        fine &= self._same(self.squares, clients, statistics[:, -2])
        self.statistics[clients[fine]] = statistics[fine]
        self.rows[clients[fine]] = statistics[fine, -1]
        return fine

    def _same(self, known: Floats, clients: Array, values: Floats) -> Array:
        """Whether sites repeat what they gave before; a site heard for the first time may."""
        before = known[clients]
        same: Array = np.isnan(before) | (np.abs(values - before) <= POSSIBLE_SLACK * before)
        return same


def _spread(values: Floats, clients: Array, n_clients: int) -> Floats:
    everyone = np.full(n_clients, np.nan)
    everyone[clients] = values
    return everyone


def _pack_noise(noise: Noise | None) -> Floats:
    return np.empty(0) if noise is None else np.append(noise.coef, noise.variance)


def _unpack_noise(packed: Array) -> Noise | None:
    return Noise(packed[:-1], float(packed[-1])) if len(packed) else None


_PARAMETERS = {"coef": COEF, "sigma": SIGMA, "weights": WEIGHTS, "noise": NOISE}

FMLR = Algorithm(
    name="fmlr",
    prepare=prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=("fit_intercept",),
    steps={
        "statistics": Step(_statistics, {"statistics": STATISTICS}),
        "statistics_and_moments": Step(
            _statistics_and_moments,
            {"statistics": STATISTICS, "moments": MOMENTS},
            {"limit": LIMIT},
        ),
        "moments": Step(_moments, {"moments": MOMENTS}, {"limit": LIMIT}),
        "outcome": Step(_outcome, {"outcome": OUTCOME}),
        "random_sums": Step(_random_sums, {"sums": SUMS}, {"weights": WEIGHTS, "limit": LIMIT}),
        "weighted_sums": Step(
            _weighted_sums, {"sums": SUMS, "counts": COUNTS, "loglik": LOGLIK}, _PARAMETERS
        ),
        "residual": Step(_residual, {"residual": RESIDUAL}, {"coef": COEF}),
        "settle": Step(_settle, {"loglik": LOGLIK, "rows": ROWS}, _PARAMETERS),
    },
)
