"""FGPR's common curve at the sites: what they tell of it, and which of two models suits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import Cache, fit_personal, needed_gain, priors_of
from fedkin.arrays import Arrays, Floats
from fedkin.federation import Federation
from fedkin.models.common_site import Shared, Units, form_of, left_out_of
from fedkin.models.common_sums import Pack, Sums, halves, pack, sums
from fedkin.models.gp_rows import prepare
from fedkin.models.inducing import points_at
from fedkin.models.site_curves import CurvePlan

# A site with fewer rows does not go its own way: it may have come to believe in no noise.
OWN_WAY_ROWS = 30
# What a site must gain at rows left out to go another way than most: odds of 150 to 1.
OWN_WAY_GAIN = 5.0
# Parts of a site's rows that are left out in turn.
PARTS = 10
# By this factor own hyper-parameters must lower the error.
HALF_ERROR = 0.5


def slopes(clients, cache, settings, common, personal, memory, keys):
    """Sums over the site's rows at each of several parameters, with their slopes."""
    return _sums(cache, common, True), memory


def totals(clients, cache, settings, common, personal, memory, keys):
    """The same sums without slopes."""
    return _sums(cache, common, False), memory


def _sums(cache: Cache, common: Mapping[str, Floats], with_slopes: bool) -> Arrays:
    packs, m = _packs(cache.few, units_of(common)), len(cache.few)
    found = []
    for theta, kind in zip(common["theta"], common["kinds"]):
        form = form_of(kind, common["places"].shape[1])
        points = points_at(form, theta, common["places"])
        found.append(_travelling(sums(packs, m, form, theta, points, with_slopes)))
    gram, log_det, missed = (np.stack(each, axis=1) for each in zip(*found))
    rows = cache.few.sizes.astype(np.float64)
    return {"gram": gram, "log_det": log_det, "missed": missed, "rows": rows}


def _travelling(told: Sums) -> tuple[Floats, Floats, Floats]:
    return halves(told.gram), told.log_det, told.missed


def units_of(common: Mapping[str, Floats]) -> Units:
    """The frame of all sites from a message."""
    return Units(common["frame"], common["units"])


def _packs(few: Federation, units: Units) -> tuple[Pack, ...]:
    assert few.y is not None
    return pack(replace(few, X=units.rows(few.X), y=units.targets(few.y)))


# ------------------------------------------------------------------ which model suits the site


def compare(clients, cache, settings, common, personal, memory, keys):
    """Log density of the site's rows without and with the common curve.

    First each left out, then all of them, as if the site were a new one. A site of many rows says
    which way is clearly better for it: 1 alone, -1 with the common curve.
    """
    shared = Shared(
        units_of(common),
        common["places"],
        common["kinds"],
        common["theta"],
        common["weights"],
        common["mean"],
        common["covariance"],
    )
    plan, prior = plan_of(cache, settings, common["target"]), common["prior"]
    told, way = np.zeros((len(clients), 2, 2)), np.zeros(len(clients))
    for k in np.flatnonzero(cache.few.sizes):
        site = cache.few.take(np.array([k]))
        found = left_out_of(shared, *site.client(0))
        mean, density = plan.left_out(site, prior, np.ones(1))
        told[k, 0] = density.sum(), found.each.sum()
        told[k, 1] = plan.as_new(site, prior, np.ones(1)), found.together
        if len(site.X) >= OWN_WAY_ROWS:
            rivals = (
                Rival(float(told[k, 0, 0]), float(((site.y - mean) ** 2).sum())),
                Rival(float(told[k, 0, 1]), float(((site.y - found.mean) ** 2).sum())),
            )
            own = None if memory is None or not memory["own"][k] else memory["theta"][k]
            way[k] = _way(site, plan, prior[0], own, rivals, settings)
    return {"left_out": told, "way": way, "rows": cache.few.sizes.astype(np.float64)}, memory


class Rival(NamedTuple):
    """One of two models: log density and squared error of rows left out."""

    density: float
    error: float

    def loses_to(self, other: Rival) -> bool:
        """Whether the other is clearly better in both."""
        return other.density - self.density > OWN_WAY_GAIN and other.error < self.error


def _way(
    site: Federation,
    plan: CurvePlan,
    shared: Floats,
    own: Floats | None,
    rivals: tuple[Rival, Rival],
    settings: FgprSettings,
) -> float:
    """1 if the site clearly does better alone, -1 if with the common curve, 0 if neither."""
    prior, common = rivals
    if own is not None:
        best = Rival(max(prior.density, common.density), min(prior.error, common.error))
        if _is_better_alone(site, plan, shared, own, best, settings):
            return 1.0
    return float(common.loses_to(prior)) - float(prior.loses_to(common))


def _is_better_alone(
    site: Federation,
    plan: CurvePlan,
    shared: Floats,
    own: Floats,
    rival: Rival,
    settings: FgprSettings,
) -> bool:
    """Whether the site's own hyper-parameters predict rows that they have not seen much better.

    First by those fitted to all rows, which flatters them; only if they win so, they are fitted
    again without every part of the rows. They must halve the error, too: a curve without noise
    gains density at most rows, and loses all of it at the one that it does not go through.
    """
    flattered = float(plan.left_out(site, own[None], np.ones(1))[1].sum())
    if flattered - rival.density <= needed_gain(len(own), float(len(site.X))):
        return False
    X, y = site.client(0)
    assert y is not None
    part, density, error = np.arange(len(X)) % PARTS, 0.0, 0.0
    for number in range(PARTS):
        kept = part != number
        rest = Federation(X[kept], np.array([0, int(kept.sum())]), site.names, y[kept])
        data = prepare(rest, plan.normalize_y, plan.mean, plan.max_points, plan.form)
        priors = None
        if settings.weak_priors:
            priors = priors_of(rest, plan.form, float(data.scale[0]))
        theta = fit_personal(data, plan.form, shared, settings.personalise, priors)
        curve = plan.given(rest, theta[None], np.ones(1))
        density += float(curve.log_density(X[~kept], y[~kept]).sum())
        error += float(((y[~kept] - curve.predict(X[~kept])[0]) ** 2).sum())
    return density > rival.density and error < HALF_ERROR**2 * rival.error


def plan_of(cache: Cache, settings: FgprSettings, target: Floats) -> CurvePlan:
    """How the site's rows become a curve without a common one."""
    return CurvePlan(
        cache.form, target, settings.normalize_y, settings.mean, settings.max_points, "subset"
    )
