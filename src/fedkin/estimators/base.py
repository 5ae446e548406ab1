"""What all estimators share: one `fit`, data in any form to a Federation, the account of a fit.

An estimator names its algorithm; its parameters, defaults and checks are those of the algorithm's
settings. What it adds: fitted attributes from the result (`_read`), and their use.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedkin.checks import CheckWarning, findings_at_fit
from fedkin.engines import InProcess
from fedkin.estimators.words import completed
from fedkin.federation import Federation
from fedkin.frames import (
    FederationError,
    Finding,
    named_apart,
    plain_names,
    target_vector,
    value_errors,
)
from fedkin.names import canonical_name, canonical_names, listed, site_labels
from fedkin.protocol import Algorithm, DrawnSeed, Run
from fedkin.protocol.gate import LOSSES
from fedkin.protocol.runs import About
from fedkin.settings import Settings
from fedkin.tables import Summary, Table

# The name of the only site when no groups are given.
ONLY_SITE = "site"
# Sentences about missing replies in a summary; `refusals_` has them all.
SHOWN_MISSING = 20
SHOWN_WITHHELD = 5
NO_GUARANTEE = (
    "What left the sites left as it is, without noise: there is no formal guarantee of privacy "
    "beyond the sites' disclosure rules."
)
# Columns of a table of sites that say to which group a site belongs.
MEMBERSHIP = {"group", "cluster", "prior", "probability"}
# Stands for "no site in particular"; no site can be called so.
NOBODY = ""


class OneSiteWarning(UserWarning):
    """No sites were named, so that all rows count as those of one."""


# What scikit-learn's routing hands on without being asked to: the site of each row.
_ROUTED = {"groups": True}

SHARED_WORDS = {
    "max_rounds": """
max_rounds : int
    The most rounds.
""",
    "fraction": """
fraction : float
    Share of the sites that is asked in each round.
""",
    "fit_intercept": """
fit_intercept : bool
    Whether models have an intercept.
""",
    "engine": """
engine : engine or None
    Who reaches the sites; None holds all of them in this process.
""",
    "client_names_": """
client_names_ : array of shape (m,)
    Names of the sites.
""",
    "n_rounds_": """
n_rounds_ : int
    Rounds of communication.
""",
    "traffic_": """
traffic_ : Traffic
    What travelled.
""",
    "refusals_": """
refusals_ : tuple of Refusal
    Which contributions are missing, and why.
""",
    "random_state": """
random_state : int, RandomState or None
    Decides whatever is drawn by lot.
""",
}


def _can_be_compared(estimator: Any) -> bool:
    """Whether the estimator predicts something."""
    return hasattr(estimator, "predict")


class FederatedEstimator(BaseEstimator, ABC):
    """Common ground of the estimators.

    A subclass names its `_algorithm`, and where it is not the whole class of settings: `_settings`
    (another class of them), `_fixed` (settings that are not for the user to choose).
    """

    _algorithm: ClassVar[Algorithm]
    _settings: ClassVar[type[Settings]]
    _fixed: ClassVar[Mapping[str, Any]] = {}
    _needs_target: ClassVar[bool] = True
    _takes_weights: ClassVar[bool] = False
    _private: ClassVar[tuple[str, ...]] = (
        "_run",
        "_used",
        "_result",
        "_adapted",
        "_newcomers",
        "_elsewhere",
        "_sites_here",
    )
    """Attributes of a fit that are nobody else's business."""
    _kept_attributes: ClassVar[tuple[str, ...]] = (
        "feature_names_in_",
        "n_features_in_",
        "classes_",
        "odd_sites_",
    )
    """Fitted attributes that do not follow from the result."""
    _not_kept: ClassVar[tuple[str, ...]] = ("engine",)
    """Parameters that are no part of a model in files."""
    _adapts_by_rows: ClassVar[bool] = False
    """Whether `adapt` needs the rows themselves, also when the model is read from its files."""
    _watched: bool = True
    """Whether somebody will hear of what a fit warns of."""
    _data: Federation | None = None
    """Rows from which predictions are made, where an estimator keeps them."""
    _elsewhere: frozenset[str] = frozenset()
    """Sites of the fit whose own part was not among the files the model was read from."""
    _sites_here: frozenset[str] | None = None
    """Sites whose own part was; None if the model was not read from files."""
    _words: ClassVar[Mapping[str, str]] = SHARED_WORDS
    """What docstrings of subclasses need not repeat (`fedkin.estimators.words`)."""

    __metadata_request__fit: ClassVar = _ROUTED
    __metadata_request__predict: ClassVar = _ROUTED
    __metadata_request__score: ClassVar = _ROUTED

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "_algorithm" in own and "_settings" not in own:
            cls._settings = cls._algorithm.settings
        if {"_algorithm", "_settings", "_fixed"} & set(own) and "__init__" not in own:
            cls.__init__ = _constructor(cls._parameters())  # type: ignore[method-assign]
        adapt = getattr(cls, "adapt", None)
        if cls._adapts_by_rows and adapt is not None and not hasattr(adapt, "__wrapped__"):
            cls.adapt = _remembering(adapt)
        if hasattr(cls, "_settings"):
            cls.__doc__ = completed(cls.__doc__, cls._parameters(), cls._words)

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Parameters of the estimator and their defaults, in order."""
        settings = cls._settings.defaults()
        chosen = {name: value for name, value in settings.items() if name not in cls._fixed}
        return {**chosen, "random_state": None, "engine": None}

    # ------------------------------------------------------------ fit

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with target y and a site name per row, or a Federation.

        Without data, the engine reaches sites that hold their own.
        """
        return self._fit_to(X, y, groups)

    def _fit_to(self, X: Any, y: Any, groups: Any, sample_weight: Any = None) -> Any:
        """What `fit` does; an estimator whose likelihood takes weights of rows hands them on.

        It has `_takes_weights`, and a `fit` with `sample_weight`.
        """
        settings = self._chosen_settings()
        self._forget()
        federation = self._federation(X, y if self._uses_target() else None, groups)
        if sample_weight is not None:
            federation = self._with_weights(federation, X, sample_weight)
        settings = self._settings_for(settings, federation)
        if federation is not None:
            self._check_data(federation, settings)
            if self._watched:
                self._warn_of(findings_at_fit(federation, self._uses_target()))
        elif self._weighted(None):
            self._check_takes_weights()
        self._keep(self._run_with(settings, federation), settings)
        if self._watched:
            self._warn_of(finding for finding in self._run.findings if finding.code)
            self._warn_of_the_missing(federation)
            self._warn(federation)
        return self

    def _fit_to_score(self, federation: Federation) -> Any:
        """A fit for the scores of rows left out; what deserves a warning is not looked for.

        That can cost as much again: FMLR names odd sites from a second fit.
        """
        self._watched = False
        try:
            return self.fit(federation)
        finally:
            del self._watched

    def _chosen_settings(self) -> Settings:
        """The algorithm's settings from the parameters of the same names, checked."""
        names = [name for name in self._settings.defaults() if name not in self._fixed]
        return self._settings(**self._fixed, **{name: getattr(self, name) for name in names})

    def _settings_for(self, settings: Any, federation: Federation | None) -> Any:
        """Settings that depend on the data's columns, once these are known."""
        return settings

    def _uses_target(self) -> bool:
        return self._needs_target

    def _check_data(self, federation: Federation, settings: Any) -> None:
        """Complain about data that the settings do not fit."""
        if self._uses_target() and federation.y is None:
            raise ValueError(
                f"{type(self).__name__} needs a target y: requires y to be passed, but it is None; "
                "fit(X, y, groups=...), or name it: Federation.from_frame(table, target=...)"
            )
        if federation.weights is not None:
            self._check_takes_weights()

    def _weighted(self, federation: Federation | None) -> bool:
        """Whether rows have weights: here, or at the sites by the engine's word."""
        told = getattr(self.engine, "weights", None) if federation is None else federation.weights
        return told is not None

    def _check_takes_weights(self) -> None:
        if not self._takes_weights:
            raise ValueError(f"{type(self).__name__} has no weights of rows; fit without them")

    def _with_weights(self, federation: Federation | None, X: Any, weights: Any) -> Federation:
        """The data with weights of rows."""
        if federation is None:
            raise ValueError("sample_weight was given without data; weights are where rows are")
        if isinstance(X, Federation):
            raise ValueError(
                "sample_weight was given beside a Federation, which brings its own weights; use "
                "X.with_weights(...)"
            )
        given = np.asarray(weights, dtype=np.float64)
        return federation.with_weights(given if given.ndim else np.full(len(federation.X), given))

    def _run_with(self, settings: Settings, federation: Federation | None) -> Run:
        engine = self.engine or InProcess()
        drawn = int(check_random_state(self.random_state).randint(2**31 - 1))
        seed = DrawnSeed(drawn) if self.random_state is None else drawn
        run: Run = engine.run(self._algorithm, settings, federation, seed)
        return run

    def _keep(self, run: Run, settings: Settings) -> None:
        """What every estimator reports, and then its own attributes."""
        self._run, self._used, self._result = run, settings, run.result
        self.client_names_ = np.array(run.roster.names, dtype=object)
        self.traffic_ = run.traffic
        self.refusals_ = run.refusals
        self.dropped_ = run.dropped
        self.missing_sites_ = {site: str(fault) for site, fault in run.left_out.items()}
        self.n_rounds_ = run.traffic.rounds
        self._adapted: dict[str, Any] = {}
        self._read(run)
        self._in_no_group(run)

    def _in_no_group(self, run: Run) -> None:
        """A site that was lost to the fit is in no group: its label is -1."""
        labels = getattr(self, "labels_", None)
        lost = [site for site, fault in run.left_out.items() if fault.reason in LOSSES]
        if lost and isinstance(labels, np.ndarray) and len(labels) == len(run.roster):
            self.labels_ = labels.copy()
            self.labels_[[self._position[site] for site in lost]] = -1

    @property
    def _position(self) -> Mapping[str, int]:
        """Where each site of the fit stands, by its name; without those whose part is elsewhere."""
        places = self._run.roster.positions
        if not self._elsewhere:
            return places
        return {name: place for name, place in places.items() if name not in self._elsewhere}

    @abstractmethod
    def _read(self, run: Run) -> None:
        """Fitted attributes from the result and, in process, from the sites' memories."""

    def _warn_of_the_missing(self, federation: Federation | None = None) -> None:
        """Nobody is left out in silence."""
        missing, n_sites = self.missing_sites_, len(self.client_names_)
        if missing:
            rows = {} if federation is None else dict(zip(federation.names, federation.sizes))
            empty = {site: "it has no rows" for site in missing if rows.get(site) == 0}
            told = "; ".join(f"site {s!r}: {w}" for s, w in {**missing, **empty}.items())
            self._warning(f"{len(missing)} of {n_sites} sites are not part of the fit ({told})")

    def _warn(self, federation: Federation | None) -> None:
        """Warn about a fit that has not settled; subclasses add what else deserves a look."""
        if not self.converged_:
            self._warning(
                f"{type(self).__name__} did not settle within max_rounds={self.max_rounds}; raise "
                "it or tol",
                ConvergenceWarning,
            )

    def _warn_off_centre(self, federation: Federation) -> None:
        """Warn about columns that sums of products lose."""
        if federation.off_centre:
            columns = [federation.feature_names[j] for j in federation.off_centre]
            self._warning(
                f"the spread of column {listed(columns)} is so small beside its mean that its "
                "effect is lost in rounding; centre it before fitting",
                RuntimeWarning,
            )

    def _warn_of(self, findings: Iterable[Finding]) -> None:
        """Warn of what is surely wrong with the data; messages begin with the check's code."""
        for finding in findings:
            warnings.warn(CheckWarning(finding), stacklevel=_frames_to_caller())

    def _warning(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Warn at the line that called `fit`."""
        warnings.warn(message, category, stacklevel=_frames_to_caller())

    def _forget(self) -> None:
        """Remove what an earlier fit left: not every engine gives every attribute again."""
        private = (*self._private, *FederatedEstimator._private)
        for name in [name for name in vars(self) if name.endswith("_") or name in private]:
            delattr(self, name)

    # ------------------------------------------------------------ data

    def _federation(self, X: Any, y: Any, groups: Any) -> Federation | None:
        """The data of a fit; None means that they are at the sites and the engine reaches them."""
        if X is None:
            if self.engine is None:
                raise ValueError("fit needs data: fit(X, y, groups=...), or an engine that has it")
            return None
        if isinstance(X, Federation):
            brings_its_own(y, groups)
            self.n_features_in_ = X.n_features
            if X.feature_names != plain_names(X.n_features):
                self.feature_names_in_ = np.array(X.feature_names, dtype=object)
            return X
        if groups is not None and np.ndim(groups) == 0:
            raise ValueError(
                "groups must name a site for each row; for a column of a table use "
                "Federation.from_frame(table, client=...)"
            )
        if groups is not None and len(groups) != np.shape(X)[0]:
            raise ValueError(
                f"groups names {len(groups)} rows, X has {np.shape(X)[0]}; "
                "name the site of each row"
            )
        # Federation's own checks of the values name the site; scikit-learn's would not.
        how = {"dtype": np.float64, "ensure_all_finite": False}
        with _words_are_named(X):
            if groups is None and y is None:
                X = validate_data(self, X, y, **how)
            else:
                X = validate_data(self, X, **how)
        if groups is None and y is not None:
            y = column_or_1d(y, warn=True)
            y = check_array(y, dtype=None, ensure_2d=False, ensure_all_finite=False, input_name="y")
            check_consistent_length(X, y)
        if groups is None and len(X) > 1:
            self._warning(
                f"no groups were given, so the {len(X)} rows count as those of one site and "
                "nothing is shared; name the site of each row: fit(X, y, groups=...), or fit a "
                "Federation. "
                "In cross-validation scikit-learn hands groups on only if its metadata routing is "
                "on: take fedkin.model_selection.cross_val_score, which sees to it",
                OneSiteWarning,
            )
        sites = np.full(len(X), ONLY_SITE) if groups is None else groups
        return Federation.from_groups(X, sites, y, getattr(self, "feature_names_in_", None))

    def _rows_and_sites(self, X: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows to predict and, for each, the canonical name of its site (or NOBODY).

        Rows of a Federation come in the order of the table it was made from.
        """
        if isinstance(X, Federation):
            brings_its_own(None, groups)
            clients, order = self._with_columns_of_the_fit(X), X.given_order
            return clients.X[order], clients.groups[order]
        with _words_are_named(X):
            X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        sites = self._site_of_each(len(X), groups)
        if not np.isfinite(X).all():
            columns = [(f"column {name!r}", X[:, j]) for j, name in enumerate(self._features())]
            check_values(columns, sites)
        return X, sites

    def _clients(self, X: Any, y: Any, groups: Any) -> tuple[Federation, np.ndarray]:
        """Rows as a federation, and where in it each row of X stands.

        Rows of no site in particular are those of a site called NOBODY.
        """
        if isinstance(X, Federation):
            brings_its_own(y, groups)
            # What is asked of it comes in its own order; the caller puts it in the table's.
            return replace(self._with_columns_of_the_fit(X), of_table=0), X.given_order
        rows, sites = self._rows_and_sites(X, groups)
        target = None if y is None else target_vector(y, len(rows))
        return Federation.of_known_sites(rows, sites, target)

    def _new_clients(self, X: Any, y: Any, groups: Any, needs_target: bool = True) -> Federation:
        """Rows of sites to `adapt` to."""
        check_is_fitted(self)
        clients, _ = self._clients(X, y, groups)
        if NOBODY in clients.names:
            raise ValueError("adapt needs the name of the site: adapt(X, y, groups='new-site')")
        if needs_target and clients.y is None:
            raise ValueError("adapt needs the target y of the new sites' rows")
        if self._adapts_by_rows:
            self._last_newcomers = clients
        return clients

    def _site_of_each(self, n_rows: int, groups: Any) -> np.ndarray:
        """The canonical name of the site of each row, (n_rows,)."""
        if groups is None:
            only = self.client_names_[0] if len(self.client_names_) == 1 else NOBODY
            return np.full(n_rows, only, dtype=object)
        if np.ndim(groups) == 0:
            return np.full(n_rows, canonical_name(groups), dtype=object)
        labels = site_labels(groups)
        if labels.shape != (n_rows,):
            raise ValueError(
                f"groups must name a site for each of the {n_rows} rows, or be one name for all"
            )
        return canonical_names(labels)

    def _with_columns_of_the_fit(self, clients: Federation) -> Federation:
        """The federation with columns in the order of the fit; others are refused by name.

        Columns that came without names, then or now, are taken in the order given.
        """
        fitted = tuple(getattr(self, "feature_names_in_", ()))
        own = clients.feature_names
        named = fitted and own != plain_names(clients.n_features)
        if named and set(own) != set(fitted):
            missing = ", ".join(name for name in fitted if name not in own)
            extra = ", ".join(name for name in own if name not in fitted)
            words = f" lacks {missing}" if missing else ""
            words += f" has besides {extra}" if extra else ""
            raise ValueError(f"the columns differ from those of the fit:{words}")
        if clients.n_features != self.n_features_in_:
            raise ValueError(
                f"the fit had {self.n_features_in_} features, not {clients.n_features}"
            )
        if not named or own == fitted:
            return clients
        order = [own.index(name) for name in fitted]
        return replace(clients, X=np.ascontiguousarray(clients.X[:, order]), feature_names=fitted)

    def _target_to_score(self, X: Any, y: Any, groups: Any) -> np.ndarray:
        """The target of the rows, numbers or words; a missing one is told by its site."""
        if y is None and isinstance(X, Federation) and X.y is not None:
            y = X.y[X.given_order]
        if y is None:
            raise ValueError(
                "score needs the target y: score(X, y, groups=...), or a Federation with y"
            )
        target = column_or_1d(y)
        if not np.isfinite(as_numbers(target)).all():
            _, sites = self._rows_and_sites(X, groups)
            check_consistent_length(sites, target)
            check_values([("target 'y'", as_numbers(target))], sites)
        return target

    # ------------------------------------------------------------ files

    def save(self, path, sites=True):
        """Write the fitted model as a folder that `fedkin.load` reads; returns the place.

        The shared part holds no row of anybody. `sites` says whose own parts are written besides,
        one file a site: True for all that are known here, False for none, or a list of names.
        """
        check_is_fitted(self)
        from fedkin.keeping import save

        return save(self, path, sites)

    def _kept_words(self) -> dict[str, Any]:
        """What a subclass has to remember besides, in words and numbers."""
        return {}

    def _take_words(self, words: Mapping[str, Any]) -> None:
        """The inverse of `_kept_words`, before the fit is read."""

    def _kept_rows(self) -> Federation | None:
        """Rows from which predictions are made; they are kept at the sites."""
        return self._data

    def _take_rows(self, rows: Federation) -> None:
        """The inverse of `_kept_rows`; sites that are not here have none."""
        self._data = rows

    def _kept_at_sites(self) -> dict[str, dict[str, Any]]:
        """Arrays by site that are neither memory nor rows."""
        return {}

    def _take_at_sites(self, parts: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """The inverse of `_kept_at_sites`."""

    def _kept_models(self) -> dict[str, Any]:
        """Fitted estimators that this one is made of, by name."""
        return {}

    def _take_models(self, models: Mapping[str, Any]) -> None:
        """The inverse of `_kept_models`."""

    # ------------------------------------------------------------ account

    def summary(self) -> Summary:
        """The fit and its account as tables; prints as text, shows as HTML."""
        check_is_fitted(self)
        result, about = self._result, self._about()
        title = f"{type(self).__name__}: {self._members_counted(result.title(about))}"
        tables = {name: self._members_only(table) for name, table in result.tables(about).items()}
        if "sites" in tables:
            tables["sites"] = without_groups_of_unheard(tables["sites"])
        notes = [self.traffic_.sentence(), *result.account(about), *result.remarks(about)]
        notes += [f"Missing: {told}." for told in self._run.missing()[:SHOWN_MISSING]]
        if not isinstance(self.engine or InProcess(), InProcess):
            notes.append(NO_GUARANTEE)
        look = self._run.would_withhold
        notes += withheld_words(look() if look else {}, len(self.client_names_))
        return Summary(title, {**tables, "traffic": self.traffic_.table()}, notes)

    def _members_counted(self, title: str) -> str:
        """A title that begins with the number of sites, without those that were left out."""
        everybody, words = f"{len(self.client_names_)} sites", len(self.missing_sites_)
        if not words or not title.startswith(everybody):
            return title
        members = f"{len(self.client_names_) - words} sites ({words} left out)"
        return members + title.removeprefix(everybody)

    def _members_only(self, table: Table) -> Table:
        """A table of sites without those that were left out."""
        if not self.missing_sites_ or "site" not in table:
            return table
        here = np.array([site not in self.missing_sites_ for site in table["site"]], dtype=bool)
        return Table({name: np.asarray(c)[here] for name, c in table.items()}, table.title)

    def plot(self, kind=None, ax=None):
        """Draw the fit; returns the display (`fedkin.displays`), whose `frame` has the numbers.

        `kind` is "forest", "curves", "sites", "choice", "path" or "convergence", as far as the
        method has it; None is the most telling one.
        """
        check_is_fitted(self)
        from fedkin.displays import draw

        return draw(self, kind, ax)

    @available_if(_can_be_compared)
    def benefit(self, X=None, y=None, groups=None, **options):
        """Whether joining helps each site: this way beside staying alone and one model for all.

        Rows are left out again and again, and scored by fits to the others; `self` stays as it is.
        See `fedkin.inference.benefit` for the options and what comes back.
        """
        from fedkin.inference.benefit import benefit

        return benefit(self, X, y, groups, **options)

    def _ways(self) -> dict[str, Any]:
        """The ways to compare: alone, joining, one model; unfitted."""
        from fedkin.estimators.ways import ways

        return ways(self)

    def _scores_at_sites(self, folds: int, seed: int) -> Any:
        """Scores of left-out rows at the sites that the engine reaches (`HeldOut`)."""
        from fedkin.estimators.left_out import is_served, scores_left_out
        from fedkin.inference.at_sites import scores_at_sites

        if is_served(self):
            return scores_left_out(self, folds, seed)
        return scores_at_sites(self, self._ways()["joining"], folds, seed)

    def _row_scores(self, model: Any, test: Federation, train: Federation) -> Any:
        """Scores of left-out rows by a fitted way."""
        from fedkin.estimators.ways import row_scores

        return row_scores(model, test, train)

    def _site_evidence(self, data: Federation) -> Any:
        """What every site says by itself of what the fit shares."""
        from fedkin.estimators.site_evidence import site_evidence

        return site_evidence(self, data)

    def _evidence_of_sums(self, names: tuple[str, ...], statistics: np.ndarray) -> Any:
        """The same from sums of products that sites sent."""
        from fedkin.estimators.site_evidence import of_sums

        return of_sums(self, names, statistics)

    def _for_sites(self, kept: np.ndarray, fixed: bool) -> Any:
        """An unfitted copy for some of the sites of the fit."""
        from fedkin.estimators.site_evidence import for_sites

        return for_sites(self, kept, fixed)

    @property
    def _counts(self) -> Any:
        """What is known of the number that the estimator leaves open (`estimators.counts`)."""
        from fedkin.estimators import counts

        return counts

    def _shared_estimate(self, like: Any = None) -> np.ndarray:
        """What the fit shares, a row for every kind of sites; groups in the order of `like`'s."""
        from fedkin.estimators.site_evidence import shared_estimate

        return shared_estimate(self, like)

    def _about(self) -> About:
        left = self.traffic_.bytes_up_by_field
        return About(self.client_names_, self._features(), self._used, left)

    def _features(self) -> list[str]:
        """Names of the columns; x0, x1, ... where they have none."""
        names = getattr(self, "feature_names_in_", plain_names(self.n_features_in_))
        return [str(name) for name in names]


def withheld_words(found: Mapping[str, Any], n_sites: int) -> list[str]:
    """What the default disclosure rules would do in a real federation, in a sentence."""
    if not found:
        return []
    by_rule: dict[str, list[str]] = {}
    for site, fault in found.items():
        by_rule.setdefault(fault.reason, []).append(site)
    told = "; ".join(
        f"{', '.join(sites[:SHOWN_WITHHELD])}{' and more' * (len(sites) > SHOWN_WITHHELD)}: {rule}"
        for rule, sites in by_rule.items()
    )
    return [
        f"In a real federation {len(found)} of {n_sites} sites would withhold their replies under "
        f"the default disclosure rules ({told})."
    ]


def _constructor(parameters: Mapping[str, Any]) -> Any:
    """A constructor that keeps its parameters, as scikit-learn wants it; keywords but the first."""
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD, *[inspect.Parameter.KEYWORD_ONLY] * 99]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [inspect.Parameter(n, k, default=d) for (n, d), k in zip(parameters.items(), kinds)]
    signature = inspect.Signature([own, *taken])

    def __init__(self, *given, **named):
        bound = signature.bind(self, *given, **named)
        bound.apply_defaults()
        for name in parameters:
            setattr(self, name, bound.arguments[name])

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


def _remembering(adapt: Any) -> Any:
    """`adapt` that keeps the rows it was given, so that they can be written at their site."""

    @wraps(adapt)
    def remembering(self, X, y=None, groups=None):
        outermost = not hasattr(self, "_last_newcomers")
        try:
            adapted = adapt(self, X, y, groups)
            if outermost:
                self._newcomers = [*getattr(self, "_newcomers", ()), self._last_newcomers]
        finally:
            if outermost and hasattr(self, "_last_newcomers"):
                del self._last_newcomers
        return adapted

    return remembering


def _frames_to_caller() -> int:
    """How many frames up the first one outside of this package's estimators stands."""
    frame, n_frames = inspect.currentframe(), 0
    while frame is not None and "fedkin.estimators" in frame.f_globals.get("__name__", ""):
        frame, n_frames = frame.f_back, n_frames + 1
    return n_frames


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Targets as far as finite or not is concerned: a missing word is NaN, any other 0."""
    if values.dtype.kind != "O":
        return values if values.dtype.kind == "f" else np.zeros(len(values))
    return np.array([np.nan if v is None or v != v else 0.0 for v in values])


def without_groups_of_unheard(sites: Table) -> Table:
    """The table of sites where one that was not heard is not listed as a member of a group."""
    if "rows" not in sites:
        return sites
    unheard = ~(np.asarray(sites["rows"], dtype=np.float64) > 0)
    if not unheard.any():
        return sites
    columns = dict(sites)
    for name in MEMBERSHIP & set(columns):
        column = np.array(columns[name], dtype=object)
        column[unheard] = None
        columns[name] = column
    return Table(columns, sites.title)


@contextmanager
def _words_are_named(X: Any) -> Iterator[None]:
    """scikit-learn says that words are no numbers; this adds in which columns, and what to do."""
    kinds = getattr(X, "dtypes", None)
    if kinds is not None and hasattr(X, "columns"):
        named_apart(X)
        dates = [str(n) for n, k in zip(X.columns, kinds) if _time(k)]
        if dates:
            raise ValueError(f"columns {listed(dates)} hold dates or spans of time; {_TO_NUMBERS}")
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("could not convert string to float"):
            raise
        names = (
            [] if kinds is None else [str(n) for n, k in zip(X.columns, kinds) if not _number(k)]
        )
        where = f" (columns {listed(names)})" if names else ""
        raise ValueError(f"{error}{where}; {_TO_NUMBERS}") from None


_TO_NUMBERS = (
    "Federation.from_frame(table, client=..., target=...) turns words into levels and dates into "
    "days, or encode them"
)


def _time(kind: Any) -> bool:
    """Whether a column of a frame holds dates, times or spans of time."""
    return str(kind).lower().startswith(("date", "time", "duration", "period"))


def _number(kind: Any) -> bool:
    """Whether a column of a frame holds numbers or yes and no."""
    words = str(kind).lower()
    return words.startswith(("int", "uint", "float", "bool", "decimal"))


def brings_its_own(y: Any, groups: Any) -> None:
    """Complain about a target or sites beside a Federation, which has both."""
    if y is not None or groups is not None:
        given = "groups" if y is None else "y"
        raise ValueError(
            f"{given} was given beside a Federation, which brings its own target and sites; build "
            "the Federation with it instead"
        )


def check_values(columns: list[tuple[str, np.ndarray]], sites: np.ndarray) -> None:
    """Complain about missing and infinite values in the words of a Federation."""
    distinct, owner = np.unique(sites, return_inverse=True)
    errors = list(value_errors(columns, owner, [str(name) or None for name in distinct]))
    if errors:
        raise FederationError(errors)
