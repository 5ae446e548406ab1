"""A site of FGPR that clearly does better alone than with what the sites share.

Only sites of many rows are asked, and rows that were left out decide. Its own hyper-parameters may
be pulled to the shared ones, held by weak priors alone, or free: where there is no noise at all
(a computer experiment) weak priors on noise and scale cost more than they save.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedkin.algorithms.fgpr_settings import FgprSettings
from fedkin.algorithms.fgpr_sites import (
    FREE,
    PULLED,
    WEAK,
    fit_personal,
    needed_gain,
    priors_of,
)
from fedkin.arrays import Bools, Floats
from fedkin.federation import Federation
from fedkin.models.gp_rows import prepare
from fedkin.models.site_curves import CurvePlan

# A site with fewer rows does not go its own way: it may have come to believe in no noise.
OWN_WAY_ROWS = 30
# What a site must gain at rows left out to go another way than most: odds of 150 to 1.
OWN_WAY_GAIN = 5.0
# Parts of a site's rows that are left out in turn.
PARTS = 10
# By this factor own hyper-parameters must lower the error.
HALF_ERROR = 0.5


class Rival(NamedTuple):
    """One of several models: log density and squared error of rows left out."""

    density: float
    error: float

    def loses_to(self, other: Rival) -> bool:
        """Whether the other is clearly better in both."""
        return other.density - self.density > OWN_WAY_GAIN and other.error < self.error


class OwnFit(NamedTuple):
    """Log hyper-parameters (p,) of a site's own, and what held them."""

    theta: Floats
    freedom: float


def way_of(
    site: Federation,
    plan: CurvePlan,
    shared: Floats,
    own: Floats | None,
    rivals: tuple[Rival, Rival],
    settings: FgprSettings,
) -> tuple[float, OwnFit | None]:
    """1 if the site clearly does better alone, -1 if with the common curve, 0 if neither.

    `rivals` are the shared prior without and with a common curve. If the site's own
    hyper-parameters (`own`, if it has any) are better than both, those to keep come along.
    """
    prior, common = rivals
    if own is not None:
        best = Rival(max(prior.density, common.density), min(prior.error, common.error))
        kept = _better_alone(site, plan, shared, own, best, settings)
        if kept is not None:
            return 1.0, kept
    return float(common.loses_to(prior)) - float(prior.loses_to(common)), None


def _better_alone(
    site: Federation,
    plan: CurvePlan,
    shared: Floats,
    own: Floats,
    rival: Rival,
    settings: FgprSettings,
) -> OwnFit | None:
    """The site's own hyper-parameters, if they predict rows that they have not seen much better.

    First by those fitted to all rows, which flatters them; only if they win so, they are fitted
    again without every part of the rows. They must halve the error, too: a curve without noise
    gains density at most rows, and loses all of it at the one that it does not go through.
    """
    flattered = float(plan.left_out(site, own[None], np.ones(1))[1].sum())
    if flattered - rival.density <= needed_gain(len(own), float(len(site.X))):
        return None
    freedom, score = PULLED, _parts_left_out(site, plan, shared, PULLED, settings)
    for freer in _freer(settings):
        other = _parts_left_out(site, plan, shared, freer, settings)
        if other.density - score.density > OWN_WAY_GAIN:
            freedom, score = freer, other
    if score.density <= rival.density or score.error >= HALF_ERROR**2 * rival.error:
        return None
    if freedom == PULLED:
        return OwnFit(own, freedom)
    return OwnFit(_fitted(site, plan, shared, freedom, settings), freedom)


def _freer(settings: FgprSettings) -> tuple[float, ...]:
    """What may hold own hyper-parameters besides what the setting says."""
    if settings.personalise != "choose":
        return ()
    return (WEAK, FREE) if settings.weak_priors else (FREE,)


def _parts_left_out(
    site: Federation, plan: CurvePlan, shared: Floats, freedom: float, settings: FgprSettings
) -> Rival:
    """Own hyper-parameters that are fitted again without every part of the rows, at that part."""
    X, y = site.client(0)
    assert y is not None
    part, density, error = np.arange(len(X)) % PARTS, 0.0, 0.0
    for number in range(PARTS):
        kept = part != number
        rest = _rows_of(site, kept)
        theta = _fitted(rest, plan, shared, freedom, settings)
        curve = plan.given(rest, theta[None], np.ones(1))
        density += float(curve.log_density(X[~kept], y[~kept]).sum())
        error += float(((y[~kept] - curve.predict(X[~kept])[0]) ** 2).sum())
    return Rival(density, error)


def _fitted(
    site: Federation, plan: CurvePlan, shared: Floats, freedom: float, settings: FgprSettings
) -> Floats:
    """Hyper-parameters of these rows alone."""
    data = prepare(site, plan.normalize_y, plan.mean, plan.max_points, plan.form)
    priors = None
    if settings.weak_priors and freedom != FREE:
        priors = priors_of(site, plan.form, float(data.scale[0]))
    how = settings.personalise if freedom == PULLED else "own"
    return fit_personal(data, plan.form, shared, how, priors)


def _rows_of(site: Federation, kept: Bools) -> Federation:
    X, y = site.client(0)
    assert y is not None
    return Federation(X[kept], np.array([0, int(kept.sum())]), site.names, y[kept])
