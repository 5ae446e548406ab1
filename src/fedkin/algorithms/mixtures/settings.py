"""What can be set in all of these methods, and what follows from it."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from fedkin.arrays import Floats
from fedkin.models.gaussian_mixture import COVARIANCE_TYPES
from fedkin.settings import FRACTION, Number, Settings, Start, Whole, one_of, setting

# With a share of the sites asked each round, nothing may move for so many turns of all sites: one
# that could still move has then been asked with probability 1 - e^-3.
TURNS_AT_REST = 3.0

COVARIANCE = one_of(*COVARIANCE_TYPES)
POSITIVE = Number(above=0.0)
POSITIVE_OR_NONE = Number(above=0.0, or_none=True)
NOT_NEGATIVE = Number(least=0.0)


class NotOffered:
    """How sites work where a method leaves no choice; whoever offers one shows it to the sites."""

    covariance_type: str = "identity"
    sigma: float | None = None
    fit_intercept: bool = False
    step: str = "em"
    step_constant: float = 0.95
    local_steps: int = 1
    batch_size: int | None = None
    clip: float | None = None
    threshold: float | None = None
    labels: bool = False


class MixtureSettings(NotOffered, Settings):
    """What every method for groups inside sites lets be set."""

    n_components: int = setting(2, Whole(), at_site=True)
    family: str = setting("gaussian", one_of("gaussian", "regression"), at_site=True)
    init: Any = setting("auto", Start(("auto", "kmeans++", "ward", "federated")))
    n_restarts: int = setting(10, Whole(), at_site=True)
    max_rounds: int = setting(200, Whole())
    tol: float = setting(1e-4, Number())

    # Where mixtures of regressions may start; the last is what "auto" means for them.
    regression_starts: ClassVar[tuple[str, ...]] = ("kmeans++", "federated")
    # Whether a tied covariance, or the noise of the regressions, is one for all sites.
    shares_scale: ClassVar[bool] = True
    # The most EM steps of a site that fits alone.
    local_max_iter: ClassVar[int] = 200

    # ------------------------------------------------------------ what follows

    @property
    def given_start(self) -> Floats | None:
        """Components to start from, (R, p) or (m, R, p); None if the fit finds its own."""
        return None if isinstance(self.init, str) else self.init

    @property
    def start(self) -> str:
        """How the fit starts: a word of `init`, or "given"."""
        if not isinstance(self.init, str):
            return "given"
        if self.init != "auto":
            return self.init
        return self.regression_starts[-1] if self.family == "regression" else "kmeans++"

    @property
    def site_step(self) -> str:
        """What a site does with the components it is sent: "em" or "gradient"."""
        return self.step

    @property
    def has_intercept(self) -> bool:
        """Whether components end with an intercept."""
        return self.family == "regression" and self.fit_intercept

    def with_intercepts(self, n_features: int) -> Self:
        """Coefficients to start from that come without intercepts get intercepts 0."""
        given = self.given_start
        if given is None or not self.has_intercept or given.shape[-1] > n_features:
            return self
        return self.replace(init=np.append(given, np.zeros((*given.shape[:-1], 1)), axis=-1))

    # ------------------------------------------------------------ what is refused

    def check_together(self) -> None:
        """Complain about a start that is for the other family."""
        if self.given_start is not None:
            return
        if self.init == "federated" and self.family == "gaussian":
            raise ValueError(
                "init='federated' is for family='regression'; Gaussian mixtures start from "
                "'kmeans++', 'ward' or an array"
            )
        if self.init == "ward" and self.family == "regression":
            others = ", ".join(map(repr, self.regression_starts))
            raise ValueError(
                "init='ward' is for family='gaussian': it clusters x and knows nothing of y; "
                f"mixtures of regressions start from {others} or an array"
            )


class JoinedSettings(MixtureSettings):
    """What the methods whose sites exchange components let be set besides."""

    align: str = setting("auto", one_of("auto", "exhaustive", "stepwise", "assignment"))
    fraction: float = setting(1.0, FRACTION)

    @property
    def second_fit(self) -> bool:
        """Whether sites fit alone once more when the centres of all are known."""
        return False

    @property
    def rounds_at_rest(self) -> int:
        """For so many rounds nothing may move before a fit counts as settled."""
        return 1 if self.fraction >= 1 else int(np.ceil(TURNS_AT_REST / self.fraction))
