"""FGPR's common curve at the sites: what they tell of it, and which of two models suits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedkin.algorithms.fgpr_own_way import OWN_WAY_ROWS, Rival, way_of
from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import Cache
from fedkin.arrays import Arrays, Floats
from fedkin.federation import Federation
from fedkin.models.common_site import Shared, Units, form_of, left_out_of
from fedkin.models.common_sums import Pack, pack, travelling
from fedkin.models.inducing import points_at
from fedkin.models.site_curves import CurvePlan


def slopes(clients, cache, settings, common, personal, memory, keys):
    """Sums over the site's rows at each of several parameters, with their slopes."""
    return _sums(cache, common, True), memory


def totals(clients, cache, settings, common, personal, memory, keys):
    """The same sums without slopes."""
    return _sums(cache, common, False), memory


def _sums(cache: Cache, common: Mapping[str, Floats], with_slopes: bool) -> Arrays:
    packs, m = _packs(cache.few, units_of(common)), len(cache.few)
    asked = []
    for theta, kind in zip(common["theta"], common["kinds"]):
        form = form_of(kind, common["places"])
        asked.append((form, theta, points_at(form, theta, common["places"])))
    return travelling(packs, m, asked, with_slopes)._asdict()


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
    which way is clearly better for it: 1 alone, -1 with the common curve. One that goes alone keeps
    the hyper-parameters that did best at rows left out.
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
    plan = plan_of(cache.limited(common), settings, common["target"])
    prior, members = common["prior"], shared.each()
    told, way = np.zeros((len(clients), 2, 2)), np.zeros(len(clients))
    memory = memory and {name: kept.copy() for name, kept in memory.items()}
    for k in np.flatnonzero(cache.few.sizes):
        site = cache.few.take(np.array([k]))
        found = left_out_of(shared, members, *site.client(0))
        mean, density = plan.left_out(site, prior, np.ones(1))
        told[k, 0] = density.sum(), found.each.sum()
        told[k, 1] = plan.as_new(site, prior, np.ones(1)), found.together
        if len(site.X) >= OWN_WAY_ROWS:
            rivals = (
                Rival(float(told[k, 0, 0]), float(((site.y - mean) ** 2).sum())),
                Rival(float(told[k, 0, 1]), float(((site.y - found.mean) ** 2).sum())),
            )
            own = None if memory is None or not memory["own"][k] else memory["theta"][k]
            way[k], kept = way_of(site, plan, prior[0], own, rivals, settings)
            if kept is not None:
                memory["theta"][k], memory["freedom"][k] = kept
    return {"left_out": told, "way": way, "rows": cache.few.sizes.astype(np.float64)}, memory


def plan_of(cache: Cache, settings: FgprSettings, target: Floats) -> CurvePlan:
    """How the site's rows become a curve without a common one."""
    return CurvePlan(
        cache.form, target, settings.normalize_y, settings.mean, settings.max_points, "subset"
    )
