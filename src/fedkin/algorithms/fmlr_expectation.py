"""Where the E-step happens, at the server or at the sites, behind one set of words.

`AtServer` holds the sites' statistics and asks nobody; `AtSites` asks in every round and keeps each
site's last reply for the rounds it misses. Both say who sent what rows cannot give.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin.algorithms import fmlr_starts as starts
from fedkin.arrays import Array, Floats
from fedkin.models.grouped_regression import (
    SMALLEST_NOISE_SHARE,
    SMALLEST_VARIANCE,
    Noise,
    Parameters,
    Totals,
    best_residuals,
    coefficient_errors,
    density_coefficients,
    expect,
    noise_density,
    pack_noise,
    responsibilities,
)
from fedkin.models.least_squares import (
    POSSIBLE_SLACK,
    n_coefficients,
    n_statistics,
    possible,
    solve,
)
from fedkin.models.sandwich import Errors
from fedkin.protocol import DEFAULT_BOUND, Ask, LastReplies, Replies, Roster, over_roster

if TYPE_CHECKING:
    from fedkin.algorithms.fmlr import FmlrSettings

Server = Generator[Ask, Replies, Any]

# A client whose target spreads more than this many times the median client's has a scale of its
# own: it counts as just so wide when the scale is set and, with `robust`, stays out of the start.
OWN_SCALE = 1e2
# A site's last reply stands for so many times the rounds in which everybody is asked once. A site
# lost for good must not hold on for ever to groups it was given when nobody knew any.
STANDING_TURNS = 5
# Numbers of weighted sums compared at once; they stay in cache.
SUMS_IN_CACHE = 1 << 16
NOBODY_POSSIBLE = "no site sent statistics that rows can give; look at the sites"


class Sites(NamedTuple):
    """What is known of every site at the end; NaN for sites that were not heard."""

    loglik: Floats
    rows: Floats
    responsibilities: Floats | None


class Expectation:
    """What the E-step's sums come from, and what is known of the data's size and scale."""

    def __init__(self, roster: Roster, settings: FmlrSettings, rng: np.random.Generator) -> None:
        self.roster, self.settings, self.rng = roster, settings, rng
        self.n_sites = self.n_coefficients = 0
        self.scale = 0.0
        self.limit = DEFAULT_BOUND
        self.noise: Noise | None = None
        self.rows = np.full(len(roster), np.nan)
        self.implausible = np.zeros(len(roster), dtype=bool)
        self.log_volume = 0.0
        """Half the sum of the rows' log weights: what scaled rows leave out of the likelihood."""
        self.oldest = 0
        """Age in rounds of the oldest reply behind the totals."""

    @property
    def n_rows(self) -> float:
        """Rows of all sites that are believed."""
        return float(np.nansum(self.rows[~self.implausible]))

    def begin(self) -> None:
        """A fit begins: replies about another one are worth nothing."""

    def _errors(self, statistics: Floats, parameters: Parameters) -> Errors:
        """How sure coefficients are, from sites' statistics (q, m)."""
        outside = None if self.noise is None else noise_density(statistics, self.noise)
        return coefficient_errors(statistics, parameters, outside, self.settings.weights is None)

    @property
    def _counts_rows(self) -> bool:
        """Whether the square of the intercept's column is the number of rows."""
        return self.settings.fit_intercept and not self.settings.weighted

    def _measure(self, target: Floats, n_coef: int, mass: Floats | None = None) -> None:
        """Size and scale from (n, sum y, sum y^2) per site; `mass` is the sum of its weights."""
        self.n_sites, self.n_coefficients = len(target), n_coef
        if not self.n_sites:
            return
        n, total, square = target.T
        mass = n if mass is None else mass
        centre = float(np.median(total / mass)) if self.settings.fit_intercept else 0.0
        spread = np.maximum(square - 2 * centre * total + mass * centre**2, 0.0) / n
        # What is left of a constant target is rounding, not a scale.
        spread = np.where(spread > SMALLEST_NOISE_SHARE * square / n, spread, 0.0)
        widest = OWN_SCALE * float(np.median(spread))
        typical = np.minimum(spread, widest) if widest > 0 else spread
        variance = float((typical * n).sum() / n.sum())
        # Without variation the size of the target is all there is; without size, nothing is.
        variance = variance or float(np.median(square / n)) or 1.0
        self.scale = float(np.sqrt(max(variance, SMALLEST_VARIANCE)))
        if self.settings.robust:
            if widest > 0:
                self.limit = widest + centre**2
            null = np.zeros(n_coef)
            null[-1] = centre if self.settings.fit_intercept else 0.0
            self.noise = Noise(null, self.scale**2)


class AtServer(Expectation):
    """share="statistics": the statistics travel once, the rest happens here."""

    def open(self) -> Server:
        """Learn who is there, how many rows, and the scale of the target."""
        spectral = self.settings.given_start is None and self.settings.init == "spectral"
        step = "statistics_and_moments" if spectral else "statistics"
        common = {"limit": np.array(self.limit)} if spectral else {}
        fields = ("log_weights",) if self.settings.weighted else ()
        replies = yield Ask(step, common, fields=fields, note="collecting statistics")
        sent = np.ascontiguousarray(replies["statistics"].T)
        fine = possible(sent, self._counts_rows)
        if fields:
            self.log_volume = 0.5 * float(replies["log_weights"][fine].sum())
        self.implausible[replies.clients[~fine]] = True
        self.clients = replies.clients[fine]
        self.statistics = sent if fine.all() else np.ascontiguousarray(sent[:, fine])
        self.rows[self.clients] = self.statistics[-1]
        n_coef = n_coefficients(len(self.statistics))
        n, square = self.statistics[-1], self.statistics[-2]
        # With an intercept, sum y is the product of the last two columns.
        total = self.statistics[-3] if self.settings.fit_intercept else np.zeros_like(n)
        weighted = self.settings.weighted and self.settings.fit_intercept
        mass = self.statistics[-4] if weighted else n
        self._measure(np.stack([n, total, square], axis=1), n_coef, mass)
        plain = square <= self.limit * n
        self.plain = self.statistics if plain.all() else self.statistics[:, plain]
        self.moments = replies["moments"][fine][plain].sum(axis=0) if spectral else None
        self.outside = None if self.noise is None else noise_density(self.statistics, self.noise)

    def expect(self, parameters: Parameters, which: Array, fraction: float) -> Server:
        """One E-step over all sites, for the restarts `which`."""
        yield from ()
        return expect(self.statistics, parameters, self.outside)

    def starts(self, n_components: int, word: str, n_restarts: int) -> Server:
        """Coefficients (R, K, d) to begin from."""
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
        """What given coefficients leave unexplained at the median site."""
        yield from ()
        return np.median(best_residuals(self.statistics, coef))

    def errors(self, parameters: Parameters) -> Errors:
        """How sure the final coefficients are."""
        return self._errors(self.statistics, parameters)

    def settle(self, parameters: Parameters) -> Server:
        """Every site's groups and likelihood under the final parameters."""
        yield from ()
        share, loglik = responsibilities(self.statistics, parameters, self.outside)
        m = len(self.roster)
        return Sites(
            over_roster(loglik[0], self.clients, m),
            self.rows,
            over_roster(share[0].T, self.clients, m, missing=parameters.weights[0]),
        )


class AtSites(Expectation):
    """share="sums": the paper's rounds. What the program computes are totals over sites and each
    site's number of rows and scale of the target; single replies are only checked for being
    possible, kept for the rounds a site misses, and at the end tell standard errors."""

    _measured: tuple[Array, Floats, Floats] | None = None
    """Who told of its target, what, and the sum of its weights."""

    def open(self) -> Server:
        """Learn who is there, how many rows, and the scale of the target."""
        fields = ("mass", "log_weights") if self.settings.weighted else ()
        replies = yield Ask("target", fields=fields, note="size and scale")
        target = replies["target"]
        n_coef = np.median(target[:, 3])
        mass = replies["mass"] if fields else target[:, 0]
        # Packed statistics of a regression on nothing but an intercept.
        alone = np.stack([mass, target[:, 1], target[:, 2], target[:, 0]])
        fine = possible(np.ascontiguousarray(alone), not fields)
        fine &= target[:, 3] == n_coef
        self._believe(replies.clients, fine)
        m, q = len(self.roster), n_statistics(int(n_coef))
        self.squares, self.statistics = np.full(m, np.nan), np.full((m, q), np.nan)
        heard = replies.clients[fine]
        self.rows[heard], self.squares[heard] = target[fine, 0], target[fine, 2]
        self._measured = heard, target[fine, :3], mass[fine]
        self._measure(target[fine, :3], int(n_coef), mass[fine])
        if fields:
            self.log_volume = 0.5 * float(replies["log_weights"][fine].sum())

    def begin(self) -> None:
        """Forget the replies of another fit."""
        self.last = LastReplies(len(self.roster))

    def expect(self, parameters: Parameters, which: Array, fraction: float) -> Server:
        """One E-step over all sites, for the restarts `which`."""
        common = self._message(parameters)
        replies = yield Ask("weighted_sums", common, fraction=fraction, note="EM")
        fine = self._possible_sums(replies.clients, replies["sums"], replies["counts"])
        fine &= self._possible_likelihoods(replies, parameters)
        kept = self._believe(replies.clients, fine)
        parts = {name: replies[name] for name in Totals._fields}
        if not kept.all():
            parts = {name: part[kept] for name, part in parts.items()}
        self.last.put(replies.clients[kept], parts, which)
        age = self.last.age
        age[self.implausible] = np.inf
        stands = age < np.ceil(STANDING_TURNS / self.settings.fraction)
        if not stands.any():
            raise ValueError(NOBODY_POSSIBLE)
        self.oldest = int(age[stands].max())
        if not self.oldest:
            return Totals(**{name: part.sum(axis=0) for name, part in parts.items()})
        return Totals(*(self.last.total(name, stands, which) for name in Totals._fields))

    def starts(self, n_components: int, word: str, n_restarts: int) -> Server:
        """Coefficients (R, K, d) to begin from."""
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
        """What given coefficients leave unexplained at the median site."""
        replies = yield Ask("residual", {"coef": coef}, note="noise of the given start")
        fine: Array = np.all(replies["residual"] >= 0, axis=1)
        return np.median(replies["residual"][self._believe(replies.clients, fine)])

    def errors(self, parameters: Parameters) -> Errors:
        """How sure the final coefficients are, from sums added over a site's groups."""
        used = ~np.isnan(self.statistics[:, -1]) & ~self.implausible
        return self._errors(np.ascontiguousarray(self.statistics[used].T), parameters)

    def settle(self, parameters: Parameters) -> Server:
        """Every site's groups and likelihood under the final parameters."""
        replies = yield Ask("settle", self._message(parameters), note="sites learn their group")
        fine = self._same(self.rows, replies.clients, replies["rows"])
        fine &= self._possible_likelihoods(replies, parameters)
        kept = self._believe(replies.clients, fine)
        m, clients = len(self.roster), replies.clients[kept]
        return Sites(
            over_roster(replies["loglik"][kept, 0], clients, m),
            over_roster(replies["rows"][kept], clients, m),
            None,
        )

    def _message(self, parameters: Parameters) -> dict[str, Array]:
        return {**parameters._asdict(), "noise": pack_noise(self.noise)}

    # ------------------------------------------------------------ which replies are possible

    def _believe(self, clients: Array, fine: Array) -> Array:
        """Note sites whose reply is impossible; the replies to use: of sites believed so far.

        Size and scale are then those of the others: a liar must not have set them.
        """
        lost = clients[~fine & ~self.implausible[clients]]
        self.implausible[lost] = True
        if len(lost) and self._measured is not None:
            heard, target, mass = self._measured
            still = ~self.implausible[heard]
            self._measure(target[still], self.n_coefficients, mass[still])
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

    def _possible_likelihoods(self, replies: Replies, parameters: Parameters) -> Array:
        """Whether log likelihoods and, if sent, groups are what each site's statistics give, (m,).

        A site whose statistics are not known yet is believed.
        """
        known = ~np.isnan(self.statistics[replies.clients, -1])
        own = np.where(known[:, None], self.statistics[replies.clients], 0.0).T
        outside = None if self.noise is None else noise_density(own, self.noise)
        share, right = responsibilities(own, parameters, outside)
        size = np.abs(density_coefficients(parameters)) @ np.abs(own)
        slack = POSSIBLE_SLACK * (1.0 + size.max(axis=1) + np.abs(right))
        sent = replies["loglik"].T
        same: Array = np.all(np.abs(sent - right) <= slack, axis=0)
        if "counts" in replies:
            gap = np.abs(replies["counts"].transpose(1, 2, 0) - share).max(axis=1)
            same &= np.all(gap <= slack, axis=0)
        return same | ~known

    def _possible_statistics(self, clients: Array, statistics: Floats) -> Array:
        """Look at sites' statistics (m, q) for the first time and keep those that are possible."""
        fine: Array = possible(np.ascontiguousarray(statistics.T), self._counts_rows)
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
