"""Sites of K kinds as in section 5 and appendix D of Armacki et al. 2024, and ways to spoil some.

| function | setting of the paper |
|---|---|
| `make_sparse_regressions()` | section 5, Figure 2: K = 10, d = 20, five features a row |
| `make_sparse_regressions(intervals=APPENDIX_D2)` | D.2, D.3 and Table 3: K = 4 |
| `make_logistic_groups()` | D.1: K = 4, two features |
| `make_flipped_images(X, y, ...)` | Table 2: two classes, labelled the other way round at half |

Where we differ: Sigma_3 of D.1 is printed as [[1, 2], [2, 1]], which is no covariance (eigenvalues
3 and -1). NumPy samples its absolute value [[2, 1], [1, 2]] with a warning; we use that. Rows are
drawn afresh instead of from a stock of 100,000 a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.arrays import Floats, Indices
from fedkin.federation import Federation

# Intervals of the coefficients of each cluster.
SECTION_5 = tuple((a, a + 1.0) for a in (1.0, 4.0, 7.0, 10.0, 13.0)) + tuple(
    (-a - 1.0, -a) for a in (1.0, 4.0, 7.0, 10.0, 13.0)
)
APPENDIX_D2 = ((0.0, 1.0), (1.0, 2.0), (-1.0, 0.0), (-2.0, -1.0))
# D.1: coefficients and covariances of the features; the third covariance as its absolute value.
LOGISTIC_COEF = np.array([[1.0, -1.0], [1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])
LOGISTIC_COVARIANCES = np.array(
    [
        [[1.0, 0.0], [0.0, 1.0]],
        [[2.0, 1.0], [1.0, 2.0]],
        [[2.0, 1.0], [1.0, 2.0]],
        [[2.0, 0.0], [0.0, 2.0]],
    ]
)
WILD_SCALE = 20.0


@dataclass(frozen=True)
class SitesOfKinds:
    """Sites of K kinds, and the truth: models `coef` (K, d), `labels` (m,), -1 at spoilt sites."""

    federation: Federation
    coef: Floats
    labels: Indices

    @property
    def site_coef(self) -> Floats:
        """The true model of every clean site, (m, d); NaN at spoilt ones."""
        return np.where(self.labels[:, None] >= 0, self.coef[self.labels], np.nan)

    def error(self, site_coef: ArrayLike) -> float:
        """The paper's normalised mean squared error of the clean sites' models (m, d)."""
        clean = self.labels >= 0
        truth = self.site_coef[clean]
        off = ((np.asarray(site_coef)[clean] - truth) ** 2).sum(axis=1)
        return float((off / (truth**2).sum(axis=1)).mean())

    def recovers(self, labels: ArrayLike) -> bool:
        """Whether labels (m,) are the true partition of the clean sites, up to numbering."""
        clean = self.labels >= 0
        pairs = np.unique(np.stack([self.labels[clean], np.asarray(labels)[clean]]), axis=1)
        counts = [len(np.unique(row)) for row in pairs]
        return counts[0] == counts[1] == pairs.shape[1]

    def separation(self) -> float:
        """The least distance D of two clusters' models."""
        distance = np.linalg.norm(self.coef[:, None] - self.coef[None], axis=-1)
        return float(distance[np.triu_indices(len(self.coef), 1)].min())

    def nearby(self, least: float, most: float, random_state: int | list[int] = 0) -> Floats:
        """Models (K, d) at a distance from the truth between `least` and `most` times D."""
        rng = np.random.default_rng(random_state)
        direction = rng.normal(size=self.coef.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        unit = self.separation() if len(self.coef) > 1 else 1.0
        return self.coef + unit * rng.uniform(least, most, (len(self.coef), 1)) * direction


def make_sparse_regressions(
    n_rows: int | ArrayLike,
    n_clients: int = 100,
    intervals: tuple[tuple[float, float], ...] = SECTION_5,
    n_features: int = 20,
    n_active: int = 5,
    random_state: int | list[int] = 0,
) -> SitesOfKinds:
    """Sites of K kinds of regressions with sparse features (section 5).

    y = x'u_k + N(0, 1); `n_active` features of a row are N(0, 1), the rest zero.
    """
    rng = np.random.default_rng(random_state)
    low, high = np.array(intervals).T
    coef = rng.uniform(low[:, None], high[:, None], (len(intervals), n_features))
    labels = np.arange(n_clients) % len(intervals)
    sizes = np.broadcast_to(np.asarray(n_rows, dtype=np.intp), n_clients)
    owner = np.repeat(np.arange(n_clients), sizes)
    active = rng.random((len(owner), n_features)).argsort(axis=1) < n_active
    X = np.where(active, rng.normal(size=active.shape), 0.0)
    y = np.einsum("nd,nd->n", X, coef[labels[owner]]) + rng.normal(size=len(owner))
    return SitesOfKinds(Federation.from_groups(X, owner + 1, y), coef, labels)


def make_logistic_groups(
    n_rows: int, n_clients: int = 100, random_state: int | list[int] = 0
) -> SitesOfKinds:
    """Sites that follow one of four logistic models without intercept (D.1).

    `coef` (4, 3) has the intercept 0 last.
    """
    rng = np.random.default_rng(random_state)
    labels = np.arange(n_clients) % len(LOGISTIC_COEF)
    owner = np.repeat(np.arange(n_clients), n_rows)
    kind = labels[owner]
    factors = np.linalg.cholesky(LOGISTIC_COVARIANCES)
    X = np.einsum("nij,nj->ni", factors[kind], rng.normal(size=(len(owner), 2)))
    chance = 1.0 / (1.0 + np.exp(-np.einsum("nd,nd->n", X, LOGISTIC_COEF[kind])))
    y = np.where(rng.random(len(owner)) < chance, 1.0, -1.0)
    coef = np.concatenate([LOGISTIC_COEF, np.zeros((4, 1))], axis=1)
    return SitesOfKinds(Federation.from_groups(X, owner + 1, y), coef, labels)


def spoil_sites(
    groups: SitesOfKinds,
    share: float = 0.1,
    kind: Literal["wild", "shifted"] = "wild",
    random_state: int = 0,
) -> SitesOfKinds:
    """Give a share of the sites a model of their own: N(0, 20^2), or their true one moved by D.

    The target of a spoilt site follows that model; its noise stays.
    """
    rng = np.random.default_rng([random_state, 0xBAD])
    clean = groups.federation
    assert clean.y is not None
    m, d = clean.n_clients, clean.n_features
    spoilt = np.zeros(m, dtype=bool)
    spoilt[rng.choice(m, size=round(share * m), replace=False)] = True
    move = WILD_SCALE * rng.normal(size=(m, d))
    if kind == "shifted":
        move *= groups.separation() / np.linalg.norm(move, axis=1, keepdims=True)
    else:
        move -= groups.site_coef
    move[~spoilt] = 0.0
    y = clean.y + np.einsum("nd,nd->n", clean.X, move[clean.owner])
    labels = np.where(spoilt, -1, groups.labels)
    return replace(groups, federation=replace(clean, y=y), labels=labels)


@dataclass(frozen=True)
class FlippedImages:
    """Sites with images of two classes; at sites with label 1 the classes are named the other way.

    `X_test`, `y_test` (-1 and 1 as at sites with label 0) were seen by nobody.
    """

    federation: Federation
    labels: Indices
    X_test: Floats
    y_test: Floats

    def accuracy(self, site_coef: ArrayLike) -> float:
        """Share of test images that a site's model (m, d) names as the site would, on average."""
        score = self.X_test @ np.asarray(site_coef).T
        own = np.where(self.labels == 0, 1.0, -1.0) * self.y_test[:, None]
        return float((np.where(score >= 0, 1.0, -1.0) == own).mean())


def make_flipped_images(
    train: tuple[NDArray[np.uint8], NDArray[np.integer]],
    test: tuple[NDArray[np.uint8], NDArray[np.integer]],
    classes: tuple[int, int],
    per_class: int,
    n_clients: int = 100,
    flipped: float = 0.0,
    random_state: int | list[int] = 0,
) -> FlippedImages:
    """Sites with images of two classes, which half of them name the other way round (Table 2).

    Every site has `per_class` images of both classes, pixels divided by 255. `flipped` is the share
    of a site's training labels that are wrong (noisy CIFAR-10: 0.2).
    """
    rng = np.random.default_rng(random_state)
    labels = np.arange(n_clients) % 2
    images, names = train
    drawn = np.stack(
        [
            rng.permutation(np.flatnonzero(names == which))[: n_clients * per_class]
            for which in classes
        ]
    ).reshape(2, n_clients, per_class)
    rows = drawn.transpose(1, 0, 2).reshape(n_clients, -1)
    sign = np.repeat([1.0, -1.0], per_class) * np.where(labels == 0, 1.0, -1.0)[:, None]
    n_wrong = round(flipped * rows.shape[1])
    wrong = rng.random(rows.shape).argsort(axis=1) < n_wrong
    y = np.where(wrong, -sign, sign).ravel()
    X = images[rows.ravel()].reshape(rows.size, -1) / 255.0
    owner = np.repeat(np.arange(n_clients), rows.shape[1])
    shown = np.isin(test[1], classes)
    X_test = test[0][shown].reshape(shown.sum(), -1) / 255.0
    y_test = np.where(test[1][shown] == classes[0], 1.0, -1.0)
    return FlippedImages(Federation.from_groups(X, owner + 1, y), labels, X_test, y_test)
