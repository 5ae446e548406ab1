"""Faces of the rivals for groups inside sites; parameters and attributes are those of FedGrEM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.algorithms.fedem import FEDEM
from fedkin.algorithms.local_em import LOCAL_EM
from fedkin.algorithms.tgmm import TGMM as TGMM_ALGORITHM
from fedkin.alignment import align
from fedkin.engines import InProcess
from fedkin.estimators.base import check_choice
from fedkin.estimators.mixtures import JoiningEstimator, MixtureEstimator
from fedkin.federation import Federation

SUMS_LEFT = (
    "Each site sent its rows (or products of them) weighted by group and added up; sizes and means "
    "of its groups follow from these sums."
)
ONLY_LIKELIHOOD_LEFT = "Nothing but its log likelihood and number of rows left a site."
ROWS_LEFT = "All rows were brought to one place: this fit shares the data themselves."


@dataclass(eq=False, repr=False)
class FedEM(JoiningEstimator):
    """One set of components for all sites, weights of their own (Marfoq et al. 2021).

    average : "plain" (mean of the sites' M-steps) or "pooled" (M-step of all rows). Other
    parameters and attributes are those of `FedGrEM`; every site's components are the centres.
    """

    _algorithm = FEDEM

    covariance_type: Any = "identity"
    average: Any = "plain"
    step: Any = "em"
    step_constant: Any = 0.95
    local_steps: Any = 1
    batch_size: Any = None
    clip: Any = None
    sigma: Any = None
    fit_intercept: Any = False
    max_rounds: Any = 500

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("average", self.average, ("plain", "pooled"))
        check_choice("step", self.step, ("em", "gradient"))
        if self.average == "pooled" and (self.step != "em" or self.local_steps != 1):
            raise ValueError("average='pooled' makes one M-step of all rows: step='em', 1 a round")

    def _account(self) -> list[str]:
        return ([SUMS_LEFT] if self.average == "pooled" else []) + super()._account()


@dataclass(eq=False, repr=False)
class TGMM(JoiningEstimator):
    """Every site with the others' first estimates as sources (Wang et al. 2021).

    source_weight : weight of each other site. Gaussian mixtures only. Other parameters and
    attributes are those of `FedGrEM`.
    """

    _algorithm = TGMM_ALGORITHM

    covariance_type: Any = "identity"
    source_weight: Any = 0.4
    max_rounds: Any = 500

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.family != "gaussian":
            raise ValueError(
                "TGMM is a method for Gaussian mixtures; for mixtures of regressions use FedEM, "
                "FedGMM or FedGrEM"
            )


@dataclass(eq=False, repr=False)
class LocalEM(MixtureEstimator):
    """Every site alone, by EM or gradient EM; groups mean something else at every site.

    step : "em" or "gradient" (with steps of `step_constant`). init : "auto", "kmeans++", "ward", or
    array (R, p) or (m, R, p). Other parameters and attributes are those of `FedGrEM`. In process,
    sites' components are aligned afterwards to give `centers_` (medians over sites), nothing more;
    elsewhere they stay at the sites, and there is nothing to predict with.
    """

    _algorithm = LOCAL_EM

    covariance_type: Any = "identity"
    step: Any = "em"
    step_constant: Any = 0.1
    sigma: Any = None
    fit_intercept: Any = False
    max_rounds: Any = 5
    tol: Any = 1e-6

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("step", self.step, ("em", "gradient"))

    def _starts(self) -> tuple[str, ...]:
        return ()

    def _usual_start(self) -> str:
        return "kmeans++"

    def _fitted_components(self, result, memories):
        if "components" not in memories:
            return None, None
        components, heard = memories["components"], result["site_rows"] > 0
        order = align(components[heard]).permutations
        aligned = np.take_along_axis(components[heard], order[..., None], axis=1)
        centers = np.median(aligned, axis=0)
        components = components.copy()
        components[~heard] = centers
        return components, centers

    def _account(self) -> list[str]:
        return [ONLY_LIKELIHOOD_LEFT]


@dataclass(eq=False, repr=False)
class PooledEM(LocalEM):
    """EM on all rows in one place: what could be done if data could be shared. In process only.

    Parameters and attributes are those of `LocalEM`; every site has the same components, weights
    and covariance. Given components of every site are averaged for the start.
    """

    def fit(self, X=None, y=None, groups=None):
        """Fit to the rows of all sites together."""
        if X is None or not (self.engine is None or isinstance(self.engine, InProcess)):
            raise ValueError(
                "PooledEM brings all rows to one place; that works in this process only, with data "
                "given to fit. For data that stay at the sites use FedGrEM"
            )
        return super().fit(X, y, groups)

    def _run(self, algorithm, settings, federation):
        """One site that holds all rows; what it finds is everybody's."""
        everything = np.full(len(federation.X), "all")
        pooled = Federation.from_groups(federation.X, everything, federation.y)
        if np.ndim(settings["init"]) == 3:
            settings = {**settings, "init": settings["init"].mean(axis=0)}
        outcome = super()._run(algorithm, settings, pooled)
        m = federation.n_clients
        self.client_names_ = np.array(federation.names, dtype=object)
        self._position = {name: k for k, name in enumerate(federation.names)}
        result = {
            **outcome.result,
            "site_rows": federation.sizes.astype(float),
            "site_loglik": np.full(m, np.nan),
        }
        memories = {name: np.repeat(array, m, axis=0) for name, array in outcome.memories.items()}
        roster = replace(outcome.roster, names=federation.names)
        return replace(outcome, result=result, memories=memories, roster=roster)

    def _account(self) -> list[str]:
        return [ROWS_LEFT]
