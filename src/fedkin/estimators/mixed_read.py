"""A run of a mixed model as fitted attributes, and what a person should be warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedkin.algorithms.mixed_model_result import CONVERGED
from fedkin.algorithms.mixed_model_settings import CLASSES, COUNTS
from fedkin.algorithms.mixed_model_words import term_names
from fedkin.engines.kept import KeptReplies
from fedkin.estimators.fmlr import ImplausibleSitesWarning, OddSitesWarning
from fedkin.estimators.mixed_classes import ClassesFacts, settings_of, with_memories
from fedkin.estimators.mixed_use import NEW_SITE, FittedMixedModel
from fedkin.federation import Federation
from fedkin.names import listed
from fedkin.protocol.runs import About

# Where the linear predictor of half of the rows is further out, means are 0 (or 1) to four digits.
WITHOUT_BOUND = 9.0


class ReadMixedModel(FittedMixedModel):
    """The part of `MixedModel` between the run and its use."""

    intercept_: Any

    def _read_classes(self, run) -> None:
        """Fitted attributes where the target is a class."""
        result = self._result = with_memories(run.result, run.memories)
        facts = self._facts = ClassesFacts(result, settings_of(self._used))
        if not hasattr(self, "classes_"):
            self.classes_ = np.arange(len(result.coef))
        self.n_features_in_ = len(result.mean)
        self.coef_, self.intercept_ = facts.in_units(result.coef)
        own = facts.in_units(result.coef + result.departures)
        self.site_coef_, self.site_intercept_ = own
        self.effects_ = result.departures
        self.random_columns_ = term_names(self._terms(), np.arange(result.coef.shape[1]))
        self.random_variances_ = result.block_variances
        self.left_out_loss_ = float(result.loss)
        self.implausible_sites_ = self.odd_sites_ = self.client_names_[:0]
        self.collinear_: list[str] = []
        self.converged_ = bool(result.converged)
        self.history_ = {"tried": result.tried}

    def _remember_places(self, heard) -> None:
        place = {int(k): i for i, k in enumerate(heard)}
        self._place = {name: place.get(k, NEW_SITE) for name, k in self._position.items()}

    def _read(self, run) -> None:
        if self.family == CLASSES:
            self._read_classes(run)
            self._remember_places(self._result.heard)
            return
        result = self._result = run.result.with_memories(run.memories)
        facts = self._facts = result.facts(self._used)
        d = len(result.coef) - self._used.fit_intercept
        error = np.sqrt(np.diag(result.coef_covariance))
        self.n_features_in_ = d + len(self._used.beside)
        if isinstance(self.engine, KeptReplies) and self.engine.features is not None:
            self.feature_names_in_ = np.array(self.engine.features, dtype=object)
        self.coef_, self.coef_se_, self.df_ = result.coef[:d], error[:d], facts.degrees[:d]
        self.intercept_ = float(result.coef[d:].sum())
        self.intercept_se_ = float(error[d:].sum())
        self._read_sites(result, d)
        self.random_covariance_ = result.random_covariance
        self.icc_, self.loglik_ = facts.icc, float(result.loglik)
        self.aic_, self.bic_ = facts.aic, facts.bic
        self.singular_ = facts.singular
        self.collinear_ = term_names(self._terms(), np.array(facts.collinear, dtype=int))
        self.converged_ = bool(result.gradient <= max(CONVERGED, self.tol))
        history = result.history_criterion
        self.history_ = {} if history is None else {"criterion": history}
        self._remember_places(result.heard)

    def _why_not_converged(self) -> str:
        """What a person can do about a search that has not ended."""
        words = f"the likelihood's slope is {self._result.gradient:.2g} where the search ended"
        q, m = len(self._result.random), len(self._result.heard)
        free = len(self._result.theta) if self.site_noise == "common" else q * (q + 1) // 2
        if free > m and self.covariance == "full" and not self._used.in_rounds:
            return (
                f"{words}: {m} sites cannot tell the {free} numbers of the covariance of {q} "
                "departures; take covariance='diagonal' or 'isotropic', or fewer columns in random"
            )
        rounds = f" (max_rounds={self.max_rounds})" if self._used.in_rounds else ""
        return (
            f"{words}{rounds}; estimates may be off; allow more rounds, or look for columns of "
            "very different size"
        )

    def _without_bound(self, federation: Federation | None) -> bool:
        """Whether counts are fitted by coefficients that have no end."""
        if federation is None or self._used.family not in COUNTS:
            return False
        rows = self._used.features(federation).X
        eta = rows @ self.coef_ + self.intercept_
        eta = eta + self._used.column(federation, self._used.offset, 0.0)
        far = np.abs(eta) if self._used.family == "binomial" else -eta
        return bool(np.median(far) > WITHOUT_BOUND)

    def _read_sites(self, result, d) -> None:
        """What is known of every site."""
        self.effects_ = result.effects
        self.effects_se_ = np.sqrt(np.einsum("mqq->mq", result.effects_covariance))
        self.random_columns_ = term_names(self._terms(), result.random)
        own = np.tile(result.coef, (len(self.effects_), 1))
        own[:, result.random] += self.effects_
        self.site_coef_, self.site_intercept_ = own[:, :d], own[:, d:].sum(axis=1)
        self.implausible_sites_ = self.client_names_[result.implausible]
        self.odd_sites_ = self.client_names_[result.odd]
        if result.sigma is not None:
            self.sigma_ = float(result.sigma)
            one = np.full(len(self.effects_), self.sigma_)
            self.site_sigma_ = one if result.site_sigma is None else result.site_sigma

    def _terms(self) -> list[str]:
        """Names of the columns that have coefficients."""
        return [name for j, name in enumerate(self._features()) if j not in self._used.beside]

    def _about(self) -> About:
        left = self.traffic_.bytes_up_by_field
        return About(self.client_names_, self._terms(), self._used, left)

    def _warn(self, federation: Federation | None) -> None:
        if not self.converged_ and self.family == CLASSES:
            super()._warn(federation)
        elif not self.converged_:
            self._warning(self._why_not_converged(), ConvergenceWarning)
        if federation is not None and self.family == "gaussian" and federation.sizes.max() < 2:
            self._warning(
                "no site has two rows, so noise and differences between sites cannot be told from "
                "each other: do not read variances, their test or icc_; see whether the column of "
                "sites is an identifier of rows"
            )
        if self._without_bound(federation):
            self._warning(
                "at half of the rows and more the expected target is at the end of its range: the "
                "columns tell it without error (or it never varies), and coefficients grow without "
                "bound. Do not read them; use fewer columns, or more rows"
            )
        if len(self.implausible_sites_):
            self._warning(
                f"{len(self.implausible_sites_)} of {len(self.client_names_)} sites sent numbers "
                f"that no rows can give and were left out: {listed(self.implausible_sites_)}. Look "
                "at these sites.",
                ImplausibleSitesWarning,
            )
        if len(self.odd_sites_):
            self._warning(
                f"{len(self.odd_sites_)} of {len(self.client_names_)} sites do not go with the "
                f"others and did not count: {listed(self.odd_sites_)}. Look at these sites.",
                OddSitesWarning,
            )
        if self.collinear_:
            self._warning(
                f"columns depend on each other: {listed(self.collinear_)}; their coefficients are "
                "the shortest of all that fit equally well. Drop one of them to read them singly"
            )
