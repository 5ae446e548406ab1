"""The answer of a fit in one paragraph, for somebody who does not know the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedkin.names import listed
from fedkin.report.words import WAYS
from fedkin.tables import read_out

# Sites named in a sentence.
NAMED = 5
# Methods that are there to be compared with, for which rows leave their sites.
ROWS_TOGETHER = {"PooledGP", "PooledEM", "CoKriging"}


def answer(model: Any, record: Mapping[str, Any] | None = None) -> str:
    """What was found, what it cost in privacy, and what to look at: a few plain sentences."""
    return " ".join(part for part in answer_and_more(model, record) if part)


def answer_and_more(model: Any, record: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """The same in two parts: what was found and whether joining helps, which is asked first; then
    what that rests on."""
    found = _found(model)
    first = [*found[:1], *_benefit(record or {})]
    more = [*found[1:], _travelled(model), *_attention(model, record)]
    return " ".join(filter(None, first)), " ".join(filter(None, more))


def _found(model: Any) -> list[str]:
    for has, say in (
        ("ways_", _best_way),
        ("fixed_effects", _degrees),
        ("site_kernels_", _curves),
        ("kernel_", _curves),
        ("cluster_coef_", _clusters),
        ("responsibilities_", _kinds),
        ("centers_", _groups),
    ):
        if hasattr(model, has):
            return say(model)
    return [model.summary().title + "."]


# Where the way with the largest weight is not the one with the best score.
TOGETHER = (
    "Weights are those with which the ways foretell best together, which is not always most for "
    "the one that is best on average: a few rows that are missed by far count much in a mean."
)


def _left_out_errors(model: Any) -> dict[str, str]:
    """Errors of the ways at rows left out, in brackets, where a number or classes are predicted."""
    names = {"rmse": "median RMSE", "error": "error"}
    found = next((metric for metric in names if metric in model.held_out_.metrics), None)
    if found is None:
        return {}
    errors = zip(model.ways_, model.held_out_.typical(found))
    return {way: f" ({names[found]} {read_out(error)})" for way, error in errors}


def _best_way(model: Any) -> list[str]:
    """Which way of sharing has the largest weight, how well it foretells, and what it found."""
    ways, best, m = list(model.ways_), model.best_way_, len(model.client_names_)
    scores = dict(zip(ways, model.held_out_.typical("log")))
    what = f" ({_what_it_is(best, model.fitted_[best])})" if best in WAYS else ""
    won = int((model.site_weights_.argmax(axis=1) == ways.index(best)).sum())
    share = f"{100 * model.weights_[ways.index(best)]:.0f} %"
    second = sorted((way for way in ways if way != best), key=lambda way: -scores[way])[:1]
    rivals = [way for way in dict.fromkeys([*second, "alone"]) if way in scores and way != best]
    errors = _left_out_errors(model)
    said = {way: f"{read_out(scores[way])}{errors.get(way, '')}" for way in ways}
    told = "".join(f", that of {way!r} {said[way]}" for way in rivals)
    winner = model.fitted_[best]
    return [
        f"Of {len(ways)} ways of sharing, {best!r}{what} has the largest weight: {share} over all, "
        f"and the largest at {won} of {m} sites.",
        f"Its mean log score at rows that were left out is {said[best]}{told}; a higher score "
        f"{'and a smaller error are' if errors else 'is'} better.",
        TOGETHER if second and scores[second[0]] > scores[best] else "",
        _alone_is_best(model) if best == "alone" else "",
        *(_found(winner) if hasattr(winner, "client_names_") else ()),
    ]


def _what_it_is(way: str, fitted: Any) -> str:
    """A way in words; of kinds that turned out to be one, that."""
    if way != "by kind" or getattr(fitted, "n_components_", 2) > 1:
        return WAYS[way]
    degrees = bool(getattr(fitted, "degrees_", False))
    return "here one kind, from which sites depart by degrees" if degrees else "here one kind"


def _alone_is_best(model: Any) -> str:
    """What it means that staying alone won: where joining would still be better."""
    m = len(model.client_names_)
    if m == 1:
        return "There is one site only: nobody to share with."
    elsewhere = m - len(model.won_at()["alone"])
    scores = dict(zip(model.ways_, model.held_out_.typical("log")))
    better = max(scores, key=lambda way: scores[way])
    if better != "alone":
        return (
            f"Whether joining helps is not clear: {better!r} has the better mean score, staying "
            "alone the larger weight."
        )
    if not elsewhere:
        return "Joining does not help: no way of sharing foretells left-out rows better."
    return (
        f"Over all, joining does not help; at {elsewhere} of {m} sites another way of sharing has "
        "the largest weight, and predictions combine both."
    )


def _kinds(model: Any) -> list[str]:
    m, K = len(model.client_names_), model.n_components_
    degrees = bool(getattr(model, "degrees_", False))
    if m == 1:
        return ["There is one site only: its own regression, shared with nobody."]
    if K == 1:
        more = ", from which each departs by degrees" if degrees else ""
        return [f"All {m} sites follow one regression{more}."]
    if m == K:
        own = f"Each of the {m} sites follows a regression of its own; no two are of a kind."
        return [own, _largest_difference(model)]
    counts = np.bincount(model.labels_[model.labels_ >= 0], minlength=K)
    shares = ", ".join(map(str, counts))
    chosen = " (a number chosen by BIC)" if getattr(model, "n_components", None) is None else ""
    return [
        f"The {m} sites are of {K} kinds{chosen}: {shares} sites follow the regressions of kinds 0 "
        f"to {K - 1}.",
        "Sites also depart from the regression of their kind by degrees." if degrees else "",
        _largest_difference(model),
    ]


def _largest_difference(model: Any) -> str:
    coef, names = np.asarray(model.coef_), model._features()
    gap = np.ptp(coef, axis=0)
    if not len(gap) or not gap.max() > 0:
        return ""
    j = int(gap.argmax())
    low, high = float(coef[:, j].min()), float(coef[:, j].max())
    return f"They differ most in the effect of {names[j]}: {read_out(low)} to {read_out(high)}."


def _clusters(model: Any) -> list[str]:
    m, K = len(model.client_names_), model.n_clusters_
    counts = np.bincount(model.labels_[model.labels_ >= 0], minlength=K)
    if m == 1:
        return ["There is one site only: its own model, shared with nobody."]
    if K == 1:
        return [f"One model serves all {m} sites."]
    if m == K:
        return [f"Each of the {m} sites has a model of its own; nobody joined."]
    chosen = " (a number that was chosen)" if model.choice_ is not None else ""
    return [f"The {m} sites are of {K} kinds{chosen}, with {', '.join(map(str, counts))} sites."]


def _degrees(model: Any) -> list[str]:
    m = len(model.client_names_)
    if getattr(model, "family", "") == "multinomial":
        return [f"{m} sites share one softmax regression, and each departs from it by degrees."]
    ends, names = model.conf_int(), model._terms()
    clearest = np.argsort(-np.abs(model.coef_ / np.maximum(model.coef_se_, 1e-300)))[:2]
    effects = " and ".join(
        f"{names[j]} {read_out(model.coef_[j])} "
        f"(95 % from {read_out(ends[j, 0])} to {read_out(ends[j, 1])})"
        for j in clearest
    )
    whose = f"Common to all {m} sites" if m > 1 else "There is one site only, shared with nobody"
    sentences = [f"{whose}: the effect of {effects}."] if effects else []
    if m == 1:
        return sentences
    test = model.difference_test_
    if test is not None and hasattr(test, "p_value"):
        verdict = "differ" if test.p_value < 0.05 else "do not differ for certain"
        chance = f"= {test.p_value:.2g}" if test.p_value >= 0.001 else "< 0.001"
        sentences.append(f"Sites {verdict} (p {chance}).")
    if np.isfinite(model.icc_):
        sentences.append(f"{100 * model.icc_:.0f} % of the spread lies between sites.")
    return sentences


def _curves(model: Any) -> list[str]:
    m = len(model.client_names_)
    if not getattr(getattr(model, "_result", None), "learnt", True):
        return ["Nothing was learnt: no site has two rows whose targets differ."]
    if m == 1:
        return ["There is one site only: its own curve with bands, shared with nobody."]
    if type(model).__name__ == "LocalGP":
        return [f"Each of {m} sites has a curve of its own; nothing was shared."]
    if type(model).__name__ == "PooledGP":
        return [f"One curve serves all {m} sites."]
    P, own = model.n_priors_, int(np.sum(model.own_))
    said = f"{m} sites draw their curves from {'one prior' if P == 1 else f'{P} priors'}"
    more = f"; {own} of them have hyper-parameters of their own" if own else ""
    return [f"{said}{more}. Every site has its own curve with bands."]


def _groups(model: Any) -> list[str]:
    m, R = len(model.client_names_), model.n_components_
    found = f"{R} groups were found" if R > 1 else "One group was found"
    if m == 1:
        return [f"There is one site only: {found[0].lower()}{found[1:]} inside it."]
    if type(model).__name__ == "LocalEM" and not hasattr(model, "classes_"):
        return [f"{found} at each of {m} sites alone; their order means nothing across sites."]
    sentences = [f"{found} inside the {m} sites, with the same meaning everywhere."]
    if hasattr(model, "weights_"):
        typical = np.median(model.weights_, axis=0)
        shares = ", ".join(f"{100 * share:.0f} %" for share in typical[:8])
        sentences.append(f"At a typical site they hold {shares} of the rows.")
    return sentences


def _benefit(record: Mapping[str, Any]) -> list[str]:
    told = record.get("benefit")
    return [told["sentence"]] if told else []


def _travelled(model: Any) -> str:
    if type(model).__name__ in ROWS_TOGETHER:
        return "For this all rows were brought to one place."
    traffic, m = model.traffic_, max(1, len(model.client_names_))
    if not traffic.rounds:
        return ""
    each = traffic.bytes_up / m
    size = f"{each:,.0f} bytes" if each < 10_000 else f"{each / 1000:,.0f} kB"
    rounds = "one round" if traffic.rounds == 1 else f"{traffic.rounds} rounds"
    return f"For this every site sent about {size} in {rounds}; no row left its site."


def _attention(model: Any, record: Mapping[str, Any] | None) -> list[str]:
    said = []
    odd = list(getattr(model, "odd_sites_", ()))
    if odd:
        word = "site fits" if len(odd) == 1 else "sites fit"
        said.append(f"Look at {listed(odd, NAMED)}: {len(odd)} {word} with none of the others.")
    if getattr(model, "converged_", True) is False:
        said.append("The search had not come to its end.")
    if record and record.get("missing"):
        said.append(f"{len(record['missing'])} contributions of sites are missing.")
    return said
