"""What ODCL's tables and figures have in common: the simulated settings, one fit, IFCA watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.datasets.odcl import (
    APPENDIX_D2,
    SECTION_5,
    SitesOfKinds,
    make_logistic_groups,
    make_sparse_regressions,
)

if TYPE_CHECKING:
    from fedkin.datasets.odcl import FlippedImages

Floats = NDArray[np.float64]

# Table 3 and D.3: IFCA is given up after so many rounds.
CAP = 1000
# Share of the median distance of two sites' models below which fused models count as equal.
SAME_WITHIN = 1e-3
# Table 2: regularisation and the absent intercept that reach the paper's numbers.
IMAGE_FIT: dict[str, Any] = {"loss": "logistic", "alpha": 1e-5, "fit_intercept": False}


@dataclass(frozen=True)
class Setting:
    """A simulation of the paper: its number of clusters, how it is drawn and fitted."""

    n_clusters: int
    draw: Callable[[int, int | list[int]], SitesOfKinds]
    """Rows a site and random state in, 100 sites out."""
    fit: dict[str, Any]


def _regressions(intervals: tuple[tuple[float, float], ...]) -> Setting:
    def draw(n: int, state: int | list[int]) -> SitesOfKinds:
        return make_sparse_regressions(n, intervals=intervals, random_state=state)

    return Setting(len(intervals), draw, {"fit_intercept": False})


SETTINGS = {
    "section 5": _regressions(SECTION_5),
    "D.1": Setting(
        4, lambda n, state: make_logistic_groups(n, random_state=state), {"loss": "logistic"}
    ),
    "D.2": _regressions(APPENDIX_D2),
    "one cluster": _regressions(((0.0, 1.0),)),
}


def without_penalty(fit: dict[str, Any]) -> dict[str, Any]:
    """Settings of LocalERM as the paper has it: least squares also where rows are few."""
    return fit if fit.get("loss") == "logistic" else {**fit, "alpha": 0.0}


def models_of(fitted: Any) -> Floats:
    """The model of every site, (m, d), the intercept last if there is one."""
    if fitted.fit_intercept:
        return np.column_stack([fitted.coef_, fitted.intercept_])
    return np.asarray(fitted.coef_)


class Fit(NamedTuple):
    """What one fit reached."""

    error: float
    exact: bool
    clusters: int


def fit(groups: SitesOfKinds, estimator: Any, seed: int = 0, **parameters: Any) -> Fit:
    """Normalised error, whether the partition is the true one, and the number of clusters."""
    return measured(groups, estimator(random_state=seed, **parameters).fit(groups.federation))


def measured(groups: SitesOfKinds, fitted: Any) -> Fit:
    """The same of something fitted already."""
    error = groups.error(models_of(fitted))
    return Fit(error, groups.recovers(fitted.labels_), fitted.n_clusters_)


def fit_plain_start(groups: SitesOfKinds, local: Floats, n_clusters: int, seed: int) -> Fit:
    """Algorithm 3 as printed: one K-means++ start without restarts or greedy trials.

    `local` (m, d) are the sites' own models.
    """
    from sklearn.cluster import kmeans_plusplus

    from fedkin.clustering import lloyd

    first, _ = kmeans_plusplus(local, n_clusters, random_state=seed, n_local_trials=1)
    found = lloyd(local, first)
    error = groups.error(found.centers[found.labels])
    return Fit(error, groups.recovers(found.labels), len(np.unique(found.labels)))


def fit_within_tolerance(groups: SitesOfKinds, local: Floats, seed: int) -> Fit:
    """ODCL-CC with the penalty from (13), models equal that lie within `SAME_WITHIN`.

    A solver's answer is never exactly equal, so the paper must have had some tolerance.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    from fedkin.clustering import convex_clustering, oracle_penalty

    penalty = oracle_penalty(local, groups.labels, seed)
    centers = convex_clustering(local, penalty).centers
    near = SAME_WITHIN * float(np.median(pdist(local)))
    labels = fcluster(linkage(centers, "single"), near, "distance") - 1
    means = np.array([local[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return Fit(groups.error(means[labels]), groups.recovers(labels), len(means))


# ------------------------------------------------------------------ IFCA


def ifca_errors(
    groups: SitesOfKinds,
    start: Floats,
    batch_size: int | None,
    seed: int,
    target: float,
    step_size: float = 0.01,
    max_rounds: int = CAP,
    local_steps: int = 10,
) -> Floats:
    """Normalised error after each round of model averaging, up to the first that is on target."""
    from fedkin import IFCA
    from reproduction.engines import Enough, Watched

    errors: list[float] = []

    def see(replies: Any, ask: Any) -> None:
        if "choice" in replies and "models" in ask.common:
            chosen = replies["choice"].astype(int)
            errors.append(groups.error(ask.common["models"][chosen]))
            if errors[-1] <= target:
                raise Enough

    model = IFCA(
        len(start),
        init=start,
        averaging="model",
        step_size=step_size,
        local_steps=local_steps,
        batch_size=batch_size,
        max_rounds=max_rounds,
        tol=0.0,
        fit_intercept=False,
        scale=False,
        random_state=seed,
        engine=Watched(see),
    )
    with contextlib.suppress(Enough):
        model.fit(groups.federation)
    return np.array(errors)


def first_round(errors: Floats, target: float) -> int | None:
    """The first round whose error is on target, counted from one."""
    on_target = np.flatnonzero(errors <= target)
    return int(on_target[0]) + 1 if on_target.size else None


def ifca_accuracy(
    task: FlippedImages, start: Floats, divide_by: str = "cluster", max_rounds: int = 200
) -> float:
    """Table 2's IFCA: gradient averaging, step .1, 200 rounds, from `start` (2, d)."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    from fedkin import IFCA

    model = IFCA(
        2,
        init=start,
        averaging="gradient",
        divide_by=divide_by,
        step_size=0.1,
        max_rounds=max_rounds,
        tol=0.0,
        scale=False,
        **IMAGE_FIT,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(task.federation)
    return task.accuracy(model.coef_)
