"""`Best` where sites hold their own rows: ways are weighed by sums of scores alone.

| what is predicted | ways | how they are fitted without a fold |
|---|---|---|
| a number | alone, one model, degrees, kinds | from sums of products by fold (`held_out`) |
| a number, of few columns | besides a common curve | in rounds, without each fold (`left_out`) |
| rows themselves | mixtures alone, FedEM, FedGrEM | in rounds, without each fold (`left_out`) |

Sites answer with sums of scores of the rows left out, and of products of two ways' scores, taken
at the same rows. Weights that single rows would give (`fedkin.models.stacking`) cannot be had from
sums, and are not worth the many questions that would tell of single rows; in their place stand
chances:

| weights | are the chance of a way to be the best one ... |
|---|---|
| of all sites | by total log score, when sites are drawn anew (pseudo-BMA+) |
| of a site | by its expected gain over staying alone, with what the other sites tell of it |
| of point predictions | by total squared error, when sites are drawn anew |
| of new sites | by squared error at sites left out as a whole, which the sums of products tell |

What is fitted in rounds has at new sites the chance that it has at the others, among the ways that
do not stay alone.

Then every way is fitted to all rows: from the sums that are here, or by a run of its own. What
belongs to a site alone stays there: the coordinator has no mixtures of sites alone, and no curves
of sites whose rows are elsewhere, and uses the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.base import clone

from fedkin.arrays import Floats, Indices
from fedkin.estimators.candidates import (
    ALONE,
    ONE,
    Fitted,
    checked,
    curve_ways,
    linear_ways,
    rows_at_sites,
    stays_alone,
    without_last_digits,
)
from fedkin.estimators.left_out import WAYS, compare_left_out, is_served
from fedkin.estimators.site_models import PlainRegression
from fedkin.estimators.ways import kind
from fedkin.inference.at_sites import (
    FoldSums,
    by_sums,
    coefficients_of,
    fitted_to_sums,
    models_by_fold,
    scores_of_ways,
    sums_by_fold,
)
from fedkin.inference.gains import gains
from fedkin.inference.held_out import RMSE, HeldOut
from fedkin.models.folds import name_folds
from fedkin.models.least_squares import n_coefficients, residual_coefficients
from fedkin.models.stacking import chances, least_error_chances
from fedkin.protocol import QuorumLost, Reason, Run, Traffic

# Sites let their rows out cut in one way only: that of `benefit`.
FOLD_SEED = 0
# Draws of expected gains at a site.
DRAWS = 2000
LEVEL = 0.95
FEW = "too few rows in a fold"


class Counting:
    """An engine that remembers what its runs sent, and who was left out of them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.runs: list[Run] = []

    @property
    def weights(self) -> Any:
        """The column that says how much rows count, if the sites have one."""
        return getattr(self.engine, "weights", None)

    def run(self, *given: Any) -> Any:
        """Run, and keep the account."""
        self.runs.append(self.engine.run(*given))
        return self.runs[-1]


@dataclass(frozen=True)
class Weighed:
    """What left-out rows said: scores, ways by how they are fitted, and what was kept back."""

    held: HeldOut
    in_rounds: Mapping[str, Any]
    kept_back: Mapping[str, str] = field(default_factory=dict)
    by_sums: Mapping[str, Any] = field(default_factory=dict)
    known: FoldSums | None = None

    @property
    def part(self) -> Indices:
        """The sites whose rows were scored."""
        return np.flatnonzero(self.held.rows.sum(axis=0) > 0)


def fit_at_sites(best: Any, seed: int, site_folds: int, to_all_rows: bool = True) -> None:
    """Set what `Best.fit` sets, by questions to the sites of its engine.

    Ways are fitted to all rows unless it is enough to know which is best.
    """
    engine = Counting(best.engine)
    if engine.weights is not None:
        raise ValueError("ways of sharing are compared without weights of rows")
    found = (_weigh_rows if best.target_ == "rows" else _weigh_numbers)(best, engine, seed)
    _check_sites(found)
    held, part = found.held, found.part
    totals = {metric: scores.totals[:, 0, part] for metric, scores in held.metrics.items()}
    best.ways_, best.held_out_ = held.ways, held
    best.weights_ = chances(totals["log"], np.arange(len(part)))
    best.site_weights_ = _own_weights(held, best.weights_)
    best.strength_ = float("nan")
    best.best_way_ = held.ways[int(np.argmax(best.weights_))]
    best.kept_back_ = dict(found.kept_back)
    if RMSE in totals:
        best.point_weights_ = least_error_chances(-totals[RMSE], float(held.rows.sum()))
    best.new_site_weights_ = _for_new_sites(found, totals["log"], site_folds, seed)
    best.client_names_ = np.array(held.names, dtype=object)
    _fit_ways(best, found, engine if to_all_rows else None)
    _stand_in(best, totals["log"])
    _account(best, engine, found)


def _check_sites(found: Weighed) -> None:
    names, part = found.held.names, found.part
    if len(part) < 2:
        raise ValueError(
            f"only site {names[part[0]]!r} has enough rows in every fold: ways of "
            "sharing are compared among two sites or more; ask for fewer folds"
        )


# ------------------------------------------------------------------ a number


def _weigh_numbers(best: Any, engine: Any, seed: int) -> Weighed:
    """Linear ways by sums of products; what takes rounds is fitted without each fold besides."""
    known = sums_by_fold(engine, True, best.folds, FOLD_SEED)
    if len(known.part) < 2:
        return Weighed(_nothing(known), {})
    linear, in_rounds = _ways(best.candidates, known, seed)
    order = ALONE, ONE, *linear
    if not in_rounds:
        held = scores_of_ways(engine, linear, known)
        return Weighed(_in_order(held, order), {}, {}, linear, known)
    lines = (ALONE, *linear, ONE), models_by_fold(linear, known)
    try:
        found = compare_left_out(engine, in_rounds, best.folds, FOLD_SEED, lines)
    except RuntimeError as error:
        if not _is_kept_from(error):
            raise
        held = scores_of_ways(engine, linear, known)
        why = dict.fromkeys(in_rounds, str(Reason.POLICY))
        return Weighed(_in_order(held, order), {}, why, linear, known)
    fitted = {name: way for name, way in in_rounds.items() if name not in found.kept_back}
    held = _in_order(found.held, (*order, *fitted))
    return Weighed(held, fitted, found.kept_back, linear, known)


def _nothing(known: FoldSums) -> HeldOut:
    """Rows that were not compared, because they are of one site."""
    rows = known.sizes[None]
    return HeldOut((), known.names, known.sizes, rows, rows, {})


def _ways(candidates: Any, known: FoldSums, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ways of joining, by name: those that sums of products fit, and those that take rounds."""
    if candidates is None:
        n_features = n_coefficients(known.sums.shape[2]) - 1
        curves = curve_ways(n_features, float(known.sizes.sum()), coarse=True)
        return linear_ways(known.whole, seed), _with_seed(curves, seed)
    given = checked(candidates)
    in_rounds = {n: way for n, way in given.items() if is_served(way) and kind(way) == "number"}
    linear = {name: by_sums(way) for name, way in given.items() if name not in in_rounds}
    return linear, _with_seed(in_rounds, seed)


def _with_seed(ways: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Unfitted copies; a way without a seed of its own has this one."""
    found = {name: clone(way).set_params(engine=None) for name, way in ways.items()}
    for way in found.values():
        if way.random_state is None:
            way.set_params(random_state=seed)
    return found


def _is_kept_from(error: RuntimeError) -> bool:
    """Whether sites do not take part in a run because their policies do not allow it."""
    problems = getattr(error, "problems", ())
    if problems:
        return all(problem.fault.reason is Reason.POLICY for problem in problems)
    refusals = getattr(error, "refusals", ())
    refused = bool(refusals) and all(r.reason is Reason.POLICY for r in refusals)
    return isinstance(error, QuorumLost) and refused


# ------------------------------------------------------------------ rows themselves


def _weigh_rows(best: Any, engine: Any, seed: int) -> Weighed:
    """Mixtures, fitted without each fold in rounds of one run."""
    if best.candidates is None:
        n_groups = best.n_components or _number_of_groups(engine, seed)
        ways = rows_at_sites(n_groups, seed)
        compared = {name: without_last_digits(way) for name, way in ways.items()}
    else:
        given = _mixtures(best.candidates)
        alone = next(iter(given.values()))._ways()[ALONE]
        ways = compared = _with_seed({ALONE: alone, **given}, seed)
    found = compare_left_out(engine, compared, best.folds, FOLD_SEED)
    fitted = {name: way for name, way in ways.items() if name not in found.kept_back}
    return Weighed(found.held, fitted, found.kept_back)


def _mixtures(candidates: Any) -> dict[str, Any]:
    """Candidates that describe rows and can be fitted in rounds; others are refused."""
    given = checked(candidates)
    for way in given.values():
        if type(way).__name__ not in WAYS.choices or kind(way) != "rows":
            raise ValueError(
                "at real sites rows are described by FedGrEM, FedEM, TGMM or LocalEM, not by "
                f"{type(way).__name__}"
            )
    return given


def _number_of_groups(engine: Any, seed: int) -> int:
    """As many groups as can be told apart in a mixture that all sites share, by ICL."""
    from fedkin.estimators.fedgrem import FedGrEM

    model = FedGrEM(None, covariance_type="diag", random_state=seed, engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return int(model.fit().n_components_)
        except QuorumLost as lost:
            raise ValueError(
                f"sites do not tell how many groups there are ({lost}); say how many: n_components"
            ) from lost


# ------------------------------------------------------------------ weights


def _in_order(held: HeldOut, order: tuple[str, ...]) -> HeldOut:
    """The ways in another order."""
    place = [held.ways.index(way) for way in order]
    metrics = {
        name: replace(s, totals=s.totals[place], products=s.products[place][:, place])
        for name, s in held.metrics.items()
    }
    return replace(held, ways=order, metrics=metrics)


def _own_weights(held: HeldOut, common: Floats) -> Floats:
    """Each way's chance to gain most over staying alone at each site, (m, W).

    Expected gains are normal about what the site's rows and the other sites tell; a site that was
    not heard has the weights of all.
    """
    rng = np.random.default_rng(0)
    m, others = len(held.names), [way for way in held.ways if way != ALONE]
    drawn = np.zeros((len(held.ways), DRAWS, m))
    for way in others:
        found = gains(held.paired("log", way, ALONE), LEVEL)
        error = (found.high - found.low) / (2.0 * ndtri(0.5 + LEVEL / 2.0))
        drawn[held.ways.index(way)] = found.gain + error * rng.standard_normal((DRAWS, m))
    won = drawn.argmax(axis=0)
    chance = np.stack([(won == w).mean(axis=0) for w in range(len(held.ways))], axis=1)
    heard = np.asarray(np.isfinite(drawn).all(axis=(0, 1)))
    return np.where(heard[:, None], chance, common)


def _for_new_sites(found: Weighed, totals: Floats, n_folds: int, seed: int) -> Floats:
    """Weights at a site that comes later, (W,).

    Linear ways by sites left out. Of what takes rounds no site was left out: it has the chance
    that it has at the others' rows, among all ways that do not stay alone.
    """
    ways, places = found.held.ways, np.arange(len(found.part))
    weights = np.zeros(len(ways))
    joining = [k for k, way in enumerate(ways) if not stays_alone(way, found.in_rounds.get(way))]
    weights[joining] = chances(totals[joining], places)
    if found.known is not None:
        lines = [ways.index(way) for way in (ALONE, ONE, *found.by_sums)]
        share = float(weights[lines].sum())
        weights[lines] = share * _lines_for_new_sites(found.by_sums, found.known, n_folds, seed)
    return weights


def _lines_for_new_sites(
    ways: Mapping[str, Any], known: FoldSums, n_folds: int, seed: int
) -> Floats:
    """Weights of alone, one model and linear ways, (W,): squared errors at sites left out."""
    names, part = (ONE, *ways), known.part
    if len(names) < 2 or len(part) < 2:
        return np.append(0.0, np.full(len(names), 1.0 / len(names)))
    fold = name_folds(tuple(known.names[k] for k in part), min(n_folds, len(part)), seed)
    square = np.zeros((len(names), len(part)))
    for k in np.unique(fold):
        out, rest = part[fold == k], replace(known, part=part[fold != k])
        coef = [np.append(*_plain(rest, pooled=True)._fits.coefficients())]
        coef += [
            coefficients_of(fitted_to_sums(way, rest, rest.whole), known.names[out[0]], rest)
            for way in ways.values()
        ]
        square[:, fold == k] = residual_coefficients(np.array(coef)) @ known.whole[out].T
    # Sites are what is drawn: each counts once, however many rows it has.
    each = square / known.sizes[part]
    return np.append(0.0, least_error_chances(np.maximum(each, 0.0), float(len(part))))


def _plain(known: FoldSums, pooled: bool) -> PlainRegression:
    """A plain fit of the sites that take part."""
    sums = known.whole[known.part]
    names = [known.names[k] for k in known.part]
    return PlainRegression(pooled)._from_sums(
        sums.sum(axis=0, keepdims=True) if pooled else sums, names
    )


def _stand_in(best: Any, totals: Floats) -> None:
    """Weights where a site's own are on ways that cannot be used here: chances of the others."""
    serving = [fit.serves(tuple(best.client_names_)).any() for fit in best._fits]
    here = np.flatnonzero(serving)
    best._stand_in = np.zeros(len(best.ways_))
    if len(here):
        best._stand_in[here] = chances(totals[here], np.arange(totals.shape[1]))


# ------------------------------------------------------------------ fits to all rows


def _fit_ways(best: Any, found: Weighed, engine: Any) -> None:
    """Every way fitted to all rows: from sums that are here, or by a run; without engine none."""
    made: dict[str, Any] = dict(found.in_rounds)
    if engine is not None:
        made = {name: _fitted_by(engine, way) for name, way in found.in_rounds.items()}
    if found.known is not None:
        known = found.known
        joined = {n: fitted_to_sums(w, known, known.whole) for n, w in found.by_sums.items()}
        made |= {ALONE: _plain(known, False), ONE: _plain(known, True), **joined}
        best.n_features_in_ = n_coefficients(known.sums.shape[2]) - 1
    best.fitted_ = {name: made[name] for name in best.ways_}
    best._fits = []
    if engine is None:
        return
    sites = {found.held.names[k] for k in found.part}
    for name, model in best.fitted_.items():
        known_here = set() if getattr(model, "_stays_at_sites", False) else sites
        best._fits.append(Fitted.again(name, model, found.held.names, known_here, None))
    columns = [m.n_features_in_ for m in best.fitted_.values() if hasattr(m, "n_features_in_")]
    best.n_features_in_ = columns[0]
    best.converged_ = all(getattr(m, "converged_", True) for m in best.fitted_.values())


def _fitted_by(engine: Counting, way: Any) -> Any:
    """A way fitted by an ordinary run."""
    model = clone(way).set_params(engine=engine)
    with warnings.catch_warnings():
        # As in one process: a way that does not fit the data gets no weight.
        warnings.simplefilter("ignore")
        model.fit()
    return model.set_params(engine=engine.engine)


def _account(best: Any, engine: Counting, found: Weighed) -> None:
    """What all runs sent, and who has no part in the comparison."""
    best.traffic_ = Traffic()
    for run in engine.runs:
        best.traffic_.add(run.traffic)
    best.n_rounds_ = best.traffic_.rounds
    best.refusals_ = tuple(refusal for run in engine.runs for refusal in run.refusals)
    best.dropped_ = tuple(dict.fromkeys(name for run in engine.runs for name in run.dropped))
    faults = {site: fault for run in engine.runs for site, fault in run.left_out.items()}
    names = [name for k, name in enumerate(found.held.names) if k not in found.part]
    told = {name: faults[name] for name in names if name in faults}
    other = {name: str(f) for name, f in told.items() if f.reason is not Reason.FEW_ROWS}
    best.missing_sites_ = {**dict.fromkeys(names, FEW), **other}
