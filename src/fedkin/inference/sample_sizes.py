"""How many rows a site needs before ODCL is guaranteed to find the clusters (Armacki et al. 2024).

All results have one form: the sites' models must be alpha times closer to their cluster's truth
than half the clusters' separation, which a site with n rows achieves when

    n / log n > threshold.

| result | alpha or threshold | here |
|---|---|---|
| Theorem 1 | 16 M alpha^2 / D^2 | what the lemmas specialise |
| Lemma 1, convex clustering | alpha = 4 (m - smallest) / smallest | `clustering="convex"` |
| Lemma 2, spectral K-means | alpha = 2 + 2 c sqrt(m / smallest) | `clustering="kmeans"` |
| Theorem 2, inexact local fits | 4 M / (D^2 / 4 alpha^2 - 4 eps xi) | `precision`, `conditioning` |
| Theorem 3, spectral part I | 64 c^2 m mean(M) / (D^2 smallest) | `"spectral part I"` |

D is the least distance of two clusters' models, `smallest` the sites in the smallest cluster, M the
constant of the bound |own - true|^2 <= M log n / n of a site's fit, c >= 100. Read here as the
proofs have them: in section 4.2 and Table 1 the K-means term is printed with the smallest cluster's
size squared, and in 4.5 alpha lacks a root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

SPECTRAL_CONSTANT = 100.0
LEAST_ROWS = 3

Clustering = Literal["convex", "kmeans", "spectral part I"]


@dataclass(frozen=True)
class RowsNeeded:
    """Rows that a theorem asks of every site, the threshold of n / log n behind them, and why."""

    rows: float
    threshold: float
    alpha: float
    why: str

    def __str__(self) -> str:
        return self.why


def rows_needed(
    clustering: Clustering,
    n_sites: int,
    smallest_cluster: int,
    separation: float,
    noise: float,
    *,
    precision: float = 0.0,
    conditioning: float = 1.0,
    constant: float = SPECTRAL_CONSTANT,
) -> RowsNeeded:
    """Rows a site needs, by Theorem 1 with Lemma 1 or 2, Theorem 2, or Theorem 3.

    Parameters
    ----------
    clustering : "convex", "kmeans" or "spectral part I"
        Whose guarantee it is.
    n_sites : int
        Number of sites m.
    smallest_cluster : int
        Sites in the smallest cluster.
    separation : float
        D, the least distance of two clusters' models.
    noise : float
        M (for Theorem 3 its mean over sites): a site's squared error is at most M log n / n.
        `local_error_constant` gives the paper's value; from data, n times the trace of a site's
        sampling covariance is what it would be without the worst case.
    precision : float
        eps, the accuracy of inexact local fits (Theorem 2); 0 for exact ones.
    conditioning : float
        xi, the largest ratio of a cluster loss's Lipschitz and convexity constants.
    constant : float
        c of the spectral bounds.
    """
    if not 1 <= smallest_cluster <= n_sites:
        raise ValueError(f"smallest_cluster must lie between 1 and {n_sites} sites")
    if not (separation > 0 and noise > 0):
        raise ValueError("separation and noise must be positive")
    if clustering == "spectral part I" and precision > 0:
        raise ValueError("Theorem 3 is about exact local fits: precision must be 0")
    alpha = _alpha(clustering, n_sites, smallest_cluster, constant)
    if clustering == "spectral part I":
        threshold = 64 * constant**2 * n_sites * noise / (separation**2 * smallest_cluster)
    else:
        room = separation**2 / (4 * alpha**2) - 4 * precision * conditioning if alpha else np.inf
        if room <= 0:
            most = separation**2 / (16 * conditioning * alpha**2)
            why = (
                f"No number of rows is enough: local fits must be more precise than {most:.3g}, "
                f"the clusters' separation {separation:.3g} over 4 alpha = {4 * alpha:.3g}, "
                "squared and divided by the conditioning."
            )
            return RowsNeeded(np.inf, np.inf, alpha, why)
        threshold = 4 * noise / room
    rows = _invert(threshold)
    return RowsNeeded(rows, threshold, alpha, _why(clustering, rows, alpha, noise, separation))


def local_error_constant(
    smoothness: float,
    convexity: float,
    n_features: int,
    radius: float,
    loss_at_truth: float,
    gradient_bound: float,
    lipschitz: float,
) -> float:
    """The constant M that bounds a site's error (appendix B.1), from the paper's assumptions.

    Parameters
    ----------
    smoothness : float
        L, of the loss of one row.
    convexity : float
        mu_F, of the expected loss.
    n_features : int
        Dimension d of the models.
    radius : float
        R, of the set of models.
    loss_at_truth : float
        F(theta*), the expected loss of the true model.
    gradient_bound : float
        N, the largest gradient of a row's loss at the true model.
    lipschitz : float
        G_F, of the expected loss.
    """
    log_2 = np.log(2.0)
    covering = n_features * (np.log(6 * radius) + 3)
    return float(
        16 * smoothness * loss_at_truth * (log_2 + 3) / convexity**2
        + 64 * radius**2 * smoothness * (3 + log_2 + covering) / convexity
        + 16 * radius * gradient_bound * (log_2 + 3) / convexity
        + (2 * lipschitz + 16 * radius * smoothness * (4 + log_2 + covering)) / convexity
    )


def _alpha(clustering: Clustering, n_sites: int, smallest: int, constant: float) -> float:
    if clustering == "convex":
        return 4.0 * (n_sites - smallest) / smallest
    root = 2.0 * constant * float(np.sqrt(n_sites / smallest))
    if clustering == "kmeans":
        return 2.0 + root
    if clustering == "spectral part I":
        return root
    raise ValueError(f"clustering must be convex, kmeans or spectral part I, not {clustering!r}")


def _invert(threshold: float) -> float:
    """The least whole n >= 3 with n / log n above the threshold (increasing from e on)."""
    from scipy.special import lambertw

    if LEAST_ROWS / np.log(LEAST_ROWS) > threshold:
        return float(LEAST_ROWS)
    # n / log n = t where n = -t W(-1 / t), on the lower branch.
    root = -threshold * float(np.real(lambertw(-1.0 / threshold, k=-1)))
    n = max(float(LEAST_ROWS), np.floor(root) - 1.0)
    while n / np.log(n) <= threshold:
        n += max(1.0, np.floor(n * 1e-15))
    return n


def _why(clustering: Clustering, rows: float, alpha: float, noise: float, separation: float) -> str:
    typical = 4 * noise / separation**2
    reason = {
        "convex": "it asks for one penalty that keeps every site of a cluster together and every "
        "two clusters apart, interval (13), while rules that read the whole path need no such "
        "penalty",
        "kmeans": "its constant c >= 100 covers the worst arrangement of points, which sites' "
        "models, scattered evenly around their cluster, are far from",
        "spectral part I": "its constant c >= 100 covers the worst arrangement of points",
    }[clustering]
    return (
        f"{rows:,.0f} rows a site guarantee it (alpha = {alpha:.3g}). This is pessimistic: "
        f"{reason}; and M bounds the worst site with probability 1 - 2 / n^3, not the typical one. "
        f"Clusters are as a rule told apart once a site's own error is below half their distance, "
        f"n / log n of about {typical:.3g}."
    )
