"""The ways of sharing that make sense for some data, and a common face of what they predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from fedkin.estimators.ways import row_scores, spread_of
from fedkin.federation import Federation
from fedkin.inference.gains import moderated
from fedkin.models.least_squares import (
    n_coefficients,
    packed_statistics,
    residual_coefficients,
    solve_many,
)

# With more columns the covariance of departures has one variance for all slopes.
FULL_COLUMNS = 5
# Curves are tried for so few columns and rows only.
CURVE_COLUMNS = 2
CURVE_ROWS = 3000
# Of kinds with many columns, departures and noises of their own would take minutes a fit; and every
# kind has all coefficients of its own, so that more than a few are hardly told apart, but five to
# eight of them take four fifths of the time (300 sites of 30 columns).
KINDS_ALONE = {"degrees": False, "site_noise": "common", "max_components": 4}
# A noise of every site's own is tried up to so many sites times squares of columns: 300 sites of 31
# columns (Males of plm, whose words are levels) take minutes a fit, and eight fits are made.
OWN_NOISE_COST = 50_000
# Where sites are more, fits cost more and single ones tell less: a common curve in a plane is
# carried by fewer points (a site sends their squares), kinds have one noise, and sites that come
# later are foretold from parts that leave more of them out.
MANY_SITES = 100
POINTS_OF_MANY = 20
# Fewer sites cannot be of kinds.
KINDS_SITES = 6
# The most groups that are tried where rows are to be described.
MOST_GROUPS = 8
# Rounds of a mixture without a fold at real sites, whose budget of questions is one for all ways;
# and starts of one with own covariances, about each of which sites may have to be asked apart.
ROUNDS_COMPARED = 20
STARTS_COMPARED = 2

# Sites' noise counts as one if it scatters less than variances with so many degrees of freedom.
SAME_NOISE = 100.0

ALONE, ONE = "alone", "one model"


def usual(target: str, data: Federation, n_components: int | None, seed: int) -> dict[str, Any]:
    """Candidates by name, unfitted, the plain ones first."""
    if target == "classes":
        return _for_classes()
    if target == "rows":
        n_groups = n_components or _number_of_groups(data, seed)
        return _for_rows(n_groups, seed)
    return _for_numbers(data, seed)


def _for_numbers(data: Federation, seed: int) -> dict[str, Any]:
    from fedkin.estimators.site_models import PlainRegression

    found: dict[str, Any] = {ALONE: PlainRegression(), ONE: PlainRegression(True)}
    found |= linear_ways(packed_statistics(data, True).T, seed)
    return found | curve_ways(data.n_features, len(data.X), has_many_sites(data.n_clients))


def curve_ways(n_features: int, n_rows: float, coarse: bool) -> dict[str, Any]:
    """A common curve, where columns and rows are few enough for one.

    In a plane it may be `coarse`: where sites are many, or each number has a way to go.
    """
    from fedkin.estimators.fgpr import FGPR

    if n_features > CURVE_COLUMNS or n_rows > CURVE_ROWS:
        return {}
    n_points = POINTS_OF_MANY if coarse and n_features > 1 else None
    return {"common curve": FGPR(common=True, n_points=n_points)}


def has_many_sites(n_sites: int) -> bool:
    """Whether fits to all of them are so dear that fewer or coarser ones are made."""
    return n_sites > MANY_SITES


def linear_ways(statistics: np.ndarray, seed: int) -> dict[str, Any]:
    """Ways to join linear models that make sense, by the sites' sums of products (m, q)."""
    from fedkin.estimators.fmlr import FMLR
    from fedkin.estimators.mixed_model import MixedModel

    n_features = n_coefficients(statistics.shape[1]) - 1
    covariance = "full" if n_features <= FULL_COLUMNS else "isotropic"
    filled = int((statistics[:, -1] > 0).sum())
    found: dict[str, Any] = {}
    if filled > 1:
        found["by degrees"] = MixedModel(covariance=covariance)
        dear = filled * n_features**2 > OWN_NOISE_COST
        if not dear and _noise_differs(statistics):
            found["by degrees, own noise"] = MixedModel(covariance=covariance, site_noise="own")
    if filled >= KINDS_SITES:
        plain = {"site_noise": "common"} if has_many_sites(filled) else {}
        kinds: dict[str, Any] = plain if covariance == "full" else KINDS_ALONE
        found["by kind"] = FMLR(random_state=seed, **kinds)
    return found


def _noise_differs(statistics: np.ndarray) -> bool:
    """Whether sites' residual variances scatter more than their rows make them."""
    sizes = statistics[:, -1]
    coef, rank = solve_many(statistics)
    residual = np.einsum("mq,mq->m", residual_coefficients(coef), statistics)
    degrees = np.maximum(sizes - rank, 0.0)
    variances = np.where(degrees > 0, residual / np.maximum(degrees, 1.0), 0.0)
    found = moderated(np.maximum(variances, 0.0), degrees, sizes)
    return bool((found.degrees - degrees).min(initial=np.inf) < SAME_NOISE)


def _for_classes() -> dict[str, Any]:
    from fedkin.estimators.mixed_model import MixedModel
    from fedkin.estimators.site_models import PlainClasses

    return {
        ALONE: PlainClasses(),
        ONE: PlainClasses(True),
        "by degrees": MixedModel(family="multinomial"),
    }


def _for_rows(n_groups: int, seed: int) -> dict[str, Any]:
    from fedkin.estimators.fedgrem import FedGrEM
    from fedkin.estimators.mixture_rivals import LocalEM, PooledEM

    own = {"covariance_type": "diag", "random_state": seed}
    return {
        ALONE: LocalEM(n_groups, **own),
        ONE: PooledEM(n_groups, **own),
        "groups": FedGrEM(n_groups, random_state=seed),
        "groups, own variances": FedGrEM(n_groups, **own),
        "groups, own covariances": FedGrEM(n_groups, **{**own, "covariance_type": "full"}),
    }


def rows_at_sites(n_groups: int, seed: int) -> dict[str, Any]:
    """The same where sites hold their rows.

    One mixture for all is FedEM's: sites share components and covariance, weights are their own.
    """
    from fedkin.estimators.mixture_rivals import FedEM

    one = FedEM(n_groups, covariance_type="tied", average="pooled", random_state=seed)
    return {**_for_rows(n_groups, seed), ONE: one}


def without_last_digits(way: Any) -> Any:
    """A mixture of `rows_at_sites` as it is fitted without each fold."""
    fewer = {"max_rounds": min(way.max_rounds, ROUNDS_COMPARED)}
    if getattr(way._chosen_settings(), "shaped", False):
        fewer["n_restarts"] = STARTS_COMPARED
    return clone(way).set_params(**fewer)


def _number_of_groups(data: Federation, seed: int) -> int:
    """The number with the best BIC of one mixture for all."""
    import warnings

    from fedkin.estimators.mixture_rivals import PooledEM

    best, chosen = np.inf, 1
    most = min(MOST_GROUPS, int(data.sizes.max(initial=1)))
    for n_groups in range(1, most + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PooledEM(n_groups, covariance_type="diag", random_state=seed).fit(data)
        total = float(model.score_samples(data).sum())
        n_parameters = n_groups * data.n_features + data.n_features + n_groups - 1
        bic = -2.0 * total + n_parameters * np.log(len(data.X))
        if bic < best:
            best, chosen = bic, n_groups
    return chosen


def stays_alone(name: str, model: Any) -> bool:
    """Whether a way has nothing to say at a site that it was not fitted to."""
    alone = name == ALONE or getattr(model, "pooled", None) is False
    return alone or getattr(model, "_stays_at_sites", False)


class Fitted:
    """A fitted candidate: what it predicts of rows at sites, whether it knows them or not."""

    def __init__(self, name: str, model: Any, train: Federation) -> None:
        self.name, self.model = name, model
        self.own_only = stays_alone(name, model)
        self._known = {n for n, size in zip(train.names, train.sizes) if size > 1}
        self._places = {n: k for k, n in enumerate(train.names)}
        self._spread = spread_of(model, train)

    @classmethod
    def again(
        cls, name: str, model: Any, names: tuple[str, ...], known: set[str], spread: Any
    ) -> Fitted:
        """The same from what was kept of it."""
        made = object.__new__(cls)
        made.name, made.model = name, model
        made.own_only = stays_alone(name, model)
        made._known, made._spread = known, spread
        made._places = {n: k for k, n in enumerate(names)}
        return made

    def serves(self, names: tuple[str, ...]) -> np.ndarray:
        """Whether it has an answer at each of the sites; alone has none where it has not been.

        Nor has a curve at a site of the fit whose rows are not here: it would not know the site.
        """
        if not self.own_only:
            away = self._places if getattr(self.model, "_rows_elsewhere", False) else ()
            return np.array([name not in away for name in names], dtype=bool)
        return np.array([name in self._known for name in names], dtype=bool)

    def normal(self, clients: Federation) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every row's target."""
        if self._spread is None:
            mean, std = self.model.predict(clients, return_std=True)
            return np.asarray(mean), np.asarray(std)
        places = [self._places.get(name, -1) for name in clients.names]
        typical = float(np.sqrt(np.mean(self._spread**2)))
        return np.asarray(self.model.predict(clients)), np.append(self._spread, typical)[
            np.array(places)[clients.owner]
        ]

    def log_density(self, clients: Federation) -> np.ndarray:
        """Log density, or log probability, of every row's target (or of the row)."""
        return row_scores(self.model, clients, clients)["log"]

    def probabilities(self, clients: Federation, classes: np.ndarray) -> np.ndarray:
        """Of the classes, (n, C)."""
        found = np.zeros((len(clients.X), len(classes)))
        found[:, np.searchsorted(classes, self.model.classes_)] = self.model.predict_proba(clients)
        return found


def checked(candidates: Any) -> dict[str, Any]:
    """Candidates given by name, or in a list."""
    if isinstance(candidates, Mapping):
        found = {str(name): model for name, model in candidates.items()}
    else:
        found = {}
        for model in candidates:
            name = type(model).__name__
            found[name if name not in found else f"{name} {len(found) + 1}"] = model
    if not found:
        raise ValueError("candidates must hold at least one estimator; None takes the usual ones")
    return found
