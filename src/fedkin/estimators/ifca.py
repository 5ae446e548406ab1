"""The face of IFCA, ODCL's rival of many rounds."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedkin.algorithms.ifca import IFCA as ALGORITHM
from fedkin.estimators.base import (
    check_choice,
    check_count,
    check_finite_start,
    check_fraction,
    is_number,
)
from fedkin.estimators.clustered import SHARED_PARAMETERS, ClusteredEstimator
from fedkin.federation import Federation


class IFCA(ClusteredEstimator):
    """Iterative federated clustering: sites choose among K models, the server moves each.

    Parameters
    ----------
    n_clusters : int
    init : "random" or array (K, d) or (K, d + 1)
        Where the models start: N(0, `init_scale`^2), or given, with the intercept last if there is
        one more column than features. It decides where IFCA ends.
    averaging : "model" or "gradient"
        Average the models after `local_steps` steps at each site, or take one step along the mean
        gradient.
    divide_by : "cluster" or "all"
        Whether a cluster's gradients are averaged over its sites or divided by all that answered.
    step_size : float or None, for one over the steepest site's curvature
    local_steps, max_rounds, tol, fraction
    batch_size : None or int
        Rows drawn for each local gradient; None takes all.
    """

    __doc__ += SHARED_PARAMETERS.removeprefix("\n")

    def __init__(
        self,
        n_clusters=2,
        *,
        loss="squared",
        init="random",
        init_scale=1.0,
        averaging="model",
        divide_by="cluster",
        step_size=None,
        local_steps=10,
        batch_size=None,
        max_rounds=200,
        tol=1e-6,
        fraction=1.0,
        alpha=None,
        fit_intercept=True,
        random_state=None,
        engine=None,
    ):
        self.n_clusters = n_clusters
        self.loss = loss
        self.init = init
        self.init_scale = init_scale
        self.averaging = averaging
        self.divide_by = divide_by
        self.step_size = step_size
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.max_rounds = max_rounds
        self.tol = tol
        self.fraction = fraction
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.engine = engine

    def fit(self, X=None, y=None, groups=None):
        """Fit to sites: rows X with outcome y and a site name per row, or a Federation."""
        check_choice("averaging", self.averaging, ("model", "gradient"))
        check_choice("divide_by", self.divide_by, ("cluster", "all"))
        if isinstance(self.init, str):
            check_choice("init", self.init, ("random",))
        for name in ("n_clusters", "local_steps", "max_rounds"):
            check_count(name, getattr(self, name))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if not (is_number(self.tol) and self.tol >= 0):
            raise ValueError(f"tol must be a number of at least 0, not {self.tol!r}")
        check_fraction(self.fraction)
        if self.step_size is not None and not (is_number(self.step_size) and self.step_size > 0):
            raise ValueError(f"step_size must be None or a positive number, not {self.step_size!r}")
        federation = self._data(X, y, groups)
        result = self._run(ALGORITHM, self._settings(federation), federation).result
        self._read(result)
        self.n_iter_ = len(result["history_changes"])
        if not self.converged_:
            warnings.warn(
                f"IFCA still moved after max_rounds={self.max_rounds}; raise it, or tol",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _settings(self, federation: Federation | None) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in ALGORITHM.defaults}
        if not isinstance(self.init, str):
            init = np.array(self.init, dtype=np.float64, ndmin=2)
            check_finite_start(init)
            n_features = federation.n_features if federation is not None else None
            if self.fit_intercept and init.shape[1] == n_features:
                init = np.concatenate([init, np.zeros((len(init), 1))], axis=1)
            settings["init"] = init
        return settings

    def _account(self) -> list[str]:
        sent = "its gradient" if self.averaging == "gradient" else "its model"
        return [f"In every round each site sent {sent} and which shared model it chose."]
