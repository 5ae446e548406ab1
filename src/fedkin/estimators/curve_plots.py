"""Pictures of site curves: bands over data, prior samples, convergence, calibration.

Every function draws into the axes it is given or makes, and returns them; nothing is shown or
saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from fedkin.estimators.curves import NORMAL_95, CurveEstimator, target_of
from fedkin.federation import Federation
from fedkin.names import canonical_name

# Points of a drawn curve.
GRID = 200
# Central intervals whose coverage is drawn.
PROMISED = np.linspace(0.05, 0.99, 20)


def plot(
    model: CurveEstimator, kind: str, axes: Any, data: Federation | None, site: Any = None
) -> Any:
    """The picture of that kind, of these rows or those of the fit."""
    if kind == "convergence":
        return convergence(model, axes)
    rows = model._data if data is None else data
    if rows is None:
        raise ValueError(
            f"the model does not hold the sites' rows; give them: plot({kind!r}, data=...)"
        )
    if kind == "samples":
        return prior_samples(model, rows.X.min(), rows.X.max(), axes=axes)
    if kind == "bands":
        largest = rows.names[int(rows.sizes.argmax())]
        return posterior_bands(model, rows, largest if site is None else site, axes)
    axes = calibration(model, rows, axes)
    if data is None:
        axes.set_title("Calibration at the rows of the fit")
    return axes


def _axes(axes: Any, **size: Any) -> Any:
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: no window, no global state.
    return Figure(layout="constrained", **size).subplots()


def posterior_bands(
    model: CurveEstimator,
    data: Federation,
    site: Any,
    axes: Any = None,
    over: tuple[float, float] | None = None,
) -> Any:
    """Mean and 95 % band of one site over its rows (one feature), or over the range `over`."""
    if data.n_features != 1:
        raise ValueError(f"a band needs one feature, the data have {data.n_features}")
    site = canonical_name(site)
    if site not in data.names:
        raise ValueError(f"there is no site {site!r} in the data; its first is {data.names[0]!r}")
    axes = _axes(axes)
    X, y = data.client(data.names.index(site))
    if over is None:
        over = (X.min(), X.max()) if len(X) else (0.0, 1.0)
    grid = np.linspace(*over, GRID)[:, None]
    mean, std = model.predict(grid, np.full(GRID, site), return_std=True)
    low, high = mean - NORMAL_95 * std, mean + NORMAL_95 * std
    axes.fill_between(grid[:, 0], low, high, alpha=0.25, lw=0)
    axes.plot(grid[:, 0], mean)
    if y is not None:
        axes.plot(X[:, 0], y, "k.", ms=4)
    axes.set(title=site, xlabel=data.feature_names[0], ylabel=data.target_name or "y")
    return axes


def prior_samples(
    model: CurveEstimator, low: float, high: float, n_samples: int = 5, axes: Any = None
) -> Any:
    """What a site without rows might look like (one feature)."""
    if model.n_features_in_ != 1:
        raise ValueError(f"a drawn curve needs one feature, the fit had {model.n_features_in_}")
    axes = _axes(axes)
    grid = np.linspace(low, high, GRID)[:, None]
    drawn = model.sample_y(grid, np.full(GRID, "no such site"), n_samples)
    axes.plot(grid[:, 0], drawn, lw=0.8)
    axes.set(title="Samples of the shared prior, with noise")
    return axes


def convergence(model: Any, axes: Any = None) -> Any:
    """Hyper-parameters of every prior, round by round."""
    axes = _axes(axes)
    path = np.exp(model.history_["theta"][:, : model.theta_.size])
    names = list(model.summary()["priors"])[2:] * model.n_priors_
    for j, name in enumerate(names):
        axes.plot(
            np.arange(len(path)), path[:, j], label=f"{name}, prior {j // len(model.theta_[0])}"
        )
    axes.set(yscale="log", xlabel="evaluation", ylabel="value")
    axes.legend(fontsize="small")
    return axes


def calibration(model: CurveEstimator, data: Federation, axes: Any = None) -> Any:
    """Share of held-out targets inside central intervals against what was promised."""
    mean, std = model.predict(data, return_std=True)
    distance = np.abs(target_of(data, None, data.groups[data.given_order]) - mean) / std
    axes = _axes(axes)
    inside = [np.mean(distance <= ndtri(0.5 + 0.5 * level)) for level in PROMISED]
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    axes.plot(PROMISED, inside, "o-", ms=3)
    axes.set(xlabel="promised", ylabel="held", title="Calibration")
    return axes
