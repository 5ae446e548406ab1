"""Faces of the rivals for groups inside sites; parameters and attributes are those of FedGrEM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.algorithms.fedem import FEDEM
from fedkin.algorithms.fedgmm import FEDGMM
from fedkin.algorithms.local_em import LOCAL_EM
from fedkin.algorithms.tgmm import TGMM as TGMM_ALGORITHM
from fedkin.alignment import align
from fedkin.engines import InProcess
from fedkin.estimators.base import check_choice
from fedkin.estimators.mixtures import MixtureEstimator
from fedkin.federation import Federation

SUMS_LEFT = (
    "Each site sent its rows (or products of them) weighted by group and added up; sizes and means "
    "of its groups follow from these sums."
)
MOMENTS_LEFT = "Each site also sent sums of its x and of products of its x."
ONLY_LIKELIHOOD_LEFT = "Nothing but its log likelihood and number of rows left a site."
ROWS_LEFT = "All rows were brought to one place: this fit shares the data themselves."


class FedEM(MixtureEstimator):
    """One set of components for all sites, weights of their own (Marfoq et al. 2021).

    average : "plain" (mean of the sites' M-steps) or "pooled" (M-step of all rows). Other
    parameters and attributes are those of `FedGrEM`; every site's components are the centres.
    """

    _algorithm = FEDEM

    def __init__(
        self,
        n_components=2,
        *,
        family="gaussian",
        covariance_type="identity",
        average="plain",
        init="auto",
        align="auto",
        n_restarts=10,
        step="em",
        step_constant=0.95,
        local_steps=1,
        batch_size=None,
        fraction=1.0,
        clip=None,
        sigma=None,
        fit_intercept=False,
        max_rounds=500,
        tol=1e-4,
        random_state=None,
        engine=None,
    ):
        self.n_components = n_components
        self.family = family
        self.covariance_type = covariance_type
        self.average = average
        self.init = init
        self.align = align
        self.n_restarts = n_restarts
        self.step = step
        self.step_constant = step_constant
        self.local_steps = local_steps
        self.batch_size = batch_size
        self.fraction = fraction
        self.clip = clip
        self.sigma = sigma
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state
        self.engine = engine

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("average", self.average, ("plain", "pooled"))
        check_choice("step", self.step, ("em", "gradient"))
        if self.average == "pooled" and (self.step != "em" or self.local_steps != 1):
            raise ValueError("average='pooled' makes one M-step of all rows: step='em', 1 a round")

    def _account(self) -> list[str]:
        return ([SUMS_LEFT] if self.average == "pooled" else []) + super()._account()


class FedGMM(MixtureEstimator):
    """Shared components of x and shared regressions, pair weights of a site (Wu et al. 2023).

    n_input_components : number of components of x (M_1). Regressions only. Other parameters and
    attributes are those of `FedGrEM`; also `input_centers_` and `input_covariances_`.
    """

    _algorithm = FEDGMM

    def __init__(
        self,
        n_components=2,
        *,
        family="regression",
        n_input_components=3,
        init="auto",
        align="auto",
        n_restarts=10,
        fraction=1.0,
        sigma=None,
        fit_intercept=False,
        max_rounds=500,
        tol=1e-4,
        random_state=None,
        engine=None,
    ):
        self.n_components = n_components
        self.family = family
        self.n_input_components = n_input_components
        self.init = init
        self.align = align
        self.n_restarts = n_restarts
        self.fraction = fraction
        self.sigma = sigma
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state
        self.engine = engine

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.family != "regression":
            raise ValueError(
                "FedGMM models an outcome y beside x: family='regression'. For Gaussian mixtures "
                "use FedEM, TGMM or FedGrEM"
            )
        if self.n_input_components < 1:
            raise ValueError(
                f"n_input_components must be at least 1, not {self.n_input_components}"
            )

    def _read(self, outcome) -> None:
        super()._read(outcome)
        self.input_centers_ = outcome.result["input_centers"]
        self.input_covariances_ = outcome.result["input_covariances"]

    def _account(self) -> list[str]:
        return [*super()._account(), SUMS_LEFT, MOMENTS_LEFT]


class TGMM(MixtureEstimator):
    """Every site with the others' first estimates as sources (Wang et al. 2021).

    source_weight : weight of each other site. Gaussian mixtures only. Other parameters and
    attributes are those of `FedGrEM`.
    """

    _algorithm = TGMM_ALGORITHM

    def __init__(
        self,
        n_components=2,
        *,
        family="gaussian",
        covariance_type="identity",
        source_weight=0.4,
        init="auto",
        align="auto",
        n_restarts=10,
        fraction=1.0,
        max_rounds=500,
        tol=1e-4,
        random_state=None,
        engine=None,
    ):
        self.n_components = n_components
        self.family = family
        self.covariance_type = covariance_type
        self.source_weight = source_weight
        self.init = init
        self.align = align
        self.n_restarts = n_restarts
        self.fraction = fraction
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state
        self.engine = engine

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.family != "gaussian":
            raise ValueError(
                "TGMM is a method for Gaussian mixtures; for mixtures of regressions use FedEM, "
                "FedGMM or FedGrEM"
            )
        if not self.source_weight >= 0:
            raise ValueError(f"source_weight must not be negative, not {self.source_weight}")


class LocalEM(MixtureEstimator):
    """Every site alone, by EM or gradient EM; groups mean something else at every site.

    step : "em" or "gradient" (with steps of `step_constant`). init : "auto", "kmeans++", "ward".
    Other parameters and attributes are those of `FedGrEM`. In process, sites' components are
    aligned afterwards to give `centers_` (medians over sites), nothing more; elsewhere they stay
    at the sites, and there is nothing to predict with.
    """

    _algorithm = LOCAL_EM

    def __init__(
        self,
        n_components=2,
        *,
        family="gaussian",
        covariance_type="identity",
        init="auto",
        n_restarts=10,
        step="em",
        step_constant=0.1,
        sigma=None,
        fit_intercept=False,
        max_rounds=5,
        tol=1e-6,
        random_state=None,
        engine=None,
    ):
        self.n_components = n_components
        self.family = family
        self.covariance_type = covariance_type
        self.init = init
        self.n_restarts = n_restarts
        self.step = step
        self.step_constant = step_constant
        self.sigma = sigma
        self.fit_intercept = fit_intercept
        self.max_rounds = max_rounds
        self.tol = tol
        self.random_state = random_state
        self.engine = engine

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("step", self.step, ("em", "gradient"))
        if not isinstance(self.init, str):
            raise ValueError("every site finds its own start: init is 'kmeans++' or 'ward'")

    def _starts(self) -> tuple[str, ...]:
        return ()

    def _usual_start(self) -> str:
        return "kmeans++"

    def _settings(self, federation: Federation | None) -> dict[str, Any]:
        settings = super()._settings(federation)
        settings.pop("init", None)
        return settings

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


class PooledEM(LocalEM):
    """EM on all rows in one place: what could be done if data could be shared. In process only.

    Parameters and attributes are those of `LocalEM`; every site has the same components, weights
    and covariance.
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
