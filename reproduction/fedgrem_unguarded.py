"""FedGrEM's algorithm as printed, nothing guarded: what lies between ours, the notes and Table 5.

Ours halves a gradient step that would diverge, begins at careful local fits and goes on until
nothing moves. Here is the printed algorithm without these, in code of its own, from starts as the
notes describe them; and with the central update left after one sweep, where Table 5 comes from.
Pooled fits begin at the fit of one site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reproduction import fedgrem_attacks, fedgrem_figure_3, fedgrem_steps
from reproduction.fedgrem_printed import printed
from reproduction.study import Claim, Results, Size, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedkin.datasets.fedgrem import SimulatedMixture

Floats = NDArray[np.float64]
# Weights (m, R) and components (m, R, d) of the sites alone, in one order.
Fits = tuple[Floats, Floats]

H = (0.0, 0.5, 1.0, 1.5, 2.0)
STEPS = (0.55, 0.95, 1.35)
# The notes' rule to stop.
ROUNDS, SMALL_CHANGE = 100, 2e-4
# Nothing else keeps a step that diverges from infinity.
BOUND = 1e6
# Where a run begins.
WARD, PLAIN = "Ward, common covariance", "plain k-means++"
FIVE, THIRTY, FEDERATED = "best of five", "best of thirty", "federated"
FIRST = "fit of the first site"


# ------------------------------------------------------------------ the algorithm


def unguarded(
    sim: SimulatedMixture, start: Fits, constant: float = 0.95, sweeps: int | None = None
) -> Floats:
    """Components (m, R, d) by Algorithm 1 with the penalties of B.1, from local fits.

    `sweeps` of the alternation make the central update; None solves it.
    """
    from fedkin.shrinkage import shrink_to_center

    clients, (weights, components) = sim.clients, start
    m, n = clients.n_clients, int(clients.sizes[0])
    X = clients.X.reshape(m, n, -1)
    y = None if clients.y is None else clients.y.reshape(m, n, 1)
    step = constant / np.maximum(weights, 1.0 / n)[..., None]
    how: dict[str, Any] = {"solver": "alternating", "passes": sweeps} if sweeps else {}
    penalty = 1.0
    for _ in range(ROUNDS):
        weights, gradient = _gradient(X, y, weights, components)
        penalty = 0.1 * penalty + 2.0 * np.sqrt(X.shape[2] + np.log(m))
        own = np.clip(components + step * gradient, -BOUND, BOUND)
        new = shrink_to_center(own, clients.sizes, penalty, **how).estimates
        change, components = np.abs(new - components).max(), new
        if change < SMALL_CHANGE:
            break
    return components


def _gradient(
    X: Floats, y: Floats | None, weights: Floats, components: Floats
) -> tuple[Floats, Floats]:
    """The weights after an E-step, and the mean gradient of the complete log likelihood."""
    from scipy.special import softmax

    fitted = X @ components.swapaxes(1, 2)
    with np.errstate(divide="ignore", over="ignore"):
        odds = np.log(weights)[:, None]
        if y is None:
            share = softmax(odds + fitted - (components**2).sum(axis=2)[:, None] / 2, axis=2)
            gradient = share.swapaxes(1, 2) @ X - share.sum(axis=1)[..., None] * components
        else:
            share = softmax(odds - (y - fitted) ** 2 / 2, axis=2)
            gradient = (share * (y - fitted)).swapaxes(1, 2) @ X
    return share.mean(axis=1), gradient / X.shape[1]


def pooled_gradient(sim: SimulatedMixture, start: Fits, step: float = 0.1) -> Floats:
    """Components (R, d) after gradient EM on all rows in one place, from the first site's fit."""
    clients, (weights, components) = sim.clients, (own[:1] for own in start)
    y = None if clients.y is None else clients.y[None, :, None]
    for _ in range(ROUNDS):
        weights, gradient = _gradient(clients.X[None], y, weights, components)
        components = components + step * gradient
    return components[0]


# ------------------------------------------------------------------ starts


def in_one_order(weights: Floats, components: Floats) -> Fits:
    """The sites' fits with their components aligned."""
    from fedkin.alignment import align

    order = align(components).permutations
    turned = np.take_along_axis(components, order[..., None], axis=1)
    return np.take_along_axis(weights, order, axis=1), turned


def plain_fits(sim: SimulatedMixture, seed: int, n_restarts: int = 10) -> Fits:
    """EM from ten plain k-means++ seedings at every site, the likeliest; ours seeds greedily."""
    from sklearn.cluster import kmeans_plusplus

    from fedkin.models.gaussian_mixture import Parameters, em_step, prepare
    from fedkin.models.latent_classes import best_restart, climb

    clients, R = sim.clients, sim.centers.shape[0]
    rng = np.random.RandomState(seed)
    seeds = np.array(
        [
            [
                kmeans_plusplus(own, R, random_state=rng, n_local_trials=1)[0]
                for _ in range(n_restarts)
            ]
            for own in np.split(clients.X, clients.offsets[1:-1])
        ]
    )
    first = Parameters(np.full(seeds.shape[:3], 1.0 / R), seeds)
    found = best_restart(climb(prepare(clients), first, em_step, 200, 1e-6)).parameters
    return in_one_order(found.weights, found.means)


def federated_fits(sim: SimulatedMixture, seed: int) -> Fits:
    """The shared start of regressions, ours, with every site's weights for it."""
    from fedkin import FedGrEM

    model = FedGrEM(5, family="regression", sigma=1.0, shrinkage="paper", init="federated")
    model.set_params(n_restarts=8, max_rounds=1, step_constant=1e-9, random_state=seed)
    model.fit(sim.clients)
    return model.weights_, model.coef_


# ------------------------------------------------------------------ replications


def one(seed: int, family: str, outliers: str, h: float) -> list[dict[str, Any]]:
    """Every run from the local fits of one draw, its largest and its mean error."""
    from reproduction.mixture_protocol import component_errors

    run = {"gaussian": gaussian, "regression": regression, "several outliers": several}[family]
    sim, found = run(seed, outliers, h)
    good = ~sim.outlier
    rows = []
    for (method, start, constant), components in found.items():
        fitted = np.broadcast_to(components, sim.components.shape)
        away, _ = component_errors(fitted[good], sim.components[good])
        head = {"method": method, "start": start, "C_eta": constant}
        rows.append({**head, "theta_max": float(away.max()), "theta_mean": float(away.mean())})
    return rows


# Components (m, R, d), or (R, d) for all, by method, start and step.
Found = dict[tuple[str, str, float], Floats]


def gaussian(seed: int, outliers: Any, h: float) -> tuple[SimulatedMixture, Found]:
    """From Ward's clusters and EM with a common covariance, and from k-means++."""
    from fedkin import LocalEM, PooledEM
    from fedkin.datasets import make_gaussian_mixtures

    sim = make_gaussian_mixtures(heterogeneity=h, variant=outliers, random_state=seed)
    local = LocalEM(5, init="ward", covariance_type="tied", random_state=seed).fit(sim.clients)
    ward, plain = in_one_order(local.weights_, local.means_), plain_fits(sim, seed)
    found: Found = {}
    for constant in STEPS:
        found["one sweep", WARD, constant] = unguarded(sim, ward, constant, 1)
        found["two sweeps", WARD, constant] = unguarded(sim, ward, constant, 2)
        found["exact", PLAIN, constant] = unguarded(sim, plain, constant)
    found["two sweeps", PLAIN, 0.95] = unguarded(sim, plain, 0.95, 2)
    pooled = PooledEM(5, step="gradient", init=ward[1][0]).fit(sim.clients)
    found["Pooled-GrEM", FIRST, 0.95] = pooled.means_
    return sim, found


def several(seed: int, outliers: str, h: float) -> tuple[SimulatedMixture, Found]:
    """More outlier sites of the text, from the likeliest of five local fits: the attack table."""
    from fedkin import LocalEM
    from fedkin.datasets import make_gaussian_mixtures

    bad = int(outliers.split()[0])
    sim = make_gaussian_mixtures(heterogeneity=h, n_outliers=bad, random_state=seed)
    local = LocalEM(5, n_restarts=5, random_state=seed).fit(sim.clients)
    start = in_one_order(local.weights_, local.means_)
    return sim, {("two sweeps", FIVE, 0.55): unguarded(sim, start, 0.55, 2)}


def regression(seed: int, outliers: Any, h: float) -> tuple[SimulatedMixture, Found]:
    """From the likeliest of thirty local fits, and from the federated start."""
    from fedkin import FedEM, LocalEM, PooledEM
    from fedkin.datasets import make_regression_mixtures

    sim = make_regression_mixtures(heterogeneity=h, variant=outliers, random_state=seed)
    same: dict[str, Any] = {"family": "regression", "sigma": 1.0, "random_state": seed}
    local = LocalEM(5, n_restarts=30, **same).fit(sim.clients)
    alone, shared = in_one_order(local.weights_, local.coef_), federated_fits(sim, seed)
    averaged = FedEM(5, init="kmeans++", n_restarts=30, **same).fit(sim.clients)
    pooled = PooledEM(5, init=alone[1][0], **same).fit(sim.clients)
    return sim, {
        ("Local-EM", THIRTY, 1.0): local.coef_,
        ("FedEM", THIRTY, 1.0): averaged.coef_,
        ("Pooled-EM", FIRST, 1.0): pooled.coef_,
        ("Pooled-GrEM", FIRST, 0.1): pooled_gradient(sim, alone),
        ("two sweeps", THIRTY, 0.95): unguarded(sim, alone, 0.95, 2),
        ("exact", THIRTY, 0.95): unguarded(sim, alone, 0.95),
        ("two sweeps", FEDERATED, 0.95): unguarded(sim, shared, 0.95, 2),
        ("exact", FEDERATED, 0.95): unguarded(sim, shared, 0.95),
    }


# ------------------------------------------------------------------ figure


def draw(results: Results) -> Figure:
    """Table 5 as printed beside one and two sweeps; regressions beside the notes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    panels = figure.subplots(1, 3)
    table = printed(5)
    shown = sorted({float(h) for _, h in table})
    for axes, constant in zip(panels, (0.55, 0.95)):
        values = [float(table[f"{constant:.2f}", f"{h:g}"].split()[0]) for h in shown]
        axes.plot(shown, values, "k-", label="Table 5, printed")
        for outliers, line in (("text", "-"), ("script", ":")):
            for method, color in (("one sweep", "tab:orange"), ("two sweeps", "tab:red")):
                where = {"outliers": outliers, "method": method, "start": WARD}
                x, error = results.curve("h", "theta_max", C_eta=constant, **where)
                axes.plot(x, error, "o" + line, ms=4, color=color, label=f"{method}, {outliers}")
        axes.set(title=f"Gaussians, C_eta = {constant:g}", xlabel="h", ylim=(0, 2.6))
    panels[0].set_ylabel("largest error of components")
    panels[0].legend(fontsize=7)
    axes = panels[2]
    for (method, start), color in zip(
        (m for m in NOTED_REGRESSIONS if m[0] in ("two sweeps", "exact")),
        ("tab:red", "tab:blue", "tab:orange", "tab:cyan"),
    ):
        where = {"family": "regression", "method": method, "start": start}
        axes.plot(
            *results.curve("h", "theta_max", **where),
            "o-",
            ms=4,
            color=color,
            label=f"{method}, {start}",
        )
        axes.plot(H[::2], NOTED_REGRESSIONS[method, start], "x", color=color)
    axes.set(title="regressions (crosses: noted)", xlabel="h", ylim=(0, None))
    axes.legend(fontsize=7)
    return figure


# ------------------------------------------------------------------ claims

# Largest error by independent code over 30 replications at h = 0, .5, 1, 1.5 (and 2), and where
# it was noted the standard deviation over them, by outliers, method, start and step.
Noted = tuple[tuple[float | None, ...], tuple[float, ...]]
ALIKE = fedgrem_figure_3.NOTED["gaussian"]
NOTED: dict[tuple[str, str, str, float], Noted] = {
    **{
        ("text", "two sweeps", WARD, step): (tuple(m for m, _ in both), tuple(sd for _, sd in both))
        for step, both in fedgrem_steps.NOTED.items()
    },
    ("script", "two sweeps", WARD, 0.55): ((1.03, 1.28, 1.56, 1.73), (0.26, 0.33, 0.76, 0.80)),
    ("script", "two sweeps", WARD, 0.95): ((0.87, 1.08, 1.16, 1.49), (0.36, 0.46, 0.37, 1.06)),
    ("script", "two sweeps", WARD, 1.35): ((0.99, 1.25, 1.41, 1.45), (0.62, 1.32, 1.09, 1.11)),
    ("text", "exact", PLAIN, 0.55): ((0.34, 0.72, 1.21, 1.61), (0.15, 0.07, 0.18, 0.71)),
    ("text", "exact", PLAIN, 0.95): (ALIKE["FedGrEM, exact"], (0.31, 0.19, 0.31, 0.92)),
    ("text", "exact", PLAIN, 1.35): ((1.01, 0.90, 1.06, 1.34), (0.91, 0.27, 0.37, 1.00)),
    ("text", "two sweeps", PLAIN, 0.95): (ALIKE["FedGrEM, two sweeps"], ()),
    ("text", "Pooled-GrEM", FIRST, 0.95): (ALIKE["Pooled-GrEM"], ()),
}
AT_TWO = "a start that failed in the note: with thirty restarts it has 1.30"
SHARED_FAILS = "for large h the shared start fails in some draws, and ten were noted"
# Of the attack table, over 10 replications.
NOTED_SEVERAL = {
    f"{bad} of 10": fedgrem_attacks.NOTED["outliers as in the paper", bad][0] for bad in (1, 2, 3)
}
# For regressions over 10 replications at h = 0, 1, 2.
MIXED = {name: noted[::2] for name, noted in fedgrem_figure_3.NOTED["regression"].items()}
NOTED_REGRESSIONS: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("Local-EM", THIRTY): MIXED["Local-EM"],
    ("FedEM", THIRTY): MIXED["FedEM"],
    ("Pooled-EM", FIRST): MIXED["Pooled-EM"],
    ("Pooled-GrEM", FIRST): MIXED["Pooled-GrEM"],
    ("two sweeps", THIRTY): MIXED["FedGrEM, two sweeps"],
    ("exact", THIRTY): MIXED["FedGrEM, exact"],
    ("two sweeps", FEDERATED): (2.17, 2.82, 4.11),
    ("exact", FEDERATED): MIXED["FedGrEM, exact, federated start"],
}


def claims(results: Results) -> list[Claim]:
    """Table 5 beside one sweep; everything the notes have beside the same, unguarded."""
    found = [_of_table_5(results, step, h) for step, h in printed(5)]
    gaussians, regressions = (results.where(family=f) for f in ("gaussian", "regression"))
    for (outliers, method, start, step), (means, spreads) in NOTED.items():
        for h, noted, spread in zip(H, means, [*spreads, *[None] * len(H)]):
            run = gaussians.where(outliers=outliers, method=method, start=start, C_eta=step, h=h)
            entry = f"outliers of the {outliers}, {method}, {start}, {step:g}, h = {h:g}"
            apart = AT_TWO if h == 2 and start == PLAIN else ""
            found.append(_beside(entry, run, noted, 30, spread, apart))
    for outliers, noted in NOTED_SEVERAL.items():
        run = results.where(family="several outliers", outliers=outliers)
        found.append(_beside(f"outliers {outliers}, two sweeps, {FIVE}, .55", run, noted, 10))
    for (method, start), values in NOTED_REGRESSIONS.items():
        for h, noted in zip(H[::2], values):
            run = regressions.where(method=method, start=start, h=h)
            entry = f"regressions, {method}, {start}, h = {h:g}"
            apart = SHARED_FAILS if start == FEDERATED else ""
            found.append(_beside(entry, run, noted, 10, apart=apart))
    return [claim for claim in found if isinstance(claim.ours, str) or claim.ours.n]


def _of_table_5(results: Results, step: str, h: str) -> Claim:
    run = results.where(method="one sweep", start=WARD, C_eta=float(step), h=float(h))
    text, script = (run.where(outliers=v).estimate("theta_max") for v in ("text", "script"))
    return Claim(
        f"Table 5, C_eta {step}, h = {h}, one sweep",
        printed(5)[step, h],
        text,
        "start stands in for mclust's",
        f"with outliers as in the paper's script {script}",
    )


def _beside(
    entry: str,
    run: Results,
    noted: float | None,
    n: int,
    spread: float | None = None,
    apart: str = "",
) -> Claim:
    return Claim(
        entry,
        "not in the paper",
        run.estimate("theta_max"),
        "start is a guess: not noted" if FIRST in entry else "as noted",
        noted=noted,
        noted_n=n,
        noted_sd=spread,
        apart=apart,
    )


def _cells(h_gaussian: tuple[float, ...], h_regression: tuple[float, ...]) -> list[dict[str, Any]]:
    gaussians = [
        {"family": "gaussian", "outliers": outliers, "h": h}
        for outliers in ("text", "script")
        for h in h_gaussian
    ]
    regressions = [{"family": "regression", "outliers": "text", "h": h} for h in h_regression]
    several = [{"family": "several outliers", "outliers": n, "h": 0.5} for n in NOTED_SEVERAL]
    return gaussians + regressions + several


STUDIES = (
    Study(
        name="fedgrem-unguarded",
        paper="FedGrEM",
        shows="what guards do",
        title="the algorithm as printed, without our guards",
        protocol=(
            "Sites as in Figure 3, outliers as in the paper's text or script. The printed "
            "algorithm in code of its own: no step is halved, at most 100 rounds, a central "
            "update of one sweep, of two, or solved. Starts as the notes describe them. "
            "Pooled-EM and Pooled-GrEM begin at the fit of the first site and go to their end, but "
            "Pooled-GrEM for regressions makes 100 steps of .1, which do not arrive. One sweep "
            "gives Table 5's level at h = 0; the rest of its rise with h comes with a spread of .5 "
            "to .8 over replications, ours has .1 to .2, which suggests failed starts. One sweep "
            "and the pooled fits' starts and steps were picked among several that were tried: "
            "agreement there is a fit, not independent evidence."
        ),
        one=one,
        figure=draw,
        claims=claims,
        by=("family", "outliers", "h", "method", "start", "C_eta"),
        measures=("theta_max", "theta_mean"),
        full=Size(_cells(H, H[::2]), 30),
        quick=Size(_cells((0.0, 1.0), (0.0,)), 3),
        toy=Size(_cells((0.0,), (0.0,)), 1),
    ),
)
