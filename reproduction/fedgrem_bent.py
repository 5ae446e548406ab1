"""FedGrEM's simulation with covariances that differ by group and by site, and known labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

FOUND, FLOOR = "FedGrEM, full", "FedGrEM, full, labels known"
# Variances of a group's own axes; degrees of freedom beyond the least of a site's covariance.
VARIANCES, BEYOND = (0.3, 2.0), 30.0
# How far above the floor an error may be.
ABOVE = 1.1
MEASURES = ("theta_mean", "theta_max", "covariance")


def bent(seed: int, h: float) -> tuple[Any, np.ndarray]:
    """A draw of the paper's design with rows bent about their means, and covariances (m, R, d, d).

    Each group has axes and variances of its own; a site's covariance is inverse Wishart about them.
    Rows of the outlier site stay as they are.
    """
    from dataclasses import replace

    from scipy.stats import invwishart, ortho_group

    from fedkin.datasets import make_gaussian_mixtures

    sim = make_gaussian_mixtures(heterogeneity=h, random_state=seed)
    rng = np.random.default_rng([14, seed])
    m, n_groups, d = sim.components.shape
    covariances = np.empty((m, n_groups, d, d))
    for r in range(n_groups):
        axes = ortho_group.rvs(d, random_state=rng)
        common = (axes * rng.uniform(*VARIANCES, size=d)) @ axes.T
        law = invwishart(BEYOND + d + 1, BEYOND * common)
        covariances[:, r] = law.rvs(m, random_state=rng)
    roots, owner, label = np.linalg.cholesky(covariances), sim.clients.owner, sim.labels
    good = label >= 0
    mean = sim.components[owner[good], label[good]]
    X = sim.clients.X.copy()
    bent_by = roots[owner[good], label[good]]
    X[good] = mean + (bent_by @ (X[good] - mean)[..., None])[..., 0]
    return replace(sim, clients=replace(sim.clients, X=X)), covariances


def covariance_error(found: np.ndarray, truth: np.ndarray, order: np.ndarray) -> float:
    """Mean distance of covariances in the order of their means, as a share of the true ones'."""
    own = np.take_along_axis(found, order[:, :, None, None], axis=1)
    away = np.linalg.norm(own - truth, axis=(2, 3)) / np.linalg.norm(truth, axis=(2, 3))
    return float(away.mean())


def draws(seed: int, h: float) -> list[dict[str, Any]]:
    """Errors of means and covariances at honest sites, found and with all labels known there."""
    from fedkin import FedGrEM
    from reproduction.mixture_protocol import component_errors, errors

    sim, covariances = bent(seed, h)
    names = np.array(sim.clients.names)[sim.clients.owner]
    who, rows = ~sim.outlier, []
    for method, label in ((FOUND, None), (FLOOR, sim.labels)):
        model = FedGrEM(5, covariance_type="full", random_state=seed)
        model.fit(sim.clients.X, label, groups=names)
        order = component_errors(model.means_[who], sim.components[who])[1]
        away = covariance_error(model.covariance_[who], covariances[who], order)
        found = errors(model.means_, model.weights_, sim)
        rows.append({"method": method, **found, "covariance": away})
    return rows


def promises(results: Results) -> list[Promise]:
    """Within a tenth of what known labels give."""
    words = {
        "theta_mean": "mean error of means",
        "theta_max": "largest error of means",
        "covariance": "error of covariances",
    }
    return [
        Promise(
            f"covariances by group and site, h = {h:g}: {words[measure]} over that with labels",
            results.estimate(measure, h=h, method=FOUND).mean
            / results.estimate(measure, h=h, method=FLOOR).mean,
            most=ABOVE,
        )
        for h in DISTANCES
        for measure in MEASURES
    ]


DISTANCES = (0.0, 1.0, 2.0)
STUDIES = (
    Study(
        name="fedgrem-bent-sites",
        paper="fedkin",
        shows="covariances",
        title="FedGrEM's simulation with covariances that differ by group and site",
        protocol=(
            "The design of the paper's Figure 3 (ten sites of 150 rows, five groups, ten features, "
            "one outlier site), each group with axes and variances of its own (uniform from "
            f"{VARIANCES[0]:g} to {VARIANCES[1]:g}), each site's covariance inverse Wishart about "
            f'its group\'s, as from {BEYOND:g} rows. FedGrEM(5, covariance_type="full") without '
            "labels and with those of the nine honest sites. *theta_mean*, *theta_max*: distances "
            "of means at honest sites; *covariance*: distance over the true covariance's size."
        ),
        one=draws,
        figure=partial(dots, by=("h", "method"), measures=MEASURES),
        promises=promises,
        by=("h", "method"),
        measures=MEASURES,
        full=Size(cells(h=DISTANCES), 20),
        quick=Size(cells(h=DISTANCES), 2),
        toy=Size(cells(h=(1.0,)), 1),
    ),
)
