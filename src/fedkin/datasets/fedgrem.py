"""Federations of FedGrEM's experiments (Tian, Weng, Feng 2024, B.1), and ways to spoil them.

`make_gaussian_mixtures` and `make_regression_mixtures` draw sites whose components differ from
common centres by a given distance, and some outlier sites. What the paper prints and what its
authors' script does disagree about the outliers; `variant` chooses. The last entry of the second
centre, printed as a bare minus, is -1.

An attack on data takes a federation, the bad sites and a seed, and returns a federation; an attack
on messages does the same to a reply array (clients first). `DATA_ATTACKS` and `MESSAGE_ATTACKS`
name those of the robustness table. Draws for a bad site are keyed by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedkin.arrays import Bools, Floats, Indices
from fedkin.federation import Federation
from fedkin.randomness import KeyRing, name_keys, row_uniforms

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
    outlier: Bools


# -------------------------------------------------------------------- generators


def make_gaussian_mixtures(
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
    """Sites whose rows come from groups N(mean, I).

    Every site's mean of a group lies at distance `heterogeneity` from the group's centre.
    """
    shape, made = (n_components, n_features), OUTLIERS[variant]
    draw = _Draw(n_clients, n_rows, n_outliers, outliers_first, shape, heterogeneity, random_state)
    noise = draw.rng.normal(size=(len(draw.owner), n_features))
    good = draw.of_rows(draw.components, np.zeros_like(noise)) + noise
    bad = made.mean + np.sqrt(made.variance) * noise
    return draw.with_rows(np.where(draw.outlier[draw.owner, None], bad, good))


def make_regression_mixtures(
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
    """Sites whose rows come from groups with a regression each.

    x ~ N(0, I) and y = x' coefficients of the row's group + N(0, 1); every site's coefficients of a
    group lie at distance `heterogeneity` from the group's centre. `n_rows=None`: 150, or 200 in the
    script's variant.
    """
    shape, made = (n_components, n_features), OUTLIERS[variant]
    n_rows = made.regression_rows if n_rows is None else n_rows
    draw = _Draw(n_clients, n_rows, n_outliers, outliers_first, shape, heterogeneity, random_state)
    X = draw.rng.normal(size=(len(draw.owner), n_features))
    coef = draw.of_rows(draw.components, np.full_like(X, made.coef))
    return draw.with_rows(X, (X * coef).sum(axis=1) + draw.rng.normal(size=len(X)))


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
    """One draw of who is an outlier, of the truth, and of the rows' components; no rows yet."""

    def __init__(
        self,
        n_clients: int,
        n_rows: int | Sequence[int],
        n_outliers: int,
        outliers_first: bool,
        shape: tuple[int, int],
        heterogeneity: float,
        random_state: int,
    ) -> None:
        if not 0 <= n_outliers <= n_clients:
            raise ValueError(f"n_outliers must lie between 0 and {n_clients}, not {n_outliers}")
        self.sizes = np.broadcast_to(np.asarray(n_rows, dtype=np.intp), n_clients)
        self.owner = np.repeat(np.arange(n_clients), self.sizes)
        self.rng = rng = np.random.default_rng(random_state)
        place = np.arange(n_clients)
        self.outlier = place < n_outliers if outliers_first else place >= n_clients - n_outliers
        self.centers = component_centers(*shape, rng)
        self.weights = rng.dirichlet(np.full(shape[0], WEIGHT_CONCENTRATION), size=n_clients)
        away = rng.normal(size=(n_clients, *shape))
        away /= np.linalg.norm(away, axis=-1, keepdims=True)
        self.components = self.centers + heterogeneity * away
        ladder = self.weights.cumsum(axis=1)[self.owner, :-1]
        self.labels = (rng.uniform(size=(len(self.owner), 1)) > ladder).sum(axis=1)

    def of_rows(self, good: Floats, bad: Floats) -> Floats:
        """For every row: `good` (m, R, d) at its component, `bad` (N, d) at an outlier site."""
        return np.where(self.outlier[self.owner, None], bad, good[self.owner, self.labels])

    def with_rows(self, X: Floats, y: Floats | None = None) -> SimulatedMixture:
        """Sites site-1, site-2, ..., in that order, and their truth."""
        cuts = np.cumsum(self.sizes)[:-1]
        tables = np.split(X, cuts)
        sites = tables if y is None else list(zip(tables, np.split(y, cuts)))
        return SimulatedMixture(
            Federation.from_clients(sites),
            np.where(self.outlier[:, None], np.nan, self.weights),
            np.where(self.outlier[:, None, None], np.nan, self.components),
            self.centers,
            np.where(self.outlier[self.owner], -1, self.labels),
            self.outlier,
        )


# -------------------------------------------------------------------- attacks on data


def outlier_data(
    clients: Federation, who: ArrayLike, seed: int = 0, variant: Variant = "text"
) -> Federation:
    """Bad sites become the paper's outlier sites; with a target, their y follows the outlier's."""
    made = OUTLIERS[variant]
    if clients.y is None:
        return _spoilt(clients, who, seed, lambda X, z: made.mean + np.sqrt(made.variance) * z)
    bad, y = _rows_of(clients, who), clients.y.copy()
    noise = _row_normals(clients, bad, seed, 1)[:, 0]
    y[bad] = made.coef * clients.X[bad].sum(axis=1) + noise
    return replace(clients, y=y)


def shifted_data(
    clients: Federation, who: ArrayLike, seed: int = 0, distance: float = 2.0
) -> Federation:
    """Bad sites collude: all add the same vector of length `distance` to their rows."""
    shift = distance * _direction(clients.n_features, seed)
    return _spoilt(clients, who, seed, lambda X, z: X + shift)


def far_point_data(
    clients: Federation,
    who: ArrayLike,
    seed: int = 0,
    distance: float = 20.0,
    one_each: bool = False,
) -> Federation:
    """All rows of all bad sites lie on one point at `distance` from the origin, or on one each."""
    from scipy.special import ndtri

    shape = clients.n_clients, clients.n_features
    if one_each:
        drawn = ndtri(KeyRing(clients.names, seed).at(0).uniform(clients.n_features))
        ways = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    else:
        ways = np.broadcast_to(_direction(clients.n_features, seed), shape)
    bad, X = _rows_of(clients, who), clients.X.copy()
    X[bad] = distance * ways[clients.owner[bad]]
    return replace(clients, X=X)


def huge_data(clients: Federation, who: ArrayLike, seed: int = 0, scale: float = 1e6) -> Federation:
    """Rows of bad sites are normal numbers times `scale`; so is their target, if there is one."""
    spoilt = _spoilt(clients, who, seed, lambda X, z: scale * z)
    if clients.y is None:
        return spoilt
    bad, y = _rows_of(clients, who), clients.y.copy()
    y[bad] = scale * _row_normals(clients, bad, seed + 1, 1)[:, 0]
    return replace(spoilt, y=y)


def permuted_features(clients: Federation, who: ArrayLike, seed: int = 0) -> Federation:
    """Bad sites have their columns in an order of their own: our contamination of real data.

    Their groups stay as clear as they were but mean something else.
    """
    X = clients.X.copy()
    chance = KeyRing(clients.names, seed).at(0).uniform(clients.n_features)
    for k in np.unique(np.asarray(who, dtype=np.intp)):
        rows = slice(clients.offsets[k], clients.offsets[k + 1])
        X[rows] = clients.X[rows][:, np.argsort(chance[k])]
    return replace(clients, X=X)


def shuffled_values(clients: Federation, who: ArrayLike, seed: int = 0) -> Federation:
    """Bad sites have every column shuffled over their rows: marginals stay, groups are gone."""
    bad, X = _rows_of(clients, who), clients.X.copy()
    chance = _row_uniforms(clients, bad, seed, clients.n_features)
    for j in range(clients.n_features):
        X[bad, j] = clients.X[bad[np.lexsort((chance[:, j], clients.owner[bad]))], j]
    return replace(clients, X=X)


def contaminated_rows(
    clients: Federation, share: float, seed: int = 0, distance: float = 20.0
) -> Federation:
    """At every site about this share of the rows moves to one far point; the rest stays."""
    every = np.arange(len(clients.X))
    chosen = _row_uniforms(clients, every, seed, 1)[:, 0] < share
    X = clients.X.copy()
    X[chosen] = distance * _direction(clients.n_features, seed)
    return replace(clients, X=X)


def _spoilt(
    clients: Federation, who: ArrayLike, seed: int, spoil: Callable[[Floats, Floats], Floats]
) -> Federation:
    """The rows of the bad sites replaced by spoil(rows, standard normal numbers)."""
    bad, X = _rows_of(clients, who), clients.X.copy()
    X[bad] = spoil(X[bad], _row_normals(clients, bad, seed, clients.n_features))
    return replace(clients, X=X)


def _rows_of(clients: Federation, who: ArrayLike) -> Indices:
    return np.flatnonzero(np.isin(clients.owner, np.asarray(who, dtype=np.intp)))


def _row_uniforms(clients: Federation, rows: Indices, seed: int, n: int) -> Floats:
    """Uniform numbers (len(rows), n), keyed by the site and the row's place in it."""
    owner = clients.owner[rows]
    keys, place = name_keys(clients.names, seed)[owner], rows - clients.offsets[:-1][owner]
    columns = [row_uniforms(keys, place.astype(np.uint64), stream) for stream in range(n)]
    return np.stack(columns, axis=1)


def _row_normals(clients: Federation, rows: Indices, seed: int, n: int) -> Floats:
    """Standard normal numbers (len(rows), n), keyed by the site and the row's place in it."""
    from scipy.special import ndtri

    return np.asarray(ndtri(_row_uniforms(clients, rows, seed, n)))


def _direction(size: int, seed: int) -> Floats:
    """The one unit vector that all who collude agree on."""
    drawn = np.random.default_rng(seed).normal(size=size)
    return np.asarray(drawn / np.linalg.norm(drawn))


# -------------------------------------------------------------------- attacks on messages


def shifted_messages(
    replies: Floats, who: ArrayLike, seed: int = 0, distance: float = 3.0
) -> Floats:
    """Bad sites collude: all add the same vector of length `distance` along the last axis."""
    shift = distance * _direction(replies.shape[-1], seed)
    return _altered(replies, who, lambda reply: reply + shift)


def huge_messages(replies: Floats, who: ArrayLike, seed: int = 0, amount: float = 1e6) -> Floats:
    """Bad sites add `amount` to every number."""
    return _altered(replies, who, lambda reply: reply + amount)


def missing_messages(replies: Floats, who: ArrayLike, seed: int = 0) -> Floats:
    """Bad sites send NaN."""
    return _altered(replies, who, lambda reply: np.full_like(reply, np.nan))


def _altered(replies: Floats, who: ArrayLike, alter: Callable[[Floats], Floats]) -> Floats:
    bad, altered = np.asarray(who, dtype=np.intp), replies.copy()
    altered[bad] = alter(replies[bad])
    return altered


DATA_ATTACKS: Mapping[str, Callable[[Federation, ArrayLike, int], Federation]] = MappingProxyType(
    {
        "outliers as in the paper": outlier_data,
        "collude, data shifted by 2": partial(shifted_data, distance=2.0),
        "collude, data shifted by 1": partial(shifted_data, distance=1.0),
        "all rows on a far point": far_point_data,
        "data of size 1e6": huge_data,
    }
)
MESSAGE_ATTACKS: Mapping[str, Callable[[Floats, ArrayLike, int], Floats]] = MappingProxyType(
    {
        "messages plus 1e6": huge_messages,
        "collude, messages shifted by 3": shifted_messages,
        "messages of NaN": missing_messages,
    }
)
