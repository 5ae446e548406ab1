"""Federations of FedGrEM's experiments (Tian, Weng, Feng 2024, B.1), and ways to spoil them.

`gaussian_mixtures` and `regression_mixtures` draw sites whose components differ from common centres
by a given distance, and some outlier sites. What the paper prints and what its authors' script does
disagree about the outliers; `variant` chooses. The last entry of the second centre, printed as a
bare minus, is -1.

An attack on data takes a federation, the bad sites and a seed, and returns a federation; an attack
on messages does the same to a reply array (clients first). `DATA_ATTACKS` and `MESSAGE_ATTACKS`
name those of the robustness table. Draws for a bad site are keyed by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.federation import Federation
from fedkin.randomness import KeyRing

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Variant = Literal["text", "script"]

CENTERS = np.array(
    [
        [1, 0, 3, -1, 1, -1, 0, 1, 1, -1],
        [0, 1, -1, -3, 2, -1, 2, -1, 1, -1],
        [-3, -1, 2, -1, 2, -1, 1, -3, -1, -2],
        [1, -2, 0, -1, -2, 2, 1, 3, 1, -1],
        [3, 1, 2, -1, -2, 1, 2, -1, -1, 2],
    ],
    dtype=float,
)
CENTERS.flags.writeable = False
# Least distance between two of these centres; other designs are scaled to the same.
SEPARATION = float(np.sqrt(31.0))
# Weights are Dirichlet with this parameter for every component.
WEIGHT_CONCENTRATION = 5.0


@dataclass(frozen=True)
class Outliers:
    """How an outlier site is made: rows N(mean, variance I), or y = coef * sum(x) + noise."""

    mean: float
    variance: float
    coef: float
    regression_rows: int


OUTLIERS: Mapping[Variant, Outliers] = MappingProxyType(
    {
        "text": Outliers(mean=2.0, variance=3.0, coef=3.0, regression_rows=150),
        "script": Outliers(mean=2.5, variance=4.0, coef=-3.0, regression_rows=200),
    }
)


@dataclass(frozen=True, eq=False)
class SimulatedMixture:
    """A federation and its truth.

    `weights` (m, R), `components` (m, R, d): means or coefficients, NaN at outlier sites; `centers`
    (R, d); `labels` (N,): the component of every row, -1 at outlier sites; `outlier` (m,).
    """

    clients: Federation
    weights: Floats
    components: Floats
    centers: Floats
    labels: Indices
    outlier: NDArray[np.bool_]


# -------------------------------------------------------------------- generators


def gaussian_mixtures(
    n_clients: int = 10,
    n_rows: int | Sequence[int] = 150,
    heterogeneity: float = 0.0,
    n_outliers: int = 1,
    variant: Variant = "text",
    n_components: int = 5,
    n_features: int = 10,
    outliers_first: bool = False,
    random_state: int = 0,
) -> SimulatedMixture:
    """Rows N(mean of the component, I); every mean at distance `heterogeneity` from its centre."""
    draw = _Draw(n_clients, n_rows, n_outliers, outliers_first, random_state)
    truth = draw.truth(n_components, n_features, heterogeneity)
    X = draw.rng.normal(size=(len(draw.owner), n_features))
    made, bad = OUTLIERS[variant], truth.outlier[draw.owner]
    X[bad] = made.mean + np.sqrt(made.variance) * X[bad]
    X[~bad] += truth.components[draw.owner[~bad], truth.labels[~bad]]
    return replace(truth, clients=draw.federation(X))


def regression_mixtures(
    n_clients: int = 10,
    n_rows: int | Sequence[int] | None = None,
    heterogeneity: float = 0.0,
    n_outliers: int = 1,
    variant: Variant = "text",
    n_components: int = 5,
    n_features: int = 10,
    outliers_first: bool = False,
    random_state: int = 0,
) -> SimulatedMixture:
    """x ~ N(0, I), y = x' coefficients of the row's component + N(0, 1).

    `n_rows=None`: 150, or 200 in the script's variant.
    """
    made = OUTLIERS[variant]
    n_rows = made.regression_rows if n_rows is None else n_rows
    draw = _Draw(n_clients, n_rows, n_outliers, outliers_first, random_state)
    truth = draw.truth(n_components, n_features, heterogeneity)
    X = draw.rng.normal(size=(len(draw.owner), n_features))
    bad = truth.outlier[draw.owner]
    coef = np.full(X.shape, made.coef)
    coef[~bad] = truth.components[draw.owner[~bad], truth.labels[~bad]]
    y = (X * coef).sum(axis=1) + draw.rng.normal(size=len(X))
    return replace(truth, clients=draw.federation(X, y))


def component_centers(n_components: int, n_features: int, rng: np.random.Generator) -> Floats:
    """The paper's centres where it has them, else random ones with the same least distance."""
    if n_features == CENTERS.shape[1] and n_components <= len(CENTERS):
        return CENTERS[:n_components].copy()
    drawn = rng.normal(size=(n_components, n_features))
    if n_components == 1:
        return drawn
    apart = np.linalg.norm(drawn[:, None] - drawn, axis=-1)
    least = apart[np.triu_indices(n_components, 1)].min()
    return drawn * (SEPARATION / least)


class _Draw:
    """One draw of who is an outlier, of the truth, and of the rows' components."""

    def __init__(
        self,
        n_clients: int,
        n_rows: int | Sequence[int],
        n_outliers: int,
        outliers_first: bool,
        random_state: int,
    ) -> None:
        if not 0 <= n_outliers <= n_clients:
            raise ValueError(f"n_outliers must lie between 0 and {n_clients}, not {n_outliers}")
        self.sizes = np.broadcast_to(np.asarray(n_rows, dtype=np.intp), n_clients)
        self.owner = np.repeat(np.arange(n_clients), self.sizes)
        self.rng = np.random.default_rng(random_state)
        self.outlier = np.arange(n_clients) >= n_clients - n_outliers
        if outliers_first:
            self.outlier = self.outlier[::-1].copy()

    def truth(self, n_components: int, n_features: int, heterogeneity: float) -> SimulatedMixture:
        """Centres, components, weights and the component of every row; no rows yet."""
        m, rng = len(self.sizes), self.rng
        centers = component_centers(n_components, n_features, rng)
        weights = rng.dirichlet(np.full(n_components, WEIGHT_CONCENTRATION), size=m)
        away = rng.normal(size=(m, n_components, n_features))
        away /= np.linalg.norm(away, axis=-1, keepdims=True)
        components = centers + heterogeneity * away
        ladder = weights.cumsum(axis=1)[self.owner, :-1]
        labels = (rng.uniform(size=(len(self.owner), 1)) > ladder).sum(axis=1)
        labels[self.outlier[self.owner]] = -1
        weights[self.outlier], components[self.outlier] = np.nan, np.nan
        empty = self.federation(np.zeros((len(self.owner), n_features)))
        return SimulatedMixture(empty, weights, components, centers, labels, self.outlier)

    def federation(self, X: Floats, y: Floats | None = None) -> Federation:
        """Sites site-1, site-2, ..., in that order."""
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        parts = [slice(a, b) for a, b in zip(ends[:-1], ends[1:])]
        if y is None:
            return Federation.from_clients([X[part] for part in parts])
        return Federation.from_clients([(X[part], y[part]) for part in parts])


# -------------------------------------------------------------------- attacks on data


def _spoil(
    clients: Federation,
    who: ArrayLike,
    seed: int,
    spoil: Callable[[Floats, Floats], Floats],
    n_draws: int | None = None,
) -> Federation:
    """`clients` with the rows of the bad sites replaced by spoil(rows, standard normal numbers)."""
    bad = np.unique(np.asarray(who, dtype=np.intp))
    X = clients.X.copy()
    keys = KeyRing(clients.names, seed).at(0)
    for k in bad:
        rows = slice(clients.offsets[k], clients.offsets[k + 1])
        drawn = keys.take(np.array([k])).normal(clients.sizes[k], clients.n_features)[0]
        X[rows] = spoil(X[rows], drawn)
    return replace(clients, X=X)
