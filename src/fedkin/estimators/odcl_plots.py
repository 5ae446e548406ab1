"""Pictures of an ODCL fit: the map of sites, the curve a number was chosen by, the convex path.

matplotlib is imported when a picture is drawn. Every function draws into `ax`, or into a new
figure, and returns the axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Okabe and Ito's colours, told apart by colour-blind readers; then they repeat with other markers.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)
MARKERS = "os^Dv"
ASIDE_COLOUR = "#7f7f7f"
MOST_NAMED = 12  # set-aside sites named on the map
MOST_LEAVES = 60  # leaves of a dendrogram that still get a name


def plot_sites(model: Any, ax: Any = None) -> Any:
    """The sites' own models on their two principal axes, hulls around clusters, odd sites crossed.

    Axes are those of the sites that were not set aside; a site far outside is drawn at the edge.
    """
    axes = _axes(ax)
    heard = np.isfinite(model.local_coef_).all(axis=1)
    points = np.column_stack([model.local_coef_, model.local_intercept_])[heard]
    labels = model.labels_[heard]
    aside = np.isin(model.client_names_[heard], model.odd_sites_)
    place, share = _principal(points, ~aside)
    low, high = _frame(place[~aside] if (~aside).any() else place)
    shown = np.clip(place, low, high)
    for k in range(model.n_clusters_):
        inside = shown[(labels == k) & ~aside]
        _hull(axes, inside, _colour(k))
        axes.scatter(
            *inside.T,
            s=28,
            color=_colour(k),
            marker=MARKERS[(k // len(COLOURS)) % len(MARKERS)],
            edgecolor="white",
            linewidth=0.5,
            label=f"cluster {k} ({len(inside)})",
            zorder=3,
        )
    if aside.any():
        text = f"set aside ({aside.sum()})"
        axes.scatter(*shown[aside].T, s=45, color=ASIDE_COLOUR, marker="x", label=text, zorder=3)
        _name_aside(axes, model.client_names_[heard][aside], shown[aside])
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_xlabel(f"first principal axis of the sites' models ({share[0]:.0%})")
    axes.set_ylabel(f"second principal axis ({share[1]:.0%})")
    axes.set_title(f"{len(points)} sites, {model.n_clusters_} clusters")
    axes.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axes


def plot_choice(model: Any, ax: Any = None) -> Any:
    """The curve by which the number of clusters was chosen."""
    if model.choice_ is None:
        raise ValueError(f"{_why_nothing_was_chosen(model)}: there is no curve")
    axes = _axes(ax)
    number, curve = np.asarray(model.choice_["n_clusters"]), np.asarray(model.choice_["curve"])
    method = model.choice_method_
    if method == "prediction":
        curve = np.asarray(model.choice_["expected error"])
    if method == "path":  # the best silhouette at each number that the path reached
        reached = np.unique(number[np.isfinite(curve)])
        curve = np.array([np.nanmax(curve[number == k]) for k in reached])
        number = reached
    axes.plot(number, curve, marker="o", color=COLOURS[0], markersize=4)
    if method == "prediction":
        axes.axhline(1.0, color=ASIDE_COLOUR, linestyle="--", linewidth=1)
        axes.text(number[-1], 1.0, "the noise alone ", ha="right", va="bottom")
        axes.set_yscale("log")
    axes.axvline(model.n_clusters_, color=COLOURS[5], linewidth=1)
    axes.set_xlabel("number of clusters")
    axes.set_ylabel(_CURVES[method])
    axes.set_title(f"{model.n_clusters_} clusters chosen")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _why_nothing_was_chosen(model: Any) -> str:
    if model.n_clusters is not None:
        return "the number of clusters was given, not chosen"
    if (model.labels_ >= 0).sum() <= 1:
        return "one site leaves nothing to choose"
    return "the penalty decided the number of clusters"


_CURVES = {
    "prediction": "squared error to be expected / noise",
    "gap": "silhouette",
    "path": "silhouette after the polish",
    "bic": "BIC",
}


def plot_path(model: Any, ax: Any = None) -> Any:
    """Which sites fuse at which penalty: the convex path as a dendrogram, the chosen one marked."""
    if model.path_ is None:
        raise ValueError("there is no path: fit with clustering='convex' and a searched penalty")
    from scipy.cluster.hierarchy import dendrogram

    axes = _axes(ax)
    linkage = np.array(model.path_["linkage"])
    finite = linkage[np.isfinite(linkage[:, 2]), 2]
    top = 1.3 * (finite.max() if len(finite) else 1.0)
    linkage[:, 2] = np.where(np.isfinite(linkage[:, 2]), linkage[:, 2], top)
    names = [str(name) for name in model.client_names_[_clustered(model)]]
    colours = _branch_colours(linkage, model.labels_[_clustered(model)])
    dendrogram(
        linkage,
        ax=axes,
        labels=names,
        no_labels=len(names) > MOST_LEAVES,
        link_color_func=lambda node: colours[node],
        leaf_font_size=7,
    )
    axes.set_yscale("log")
    axes.set_ylim(0.7 * model.path_["penalties"][0], top)
    if model.penalty_ is not None:
        axes.axhline(model.penalty_, color=COLOURS[5], linestyle="--", linewidth=1)
    axes.set_ylabel("penalty")
    axes.set_xlabel("sites")
    axes.set_title(f"convex path, {model.n_clusters_} clusters chosen")
    return axes


# ------------------------------------------------------------------ parts


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(7.0, 4.5), layout="constrained")[1]


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def _clustered(model: Any) -> np.ndarray:
    """Sites that were clustered: heard, and not set aside."""
    return np.asarray(model.labels_ >= 0)


def _principal(points: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two principal coordinates (m, 2) in axes of the points inside, and their shares."""
    kept = points[inside] if inside.sum() > 1 else points
    centre = kept.mean(axis=0)
    _, lengths, axes = np.linalg.svd(kept - centre, full_matrices=False)
    place = np.zeros((len(points), 2))
    along = (points - centre) @ axes[:2].T
    place[:, : along.shape[1]] = along
    total = max(float((lengths**2).sum()), np.finfo(float).tiny)
    share = np.zeros(2)
    share[: len(lengths[:2])] = lengths[:2] ** 2 / total
    return place, share


def _frame(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = place.min(axis=0), place.max(axis=0)
    room = 0.15 * np.maximum(high - low, 1e-9)
    return low - room, high + room


def _hull(axes: Any, points: np.ndarray, colour: str) -> None:
    from scipy.spatial import ConvexHull, QhullError

    if len(points) < 3:
        axes.plot(*points.T, color=colour, alpha=0.4)
        return
    try:
        corners = points[ConvexHull(points).vertices]
    except QhullError:  # all on a line
        axes.plot(*points.T, color=colour, alpha=0.4)
        return
    axes.fill(*corners.T, color=colour, alpha=0.15, linewidth=0)


def _name_aside(axes: Any, names: np.ndarray, place: np.ndarray) -> None:
    for name, (x, y) in list(zip(names, place))[:MOST_NAMED]:
        axes.annotate(
            str(name), (x, y), xytext=(4, 4), textcoords="offset points", fontsize="x-small"
        )


def _branch_colours(linkage: np.ndarray, labels: np.ndarray) -> dict[int, str]:
    """The cluster's colour for a branch whose leaves are all of one cluster, else grey."""
    m = len(labels)
    kinds = [{int(label)} for label in labels]
    colours = {}
    for row, (left, right, *_) in enumerate(linkage):
        both = kinds[int(left)] | kinds[int(right)]
        kinds.append(both)
        colours[m + row] = _colour(next(iter(both))) if len(both) == 1 else ASIDE_COLOUR
    return colours
