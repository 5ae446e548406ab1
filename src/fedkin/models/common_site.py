"""A site's curve around the common one given its rows: prediction, samples, predictive density.

A `CommonSiteCurve` holds the site's rows and must stay where they are; what it has of others are
the weights of the common curve. Parameters come as a cloud with weights; along a line a site's
departures may have swollen where it has no rows (`own_spread.py`), in several dimensions they have
a scale of their own (`own_scale.py`): predictions are mixtures of normal distributions. In several
dimensions a site whose rows, each left out, still lie further off than they should widens what it
predicts. A site of more than `max_points` rows is predicted from the rows nearest to each point, or
from a random subset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree
from scipy.special import logsumexp

from fedkin.arrays import Floats
from fedkin.federation import Federation
from fedkin.models.common_cloud import mixed
from fedkin.models.common_curve import Weights, updated
from fedkin.models.common_form import CommonForm, parameters
from fedkin.models.common_posterior import (
    left_out,
    own_rows,
    site_from_nearest,
    site_joint,
    site_posterior,
    sites_posterior,
)
from fedkin.models.common_sums import pack, sums
from fedkin.models.gaussian_process import LOG_2PI, cholesky
from fedkin.models.gp_posterior import NEIGHBOURS, POINT_BLOCK
from fedkin.models.inducing import Points, points_at
from fedkin.models.own_scale import OwnRows, own_scales
from fedkin.models.own_spread import SHARES, swollen
from fedkin.threads import one_thread

# Standard deviation of the common mean's level, in units of the targets'.
VAGUE = 10.0
# How the RBF's smoothness, which is infinite, travels.
RBF_TRAVELS = 0.0
# Variances are kept above this share of the noise: below it is rounding.
LEAST_VARIANCE = 1e-9
# Sites of up to so many rows are predicted many at once, so many rows at a time.
SMALL_SITE = 32
ROWS_AT_ONCE = 512
# So many numbers of the rows of sites predicted at once fit into memory with ease (128 MB).
MOST_KEPT = 1 << 24
# A site says how much too narrow it is predicted as if so many rows more lay as they should.
ROWS_AS_EXPECTED = 3.0


class Units(NamedTuple):
    """One frame for all sites: centre and spread of features (2, d), location, scale of targets."""

    frame: Floats
    target: Floats

    def rows(self, X: Floats) -> Floats:
        """Features in the frame."""
        return (X - self.frame[0]) / self.frame[1]

    def targets(self, y: Floats) -> Floats:
        """Targets in the frame."""
        standard: Floats = (y - self.target[0]) / self.target[1]
        return standard


class Member(NamedTuple):
    """One of a cloud: form, parameters, points, and the common curve under them."""

    form: CommonForm
    theta: Floats
    points: Points
    known: Weights

    def noise(self, X: Floats) -> Floats:
        """Variance (n,) of the noise at rows X."""
        part = parameters(self.form, self.theta)
        return part.noise * part.swelling(X) ** 2


class Shared(NamedTuple):
    """The common curve as all sites know it: a cloud of S parameters `theta` (S, p).

    With their weights (S,) and, under each, the weights of the F features: `mean` (S, F) and
    `covariance` (S, F, F). `kinds` (S, 3) are smoothness of the common curve and of departures, and
    the standard deviation of the common mean's slopes.
    """

    units: Units
    places: Floats
    kinds: Floats
    theta: Floats
    weights: Floats
    mean: Floats
    covariance: Floats

    def each(self) -> list[Member]:
        """Every member of the cloud."""
        found = []
        for kind, theta, *known in zip(self.kinds, self.theta, self.mean, self.covariance):
            form = form_of(kind, self.places)
            found.append(Member(form, theta, points_at(form, theta, self.places), Weights(*known)))
        return found

    def knowing(self, X: Floats, y: Floats) -> Shared:
        """The common curve when the rows of a further site are known, too."""
        rows = pack(_one_site(self.units.rows(X), self.units.targets(y)))
        known = [
            updated(form, theta, weights, sums(rows, 1, form, theta, points, slopes=False))
            for form, theta, points, weights in self.each()
        ]
        mean, covariance = map(np.array, zip(*known))
        return self._replace(mean=mean, covariance=covariance)


def form_of(kind: Floats, places: Floats) -> CommonForm:
    """The form of a kind, as it travels: two smoothnesses, and how steep the mean may be.

    Rows lie between the lowest and the highest of the places (M, d), or near.
    """
    common, own = (np.inf if nu == RBF_TRAVELS else float(nu) for nu in kind[:2])
    steep, edges = float(kind[2]), (tuple(places.min(axis=0)), tuple(places.max(axis=0)))
    return CommonForm(places.shape[1], common, own, "linear", VAGUE, steep, edges)


class LeftOut(NamedTuple):
    """Expected value, log density and squared error in units of its variance, (n,), of each of a
    site's targets given all other rows, and the log density of all of them together given the other
    sites' rows."""

    mean: Floats
    each: Floats
    off: Floats
    together: float


def left_out_of(shared: Shared, members: list[Member], X: Floats, y: Floats) -> LeftOut:
    """Of a site whose rows are known to the common curve; `members` are all of its cloud."""
    own = shared.units.rows(X), shared.units.targets(y)
    mean, variance, whole = map(np.array, zip(*(left_out(*member, own) for member in members)))
    logs = _log_normal(own[1], mean, variance)
    location, scale = shared.units.target
    each = logsumexp(logs, axis=0, b=shared.weights[:, None]) - np.log(scale)
    centre, spread = mixed(mean, variance, shared.weights)
    # The rows have had their say in the weights of the cloud, and take it back.
    together = -float(logsumexp(np.log(shared.weights) - whole)) - len(y) * float(np.log(scale))
    return LeftOut(location + scale * centre, each, (own[1] - centre) ** 2 / spread, together)


def too_small(off: Floats) -> Floats:
    """By what variances are too small (...), at least 1, from squared errors of rows left out in
    units of these (..., n)."""
    more = (off.sum(axis=-1) + ROWS_AS_EXPECTED) / (off.shape[-1] + ROWS_AS_EXPECTED)
    return np.maximum(more, 1.0)


def _one_site(X: Floats, y: Floats) -> Federation:
    return Federation(X, np.array([0, len(X)]), ("site",), y)


def _log_normal(y: Floats, mean: Floats, variance: Floats) -> Floats:
    logs: Floats = -0.5 * (LOG_2PI + np.log(variance) + (y - mean) ** 2 / variance)
    return logs


def _key(X: Floats) -> bytes:
    """By which rows that were asked for are known again."""
    return np.ascontiguousarray(X).tobytes()


def _of_targets(
    member: Member, rows: Floats, common: Floats, left: Floats, wider: Floats
) -> Floats:
    """Variances (W, n) of new targets from those of the curve; departures and noise are `wider`."""
    noise = member.noise(rows)
    known = np.maximum(common + left, LEAST_VARIANCE * noise) + noise
    return known + (wider - 1.0) * (np.maximum(left, 0.0) + noise)


def _together(means: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Means and variances (S, W, n) one below the other, (W S, n)."""
    n = variances.shape[-1]
    means, variances = (part.swapaxes(0, 1).reshape(-1, n) for part in (means, variances))
    return means, variances


class Judged(NamedTuple):
    """What the rows of m sites say under every member of a cloud, the squared scales (S, W, m) that
    follow, and by what variances are still too small, (m,)."""

    told: list[OwnRows]
    squares: Floats
    short: Floats


def _judge(members: list[Member], weights: Floats, own: tuple[Floats, Floats]) -> Judged:
    """From rows (m, k, d) and targets (m, k) of m sites; `weights` (W S,) are of the moments."""
    told = [own_rows(*member, own) for member in members]
    squares, (m, k) = own_scales(told), own[1].shape
    pairs = [rows.left_out(own[1], scales) for rows, scales in zip(told, squares)]
    moments = (np.reshape(part, (len(told), -1, m * k)) for part in zip(*pairs))
    centre, spread = mixed(*_together(*moments), weights)
    off: Floats = (own[1].ravel() - centre) ** 2 / spread
    return Judged(told, squares, too_small(off.reshape(m, k)))


@dataclass(frozen=True)
class CommonSiteCurve:
    """One site's rows with the common curve; without rows it is a new site."""

    shared: Shared
    X: Floats
    y: Floats
    max_points: int = 500
    large: str = "neighbours"
    members: list[Member] | None = field(default=None, compare=False, repr=False)
    """All of the cloud, where they are at hand: they are the same for many sites."""

    @cached_property
    def _own(self) -> tuple[Floats, Floats]:
        """Rows and targets in the frame, of a large site a random subset."""
        own = self.shared.units.rows(self.X), self.shared.units.targets(self.y)
        if len(self.X) <= self.max_points:
            return own
        chosen = np.random.default_rng(len(self.X)).permutation(len(self.X))[: self.max_points]
        return own[0][chosen], own[1][chosen]

    @cached_property
    def _each(self) -> list[Member]:
        return self.members or self.shared.each()

    @cached_property
    def _kept(self) -> dict[bytes, tuple[Floats, Floats]]:
        """The last moments: rows are often asked for their mean and then for their density."""
        return {}

    @cached_property
    def _weights(self) -> Floats:
        """Of the moments."""
        shares = SHARES if self.X.shape[1] == 1 or self._judges else np.ones(1)
        return np.outer(shares, self.shared.weights).ravel()

    def _wider(self, rows: Floats) -> Floats:
        """In how many times their variance (W, n) departures and noise may be at rows X."""
        if rows.shape[1] > 1:
            return np.ones((1, len(rows)))
        if not len(self.X):
            (low,), (high,) = self._each[0].form.edges
            return swollen(np.clip(rows[:, 0], low, high), rows[:, 0])
        return swollen(self.shared.units.rows(self.X)[:, 0], rows[:, 0])

    @property
    def _judges(self) -> bool:
        """Whether the site's rows say how far it departs and how narrow it is predicted.

        Along a line spreads away from rows are wider already. The rows must be those that the
        common curve knows, which of a site of too many they are not.
        """
        n, d = self.X.shape
        return d > 1 and 0 < n <= self.max_points

    def _judged(self) -> Judged | None:
        """What they say, if they do; too much to keep of many sites."""
        if not self._judges:
            return None
        rows, y = self._own
        return _judge(self._each, self._weights, (rows[None], y[None]))

    def moments(self, X: Floats) -> tuple[Floats, Floats]:
        """Means and variances of new targets under every member of the cloud, (W S, n).

        All members come three times: along a line with departures that first swell as all do, in
        several dimensions with three scales if the site has rows.
        """
        asked = _key(X)
        if asked not in self._kept:
            self._kept.clear()
            with one_thread():
                self._kept[asked] = self._moments(X)
        return self._kept[asked]

    def _moments(self, X: Floats) -> tuple[Floats, Floats]:
        rows, (location, scale) = self.shared.units.rows(X), self.shared.units.target
        by_nearest = len(self.X) > self.max_points and self.large == "neighbours"
        wider, judged, found = self._wider(rows), self._judged(), []
        for s, member in enumerate(self._each):
            if by_nearest:
                mean, common, left = self._by_nearest(member, rows)
            else:
                mean, common, left, there = site_posterior(*member, self._own, rows)
            if judged is not None:
                wider = judged.squares[s]
                moved, more = judged.told[s].moved(there, wider)
                mean, common = mean + moved, common + more
            variance = _of_targets(member, rows, common, left, wider)
            found.append((np.broadcast_to(mean, variance.shape), variance))
        mean, variance = map(np.array, zip(*found))
        short = 1.0 if judged is None else judged.short[0]
        return _together(location + scale * mean, short * scale**2 * variance)

    def predict(self, X: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of new targets."""
        mean, variance = self.moments(X)
        centre, spread = mixed(mean, variance, self._weights)
        return centre, np.sqrt(spread)

    def log_density(self, X: Floats, y: Floats) -> Floats:
        """Log predictive density of every target by itself."""
        logs = _log_normal(y, *self.moments(X))
        density: Floats = logsumexp(logs, axis=0, b=self._weights[:, None])
        return density

    def sample(self, X: Floats, n_samples: int, rng: np.random.Generator) -> Floats:
        """Joint samples of the curve with noise, (n, n_samples)."""
        counts = rng.multinomial(n_samples, self._weights)
        rows, (location, scale) = self.shared.units.rows(X), self.shared.units.target
        wider, judged, drawn = self._wider(rows), self._judged(), []
        for number in np.flatnonzero(counts):
            which, s = divmod(int(number), len(self._each))
            member, draws = self._each[s], rng.normal(size=(len(X), counts[number]))
            mean, common, left, there = site_joint(*member, self._own, rows)
            left = left + np.diag(member.noise(rows))
            if judged is None:
                factor = np.sqrt(wider[which])
                spread = common + np.outer(factor, factor) * left
            else:
                square = judged.squares[s, which]
                mean = mean + judged.told[s].moved(there, square[None])[0][0]
                spread = common + judged.told[s].covariance(there, square) + square * left
                spread = judged.short[0] * spread
            drawn.append(mean[:, None] + cholesky(spread)[0] @ draws)
        return np.asarray(location + scale * np.concatenate(drawn, axis=1))

    def _by_nearest(self, member: Member, rows: Floats) -> Floats:
        """As `site_posterior`, (3, n)."""
        part = parameters(member.form, member.theta)
        own = self.shared.units.rows(self.X), self.shared.units.targets(self.y)
        n_near = min(NEIGHBOURS, len(self.X))
        seen, asked = (part.bent(X) / part.own_lengths for X in (own[0], rows))
        near = KDTree(seen).query(asked, k=[*range(1, n_near + 1)])[1]
        found = np.empty((3, len(rows)))
        for begin in range(0, len(rows), POINT_BLOCK):
            block = slice(begin, begin + POINT_BLOCK)
            nearest = own[0][near[block]], own[1][near[block]]
            found[:, block] = site_from_nearest(*member, nearest, rows[block])[:3]
        return found


# ------------------------------------------------------------------ many sites


def foresee(asked: Sequence[tuple[CommonSiteCurve, Floats]]) -> None:
    """Let small sites around one common curve know their moments at the rows asked, many at once.

    A site at a time, a thousand of them take a thousand times a cloud of parameters.
    """
    alike: dict[tuple[int, int], list[tuple[CommonSiteCurve, Floats]]] = {}
    for curve, X in asked:
        if curve.members and len(curve.X) <= min(SMALL_SITE, curve.max_points):
            alike.setdefault((id(curve.members), len(curve.X)), []).append((curve, X))
    with one_thread():
        for group in alike.values():
            if len(group) > 1:
                at_once = _sites_at_once(group[0][0])
                for begin in range(0, len(group), at_once):
                    _foresee_alike(group[begin : begin + at_once])


def _sites_at_once(first: CommonSiteCurve) -> int:
    """How many sites like this one are predicted at once, by what their rows say of scales."""
    k, width = len(first.X), first.shared.mean.shape[1]
    return max(1, MOST_KEPT // (len(first._each) * max(k, 1) * (k + width)))


def _foresee_alike(group: list[tuple[CommonSiteCurve, Floats]]) -> None:
    """The same of sites with equally many rows."""
    curves, (first, _) = [curve for curve, _ in group], group[0]
    sizes = [len(X) for _, X in group]
    owner = np.repeat(np.arange(len(group)), sizes)
    units, asked = first.shared.units, np.concatenate([X for _, X in group])
    own = np.stack([c._own[0] for c in curves]), np.stack([c._own[1] for c in curves])
    rows, (location, scale) = units.rows(asked), units.target
    judged = _judge(first._each, first._weights, own) if first._judges else None
    wider = np.concatenate([curve._wider(units.rows(X)) for curve, X in group], axis=1)
    width = len(wider) if judged is None else len(SHARES)
    means, variances = (np.empty((len(first._each), width, len(rows))) for _ in range(2))
    for begin in range(0, len(rows), ROWS_AT_ONCE):
        block = slice(begin, begin + ROWS_AT_ONCE)
        sites, place = np.unique(owner[block], return_inverse=True)
        here = own[0][sites], own[1][sites]
        for s, member in enumerate(first._each):
            mean, common, left, there = sites_posterior(*member, here, rows[block], place)
            factor = wider[:, block]
            if judged is not None:
                squares = judged.squares[s]
                factor = squares[:, owner[block]]
                moved, more = judged.told[s].moved(there, squares, owner[block])
                mean, common = mean + moved, common + more
            means[s, :, block] = location + scale * mean
            variance = _of_targets(member, rows[block], common, left, factor)
            variances[s, :, block] = scale**2 * variance
    mean, variance = _together(means, variances)
    short = np.ones(len(group)) if judged is None else judged.short
    for (curve, X), end, size, more in zip(group, np.cumsum(sizes), sizes, short):
        curve._kept.clear()
        part = slice(end - size, end)
        curve._kept[_key(X)] = mean[:, part], more * variance[:, part]
