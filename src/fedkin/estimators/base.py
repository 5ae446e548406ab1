"""What all faces share: data in any form to a Federation, sites to rows, the account in words."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from fedkin.engines import InProcess
from fedkin.federation import Federation
from fedkin.frames import plain_names
from fedkin.names import canonical_name
from fedkin.protocol import Algorithm, Outcome
from fedkin.tables import Table

# The name of the only site when no groups are given.
ONLY_SITE = "site"


class FederatedEstimator(BaseEstimator):
    """Common ground of the estimators; subclasses say `algorithm` and how to read its result."""

    def _federation(self, X: Any, y: Any, groups: Any) -> Federation | None:
        """The data of a fit; None means that they are at the sites and the engine reaches them."""
        if X is None:
            if self.engine is None:
                raise ValueError("fit needs data: fit(X, y, groups=...), or an engine that has it")
            return None
        if isinstance(X, Federation):
            self.n_features_in_ = X.n_features
            if X.feature_names != plain_names(X.n_features):
                self.feature_names_in_ = np.array(X.feature_names, dtype=object)
            return X
        if groups is not None and len(groups) != np.shape(X)[0]:
            raise ValueError(f"groups names {len(groups)} rows, X has {np.shape(X)[0]}")
        # With sites given, Federation's own checks name the site; scikit-learn's would not.
        rules = {"dtype": np.float64, "ensure_all_finite": groups is None}
        if y is None:
            X = validate_data(self, X, y, **rules)
        else:
            X, y = validate_data(self, X, y, y_numeric=True, **rules)
        sites = np.full(len(X), ONLY_SITE) if groups is None else groups
        return Federation.from_groups(X, sites, y, getattr(self, "feature_names_in_", None))

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
            if X.n_features != self.n_features_in_:
                raise ValueError(f"the fit had {self.n_features_in_} features, not {X.n_features}")
            return X.X, np.array(X.names, dtype=object)[X.owner]
        X = validate_data(self, X, dtype=np.float64, reset=False)
        if groups is None:
            return X, np.full(len(X), ONLY_SITE, dtype=object)
        groups = np.asarray(groups)
        if groups.shape != (len(X),):
            raise ValueError(f"groups must name a site for each of the {len(X)} rows")
        distinct, codes = np.unique(groups.astype(object), return_inverse=True)
        names = np.array([canonical_name(value) for value in distinct], dtype=object)
        return X, names[codes]

    def _traffic_table(self) -> Table:
        traffic = self.traffic_
        names = list(traffic.bytes_up_by_field) + list(traffic.bytes_down_by_field)
        up = [traffic.bytes_up_by_field.get(name, 0) for name in names]
        down = [traffic.bytes_down_by_field.get(name, 0) for name in names]
        return Table({"field": names, "bytes up": up, "bytes down": down}, "What travelled")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Complain about a word that is not on the list."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, not {value!r}")
