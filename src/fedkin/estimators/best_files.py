"""What `Best` has to remember besides its candidates, as files hold it (`fedkin.keeping`).

Candidates that are estimators are models of their own. The two plain ways, alone and one model, are
told here: sums of products, or coefficients of a softmax regression; those of a single site are the
site's own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedkin.estimators.candidates import Fitted, stays_alone
from fedkin.estimators.site_models import PlainClasses, PlainRegression
from fedkin.inference.held_out import HeldOut, Scores
from fedkin.protocol import Traffic

PLAIN = {"PlainRegression": PlainRegression, "PlainClasses": PlainClasses}
ALL_SITES = "all"
# Fitted attributes that are arrays, numbers or words.
KEPT = (
    "ways_",
    "weights_",
    "site_weights_",
    "point_weights_",
    "new_site_weights_",
    "strength_",
    "best_way_",
    "target_",
    "client_names_",
    "converged_",
    "n_rounds_",
    "kept_back_",
    "_stand_in",
)


def models_of(best: Any) -> dict[str, Any]:
    """Candidates that are written as models of their own; what else there is, is refused."""
    foreign = [n for n, m in best.fitted_.items() if not (hasattr(m, "save") or _is_plain(m))]
    if foreign:
        raise TypeError(f"candidate {foreign[0]!r} is no estimator of fedkin: it cannot be saved")
    return {name: model for name, model in best.fitted_.items() if not _is_plain(model)}


def words_of(best: Any) -> dict[str, Any]:
    """All that is not a site's own."""
    held = best.held_out_
    return {
        "attributes": {name: getattr(best, name) for name in KEPT if hasattr(best, name)},
        "traffic": asdict(best.traffic_),
        "held": {
            "sizes": held.sizes,
            "rows": held.rows,
            "trained": held.trained,
            "fits": held.fits,
            "metrics": {n: [s.totals, s.products] for n, s in held.metrics.items()},
        },
        "fits": {fit.name: [sorted(fit._known), fit._spread] for fit in best._fits},
        "plain": {
            name: [type(model).__name__, model.get_params(), model.shared_part()]
            for name, model in best.fitted_.items()
            if _is_plain(model)
        },
    }


def parts_of(best: Any) -> dict[str, dict[str, np.ndarray]]:
    """What the plain ways know of single sites, by site."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, model in best.fitted_.items():
        if _is_plain(model):
            for site, arrays in model.site_parts().items():
                own = {f"{best.ways_.index(name)}.{key}": a for key, a in arrays.items()}
                found.setdefault(site, {}).update(own)
    return found


def take(best: Any, words: Mapping[str, Any], models: Mapping[str, Any], parts: Mapping) -> None:
    """The inverse of the three above: the fitted state again, as far as sites' parts are here."""
    for name, value in words["attributes"].items():
        setattr(best, name, value)
    best.traffic_ = Traffic(**words["traffic"])
    best.refusals_, best.dropped_ = (), ()
    names = tuple(map(str, best.client_names_))
    metrics = {n: Scores(*pair) for n, pair in words["held"]["metrics"].items()}
    facts = {key: words["held"][key] for key in ("sizes", "rows", "trained", "fits")}
    best.held_out_ = HeldOut(best.ways_, names, metrics=metrics, **facts)
    best._adapted = {}
    best.fitted_, best._fits = {}, []
    for place, way in enumerate(best.ways_):
        model, here = models.get(way), set(names)
        if model is None:
            kind, parameters, shared = words["plain"][way]
            own = {site: _own_of(place, arrays) for site, arrays in parts.items()}
            own = {site: arrays for site, arrays in own.items() if arrays}
            model = PLAIN[kind](**parameters).restored(shared, own)
            here = set(names) if model.pooled else set(own)
        elif stays_alone(way, model):
            here = set(model._sites_here)
        best.fitted_[way] = model
        known, spread = words["fits"][way]
        best._fits.append(Fitted.again(way, model, names, set(known) & here, spread))


def _own_of(place: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    begins = f"{place}."
    return {k.removeprefix(begins): a for k, a in arrays.items() if k.startswith(begins)}


def _is_plain(model: Any) -> bool:
    return type(model).__name__ in PLAIN
