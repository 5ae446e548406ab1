"""Curves that sites draw from one prior, multi-fidelity test functions, turbofan sensors.

The functions of Yue and Kontar's appendix with these corrections: BRANIN's medium fidelity takes
the root of the shifted high fidelity only (as printed it is complex on most of the domain);
CURRIN's factor at x2 = 0 is its limit 1; PARK at x1 = 0 is its limit, in the form
(sqrt(x1^2 + a) - x1) / 2; Hartmann uses the level's own alpha inside the sum. Sizes that the
appendix leaves open are 40 high, 80 medium, 200 low. All inputs are given on [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from fedkin.arrays import Floats, Indices
from fedkin.datasets.shipped import load_turbofan
from fedkin.federation import Federation
from fedkin.models.gaussian_process import cholesky
from fedkin.models.gp_posterior import own_covariance
from fedkin.models.kernels import Spec, form_of, to_spec

Function = Callable[[Floats], Floats]

SIZES = {"high": 40, "medium": 80, "low": 200}
# Names that sort from the lowest to the highest fidelity.
LEVELS = {2: ("1-low", "2-high"), 3: ("1-low", "2-medium", "3-high")}
MATERN = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


# ------------------------------------------------------------------ curves from a prior


@dataclass(frozen=True)
class GaussianSites:
    """A federation whose sites drew their curves from priors; `labels` says which."""

    federation: Federation
    labels: Indices
    held_out: Federation
    """More rows of the same curves."""


def prior_spec(length_scale: float, scale: float, noise: float, kernel: str = "rbf") -> Spec:
    """Scale times correlation plus noise, as data."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    rbf = kernel == "rbf"
    shape = RBF(length_scale) if rbf else Matern(length_scale, nu=MATERN[kernel])
    return to_spec(ConstantKernel(scale) * shape + WhiteKernel(noise))


def make_gaussian_sites(
    n_clients: int = 100,
    n_rows: int = 8,
    priors: Spec | list[Spec] | None = None,
    n_held_out: int = 0,
    n_features: int = 1,
    random_state: int | list[int] = 0,
) -> GaussianSites:
    """Inputs uniform on [0, 1]; every site its own curve (Example 1). Priors are dealt in turn.

    The default is the paper's: length scale .2, scale 2, noise .5, RBF.
    """
    rng = np.random.default_rng(random_state)
    if priors is None:
        priors = prior_spec(0.2, 2.0, 0.5)
    forms = [form_of(p, n_features) for p in (priors if isinstance(priors, list) else [priors])]
    labels = np.arange(n_clients) % len(forms)
    parts: list[tuple[Floats, Floats]] = []
    for label in labels:
        X = rng.uniform(size=(n_rows + n_held_out, n_features))
        root, _ = cholesky(own_covariance(forms[label], forms[label].start, X))
        parts.append((X, root @ rng.normal(size=len(X))))
    names = [f"site-{k + 1}" for k in range(n_clients)]
    seen = {n: (X[:n_rows], y[:n_rows]) for n, (X, y) in zip(names, parts)}
    rest = {n: (X[n_rows:], y[n_rows:]) for n, (X, y) in zip(names, parts)}
    held_out = Federation.from_clients(rest if n_held_out else seen)
    return GaussianSites(Federation.from_clients(seen), labels, held_out)


def two_kinds_of_priors() -> list[Spec]:
    """Rough and quiet, or smooth and noisy."""
    return [prior_spec(0.08, 1.0, 0.05), prior_spec(0.5, 1.0, 0.5)]


# ------------------------------------------------------------------ multi-fidelity


@dataclass(frozen=True)
class MultiFidelity:
    """Every fidelity is a site; the dearest is tested. Errors are on its standardised scale."""

    name: str
    federation: Federation
    site: str
    X_test: Floats
    y_test: Floats

    @property
    def scale(self) -> float:
        """Standard deviation of the targets at the highest fidelity."""
        _, y = self.federation.client(self.federation.names.index(self.site))
        return float(np.std(y)) if y is not None else 1.0

    def rmse(self, predicted: Floats) -> float:
        """Root mean squared error over the dearest site's standard deviation."""
        return float(np.sqrt(np.mean((predicted - self.y_test) ** 2))) / self.scale


def make_multi_fidelity(
    name: str,
    random_state: int = 0,
    n_test: int = 1000,
    design: Literal["latin", "uniform"] = "latin",
) -> MultiFidelity:
    """One of "currin", "park", "branin", "hartmann", "borehole".

    Sites' inputs are Latin hypercubes, as usual for computer experiments, or uniform; the test
    inputs are uniform.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"there is no function {name!r}; there are {', '.join(FUNCTIONS)}")
    n_features, functions = FUNCTIONS[name]
    rng = np.random.default_rng([random_state, *name.encode()])
    levels = LEVELS[len(functions)]
    sites = {}
    for level, function in zip(levels, functions):
        X = _design(rng, SIZES[level[2:]], n_features, design)
        sites[level] = (X, function(X))
    X_test = rng.uniform(size=(n_test, n_features))
    return MultiFidelity(
        name, Federation.from_clients(sites), levels[-1], X_test, functions[-1](X_test)
    )


def _design(rng: np.random.Generator, n_rows: int, n_features: int, kind: str) -> Floats:
    if kind == "uniform":
        return rng.uniform(size=(n_rows, n_features))
    cells = rng.permuted(np.tile(np.arange(n_rows), (n_features, 1)), axis=1).T
    return (cells + rng.uniform(size=(n_rows, n_features))) / n_rows


def currin_high(X: Floats) -> Floats:
    """CURRIN; at x2 = 0 the factor is 1."""
    x1, x2 = X.T
    positive = x2 > 0
    factor = np.where(positive, 1.0 - np.exp(-0.5 / np.where(positive, x2, 1.0)), 1.0)
    above = 2300 * x1**3 + 1900 * x1**2 + 2092 * x1 + 60
    return factor * above / (100 * x1**3 + 500 * x1**2 + 4 * x1 + 20)


def currin_low(X: Floats) -> Floats:
    """Mean of four shifted values of the high fidelity."""
    x1, x2 = X.T
    below = np.maximum(0.0, x2 - 0.05)
    corners = [(x1 + s, z) for s in (0.05, -0.05) for z in (x2 + 0.05, below)]
    return sum((currin_high(np.stack(c, axis=1)) for c in corners), np.zeros(len(X))) / 4


def park_high(X: Floats) -> Floats:
    """PARK, with its limit at x1 = 0."""
    x1, x2, x3, x4 = X.T
    first = 0.5 * (np.sqrt(x1**2 + (x2 + x3**2) * x4) - x1)
    return first + (x1 + 3 * x4) * np.exp(1 + np.sin(x3))


def park_low(X: Floats) -> Floats:
    """A biased version of it."""
    x1, x2, x3, _ = X.T
    return (1 + np.sin(x1) / 10) * park_high(X) - 2 * x1 + x2**2 + x3**2 + 0.5


def _branin(x1: Floats, x2: Floats) -> Floats:
    parabola = -1.275 * x1**2 / np.pi**2 + 5 * x1 / np.pi + x2 - 6
    return parabola**2 + (10 - 5 / (4 * np.pi)) * np.cos(x1) + 10


def _branin_medium(x1: Floats, x2: Floats) -> Floats:
    # The root covers the shifted high fidelity only.
    return 10 * np.sqrt(_branin(x1 - 2, x2 - 2)) + 2 * (x1 - 0.5) - 3 * (3 * x2 - 1) - 1


def _branin_inputs(X: Floats) -> tuple[Floats, Floats]:
    return 15 * X[:, 0] - 5, 15 * X[:, 1]


def branin_high(X: Floats) -> Floats:
    """BRANIN on [-5, 10] x [0, 15]."""
    return _branin(*_branin_inputs(X))


def branin_medium(X: Floats) -> Floats:
    """Its middle fidelity."""
    return _branin_medium(*_branin_inputs(X))


def branin_low(X: Floats) -> Floats:
    """The middle fidelity at moved inputs, and a trend."""
    x1, x2 = _branin_inputs(X)
    return _branin_medium(1.2 * (x1 + 2), 1.2 * (x2 + 2)) - 3 * x2 + 1


HARTMANN_A = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
HARTMANN_P = np.array(
    [
        [0.3689, 0.1170, 0.2673],
        [0.4699, 0.4387, 0.7470],
        [0.1091, 0.8732, 0.5547],
        [0.0381, 0.5743, 0.8828],
    ]
)
HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
HARTMANN_DELTA = np.array([0.01, -0.01, -0.1, 0.1])


def hartmann(X: Floats, level: int = 3) -> Floats:
    """Hartmann in three dimensions; level 3 is the highest fidelity."""
    alpha = HARTMANN_ALPHA + (3 - level) * HARTMANN_DELTA
    square = (X[:, None, :] - HARTMANN_P) ** 2
    values: Floats = np.exp(-(HARTMANN_A * square).sum(axis=2)) @ alpha
    return values


BOREHOLE_RANGES = np.array(
    [
        [0.05, 0.15],
        [100, 50000],
        [63070, 115600],
        [990, 1110],
        [63.1, 115],
        [700, 820],
        [1120, 1680],
        [9855, 12045],
    ]
)


def borehole(X: Floats, factor: float = 2 * np.pi, offset: float = 1.0) -> Floats:
    """Water through a borehole; (2 pi, 1) is the highest fidelity, (5, 1.5) the low one."""
    low, high = BOREHOLE_RANGES.T
    x1, x2, x3, x4, x5, x6, x7, x8 = (low + X * (high - low)).T
    logs = np.log(x2 / x1)
    flow = offset + 2 * x7 * x3 / (logs * x1**2 * x8) + x3 / x5
    values: Floats = factor * x3 * (x4 - x6) / (logs * flow)
    return values


FUNCTIONS: dict[str, tuple[int, tuple[Function, ...]]] = {
    "currin": (2, (currin_low, currin_high)),
    "park": (4, (park_low, park_high)),
    "branin": (2, (branin_low, branin_medium, branin_high)),
    "hartmann": (3, (partial(hartmann, level=1), partial(hartmann, level=2), hartmann)),
    "borehole": (8, (partial(borehole, factor=5.0, offset=1.5), borehole)),
}


# ------------------------------------------------------------------ turbofan engines


@dataclass(frozen=True)
class TurbofanSplit:
    """Training engines, and of the test engines the half that is given and the half asked for.

    Targets are standardised by each engine's whole series, as in the paper: for a test engine
    that uses its asked half. With `leaky` the axis runs from 0 to 1 in every engine, which tells
    when the engine will fail.
    """

    train: Federation
    given: Federation
    asked: Federation
    leaky: bool


def turbofan_split(
    sensor: int,
    axis: Literal["cycles", "share-of-life-leaky"] = "cycles",
    n_train: int = 60,
    random_state: int = 0,
) -> TurbofanSplit:
    """One sensor of FD001: 60 engines to train, 40 to test, half of each test engine given.

    The paper reports an error of .545 for sensor 2, which lies below the noise of that sensor
    (`turbofan_noise_floor(2)` is .658 on average, whatever the model): the protocol as stated
    cannot give it. It would fit sensor 7 (.532).
    """
    if axis not in ("cycles", "share-of-life-leaky"):
        raise ValueError(f"axis must be 'cycles' or 'share-of-life-leaky', not {axis!r}")
    rng = np.random.default_rng([random_state, sensor])
    engines = _engines(sensor, axis)
    order = rng.permutation(len(engines))
    names = list(engines)
    given, asked = {}, {}
    for name in (names[i] for i in sorted(order[n_train:])):
        x, y = engines[name]
        half = np.zeros(len(x), dtype=bool)
        half[rng.permutation(len(x))[: len(x) // 2]] = True
        given[name], asked[name] = (x[half], y[half]), (x[~half], y[~half])
    train = {names[i]: engines[names[i]] for i in sorted(order[:n_train])}
    return TurbofanSplit(
        Federation.from_clients(train),
        Federation.from_clients(given),
        Federation.from_clients(asked),
        leaky=axis != "cycles",
    )


def turbofan_noise_floor(sensor: int, difference: int = 1) -> Floats:
    """Noise of every engine without a model (100,): from first or second differences."""
    divisor = {1: 2.0, 2: 6.0}[difference]
    floors = [
        np.sqrt(np.mean(np.diff(y, difference) ** 2) / divisor)
        for _, y in _engines(sensor, "cycles").values()
    ]
    return np.array(floors)


def _engines(sensor: int, axis: str) -> dict[str, tuple[Floats, Floats]]:
    data = load_turbofan()
    values = data.column(f"sensor_{sensor}")
    engines = {}
    for engine in np.unique(data.engine):
        rows = data.engine == engine
        y, x = values[rows], data.cycle[rows]
        x = x / 100.0 if axis == "cycles" else (x - x[0]) / (x[-1] - x[0])
        engines[f"engine-{engine}"] = (x[:, None], (y - y.mean()) / y.std())
    return engines
