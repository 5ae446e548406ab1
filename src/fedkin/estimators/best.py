"""Best: the ways of sharing that make sense, weighed at every site by rows left out."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fedkin.estimators import best_files
from fedkin.estimators.base import FederatedEstimator
from fedkin.estimators.best_at_sites import fit_at_sites
from fedkin.estimators.candidates import (
    ALONE,
    ONE,
    Fitted,
    checked,
    has_many_sites,
    stays_alone,
    usual,
)
from fedkin.estimators.mixed_classes import encoded
from fedkin.estimators.site_models import PlainClasses, PlainRegression
from fedkin.estimators.ways import row_scores
from fedkin.federation import Federation
from fedkin.inference.benefit import Benefit, of_ways
from fedkin.inference.held_out import RESIDUAL, RMSE, HeldOut, rows_left_out, sites_left_out
from fedkin.models.folds import row_folds
from fedkin.models.stacking import (
    PARTS,
    Stack,
    common_weights,
    mixture,
    point_weights,
    stack,
)
from fedkin.names import counted, listed
from fedkin.protocol import Traffic
from fedkin.settings import Whole, one_of
from fedkin.tables import Summary, Table
from fedkin.threads import one_thread

TARGETS = one_of("auto", "number", "classes", "rows")
# Halvings of the interval in which a quantile of a mixture lies.
HALVINGS = 60
# Folds of sites, for sites that come later; half of many sites are as good as most of few.
SITE_FOLDS = 5
SITE_FOLDS_OF_MANY = 2


def _predicts_classes(estimator: Any) -> bool:
    return getattr(estimator, "target_", estimator.target) == "classes"


def _describes_rows(estimator: Any) -> bool:
    return getattr(estimator, "target_", estimator.target) == "rows"


class Best(FederatedEstimator):
    """The best way of sharing for every site: a weighted combination of those that make sense.

    Tries staying alone, one model for all, sites that differ by degrees, sites of kinds, and a
    common curve (for classes the first three; without a target: alone, one mixture, FedGrEM). Rows
    left out say how well each does at every site; a site's predictive distribution is the mixture
    of theirs with weights that do best there, pulled to the weights of all sites, so that few rows
    do not decide alone.

    Parameters
    ----------
    candidates : mapping of estimators by name, list of estimators, or None
        Ways to try; None takes those that make sense for the data.
    target : {"auto", "number", "classes", "rows"}
        What is predicted. "auto": the rows themselves without y; classes where y holds words or two
        values; else a number.
    n_components : int or None
        Groups of mixtures where rows are described; None chooses by BIC, at real sites by
        `FedGrEM(None)`.
    folds : int
        Parts in which rows are left out.
    random_state : int, RandomState or None
        Decides folds and starts.
    engine : engine or None
        Who reaches the sites; None holds all of them in this process. Real sites hold their rows
        and send sums of scores of those left out; weights are each way's chance of being the best.
        Ways of a number are linear models, fitted to sums of products by fold, and a common curve
        where columns and rows are few and sites trust the server with one. With target="rows" they
        are mixtures, one for all being `FedEM`. Curve and mixtures are fitted in rounds, without
        each fold and then to all rows. Classes are not compared there.

    Attributes
    ----------
    ways_ : tuple of str
        Names of the candidates.
    weights_ : array of shape (W,)
        Weights of the ways over all sites.
    site_weights_ : array of shape (m, W)
        Weights of the ways at every site.
    point_weights_ : array of shape (W,)
        Weights of the ways in the point prediction of a number, by squared errors of left-out rows.
    new_site_weights_ : array of shape (W,)
        Weights at a site that was not in the fit, from whole sites left out.
    strength_ : float
        How many rows the weights of all are worth beside a site's own; NaN for real sites.
    best_way_ : str
        The way with the largest weight over all sites.
    held_out_ : HeldOut
        Left-out scores of every way at every site.
    fitted_ : dict
        The candidates, fitted to all rows, by name.
    target_ : str
        What is predicted.
    classes_ : array
        Labels, where classes are predicted.
    client_names_ : array of shape (m,)
        Names of the sites.
    traffic_ : Traffic
        What the fits to all rows sent, and the scores; every fold costs as much again. At real
        sites all that was sent.
    kept_back_ : dict
        Ways that real sites do not take part in, and why; at real sites only.
    converged_ : bool
        Whether all fits to all rows settled.

    Examples
    --------
    >>> import numpy as np
    >>> from fedkin import Best
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat([f"site-{k}" for k in range(20)], 12)
    >>> X = rng.normal(size=(240, 3))
    >>> level = np.repeat(rng.normal(size=20), 12)
    >>> y = level + 2.0 * X[:, 0] + 0.5 * rng.normal(size=240)
    >>> model = Best(folds=3, random_state=0).fit(X, y, groups=groups)
    >>> model.ways_[:3]
    ('alone', 'one model', 'by degrees')
    >>> bool(model.weights_[:2].sum() < 0.5)
    True
    """

    _private = (*FederatedEstimator._private, "_stack", "_codes", "_fits", "_stand_in")
    _not_kept = ("engine", "candidates")

    def __init__(
        self,
        candidates=None,
        *,
        target="auto",
        n_components=None,
        folds=5,
        random_state=None,
        engine=None,
    ):
        self.candidates = candidates
        self.target = target
        self.n_components = n_components
        self.folds = folds
        self.random_state = random_state
        self.engine = engine

    def __sklearn_tags__(self):
        """A regressor or classifier where `target` says so."""
        tags = super().__sklearn_tags__()
        if self.target == "number":
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        elif self.target == "classes":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags

    # ------------------------------------------------------------ fit

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with target y and a site name per row, or a Federation."""
        TARGETS.accept("target", self.target)
        Whole(2).accept("folds", self.folds)
        self._forget()
        if self.engine is not None:
            return self._fit_at_sites(X)
        if X is None:
            raise ValueError("fit needs data: fit(X, y, groups=...), or an engine that has it")
        self.target_ = self._kind_of_target(X, y)
        data = self._data_of(X, y, groups)
        if len(data.X) < 2:
            raise ValueError("ways are compared at rows left out, which needs two; n_samples=1")
        if data.sizes.max() < 2:
            raise ValueError(
                f"ways are compared at rows left out, but each of the {data.n_clients} sites has "
                "one row; see whether the column of sites is an identifier of rows"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        ways = self._candidates_for(data, seed)
        # Hundreds of fits to small matrices: threads would wait for each other.
        with one_thread(int(data.sizes.max())):
            self._weigh(ways, data, seed)
            self._fit_all(ways, data)
        self.client_names_ = np.array(data.names, dtype=object)
        self._adapted = {}
        self._account(data)
        return self

    def _fit_at_sites(self, X: Any = None, to_all_rows: bool = True) -> Best:
        """Sites hold their rows: models of a number, or mixtures, weighed by sums of scores."""
        if X is not None:
            raise ValueError("the engine reaches sites that hold their own rows: fit() without X")
        if self.target == "classes":
            raise ValueError(
                "at real sites Best compares models of a number (target='number') and mixtures of "
                "rows (target='rows'), not of classes: sites alone and one model for all are no "
                "rounds there; MixedModel(family='multinomial', engine=...) joins them by degrees"
            )
        self.target_, self._adapted = "rows" if self.target == "rows" else "number", {}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fit_at_sites(self, seed, SITE_FOLDS, to_all_rows)
        self._warn_of_the_missing()
        return self

    def _choose_at_sites(self) -> Best:
        """Which way is best at real sites; fits to all rows are left to the job that asks."""
        TARGETS.accept("target", self.target)
        Whole(2).accept("folds", self.folds)
        self._forget()
        return self._fit_at_sites(to_all_rows=False)

    def _kind_of_target(self, X: Any, y: Any) -> str:
        target = X.y if isinstance(X, Federation) else y
        if self.target != "auto":
            if target is None and self.target != "rows":
                raise ValueError(f"target={self.target!r} requires y to be passed, but it is None")
            return str(self.target)
        if target is None:
            return "rows"
        values = np.asarray(target)
        words = values.dtype.kind not in "fiu"
        return "classes" if words or len(np.unique(values)) == 2 else "number"

    def _data_of(self, X: Any, y: Any, groups: Any) -> Federation:
        if self.target_ == "classes":
            X, y, self.classes_ = encoded(X, y, groups)
        elif self.target_ == "rows":
            y = None
        federation = self._federation(X, y, groups)
        assert federation is not None
        # Ways are asked for rows in the order in which the federation holds them.
        return replace(federation, of_table=0)

    def _candidates_for(self, data: Federation, seed: int) -> dict[str, Any]:
        if self.candidates is not None:
            given = checked(self.candidates)
            return {name: clone(model) for name, model in given.items()}
        return usual(self.target_, data, self.n_components, seed)

    def _weigh(self, ways: dict[str, Any], data: Federation, seed: int) -> None:
        """Weights from rows left out, and from sites left out for those that come later."""
        self.ways_ = tuple(ways)
        held = rows_left_out(self, ways, data, (self.folds,), seed)
        scored = row_folds(data, self.folds, seed) >= 0
        parts = row_folds(data, PARTS, seed + 1)[scored]
        log_density = held.by_row["log"][:, scored]
        found = stack(log_density, data.owner[scored], data.n_clients, parts)
        self.held_out_: HeldOut = held
        self._stack: Stack = found
        self.weights_, self.site_weights_ = found.common, found.own
        self.strength_ = found.strength
        self.best_way_ = self.ways_[int(np.argmax(found.common))]
        if self.target_ == "number":
            residual = held.by_row[RESIDUAL][:, scored]
            self.point_weights_ = point_weights(residual, data.owner[scored])
        self.new_site_weights_ = self._for_new_sites(ways, data, seed)

    def _for_new_sites(self, ways: dict[str, Any], data: Federation, seed: int) -> np.ndarray:
        shared = {name: way for name, way in ways.items() if not stays_alone(name, way)}
        weights = np.zeros(len(ways))
        places = [self.ways_.index(name) for name in shared]
        if len(shared) < 2 or data.n_clients < 2:
            weights[places] = 1.0 / max(len(places), 1)
            return weights
        folds = SITE_FOLDS_OF_MANY if has_many_sites(data.n_clients) else SITE_FOLDS
        left = sites_left_out(self, shared, data, folds, seed)
        weights[places] = common_weights(left.by_row["log"], data.owner)
        return weights

    def _read(self, run: Any) -> None:
        """Nothing: candidates read their runs, there is none besides."""

    def _row_scores(self, model, test, train):
        return row_scores(model, test, train)

    def _fit_all(self, ways: dict[str, Any], data: Federation) -> None:
        with warnings.catch_warnings():
            # A way that does not fit the data gets no weight: that is its warning.
            warnings.simplefilter("ignore")
            self.fitted_ = {name: way.fit(data) for name, way in ways.items()}
        self._fits = [Fitted(name, model, data) for name, model in self.fitted_.items()]
        self.converged_ = all(getattr(m, "converged_", True) for m in self.fitted_.values())

    def _account(self, data: Federation) -> None:
        total = Traffic()
        for model in self.fitted_.values():
            total.add(getattr(model, "traffic_", Traffic()))
        n_ways, m = len(self.ways_), data.n_clients
        total.bytes_up_by_field["scores"] = 8 * m * n_ways * (self.folds + 1)
        if ONE in self.fitted_ and self.target_ == "number":
            width = data.n_features + 2
            total.bytes_up_by_field["sums of products"] = 8 * m * (width * (width + 1) // 2 + 1)
        self.traffic_, self.n_rounds_ = total, total.rounds
        self.refusals_, self.dropped_ = (), ()

    # ------------------------------------------------------------ files

    def _kept_models(self) -> dict[str, Any]:
        return best_files.models_of(self)

    def _kept_words(self) -> dict[str, Any]:
        return best_files.words_of(self)

    def _kept_at_sites(self) -> dict[str, dict[str, Any]]:
        return best_files.parts_of(self)

    def _take_models(self, models) -> None:
        self._read_models = dict(models)

    def _take_words(self, words) -> None:
        self._read_words = words

    def _take_at_sites(self, parts) -> None:
        words = self.__dict__.pop("_read_words")
        best_files.take(self, words, self.__dict__.pop("_read_models", {}), parts)

    # ------------------------------------------------------------ use

    def _weights_at(self, clients: Federation, same: np.ndarray | None = None) -> np.ndarray:
        """Weights (k, W) of the ways at these sites, of those ways that serve there.

        `same` are weights for all sites of the fit instead of their own.
        """
        known = {str(name): k for k, name in enumerate(self.client_names_)}
        own = self.site_weights_ if same is None else np.tile(same, (len(known), 1))
        weights = np.array(
            [own[known[n]] if n in known else self.new_site_weights_ for n in clients.names]
        ).reshape(len(clients.names), len(self.ways_))
        serving = np.stack([fit.serves(clients.names) for fit in self._fits], axis=1)
        weights = np.where(serving, weights, 0.0)
        total = weights.sum(axis=1, keepdims=True)
        rest = np.where(serving, self._stand_in, 0.0) if hasattr(self, "_stand_in") else serving
        rest = np.where(rest.sum(axis=1, keepdims=True) > 0, rest, serving)
        rest = rest / np.maximum(rest.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return np.where(total > 0, weights / np.where(total > 0, total, 1.0), rest)

    def _asked(self, clients: Federation, used: np.ndarray, ask: Any) -> list[Any]:
        """What the ways in use answer, each at the sites that it serves."""
        answers = []
        for fit in [self._fits[k] for k in np.flatnonzero(used)]:
            serves = fit.serves(clients.names)
            part = clients if serves.all() else clients.take(np.flatnonzero(serves))
            answers.append(_spread_out(ask(fit, part), serves[clients.owner]))
        return answers

    def _mixed(self, clients: Federation, ask: Any) -> tuple[list[Any], np.ndarray]:
        """What every way with some weight answers, and the weights of rows (n, ways asked)."""
        weights = self._weights_at(clients)
        used = np.asarray((weights > 0).any(axis=0))
        return self._asked(clients, used, ask), weights[clients.owner][:, used]

    def predict(self, X, groups=None, return_std=False, level=None):
        """Target of each row at its site; a class, or a group, where these are predicted.

        A number is predicted by the ways that had the least squared error. With `return_std` also
        the root mean square of what a new target is off it by the site's mixture, with `level` the
        ends of intervals of that mixture, (n, 2). Groups are those of the way with the largest
        weight.
        """
        check_is_fitted(self, "ways_")
        if self.target_ == "classes":
            return self.classes_[self.predict_proba(X, groups).argmax(axis=1)]
        if self.target_ == "rows":
            return self._way_for_groups().predict(X, groups)
        clients, place = self._clients(X, None, groups)
        points = self._weights_at(clients, self.point_weights_)
        mixed = self._weights_at(clients)
        used = (mixed > 0).any(axis=0) | (points > 0).any(axis=0)
        answers = self._asked(clients, used, lambda fit, part: np.stack(fit.normal(part)))
        means, stds = (np.array([answer[k] for answer in answers]) for k in (0, 1))
        mean = np.einsum("wn,nw->n", means, points[clients.owner][:, used])
        if not return_std and level is None:
            return mean[place]
        weights = mixed[clients.owner][:, used]
        std = np.sqrt(np.einsum("wn,nw->n", stds**2 + (means - mean) ** 2, weights))
        ends = [] if level is None else [_intervals(means, stds, weights, level)[place]]
        return (mean[place], *[std[place]] * bool(return_std), *ends)

    @property
    def _tells_spread(self) -> bool:
        """Classes and groups have no standard deviation."""
        return getattr(self, "target_", "number") == "number"

    def _way_for_groups(self) -> Any:
        """The way whose groups are predicted; refused if its mixtures are at the sites alone."""
        model = self.fitted_[self.best_way_]
        if getattr(model, "_stays_at_sites", False):
            others = [fit.name for fit in self._fits if not fit.own_only]
            raise ValueError(
                f"{self.best_way_!r} is the best way and its mixtures stayed at the sites: groups "
                f"are theirs to predict; fitted_ has groups of other ways ({', '.join(others)})"
            )
        return model

    @available_if(_predicts_classes)
    def predict_proba(self, X, groups=None):
        """Probabilities of `classes_`, (n, C)."""
        check_is_fitted(self, "ways_")
        clients, place = self._clients(X, None, groups)
        codes = np.arange(len(self.classes_), dtype=float)
        answers, weights = self._mixed(clients, lambda fit, part: fit.probabilities(part, codes).T)
        return np.einsum("wcn,nw->nc", np.array(answers), weights)[place]

    @available_if(_describes_rows)
    def score_samples(self, X, groups=None):
        """Log density of each row, (n,)."""
        return self._density(X, None, groups)

    def log_predictive_density(self, X, y=None, groups=None):
        """Log density, or log probability, of each target given what is known of its site, (n,)."""
        if self.target_ == "classes":
            target = self._target_to_score(X, y, groups)
            share = self.predict_proba(X, groups)
            place = np.searchsorted(self.classes_, target)
            with np.errstate(divide="ignore"):
                return np.log(share[np.arange(len(place)), place])
        return self._density(X, y, groups)

    def _density(self, X, y, groups):
        check_is_fitted(self, "ways_")
        clients, place = self._clients(X, y, groups)
        if self.target_ == "number" and clients.y is None:
            raise ValueError("the target y is needed")
        answers, weights = self._mixed(clients, lambda fit, part: fit.log_density(part))
        return mixture(np.array(answers), weights)[place]

    def score(self, X, y=None, groups=None, sample_weight=None):
        """R squared of `predict`, share of right classes, or mean log density of rows."""
        if self.target_ == "rows":
            return float(self.score_samples(X, groups).mean())
        predicted, target = self.predict(X, groups), self._target_to_score(X, y, groups)
        measure = accuracy_score if self.target_ == "classes" else r2_score
        return measure(target, predicted, sample_weight=sample_weight)

    # ------------------------------------------------------------ comparison and account

    def _uses_target(self) -> bool:
        return getattr(self, "target_", self.target) != "rows"

    def _ways(self) -> dict[str, Any]:
        raise ValueError(
            "Best compares ways by itself: held_out_ and summary() have what left-out rows say"
        )

    def against_alone(self) -> Benefit | None:
        """What the best way gives each site over staying alone; None if alone is best.

        The rows left out have also chosen the way, of a handful: that flatters it a little.
        """
        check_is_fitted(self, "ways_")
        return of_ways(self.held_out_, self.best_way_)

    def way_as_method(self) -> tuple[str, dict[str, Any]]:
        """The best way as an estimator's name and its settings, to be fitted by itself.

        One model for all is FMLR with one kind and no departures; staying alone is no method.
        """
        check_is_fitted(self, "ways_")
        if self.best_way_ == ALONE:
            raise ValueError("staying alone is the best way: there is nothing to join in")
        model = self.fitted_[self.best_way_]
        if isinstance(model, PlainRegression):
            return "FMLR", {"n_components": 1, "degrees": False, "site_noise": "common"}
        if isinstance(model, PlainClasses):
            raise ValueError("one model of classes is no method of its own: there is none to name")
        default = type(model)().get_params()
        own = {k: v for k, v in model.get_params().items() if k not in ("engine", "random_state")}
        return type(model).__name__, {k: v for k, v in own.items() if v != default[k]}

    def won_at(self) -> dict[str, list[str]]:
        """Sites at which each way has the largest weight, by the way's name."""
        best = self.site_weights_.argmax(axis=1)
        names = self.client_names_
        return {way: [str(n) for n in names[best == w]] for w, way in enumerate(self.ways_)}

    def summary(self) -> Summary:
        """Ways and sites as tables; which way won overall, and where another did."""
        check_is_fitted(self, "ways_")
        won = self.won_at()
        scores = {"log score": self.held_out_.typical("log")}
        other = next((m for m in (RMSE, "error") if m in self.held_out_.metrics), None)
        if other is not None:
            scores[other] = self.held_out_.typical(other)
        ways = Table(
            {
                "way": list(self.ways_),
                "weight": self.weights_,
                **({"point": self.point_weights_} if self.target_ == "number" else {}),
                **{f"left-out {name}": values for name, values in scores.items()},
                "sites won": [len(won[way]) for way in self.ways_],
                "weight at new sites": self.new_site_weights_,
            },
            "Ways of sharing",
        )
        sites = Table(
            {
                "site": self.client_names_,
                "rows": self.held_out_.sizes.astype(int),
                "best way": [self.ways_[k] for k in self.site_weights_.argmax(axis=1)],
                **dict(zip(self.ways_, self.site_weights_.T)),
            },
            "Weights at every site",
        )
        tables = {"ways": ways, "sites": sites, "traffic": self.traffic_.table()}
        title = f"Best: {counted(len(self.client_names_), 'site')}, {len(self.ways_)} ways"
        kept_back = getattr(self, "kept_back_", {}).items()
        notes = [f"{way!r} was not compared: sites keep it back ({why})." for way, why in kept_back]
        return Summary(title, tables, [self._in_words(won), *notes, self.traffic_.sentence()])

    def _in_words(self, won: dict[str, list[str]]) -> str:
        m, best = len(self.client_names_), self.best_way_
        others = [f"{way!r} at {listed(names)}" for way, names in won.items() if names]
        others = [text for text in others if not text.startswith(repr(best))]
        where = f"; another way did better: {'; '.join(others)}" if others else ""
        first = f"{best!r} won overall and at {len(won[best])} of {m} sites{where}."
        few = "Sites have no weights of their own: their rows did not call for any."
        return f"{first} {few}" if np.isinf(self.strength_) else first


def _spread_out(answer: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Answers (..., k) of some rows as those of all, (..., n); the others have weight 0."""
    if where.all():
        return answer
    whole = np.zeros((*answer.shape[:-1], len(where)))
    whole[..., where] = answer
    return whole


def _intervals(
    means: np.ndarray, stds: np.ndarray, weights: np.ndarray, level: float
) -> np.ndarray:
    """Ends (n, 2) of central intervals of mixtures of normal laws, by halving."""
    from scipy.special import ndtr

    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, not {level}")
    stds = np.maximum(stds, np.finfo(float).tiny)
    used = weights.T > 0
    ends = []
    for probability in (0.5 - level / 2, 0.5 + level / 2):
        low = np.where(used, means - 40 * stds, np.inf).min(axis=0)
        high = np.where(used, means + 40 * stds, -np.inf).max(axis=0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = np.einsum("wn,nw->n", ndtr((middle - means) / stds), weights) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        ends.append((low + high) / 2)
    return np.stack(ends, axis=1)
