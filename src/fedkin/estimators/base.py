"""What all faces share: data in any form to a Federation, sites to rows, the account in words."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import column_or_1d, validate_data

from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.frames import FederationError, plain_names, value_errors
from fedkin.names import canonical_name, canonical_names, site_labels
from fedkin.protocol import Algorithm, Outcome
from fedkin.tables import Table

# The name of the only site when no groups are given.
ONLY_SITE = "site"
# Stands for "no site in particular"; no site can be called so.
NOBODY = ""


class FederatedEstimator(BaseEstimator):
    """Common ground of the estimators; subclasses say `algorithm` and how to read its result.

    `_private` names attributes of a fit that are nobody else's business.
    """

    _private: tuple[str, ...] = ("_position",)

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
            raise ValueError(f"groups names {len(groups)} rows, X has {np.shape(X)[0]}")
        # Federation's own checks of the values name the site; scikit-learn's would not.
        how = {"dtype": np.float64, "ensure_all_finite": False}
        if groups is None and y is None:
            X = validate_data(self, X, y, **how)
        else:
            X = validate_data(self, X, **how)
        if groups is None and y is not None:
            y = column_or_1d(y, warn=True)
            y = check_array(y, dtype=None, ensure_2d=False, ensure_all_finite=False, input_name="y")
            check_consistent_length(X, y)
        sites = np.full(len(X), ONLY_SITE) if groups is None else groups
        return Federation.from_groups(X, sites, y, getattr(self, "feature_names_in_", None))

    def _forget(self) -> None:
        """Remove what an earlier fit left: not every engine gives every attribute again."""
        for name in [name for name in vars(self) if name.endswith("_") or name in self._private]:
            delattr(self, name)

    def _run(self, algorithm: Algorithm, settings: dict[str, Any], federation: Any) -> Outcome:
        """Fit through the engine and note what every estimator reports."""
        engine = self.engine or InProcess()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        outcome: Outcome = engine.run(algorithm, settings, federation, seed)
        self.client_names_ = np.array(outcome.roster.names, dtype=object)
        self.traffic_ = outcome.traffic
        self.refusals_ = outcome.refusals
        self.dropped_ = outcome.dropped
        self.n_rounds_ = outcome.traffic.rounds
        self._position = {name: k for k, name in enumerate(outcome.roster.names)}
        return outcome

    def _rows_and_sites(self, X: Any, groups: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows to predict and, for each, the canonical name of its site."""
        if isinstance(X, Federation):
            brings_its_own(None, groups)
            clients = self._with_columns_of_the_fit(X)
            return clients.X, np.array(clients.names, dtype=object)[clients.owner]
        X = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=False)
        sites = self._site_of_each(len(X), groups)
        if not np.isfinite(X).all():
            named = getattr(self, "feature_names_in_", plain_names(X.shape[1]))
            columns = [(f"column {name!r}", X[:, j]) for j, name in enumerate(named)]
            check_values(columns, sites)
        return X, sites

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

    def _outcome_to_score(self, X: Any, y: Any, groups: Any) -> np.ndarray:
        """The outcome of the rows, numbers or words; a missing one is told by its site."""
        if y is None and isinstance(X, Federation):
            y = X.y
        if y is None:
            raise ValueError(
                "score needs the outcome y: score(X, y, groups=...), or a Federation with y"
            )
        outcome = column_or_1d(y)
        if not np.isfinite(as_numbers(outcome)).all():
            _, sites = self._rows_and_sites(X, groups)
            check_consistent_length(sites, outcome)
            check_values([("target 'y'", as_numbers(outcome))], sites)
        return outcome

    def _travelled(self) -> str:
        """What travelled, in a sentence."""
        traffic = self.traffic_
        return (
            f"{traffic.rounds} round{'s' * (traffic.rounds != 1)}, {traffic.messages_up} replies, "
            f"{traffic.bytes_up:,} bytes left the sites, {traffic.bytes_down:,} came to them; "
            f"{traffic.refused} missing."
        )

    def _traffic_table(self) -> Table:
        traffic = self.traffic_
        names = list(dict.fromkeys([*traffic.bytes_up_by_field, *traffic.bytes_down_by_field]))
        up = [traffic.bytes_up_by_field.get(name, 0) for name in names]
        down = [traffic.bytes_down_by_field.get(name, 0) for name in names]
        return Table({"field": names, "bytes up": up, "bytes down": down}, "What travelled")


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Outcomes as far as finite or not is concerned: a missing word is NaN, any other 0."""
    if values.dtype.kind != "O":
        return values if values.dtype.kind == "f" else np.zeros(len(values))
    return np.array([np.nan if v is None or v != v else 0.0 for v in values])


def brings_its_own(y: Any, groups: Any) -> None:
    """Complain about an outcome or sites beside a Federation, which has both."""
    if y is not None or groups is not None:
        given = "groups" if y is None else "y"
        raise ValueError(
            f"{given} was given beside a Federation, which brings its own outcome and sites; build "
            "the Federation with it instead"
        )


def check_values(columns: list[tuple[str, np.ndarray]], sites: np.ndarray) -> None:
    """Complain about missing and infinite values in the words of a Federation."""
    distinct, owner = np.unique(sites, return_inverse=True)
    errors = list(value_errors(columns, owner, [str(name) or None for name in distinct]))
    if errors:
        raise FederationError(errors)


def check_count(name: str, value: Any) -> None:
    """Complain about what is not a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def is_number(value: Any) -> bool:
    """Whether it can be compared with a bound; True and False are no numbers here."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_number(name: str, value: Any) -> float:
    """Complain about what is not a number."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)


def check_positive(name: str, value: Any) -> None:
    """Complain about what is not a number above 0."""
    if not check_number(name, value) > 0:
        raise ValueError(f"{name} must be above 0, not {value}")


def check_fraction(value: Any) -> None:
    """Complain about a share of the sites that is none."""
    if not 0 < check_number("fraction", value) <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, not {value}")


def check_finite_start(init: Any) -> None:
    """Complain about a start that is not all numbers: no site is to blame for it."""
    odd = np.argwhere(~np.isfinite(np.asarray(init, dtype=np.float64)))
    if len(odd):
        where = ", ".join(str(i) for i in odd[0])
        raise ValueError(
            f"init has entries that are not finite ({len(odd)}, the first at [{where}]); give "
            "numbers, or a word with which the fit finds its own start"
        )


def listed(names: Any, shown: int = 10) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + more


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Complain about a word that is not on the list."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, not {value!r}")
