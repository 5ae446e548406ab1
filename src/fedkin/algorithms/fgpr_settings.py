"""What can be set in fits of Gaussian processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedkin.models.kernels import Spec, checked, is_fast, to_spec
from fedkin.settings import FRACTION, Flag, Number, Settings, Start, Whole, one_of, setting

NORMALIZE_Y = one_of(True, "mean", False)


class Kernel:
    """A scikit-learn kernel, or the same in words and numbers (`models.kernels`), or None."""

    def accept(self, name: str, value: Any) -> Spec | None:
        """The kernel in words and numbers, as it travels."""
        if value is None or isinstance(value, Mapping):
            return value and checked(value)
        return to_spec(value)


class FgprSettings(Settings):
    """What can be set; `fedkin.FGPR` says what each does.

    Besides: `optimizer="none"` takes the prior as it is given, `personalise="own"` lets every site
    fit by itself.
    """

    kernel: Spec | None = setting(None, Kernel(), at_site=True)
    optimizer: str = setting(
        "exact", one_of("exact", "sgd", "adam-restarted", "none"), at_site=True
    )
    personalise: str = setting("choose", one_of("choose", "posterior", "map", "own"), at_site=True)
    n_priors: int | None = setting(1, Whole(or_none=True))
    max_priors: int = setting(4, Whole())
    normalize_y: Any = setting(True, NORMALIZE_Y, at_site=True)
    mean: str = setting("constant", one_of("zero", "constant", "linear"), at_site=True)
    max_points: int = setting(500, Whole(), at_site=True)
    large_sites: str = setting("neighbours", one_of("neighbours", "subset"))
    init: Any = setting("auto", Start(("auto",)))
    local_steps: int = setting(5, Whole())
    batch_size: int = setting(32, Whole(), at_site=True)
    learning_rate: float = setting(1.0, Number(above=0.0))
    schedule: str = setting("cosine", one_of("cosine", "inverse-sqrt", "inverse", "constant"))
    gradient_scaling: str = setting("rows", one_of("rows", "theory"), at_site=True)
    robust: Any = setting(False, one_of(False, "trimmed", "median"))
    max_rounds: int = setting(100, Whole())
    tol: float = setting(1e-5, Number(above=0.0))
    fraction: float = setting(1.0, FRACTION)
    common: Any = setting(False, one_of(True, False, "choose"), at_site=True)
    n_points: int | None = setting(None, Whole(or_none=True))
    hyperprior: Any = setting(None, one_of(None, True, False), at_site=True)
    standard_errors: bool = setting(False, Flag())

    @property
    def weak_priors(self) -> bool:
        """Whether hyper-parameters have weakly informative priors: as told, else as the paper."""
        told = self.common is not False if self.hyperprior is None else self.hyperprior
        return bool(told) and self.searched_kernel

    @property
    def searched_kernel(self) -> bool:
        """Whether the kernel is of the family whose parameters the priors know."""
        return self.kernel is None or is_fast(self.kernel)

    @property
    def looks_for_common(self) -> bool:
        """Whether a common curve is fitted: wanted, or to choose and nothing speaks against it."""
        if self.common == "choose":
            return self.searched and self.n_priors == 1 and self.kernel is None
        return bool(self.common)

    @property
    def most_priors(self) -> int:
        """The most priors that a fit may end with."""
        return self.n_priors or self.max_priors

    @property
    def searched(self) -> bool:
        """Whether there is an objective to search: everybody's exact likelihood, summed."""
        return self.optimizer == "exact" and self.robust is False and self.fraction == 1.0

    def check_together(self) -> None:
        """Complain about values that do not go together."""
        if self.n_priors != 1 and not self.searched:
            raise ValueError(
                "several priors need optimizer='exact', robust=False and fraction=1: sites are "
                "told apart by their exact likelihoods"
            )
        if self.standard_errors and not self.searched:
            raise ValueError(
                "standard_errors needs optimizer='exact', robust=False and fraction=1: other "
                "searches do not end where the likelihood's curvature tells how sure they are"
            )
        if self.common is True and (self.robust is not False or self.n_priors != 1):
            raise ValueError("a common curve needs robust=False and n_priors=1")
        if self.common is True and not self.searched_kernel:
            raise ValueError(
                "departures from a common curve have a kernel of a scale times an RBF or Matern "
                "(1/2, 3/2, 5/2) plus noise; leave kernel=None, or common=False"
            )


class SharedPriorSettings(FgprSettings):
    """What users of FGPR choose among: a prior that is shared, and how."""

    common: Any = setting("choose", one_of(True, False, "choose"), at_site=True)

    optimizer: str = setting("exact", one_of("exact", "sgd", "adam-restarted"), at_site=True)
    personalise: str = setting("choose", one_of("choose", "posterior", "map"), at_site=True)


class OneDataSetSettings(FgprSettings):
    """Of fits to one data set: searches are given more rounds."""

    max_rounds: int = setting(200, Whole())


class LocalSettings(OneDataSetSettings):
    """Of sites that fit by themselves: few rows must not fit their noise to nothing."""

    hyperprior: Any = setting(True, one_of(True, False), at_site=True)
