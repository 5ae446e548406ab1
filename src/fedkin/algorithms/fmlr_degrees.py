"""Whether sites differ by kind, by degree, or both, and whether each has its own noise: by BIC.

What the sites sent for FMLR is all it takes (`models.kinds_degrees`): no site is asked again. The
curve of K without departures is there before; here come the mixed model (one kind with
departures), kinds with departures, and kinds whose sites have their own noise. Each of these is
followed over K until BIC has risen, and only where there is a sign of it:

- departures, if the mixed model beats every number of kinds without, or if they pay at the best
  number of kinds without;
- noise of their own, if the sites' squared residuals under the best fit so far ask for it.

Noises that pass for levels are no answer (`Chooser.without_levels_as_noise`): where levels have
long tails, it is likelier that a far site is loud than that it is far, and its own rows, which all
lie where it lies, are then not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin.algorithms.fmlr_result import FmlrResult
from fedkin.arrays import Floats, Indices
from fedkin.clustering import kmeans
from fedkin.models.expected_errors import degrees_of_freedom, expected_errors
from fedkin.models.grouped_regression import (
    IDENTIFIED_CLIENTS,
    SMALLEST_NOISE_SHARE,
    SMALLEST_VARIANCE,
    pack_noise,
)
from fedkin.models.kinds_degrees import away_from, mixed, noise_gain, without_effects
from fedkin.models.kinds_degrees_fit import (
    Clients,
    KindsFit,
    Way,
    clients_of,
    fit,
    likelihood_of,
    refined,
)
from fedkin.models.kinds_prediction import KindsPosterior
from fedkin.models.least_squares import residual_coefficients, solve
from fedkin.models.linear_mixed import eliminate
from fedkin.models.linear_mixed_fit import fit as fit_mixed
from fedkin.protocol import over_roster
from fedkin.ties import RELATIVE, first_least, tied_order

if TYPE_CHECKING:
    from fedkin.algorithms.fmlr import FmlrSettings
    from fedkin.algorithms.fmlr_expectation import AtServer

NEITHER = Way(degrees=False, own_noise=False)
DEGREES = Way(degrees=True, own_noise=False)
OWN_NOISE = Way(degrees=False, own_noise=True)
BOTH = Way(degrees=True, own_noise=True)
# Noise below this share of the target's size is rounding.
ROUNDING = 1e-6
# Departures of fewer sites are no law.
LEAST_SITES = 4
# Ways in which departures are clustered to begin from.
N_CLUSTERINGS = 3
# Slope of -2 log likelihood at which a fit has settled.
SETTLED = 1e-3
# BIC may rise so often along K before a way with one noise, or with own ones, is left.
PATIENCE = (2, 1)
# Rows that a coefficient of a kind needs where sites depart or have their own noise.
ROWS_A_COEFFICIENT = 5.0
# What the errors of a kind's own coefficients may add to a prediction, in units of the noise
# variance: least squares of n rows and d coefficients adds d / (n - d - 1) on average.
MOST_ADDED = 1.0
# Squared errors to be expected within this share of another fit's are as good.
AS_GOOD = 0.02


class Tried(NamedTuple):
    """A number of kinds in one way: how likely, at what price; `kinds` unless it is NEITHER."""

    way: Way
    coef: Floats
    sigma: float
    loglik: float
    bic: float
    kinds: KindsFit | None = None
    carried: bool = True
    """Whether every kind has rows enough for coefficients of its own."""

    @property
    def n_kinds(self) -> int:
        """Number of kinds K."""
        return len(self.coef)

    def row(self, considered: bool) -> tuple[float, ...]:
        """For the curve of the result: see `CURVE`."""
        return (self.n_kinds, self.loglik, self.bic, *self.way, considered)


class Chooser:
    """Fits of kinds that depart or have noise of their own, from statistics at the server."""

    def __init__(self, source: AtServer, settings: FmlrSettings, plain: Sequence[Tried]) -> None:
        self.source, self.settings = source, settings
        self.plain = {tried.n_kinds: tried for tried in plain}
        self.clients = clients_for(source.statistics, settings)
        self.tried: list[Tried] = []
        self.starts = {tried.n_kinds: [tried.coef] for tried in plain}
        self._seed = int(source.rng.integers(2**31 - 1))

    @property
    def enough(self) -> bool:
        """Whether departures can be told from noise: several sites, rows beyond one each."""
        source = self.source
        return source.n_sites >= LEAST_SITES and source.n_rows > source.n_sites + len(
            self.clients.prepared.offset
        )

    @property
    def exact(self) -> bool:
        """Whether regressions leave nothing but rounding: there is nothing more to explain."""
        size = np.sqrt(self.source.statistics[-2].sum() / self.source.n_rows)
        return min(tried.sigma for tried in self.plain.values()) <= ROUNDING * size

    # ------------------------------------------------------------ fits

    def at(self, way: Way, n_kinds: int) -> Tried:
        """The fit of K kinds in one way, made once."""
        for tried in self.tried:
            if (tried.n_kinds, tried.way) == (n_kinds, way):
                return tried
        tried = self._fitted(way, n_kinds, self.source.outside)
        if way.own_noise and self.source.outside is not None:
            # A loud site is no odd one: a group for odd ones has to pay.
            tried = min(tried, self._fitted(way, n_kinds, None), key=lambda one: one.bic)
        self.starts.setdefault(n_kinds, []).append(tried.coef)
        self.tried.append(tried)
        return tried

    def _fitted(self, way: Way, n_kinds: int, outside: Floats | None) -> Tried:
        cluster = self._clusterings if self.settings.given_start is None else None
        starts = self.starts.get(n_kinds, ())
        found = fit(self.clients, way, n_kinds, starts, cluster, outside)
        rows = self._rows_of_kinds(found, outside)
        return self._priced(found)._replace(carried=carries(rows, found.coef.shape[1]))

    def _rows_of_kinds(self, found: KindsFit, outside: Floats | None) -> Floats:
        """Rows of the sites of every kind, (K,)."""
        prepared, n_kinds = self.clients.prepared, len(found.coef)
        likelihood = likelihood_of(self.clients, found.way)
        groups = likelihood.evaluate(self.clients.inside(found.coef), found.numbers).loglik
        if outside is not None:
            groups = np.vstack([groups, outside + prepared.n_rows * np.log(prepared.scale)])
        share, _ = mixed(groups, np.log(np.maximum(found.weights, 1e-300)))
        return np.asarray(share[:n_kinds] @ prepared.n_rows)

    def _clusterings(self, points: Floats, n_kinds: int) -> Iterable[Indices]:
        for k in range(N_CLUSTERINGS if len(points) >= n_kinds else 0):
            yield kmeans(points, n_kinds, self._seed + k, n_starts=1).labels

    def _priced(self, found: KindsFit) -> Tried:
        loglik = found.loglik + self.source.log_volume
        n_kinds, d = found.coef.shape
        free = n_kinds * d + found.n_covariance + found.n_noise + len(found.weights) - 1
        bic = -2 * loglik + free * np.log(self.source.n_rows)
        return Tried(found.way, found.coef, found.sigma, loglik, float(bic), found)

    def follow(self, way: Way, numbers: Iterable[int]) -> int:
        """Try numbers of kinds one after another until BIC has risen; the best of them."""
        best, least, risen = 0, np.inf, 0
        for n_kinds in numbers:
            bic = self.at(way, n_kinds).bic
            risen = 0 if bic < least else risen + 1
            if not risen:
                best, least = n_kinds, bic
            if risen == PATIENCE[way.own_noise]:
                break
        return best

    def carried(self, numbers: Sequence[int]) -> list[int]:
        """Numbers of kinds whose coefficients the rows can carry beside departures or noises.

        A kind could fit a few sites exactly, and noises of their own would praise it for that.
        """
        most = self.source.n_rows / (ROWS_A_COEFFICIENT * self.source.n_coefficients)
        return [n for n in numbers if n == 1 or n <= most]

    # ------------------------------------------------------------ the choice

    def look(self, ways: Sequence[Way], numbers: Sequence[int]) -> list[Tried]:
        """Everything that is worth a try; what was tried, with the fits without departures."""
        if NEITHER in ways and self.exact:
            return list(self.plain.values())
        only, numbers = len(ways) == 1, self.carried(numbers)
        if not numbers:
            return list(self.plain.values())
        if DEGREES in ways and self.enough:
            self._look_at_degrees(numbers, only or NEITHER not in ways)
        own = [way for way in ways if way.own_noise]
        if not self.enough:
            own = [way for way in own if not way.degrees]
        if own and (len(own) == len(ways) or self._noises_differ(ways)):
            self._follow_own_noise(own, numbers)
        found = [
            one for one in self.tried if one.way in ways and (one.carried or len(numbers) == 1)
        ]
        # Where sites or rows are too few to tell departures from noise, there are none.
        return [*self.plain.values(), *found] if NEITHER in ways or not found else found

    def _look_at_degrees(self, numbers: Sequence[int], wanted: bool) -> None:
        if wanted or len(numbers) == 1:
            self.follow(DEGREES, numbers)
            return
        least = min(self.plain.values(), key=lambda tried: tried.bic)
        looked = [numbers[0], *([least.n_kinds] if least.n_kinds in numbers else [])]
        if any(self.at(DEGREES, n).bic < least.bic for n in looked):
            self.follow(DEGREES, numbers)

    def _follow_own_noise(self, ways: Sequence[Way], numbers: Sequence[int]) -> None:
        """With departures first; without, kinds that only stand for departures have no end."""
        last = numbers[-1]
        if BOTH in ways:
            last = self.follow(BOTH, numbers) + 2
        if OWN_NOISE in ways:
            self.follow(OWN_NOISE, [n for n in numbers if n <= last or n == numbers[0]])

    def _noises_differ(self, ways: Sequence[Way]) -> bool:
        """Whether squared residuals under the best fit so far ask for noises of their own."""
        so_far = [*self.plain.values(), *self.tried]
        best = min((tried for tried in so_far if tried.way in ways), key=lambda tried: tried.bic)
        square, n_rows = self._squares(best)
        return 2.0 * noise_gain(square, n_rows) > np.log(self.source.n_rows)

    def _squares(self, best: Tried) -> tuple[Floats, Floats]:
        """Squared residuals of every site beyond its departure, and its rows."""
        data = self.clients.data
        toward, sums = away_from(self.clients.inside(best.coef)), data.squares
        if best.kinds is not None:
            factor = self.clients.shape.factor(best.kinds.numbers[:-1])
            sums = without_effects(data, eliminate(data.prepared.products, factor)[1])
        square = np.einsum("kr,rsm,ks->km", toward, sums, toward, optimize=True)
        nearest = np.maximum(square.min(axis=0), 0.0)
        return nearest, data.prepared.n_rows

    def without_levels_as_noise(self, chosen: Tried, tried: Sequence[Tried]) -> Tried:
        """The choice, or the least BIC with one noise if own noises stand for sites' levels.

        They do if errors to be expected at further rows are larger than with nothing but a level
        of every site's own: that takes one row of each, and no noise can explain a level away.
        """
        settings = self.settings
        others = [one for one in tried if not one.way.own_noise]
        open_noise = settings.site_noise == "choose" and settings.fit_intercept and self.enough
        if not (chosen.way.own_noise and open_noise and DEGREES in settings.ways and others):
            return chosen
        if self._expected(chosen) <= (1.0 + AS_GOOD) * self._expected_of_levels():
            return chosen
        return others[int(first_least(np.array([one.bic for one in others]), floor=RELATIVE))]

    def _expected(self, tried: Tried) -> float:
        """Squared errors to be expected of a fit at further rows."""
        assert tried.kinds is not None
        kinds, statistics = tried.kinds, np.ascontiguousarray(self.source.statistics.T)
        grouped = len(kinds.weights) > tried.n_kinds
        known = KindsPosterior(self.clients, kinds, self.source.outside if grouped else None)
        effects, noise = known.effects(self.clients.data, known.share)
        share = known.regular(known.share).T
        taken = degrees_of_freedom(statistics, kinds.random_covariance, noise, share)
        return float(expected_errors(statistics, share @ kinds.coef + effects, taken).sum())

    def _expected_of_levels(self) -> float:
        """The same of one regression with a level of every site's own and one noise."""
        statistics = np.ascontiguousarray(self.source.statistics.T)
        d, m = self.source.n_coefficients, len(statistics)
        found = fit_mixed(self.source.statistics, np.array([d - 1]), "ml")
        covariance = np.zeros((d, d))
        covariance[-1, -1] = found.random_covariance[0, 0]
        noise, share = np.full(m, found.sigma**2), np.ones((m, 1))
        taken = degrees_of_freedom(statistics, covariance, noise, share)
        return float(expected_errors(statistics, found.client_coef, taken).sum())

    # ------------------------------------------------------------ at the end

    def result(self, chosen: Tried, curve: Floats) -> FmlrResult:
        """The fit that was chosen, its slope down to rounding, and what it says of every site."""
        assert chosen.kinds is not None
        source, heard = self.source, self.source.clients
        grouped = len(chosen.kinds.weights) > chosen.n_kinds
        outside, noise_group = (source.outside, source.noise) if grouped else (None, None)
        kinds = refined(self.clients, chosen.kinds, outside)
        if self.settings.given_start is None:
            kinds = _by_weight(kinds)
        known = KindsPosterior(self.clients, kinds, outside)
        effects, noise = known.effects(self.clients.data, known.share)
        own = known.regular(known.share).T @ kinds.coef + effects
        m, mean, errors = len(source.roster), kinds.mean_coef, known.coefficient_errors()
        return FmlrResult(
            coef=kinds.coef,
            sigma=np.array(kinds.sigma),
            weights=kinds.weights,
            noise=pack_noise(noise_group),
            identified=known.share[: len(kinds.coef)].sum(axis=1) >= IDENTIFIED_CLIENTS,
            loglik=np.array(kinds.loglik + source.log_volume),
            bic=np.array(self._priced(kinds).bic),
            coef_covariance=known.coef_covariance(),
            coef_sandwich=errors.covariance,
            coef_degrees=errors.degrees,
            coef_by_sites=errors.by_sites,
            converged=np.array(kinds.gradient <= SETTLED),
            history_loglik=kinds.history + source.log_volume,
            curve=curve,
            site_loglik=over_roster(known.loglik, heard, m),
            site_rows=source.rows,
            implausible=source.implausible,
            responsibilities=over_roster(known.share.T, heard, m, missing=kinds.weights),
            way=np.array(kinds.way),
            random_covariance=kinds.random_covariance,
            noise_shape=np.array(kinds.noise_shape),
            numbers=kinds.numbers,
            statistics=source.statistics,
            heard=heard,
            effects=over_roster(effects, heard, m, missing=0.0),
            site_coef=over_roster(own, heard, m, missing=mean),
            site_sigma=over_roster(np.sqrt(noise), heard, m),
        )

    def mixed_model(self) -> Tried | None:
        """One kind with departures: shown beside whatever was chosen."""
        if not self.enough:
            return None
        if self.source.outside is None:
            return self.at(DEGREES, 1)
        return self._priced(fit(self.clients, DEGREES, 1))


def carries(n_rows: Floats, n_coef: int) -> bool:
    """Whether kinds of so many rows (K,) have enough of them for `n_coef` coefficients each.

    One kind is the regression of all rows, whatever it is worth. Of several, one that is a single
    far site of few rows would run through all of them, and reach anywhere at the next.
    """
    enough = n_coef <= MOST_ADDED * (n_rows - n_coef - 1.0)
    return len(n_rows) == 1 or bool(enough.all())


def _by_weight(kinds: KindsFit) -> KindsFit:
    """Kinds in the order of their proportions; the noise group stays last."""
    order = tied_order(-kinds.weights[: len(kinds.coef)])
    groups = np.append(order, np.arange(len(order), len(kinds.weights)))
    return replace(kinds, coef=kinds.coef[order], weights=kinds.weights[groups])


def clients_for(statistics: Floats, settings: FmlrSettings) -> Clients:
    """The sites' sums in good coordinates."""
    wanted: Any = settings.covariance
    return clients_of(statistics, None if wanted == "auto" else wanted, settings.fit_intercept)


def common_model(total: Floats, n_rows: float, log_volume: float) -> Tried:
    """One regression for all sites, from the sum of their statistics (q,)."""
    coef, _ = solve(total)
    heard = float(total[-1])
    variance = float(residual_coefficients(coef) @ total) / heard
    floor = max(SMALLEST_NOISE_SHARE * float(total[-2]) / heard, SMALLEST_VARIANCE)
    variance = max(variance, floor)
    per_row = -0.5 * (1.0 + np.log(2 * np.pi * variance))
    loglik = float(per_row * n_rows) + log_volume
    bic = -2 * loglik + (len(coef) + 1) * np.log(n_rows)
    return Tried(NEITHER, coef[None], float(np.sqrt(variance)), loglik, float(bic))
