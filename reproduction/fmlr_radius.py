"""FMLR, Assumption 4.1: how far from the truth EM may start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A fit has succeeded when its error is at most this multiple of that with labels known.
SUCCESS = 2.0
# Assumption 4.1, in least separations.
LIMIT = 0.25
RADII = (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0)
SHOWN = (0.2, 1.0, 2.0)


def one(seed: int, components: int, radius: float) -> list[dict[str, Any]]:
    """EM with known noise and equal weights from a start this far away."""
    from fedkin import FMLR
    from fedkin.datasets import make_regression_groups
    from fedkin.datasets.fmlr import PAPER_COEF

    coef = PAPER_COEF[components]
    drawn = make_regression_groups(300, 10, coef, random_state=[45, components, seed])
    start = drawn.nearby(radius * drawn.separation(), seed)
    tol = 1e-6 / np.linalg.norm(coef, axis=1).max()
    model = FMLR(components, init=start, sigma=1.0, weights="uniform", fit_intercept=False, tol=tol)
    error = drawn.error(model.fit(drawn.federation).coef_)
    known = drawn.error(drawn.known_labels_coef())
    return [{"success": error <= SUCCESS * known, "iterations": model.n_iter_}]


def draw(results: Results) -> Figure:
    """Success and iterations against the distance of the start."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for panel, measure in zip(figure.subplots(1, 2), ("success", "iterations")):
        for components, marker in zip(results.distinct("components"), "os"):
            found = results.curve("radius", measure, components=components)
            panel.plot(*found, marker + "-", label=f"K = {components}")
        panel.axvline(LIMIT, color="k", ls="--", lw=1, label="Assumption 4.1")
        panel.set(xlabel="distance of the start / least separation", ylabel=measure)
        panel.set_ylim(0, 1.05 * panel.get_ylim()[1])
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    return figure


def claims(results: Results) -> list[Claim]:
    """Some starts, then success at all radii in one row."""
    found = []
    for components in results.distinct("components"):
        run = results.where(components=components)
        for measure in ("success", "iterations"):
            found += [
                Claim(
                    f"K = {components}, start at {radius:g}: {measure}",
                    "success" if radius < LIMIT else "start not covered",
                    run.estimate(measure, radius=radius),
                    "yes",
                )
                for radius in SHOWN
                if radius in run.distinct("radius")
            ]
        radii, success = run.curve("radius", "success")
        told = ", ".join(f"{radius:g}: {share:.2f}" for radius, share in zip(radii, success))
        found.append(Claim(f"K = {components}: success by start", "to 0.25", told, "yes"))
    return found


def checks(results: Results) -> list[Check]:
    """A start within a quarter of the least separation is enough; is it needed?"""
    success = {r: results.estimate("success", radius=r).mean for r in results.distinct("radius")}
    near = [share for radius, share in success.items() if radius < LIMIT]
    far = max((r for r, share in success.items() if share == 1), default=0.0)
    return [
        Check(
            "a start within a quarter of the least separation is enough",
            min(near) == 1,
            f"success in {min(near):.0%} of draws; all succeed up to {far:g} of the separation",
        )
    ]


STUDIES = (
    Study(
        name="fmlr-start-radius",
        paper="FMLR",
        shows="Assumption 4.1",
        title="how far away EM may start",
        protocol="Truths of Figures 1 and 3, m = 300, n = 10, noise and equal weights known, EM "
        "stopped when no regression moves by 1e-6; the start has every regression at the stated "
        "share of the least separation from its truth, in a random direction. Success: error at "
        "most twice that of least squares with known labels.",
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        by=("components", "radius"),
        measures=("success", "iterations"),
        full=Size(cells(components=(3, 6), radius=RADII), 200),
        quick=Size(cells(components=(3, 6), radius=RADII), 40),
        toy=Size(cells(components=(3,), radius=(0.2, 1.0)), 5),
    ),
)
