"""IFCA as a scikit-learn estimator: ODCL's rival of many rounds."""

from __future__ import annotations

from fedkin.algorithms.ifca import IFCA as ALGORITHM
from fedkin.algorithms.ifca import IfcaResult
from fedkin.estimators.clustered import ClusteredEstimator
from fedkin.federation import Federation


class UnchosenModelsWarning(UserWarning):
    """IFCA ended with models that no site has chosen."""


class IFCA(ClusteredEstimator):
    """Iterative federated clustering: sites choose among K models, the server moves each.

    Parameters
    ----------
    n_clusters : int
        Number of models K.
    init : "random" or array of shape (K, d) or (K, d + 1)
        Where the models start: N(0, `init_scale`^2), or given, with the intercept last if there is
        one more column than features. It decides where IFCA ends.
    init_scale : float
        Standard deviation of random starts, in standardised columns if `scale`.
    averaging : {"model", "gradient"}
        Average the models after `local_steps` steps at each site, or take one step along the mean
        gradient.
    divide_by : {"cluster", "all"}
        Whether a cluster's gradients are averaged over its sites or divided by all that answered.
    step_size : float or None
        Length of a gradient step, in standardised columns if `scale`; None is one over the steepest
        site's curvature.
    local_steps : int
        Steps that a site takes in a round (`averaging="model"`).
    batch_size : int or None
        Rows drawn for each local gradient; None takes all.
    max_rounds : int
        The most rounds.
    tol : float
        IFCA ends when no model moves by more than this, relative to its size.
    fraction : float
        Share of the sites that is asked in each round.
    scale : bool
        Take steps, and draw starts, as if every column had mean zero and variance one over all
        rows (which costs each site two sums a column); models stay in the columns' own units.
        False is the printed algorithm.
    [shared parameters]

    [attributes]

    Examples
    --------
    [sites of two kinds]
    >>> from fedkin import IFCA
    >>> model = IFCA(2, init=[[1.0, 1.0], [-1.0, -1.0]]).fit(X, y, groups=groups)
    >>> model.labels_
    array([0, 0, 0, 1, 1, 1])
    """

    _algorithm = ALGORITHM
    _result: IfcaResult

    def _warn(self, federation: Federation | None) -> None:
        super()._warn(federation)
        n_unchosen = self._result.n_unchosen
        if n_unchosen:
            self._warning(
                f"{n_unchosen} of {self.n_clusters_} models were chosen by no site: IFCA found "
                f"{self.n_clusters_ - n_unchosen} clusters from this start; try another init or "
                "random_state, or fewer n_clusters",
                UnchosenModelsWarning,
            )
