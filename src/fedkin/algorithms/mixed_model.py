"""The linear mixed model in one round: sites differ by degrees.

    y = X (beta + u_i) + noise,    u_i ~ N(0, V) on the columns with random effects

| Laird and Ware 1982; lme4 | here |
|---|---|
| beta, cov(beta) | `coef`, `coef_covariance` |
| u_i (BLUP) and its error | `effects`, `effects_covariance` |
| V, sigma | `random_covariance`, `sigma` |

REML and ML need of a site nothing but its sums of products of features and target, so the fit is
the one that all rows in one place would give, to rounding (`models.linear_mixed`). These are the
very sums that FMLR sends with `share="statistics"`: a journal of such a fit can be fitted again as
a mixed model, and no site is asked again.

Where we differ from the distributed versions in the literature (DLMM and its R package): the
restricted likelihood has its log|P|, and effects have their own errors, not the spread of sites.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.algorithms.fmlr import STATISTICS
from fedkin.algorithms.mixed_model_result import MixedModelResult
from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.models.least_squares import n_coefficients, packed_statistics, possible
from fedkin.models.linear_mixed import Method
from fedkin.models.linear_mixed_fit import LinearMixedFit, fit
from fedkin.models.random_covariance import Covariance
from fedkin.protocol import Algorithm, Ask, Program, Roster, Step
from fedkin.settings import Flag, Settings, one_of, setting

# In a list of columns: no random intercept beside the slopes.
WITHOUT_LEVEL = "-intercept"


class RandomColumns:
    """Which columns have random effects: all, the intercept, or a list of columns."""

    def accept(self, name: str, value: Any) -> Any:
        """A word, or columns as a tuple of names or positions."""
        if isinstance(value, str):
            return one_of("all", "intercept").accept(name, value)
        try:
            columns = tuple(value)
        except TypeError:
            columns = ()
        if not columns:
            raise ValueError(
                f"{name} must be 'all', 'intercept' or a list of columns, not {value!r}"
            )
        return tuple(int(c) if isinstance(c, int | np.integer) else str(c) for c in columns)


class MixedModelSettings(Settings):
    """What can be set; `fedkin.MixedModel` says what each does."""

    random: Any = setting("all", RandomColumns())
    method: Method = setting("reml", one_of("reml", "ml"))
    covariance: Covariance = setting("full", one_of("full", "diagonal", "isotropic"))
    fit_intercept: bool = setting(True, Flag(), at_site=True)

    def random_columns(self, n_coef: int) -> Indices:
        """Positions of the columns with random effects; the intercept is the last."""
        if self.random == "all":
            return np.arange(n_coef)
        level = [n_coef - 1] if self.fit_intercept and WITHOUT_LEVEL not in self.random else []
        if self.random == "intercept":
            return np.array(level, dtype=np.intp)
        slopes = [column for column in self.random if column != WITHOUT_LEVEL]
        unknown = [c for c in slopes if not isinstance(c, int) or not 0 <= c < n_coef]
        if unknown:
            raise ValueError(f"random names columns that are not there: {unknown}")
        return np.array(sorted({*slopes, *level}), dtype=np.intp)

    def check_together(self) -> None:
        """Complain about values that do not go together."""
        if self.random == "intercept" and not self.fit_intercept:
            raise ValueError("random='intercept' needs fit_intercept=True")


# ------------------------------------------------------------------ client functions


def prepare(clients: Federation, settings: MixedModelSettings) -> dict[str, Floats]:
    """Reduce every client to its statistics, (m, q)."""
    if clients.y is None:
        raise ValueError("a mixed model needs a target y at every site")
    packed = packed_statistics(clients, settings.fit_intercept)
    return {"statistics": np.ascontiguousarray(packed.T)}


def _statistics(clients, cache, settings, common, personal, memory, keys):
    return {"statistics": cache["statistics"]}, memory


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: MixedModelSettings) -> Program:
    """Ask once; the rest follows from the sums."""
    replies = yield Ask("statistics", note="collecting statistics")
    sent = np.ascontiguousarray(replies["statistics"].T)
    fine: Bools = possible(sent, settings.fit_intercept)
    if not fine.any():
        raise ValueError("no site sent statistics that rows can give; look at the sites")
    statistics = sent[:, fine]
    random = settings.random_columns(n_coefficients(len(statistics)))
    fitted: LinearMixedFit = fit(
        statistics, random, settings.method, settings.covariance, settings.fit_intercept
    )
    heard, odd = replies.clients[fine], replies.clients[~fine]
    return MixedModelResult.of(fitted, statistics, heard, odd, len(roster))


MIXED_MODEL = Algorithm(
    name="mixed_model",
    settings=MixedModelSettings,
    prepare=prepare,
    program=program,
    result=MixedModelResult,
    steps={"statistics": Step(_statistics, {"statistics": STATISTICS})},
)
