"""Sites that follow one of K regressions (Algorithm 1 of Tao et al.), and ways to spoil some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation
from fedkin.models.least_squares import packed_statistics, solve

# The coefficients of the paper's Figures 1 to 4.
PAPER_COEF = {
    3: np.outer([3.0, 0.0, -3.0], np.ones(5)),
    2: np.outer([2.0, -2.0], np.ones(5)),
    6: np.vstack([np.full(5, 4.0), np.full((5, 5), 4.0) - 8.0 * np.eye(5)]),
}
# Spoilt sites: their own coefficients, or their noise, are of this size.
OWN_COEF_SCALE = 5.0
NOISE_SCALE = 15.0
COORDINATED_COEF_SCALE = 6.0


@dataclass(frozen=True)
class RegressionGroups:
    """Sites with a regression each of K, and the truth; `labels` is -1 at spoilt sites."""

    federation: Federation
    coef: Floats
    labels: Indices
    sigma: float

    def known_labels_coef(self) -> Floats:
        """Coefficients (K, d) with the labels known: what no method can beat by much."""
        statistics = packed_statistics(self.federation, fit_intercept=False)
        member = (self.labels == np.arange(len(self.coef))[:, None]).astype(float)
        return solve(member @ statistics.T)[0]

    def error(self, coef: Floats) -> float:
        """Largest distance of a component's coefficients from the truth, matched best."""
        from scipy.optimize import linear_sum_assignment

        distance = np.linalg.norm(self.coef[:, None] - coef[None], axis=-1)
        return float(distance[linear_sum_assignment(distance)].max())

    def nearby(self, distance: float, random_state: int) -> Floats:
        """Coefficients at this distance from the truth in random directions."""
        direction = np.random.default_rng(random_state).normal(size=self.coef.shape)
        return self.coef + distance * direction / np.linalg.norm(direction, axis=1, keepdims=True)

    def separation(self) -> float:
        """Least distance between two components (Delta_min)."""
        distance = np.linalg.norm(self.coef[:, None] - self.coef[None], axis=-1)
        return float(distance[np.triu_indices(len(self.coef), 1)].min())


def make_regression_groups(
    n_clients: int,
    n_rows: int | ArrayLike,
    coef: ArrayLike,
    sigma: float = 1.0,
    weights: ArrayLike | None = None,
    labels: Literal["random", "balanced"] | ArrayLike = "random",
    random_state: int | list[int] = 0,
) -> RegressionGroups:
    """Sites that each follow one of K regressions.

    Features are standard normal, y = x'coef[label of the site] + noise. `labels="random"` draws
    them with `weights` (equal by default) again until every component has a site; "balanced" deals
    them out in turn; an array names the component of every site and may leave some without any.
    """
    rng = np.random.default_rng(random_state)
    truth = np.array(coef, dtype=np.float64)
    n_components, d = truth.shape
    chance = np.full(n_components, 1 / n_components) if weights is None else np.asarray(weights)
    drawn = _labels(labels, n_clients, chance, rng)
    sizes = np.broadcast_to(np.asarray(n_rows, dtype=np.intp), n_clients)
    owner = np.repeat(np.arange(n_clients), sizes)
    X = rng.normal(size=(len(owner), d))
    y = np.einsum("nd,nd->n", X, truth[drawn[owner]]) + sigma * rng.normal(size=len(owner))
    return RegressionGroups(Federation.from_groups(X, owner + 1, y), truth, drawn, sigma)


def _labels(
    labels: str | ArrayLike, n_clients: int, chance: Floats, rng: np.random.Generator
) -> Indices:
    if not isinstance(labels, str):
        return np.array(labels, dtype=np.intp)
    n_components = len(chance)
    if n_clients < n_components:
        raise ValueError(f"{n_components} components need at least as many sites")
    drawn = rng.permutation(np.arange(n_clients) % n_components)
    while labels == "random":
        drawn = rng.choice(n_components, size=n_clients, p=chance)
        if len(np.unique(drawn)) == n_components:
            break
    return drawn


def contaminate_sites(
    groups: RegressionGroups,
    share: float,
    kind: Literal["own", "noise", "coordinated"],
    random_state: int = 0,
) -> RegressionGroups:
    """Spoil a share of the sites.

    They follow each its own random regression ("own"), pure large noise ("noise"), or one wrong
    regression that all of them share ("coordinated").
    """
    rng = np.random.default_rng([random_state, 0xBAD])
    clean = groups.federation
    assert clean.y is not None
    m, d = clean.n_clients, clean.n_features
    spoilt = np.zeros(m, dtype=bool)
    spoilt[rng.choice(m, size=round(share * m), replace=False)] = True
    own = OWN_COEF_SCALE * rng.normal(size=(m, d))
    if kind == "coordinated":
        own[:] = COORDINATED_COEF_SCALE * np.where(np.arange(d) % 2, -1.0, 1.0)
    noise = groups.sigma * rng.normal(size=len(clean.X))
    wrong = np.einsum("nd,nd->n", clean.X, own[clean.owner]) + noise
    if kind == "noise":
        wrong = NOISE_SCALE * rng.normal(size=len(clean.X))
    y = np.where(spoilt[clean.owner], wrong, clean.y)
    labels = np.where(spoilt, -1, groups.labels)
    return replace(groups, federation=replace(clean, y=y), labels=labels)
