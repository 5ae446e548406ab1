"""Pictures of a fit as numbers: what is drawn, not how; the page draws it.

A picture is a dictionary: its `type` ("dots", "forest", "line", "bands", "scatter", "heat"), a
title, a caption in words, and its numbers. None of them is a row of anybody's data.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

# Sites drawn in a picture; more are thinned out evenly, and the page says so.
MOST_SITES = 1200
MOST_HEAT = 150
MOST_CURVES = 12
GRID = 60
MOST_TERMS = 15
# Likelihoods of many rows differ in late digits.
DIGITS_OF_LINES = 9

IN_WORDS = {
    "bic": "BIC",
    "loglik": "log likelihood",
    "n_components": "number of groups",
    "n_clusters": "number of kinds",
    "n_priors": "number of priors",
}
Picture = dict[str, Any]


def pictures(model: Any, record: Mapping[str, Any]) -> list[Picture]:
    """All pictures that there are of a fit, the most telling first."""
    makers = (
        gain,
        ways,
        forest,
        curves,
        site_map,
        group_shares,
        departures,
        oddness,
        choice,
        convergence,
    )
    with warnings.catch_warnings():
        # Points on a grid come without the names of columns.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        made = [maker(model, record) for maker in makers]
        best = _best_model(model)
        if best is not None:
            made += [maker(best, {}) for maker in makers if maker is not ways]
    return [picture for picture in made if picture is not None]


# ------------------------------------------------------------------ sites


def gain(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """What joining gives every site, with intervals."""
    told = record.get("benefit")
    if not told:
        return None
    return {
        "type": "dots",
        "title": "What joining gives each site",
        "caption": told["caption"],
        "xlabel": told["unit"],
        "zero": True,
        "items": _thinned(
            [
                {"label": s, "value": g, "low": lo, "high": hi}
                for s, g, lo, hi in zip(told["sites"], told["gain"], told["low"], told["high"])
            ]
        ),
    }


def ways(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """What each way of sharing gives over staying alone, where several were tried."""
    held = getattr(model, "held_out_", None)
    if held is None or "alone" not in held.ways or len(held.ways) < 2:
        return None
    from fedkin.inference.gains import gains

    items = []
    for way in held.ways:
        if way != "alone":
            found = gains(held.paired("log", way, "alone"))
            low, high = found.mean_low, found.mean_high
            items.append({"label": way, "value": found.mean, "low": low, "high": high})
    return {
        "type": "dots",
        "title": "Which way of sharing foretells best",
        "caption": "What each way gains over staying alone at rows that were left out, the mean "
        "over sites with a 95 % interval. Right of zero sharing helps.",
        "xlabel": "gain in log score of a left-out row (nats)",
        "zero": True,
        "items": [_short(item) for item in items],
    }


def _best_model(model: Any) -> Any:
    """The fit of the way that won, if several were tried and it knows how to speak of itself."""
    found = getattr(model, "fitted_", {}).get(getattr(model, "best_way_", None))
    return found if hasattr(found, "client_names_") else None


def departures(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """How far each site departs from what is common, in the column that differs most."""
    if not hasattr(model, "effects_se_") or np.ndim(model.effects_) != 2:
        return None
    effects, errors = np.asarray(model.effects_), np.asarray(model.effects_se_)
    if not effects.size or not np.isfinite(effects).any():
        return None
    j = int(np.nanargmax(np.nanstd(effects, axis=0) / (np.nanmean(errors, axis=0) + 1e-300)))
    name = model.random_columns_[j]
    what = "level" if name == "(intercept)" else f"effect of {name}"
    items = [
        {"label": str(s), "value": e, "low": e - 1.96 * w, "high": e + 1.96 * w}
        for s, e, w in zip(model.client_names_, effects[:, j].tolist(), errors[:, j].tolist())
    ]
    return {
        "type": "dots",
        "title": f"How far each site's {what} departs from the common one",
        "caption": "A dot is a site, its line what its own rows leave open (95 %). Sites whose "
        "line does not cross zero depart as far as 95 % tell.",
        "xlabel": f"departure of the {what}",
        "zero": True,
        "items": _thinned(items),
    }


def oddness(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """How odd every site is, where a method tells it."""
    score = getattr(model, "outlier_score_", None)
    if score is None or not np.isfinite(score).any():
        return None
    items = [
        {"label": str(s), "value": v}
        for s, v in zip(model.client_names_, np.asarray(score).tolist())
        if v == v
    ]
    return {
        "type": "dots",
        "title": "How odd each site is",
        "caption": "About standard normal for a site like the others; above 4 it deserves a look.",
        "xlabel": "outlier score",
        "zero": True,
        "items": _thinned(items),
    }


def site_map(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """Sites by their own coefficients, in the two directions in which they differ most."""
    own = _own_coefficients(model)
    if own is None or len(own) < 3:
        return None
    heard = np.isfinite(own).all(axis=1)
    centred = own[heard] - own[heard].mean(axis=0)
    spread = centred.std(axis=0)
    centred = centred / np.where(spread > 0, spread, 1.0)
    if centred.shape[1] > 1:
        _, _, turn = np.linalg.svd(centred, full_matrices=False)
        # Of the two signs that a direction can have, the one with its largest part positive.
        turn *= np.sign(turn[np.arange(len(turn)), np.abs(turn).argmax(axis=1)])[:, None]
        place = centred @ turn[:2].T
    else:
        place = centred
    if place.shape[1] < 2:
        place = np.column_stack([place, np.zeros(len(place))])
    labels = getattr(model, "labels_", None)
    names = np.asarray(model.client_names_)[heard]
    which = None if labels is None else np.asarray(labels)[heard].tolist()
    items = [
        {"label": str(s), "x": x, "y": y} | ({} if which is None else {"group": int(which[k])})
        for k, (s, (x, y)) in enumerate(zip(names, place.tolist()))
    ]
    return {
        "type": "scatter",
        "title": "Which sites are alike",
        "caption": "A dot is a site, by its own coefficients; sites near each other have like "
        "models. Colours are kinds."
        if which is not None
        else "A dot is a site, by its own coefficients; sites near each other have like models.",
        "xlabel": "first direction of difference",
        "ylabel": "second direction",
        "items": _thinned(items),
    }


def _own_coefficients(model: Any) -> np.ndarray | None:
    for name in ("local_coef_", "site_coef_"):
        coef = getattr(model, name, None)
        if coef is not None and np.ndim(coef) == 2 and np.size(coef):
            if name == "site_coef_" and np.ndim(getattr(model, "site_intercept_", 0)) == 1:
                coef = np.column_stack([coef, model.site_intercept_])
            coef = np.asarray(coef, dtype=np.float64)
            return coef if np.nanmax(np.ptp(coef, axis=0)) > 0 else None
    return None


def group_shares(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """Share of every group at every site."""
    shares = getattr(model, "weights_", None)
    if shares is None or np.ndim(shares) != 2 or len(shares) != len(model.client_names_):
        shares = getattr(model, "responsibilities_", None)
        if shares is None or np.shape(shares)[1] < 2:
            return None
        title, caption = "Which site is of which kind", "The darker, the more probable."
        what = "kind"
    else:
        title, caption = "Groups at every site", "The darker, the more of the site's rows."
        what = "group"
    shares = np.asarray(shares)
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    rows = order[np.linspace(0, len(shares) - 1, min(len(shares), MOST_HEAT)).astype(int)]
    return {
        "type": "heat",
        "title": title,
        "caption": caption + _left_out(len(shares), len(rows)),
        "rows": [str(model.client_names_[k]) for k in rows],
        "columns": [f"{what} {r}" for r in range(shares.shape[1])],
        "values": _rounded(shares[rows]),
    }


# ------------------------------------------------------------------ coefficients and curves


def forest(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """Coefficients of every kind, or the common ones with intervals."""
    if hasattr(model, "conf_int") and np.ndim(getattr(model, "coef_", 0)) == 1:
        return _common_effects(model)
    coef = getattr(model, "cluster_coef_", None)
    what = "kind"
    if coef is None:
        coef = getattr(model, "coef_", None)
        what = "kind" if hasattr(model, "responsibilities_") else "regression"
    classes = _classes_of(model, record)
    what = "class" if classes else what
    if coef is None or np.ndim(coef) != 2 or len(coef) > 12:
        return None
    names = model._features()
    widest = np.argsort(-np.ptp(coef, axis=0) - 1e-9 * np.abs(coef).max(axis=0), kind="stable")
    chosen = np.sort(widest[:MOST_TERMS])
    ends = _intervals_of_groups(model)
    items = []
    for j in chosen:
        for k in range(len(coef)):
            item = {"label": names[j], "group": k, "value": float(coef[k, j])}
            if ends is not None and np.isfinite(ends[k, j]).all():
                item |= {"low": float(ends[k, j, 0]), "high": float(ends[k, j, 1])}
            items.append(item)
    all_of_them = "classes" if classes else f"{what}s"
    return {
        "type": "forest",
        "title": f"The {all_of_them}: effect of every column",
        "caption": f"One mark per {what}; where marks are apart, the {all_of_them} differ."
        + _left_out(coef.shape[1], len(chosen), "columns"),
        "groups": classes or [f"{what} {k}" for k in range(len(coef))],
        "items": items,
    }


def _classes_of(model: Any, record: Mapping[str, Any]) -> list[str]:
    """Names of the classes whose coefficients a model has, as the table has them; else none."""
    own = getattr(model, "classes_", None)
    if own is None or np.shape(getattr(model, "coef_", 0))[:1] != np.shape(own):
        return []
    told = (record.get("data", {}).get("encoding") or {}).get("classes") or []
    return list(map(str, told if len(told) == len(own) else own))


def _intervals_of_groups(model: Any) -> np.ndarray | None:
    if not hasattr(model, "conf_int"):
        return None
    try:
        ends = np.asarray(model.conf_int())
    except ValueError:
        return None
    coef = getattr(model, "cluster_coef_", getattr(model, "coef_", np.zeros(0)))
    return ends if ends.shape == (*np.shape(coef), 2) else None


def _common_effects(model: Any) -> Picture | None:
    ends = np.asarray(model.conf_int())
    names = model._terms() if hasattr(model, "_terms") else model._features()
    coef = np.asarray(model.coef_)
    order = np.argsort(-np.abs(coef))[:MOST_TERMS]
    items = [
        {
            "label": names[j],
            "group": 0,
            "value": float(coef[j]),
            "low": float(ends[j, 0]),
            "high": float(ends[j, 1]),
        }
        for j in order
    ]
    if not items:
        return None
    return {
        "type": "forest",
        "title": "What is common: effect of every column",
        "caption": "Dot and 95 % interval; where it does not cross zero, 95 % speak for an effect."
        + _left_out(len(coef), len(order), "columns"),
        "groups": ["common"],
        "items": items,
    }


def curves(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """Curves of some sites with bands, where there is one feature."""
    if not hasattr(model, "log_predictive_density") or getattr(model, "n_features_in_", 0) != 1:
        return None
    data = model._kept_rows()
    if data is None or not len(data.X):
        return None
    grid = np.linspace(data.X.min(), data.X.max(), GRID)
    chosen = np.argsort(-data.sizes, kind="stable")
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MOST_CURVES)).astype(int)]
    series = []
    for k in sorted(set(chosen.tolist())):
        mean, std = model.predict(grid[:, None], np.full(GRID, data.names[k]), return_std=True)
        series.append(_band(data.names[k], mean, std))
    if type(model).__name__ != "CoKriging":
        mean, std = model.predict(grid[:, None], np.full(GRID, "a new site"), return_std=True)
        series.append(_band("a new site", mean, std))
    feature, target = model._features()[0], data.target_name or "y"
    return {
        "type": "bands",
        "title": f"Curves: {target} by {feature}",
        "caption": "Each site's curve and where a new value lies with 95 %. Choose a site."
        + _left_out(data.n_clients, len(set(chosen.tolist()))),
        "xlabel": feature,
        "ylabel": target,
        "x": _rounded(grid),
        "series": series,
    }


def _band(name: str, mean: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    low, high = mean - 1.96 * std, mean + 1.96 * std
    return {"name": name, "mean": _rounded(mean), "low": _rounded(low), "high": _rounded(high)}


# ------------------------------------------------------------------ how it was found


def choice(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """The curve by which a number was chosen."""
    table = getattr(model, "choice_", None)
    if table is None or len(next(iter(table.values()), ())) < 2:
        return None
    names = list(table)
    judged = next((name for name in ("bic", "curve") if name in names), names[-1])
    x, y = np.asarray(table[names[0]], dtype=float), np.asarray(table[judged], dtype=float)
    series = [{"name": judged, **_least_by_number(x, y, judged == "bic")}]
    if "degrees" in names and len(np.unique(table["degrees"])) > 1:
        # The curve of the way that was chosen comes first, and has the mark.
        departs, chosen_way = np.asarray(table["degrees"]), bool(getattr(model, "degrees_", False))
        series = [
            {
                "name": judged,
                "label": "with departures" if way else "kinds alone",
                **_least_by_number(x[departs == way], y[departs == way], True),
            }
            for way in (chosen_way, not chosen_way)
        ]
    chosen = next(
        (
            getattr(model, n)
            for n in ("n_components_", "n_clusters_", "n_priors_", "size_")
            if hasattr(model, n)
        ),
        None,
    )
    number = _in_words(names[0])
    if hasattr(model, "responsibilities_"):
        number = "number of kinds"
    return {
        "type": "line",
        "title": f"How the number was chosen: {_in_words(judged)} by {number}",
        "caption": "The number that was chosen is marked.",
        "xlabel": number,
        "ylabel": _in_words(judged),
        "mark": None if chosen is None else float(chosen),
        "series": series,
    }


def _least_by_number(x: Any, y: Any, least: bool) -> dict[str, list[float]]:
    """A curve; of several models with one number the best, where less is better."""
    if least:
        distinct = np.unique(x)
        x, y = distinct, np.array([np.nanmin(y[x == number]) for number in distinct])
    return {"x": x.tolist(), "y": _rounded(y, DIGITS_OF_LINES)}


def convergence(model: Any, record: Mapping[str, Any]) -> Picture | None:
    """The search, step by step."""
    history = {
        name: np.asarray(values, dtype=float)
        for name, values in (getattr(model, "history_", None) or {}).items()
        if np.ndim(values) == 1 and len(values) > 2
    }
    history = {name: values for name, values in history.items() if np.isfinite(values).all()}
    if not history:
        return None
    series = []
    for name, values in history.items():
        rows = np.linspace(0, len(values) - 1, min(len(values), 300)).astype(int)
        series.append(
            {"name": name, "x": (rows + 1).tolist(), "y": _rounded(values[rows], DIGITS_OF_LINES)}
        )
    return {
        "type": "line",
        "title": "How the search went",
        "caption": "Step by step; it should become flat.",
        "xlabel": "step",
        "ylabel": _in_words(series[0]["name"]),
        "mark": None,
        "series": series[:1],
    }


# ------------------------------------------------------------------ numbers


def _in_words(name: str) -> str:
    """What people call a column of a choice or a history."""
    return IN_WORDS.get(name, name.replace("_", " "))


def _rounded(values: np.ndarray, digits: int = 5) -> Any:
    """Numbers with as many digits as a picture shows."""
    flat = [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.ravel(values)]
    return np.array(flat, dtype=object).reshape(np.shape(values)).tolist()


def _thinned(items: list[Picture]) -> list[Picture]:
    if len(items) <= MOST_SITES:
        return [_short(item) for item in items]
    rows = np.linspace(0, len(items) - 1, MOST_SITES).astype(int)
    return [_short(items[k]) for k in rows]


def _short(item: Picture) -> Picture:
    short = {}
    for name, value in item.items():
        if isinstance(value, float):
            short[name] = float(f"{value:.5g}") if np.isfinite(value) else None
        else:
            short[name] = value
    return short


def _left_out(there: int, shown: int, what: str = "sites") -> str:
    return f" {shown} of {there} {what} are shown." if shown < there else ""
