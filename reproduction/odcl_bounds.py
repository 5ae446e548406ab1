"""ODCL's thresholds against what happens: rows a site needs by Theorems 1 to 3, and rows it needs.

The theorems ask for n / log n above M times a factor of the clustering. Beside them stand what the
proof's own condition (4) needs, which leaves M out, and the n from which the partition is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedkin.datasets.odcl import SitesOfKinds

GRID = {
    "section 5": (20, 25, 30, 40, 50, 75, 100, 200, 300, 400, 600, 800, 1200),
    "D.2": (25, 30, 40, 50, 75, 100, 200, 300, 400, 600, 800, 1200),
    "D.1": (100, 150, 200, 300, 500, 1000, 2000, 3000, 4000, 6000, 8000),
}
# Steps of the inexact local fits, and the accuracy Theorem 2 is evaluated at: half of what it
# allows at most.
SGD_STEPS = 2000
RESULTS = {
    "Lemma 1": ("convex", "convex, (13)"),
    "Lemma 2": ("kmeans", "spectral K-means"),
    "Theorem 2": ("kmeans", "inexact, K-means"),
    "Theorem 3": ("spectral part I", "spectral, part I"),
}
WORDS = {
    "Lemma 1": "Theorem 1 with Lemma 1, convex clustering",
    "Lemma 2": "Theorem 1 with Lemma 2, spectral K-means",
    "Theorem 2": "Theorem 2, inexact fits, K-means",
    "Theorem 3": "Theorem 3, spectral K-means, part I",
}


def one(seed: int, setting: str) -> list[dict[str, Any]]:
    """Thresholds for one draw of models, and from which n each clustering finds the partition."""
    from fedkin import LocalERM
    from fedkin.clustering import convex_clustering, kmeans, oracle_penalty, spectral_kmeans
    from reproduction.odcl_protocol import SETTINGS, models_of, without_penalty

    given = SETTINGS[setting]
    k = given.n_clusters
    waiting: dict[str, Callable[[Any, Any], Any]] = {
        "K-means++": lambda p, truth: kmeans(p, k, seed),
        "spectral K-means": lambda p, truth: spectral_kmeans(p, k, seed),
        "spectral, part I": lambda p, truth: spectral_kmeans(p, k, seed, part_one_only=True),
        "convex, (13)": lambda p, truth: convex_clustering(p, oracle_penalty(p, truth, seed)),
    }
    first: dict[str, float] = {}
    inexact = True
    for n in GRID[setting][::-1]:
        groups = given.draw(n, [seed, n])
        points = models_of(LocalERM(**without_penalty(given.fit)).fit(groups.federation))
        if n == GRID[setting][-1]:
            needed = thresholds(groups, points, n, setting)
        for name in list(waiting):
            if groups.recovers(waiting[name](points, groups.labels).labels):
                first[name] = n
            else:
                del waiting[name]
        inexact = inexact and _inexact_finds(groups, k, seed, given.fit)
        if inexact:
            first["inexact, K-means"] = n
        if not waiting and not inexact:
            break
    return [
        {"result": result, **needed[result], "measured": first.get(name, np.nan)}
        for result, (_, name) in RESULTS.items()
    ] + [{"result": "K-means++", "measured": first.get("K-means++", np.nan)}]


def _inexact_finds(groups: SitesOfKinds, k: int, seed: int, fit: dict[str, Any]) -> bool:
    from fedkin import ODCL

    model = ODCL(k, solver="sgd", n_steps=SGD_STEPS, aggregate="mean", random_state=seed, **fit)
    return groups.recovers(model.fit(groups.federation).labels_)


def thresholds(
    groups: SitesOfKinds, points: np.ndarray, n: int, setting: str
) -> dict[str, dict[str, float]]:
    """Rows needed by each result: with the paper's M, with M as the data have it, and by (4)."""
    from fedkin.inference import rows_needed

    separation = groups.separation()
    smallest = int(np.bincount(groups.labels).min())
    m = len(groups.labels)
    off = ((points - groups.site_coef) ** 2).sum(axis=1)
    # A site's mean squared error is about M / n; the theorems allow M log n / n.
    typical = float(n * off.mean())
    constants, conditioning = local_constants(groups, setting)
    found = {}
    for result, (clustering, _) in RESULTS.items():
        told: dict[str, Any] = {"n_sites": m, "smallest_cluster": smallest}
        exact = rows_needed(clustering, separation=separation, noise=1.0, **told)  # type: ignore[arg-type]
        if result == "Theorem 2":
            most = separation**2 / (16 * conditioning * exact.alpha**2)
            told |= {"precision": most / 2, "conditioning": conditioning}
        by = {
            name: rows_needed(clustering, separation=separation, noise=noise, **told).rows  # type: ignore[arg-type]
            for name, noise in (("bound", constants), ("bound, M measured", typical))
        }
        found[result] = {
            **by,
            "by (4)": condition_4(points, groups.labels, n, exact.alpha),
            "alpha": exact.alpha,
            "M": constants,
            "M measured": typical,
        }
    return found


def condition_4(points: np.ndarray, labels: np.ndarray, n: int, alpha: float) -> float:
    """Rows at which (4) would hold with this alpha: radii shrink like n^(-1/2) from those at n."""
    means = np.array([points[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
    radius = np.linalg.norm(points - means[labels], axis=1).max()
    between = np.linalg.norm(means[:, None] - means[None], axis=-1)
    least = between[np.triu_indices(len(means), 1)].min()
    return float(n * (alpha * radius / least) ** 2)


def local_constants(groups: SitesOfKinds, setting: str) -> tuple[float, float]:
    """M of appendix B.1 and xi, with the most favourable reading of the assumptions' constants.

    Gaussian features and noise are unbounded, so no finite L, N or G exist; means stand for them,
    and the parameter set is the smallest ball that holds the true models.
    """
    from fedkin.inference import local_error_constant

    X = groups.federation.X
    radius = float(np.linalg.norm(groups.coef, axis=1).max())
    length = float((X**2).sum(axis=1).mean())
    if setting == "D.1":
        # Logistic: curvature p (1 - p) x x', loss about its entropy; the intercept is a feature.
        rows = np.column_stack([X, np.ones(len(X))])
        truth = groups.site_coef[groups.federation.owner]
        p = 1.0 / (1.0 + np.exp(-np.einsum("nd,nd->n", rows, truth)))
        smoothness = (length + 1) / 4
        weight = p * (1 - p)
        kinds = [groups.labels[groups.federation.owner] == c for c in range(len(groups.coef))]
        curvature = [(rows[i].T * weight[i]) @ rows[i] / i.sum() for i in kinds]
        convexity = float(min(np.linalg.eigvalsh(c)[0] for c in curvature))
        loss = float(-(p * np.log(p) + (1 - p) * np.log1p(-p)).mean())
        gradient = float(np.sqrt((weight * (rows**2).sum(axis=1)).mean()))
        lipschitz = 2 * radius * float(max(np.linalg.eigvalsh(c)[-1] for c in curvature))
    else:
        # Least squares: gradient noise times x, curvature E x x' = (5 / 20) I.
        convexity = length / X.shape[1]
        smoothness, loss, gradient = length, 0.5, float(np.sqrt(length))
        lipschitz = 2 * radius * convexity
    d = groups.coef.shape[1]
    noise = local_error_constant(smoothness, convexity, d, radius, loss, gradient, lipschitz)
    return noise, lipschitz / convexity


# ------------------------------------------------------------------ figure and claims


def draw(results: Results) -> Figure:
    """Rows by each result, with M measured, by (4) and measured; one panel a setting."""
    from matplotlib.figure import Figure

    settings = results.distinct("setting")
    figure = Figure(figsize=(4 * len(settings) + 1, 4), layout="constrained")
    marks = (("bound", "ks"), ("bound, M measured", "b^"), ("by (4)", "gv"), ("measured", "ro"))
    panels = np.atleast_1d(figure.subplots(1, len(settings), sharey=True))
    for axes, setting in zip(panels, settings):
        for name, mark in marks:
            means = [results.estimate(name, setting=setting, result=r).mean for r in RESULTS]
            axes.plot(range(len(RESULTS)), means, mark, ms=7, label=name)
        axes.set(yscale="log", title=setting, xlim=(-0.5, len(RESULTS) - 0.5))
        axes.set_xticks(range(len(RESULTS)), list(RESULTS), fontsize=8)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="rows a site n")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def claims(results: Results) -> list[Claim]:
    """Each result and setting: the threshold beside the n that was enough."""
    found = []
    for setting in results.distinct("setting"):
        for result, words in WORDS.items():
            here = results.where(setting=setting, result=result)
            bound, data, by_4, ours = (
                here.estimate(name) for name in ("bound", "bound, M measured", "by (4)", "measured")
            )
            found.append(
                Claim(
                    f"{setting}: {words}",
                    f"n >= {bound.mean:.2g}",
                    ours,
                    "means for the constants, which Gaussian data do not have; c = 100",
                    f"{bound.mean / ours.mean:.1g} times too many; with M from the data "
                    f"{data.mean:.2g}; the proof's condition (4) alone (alpha = "
                    f"{here.estimate('alpha').mean:.3g}) {by_4.mean:.2g}",
                )
            )
        found.append(
            Claim(
                f"{setting}: K-means++, no theorem",
                "none",
                results.where(setting=setting, result="K-means++").estimate("measured"),
                "ten greedy starts",
            )
        )
    return found


def checks(results: Results) -> list[Check]:
    """Whether the thresholds are enough, and which clustering needs fewer rows."""
    ratio, convex, spectral = [], [], []
    for setting in results.distinct("setting"):
        for result in RESULTS:
            here = results.where(setting=setting, result=result)
            ratio.append(here.estimate("bound").mean / here.estimate("measured").mean)
        convex.append(results.estimate("measured", setting=setting, result="Lemma 1").mean)
        spectral.append(results.estimate("measured", setting=setting, result="Lemma 2").mean)
    told = ", ".join(
        f"{setting}: {a:.0f} and {b:.0f}"
        for setting, a, b in zip(results.distinct("setting"), convex, spectral)
    )
    return [
        Check(
            "so many rows are enough",
            min(ratio) >= 1,
            f"{min(ratio):.0e} to {max(ratio):.0e} times what was enough (means for constants that "
            "Gaussian data do not have)",
        ),
        Check(
            "convex clustering needs fewer rows than spectral K-means (c = 100)",
            all(a < b for a, b in zip(convex, spectral)),
            f"rows from which the partition is found: {told}",
        ),
    ]


STUDIES = (
    Study(
        name="odcl-bounds",
        paper="ODCL",
        shows="Theorems 1 to 3",
        title="rows a site needs by theory and in fact",
        protocol=(
            "The simulations of Figures 2 to 4. *Measured* is the least n of a grid from which on "
            "the true partition is found (for convex clustering with the penalty from (13), an "
            "oracle; models equal where proved so). Theorem 2 is evaluated at half the precision "
            f"it allows at most, measured with {SGD_STEPS} stochastic steps a site."
        ),
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        by=("setting", "result"),
        measures=("measured",),
        full=Size(cells(setting=tuple(GRID)), 20),
        quick=Size(cells(setting=tuple(GRID)), 3),
        toy=Size(cells(setting=("D.2",)), 1),
    ),
)
