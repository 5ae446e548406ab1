"""FGPR's common curve at the sites: what they tell of it, and which of two models suits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import Cache
from fedkin.arrays import Arrays, Floats
from fedkin.federation import Federation
from fedkin.models.common_site import Shared, Units, form_of, left_out_density
from fedkin.models.common_sums import Pack, Sums, halves, pack, sums
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
    found = []
    for theta, own in zip(common["theta"], common["smoothness"]):
        form = form_of(own, theta_features(theta))
        points = points_at(form, theta, common["places"])
        found.append(_travelling(sums(packs, m, form, theta, points, with_slopes)))
    gram, log_det, missed = (np.stack(each, axis=1) for each in zip(*found))
    rows = cache.few.sizes.astype(np.float64)
    return {"gram": gram, "log_det": log_det, "missed": missed, "rows": rows}


def theta_features(theta: Floats) -> int:
    """Number of features from that of the parameters: 5 + 2 d."""
    return (len(theta) - 5) // 2


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
    """Log density of the site's rows, each left out: without and with the common curve."""
    shared = Shared(
        units_of(common),
        common["places"],
        common["smoothness"],
        common["theta"],
        common["weights"],
        common["mean"],
        common["covariance"],
    )
    plan = plan_of(cache, settings, common["target"])
    told = np.zeros((len(clients), 2))
    for k in np.flatnonzero(cache.few.sizes):
        site = cache.few.take(np.array([k]))
        theta, own = common["prior"], 0.0
        if memory is not None:
            theta, own = memory["theta"][k][None], float(memory["own"][k])
        alone = plan.left_out_density(site, theta, np.ones(1)).sum()
        # Hyper-parameters of the site's own have seen the rows that are left out.
        told[k] = alone - own * theta.shape[1], left_out_density(shared, *site.client(0)).sum()
    return {"left_out": told, "rows": cache.few.sizes.astype(np.float64)}, memory


def plan_of(cache: Cache, settings: FgprSettings, target: Floats) -> CurvePlan:
    """How the site's rows become a curve without a common one."""
    return CurvePlan(
        cache.form, target, settings.normalize_y, settings.mean, settings.max_points, "subset"
    )
