"""FedGMM (Wu et al., ICML 2023) for regressions: shared components of x and of y given x.

| paper | here |
|---|---|
| M_1, components of the inputs | `n_input_components` (3, as FedGrEM's authors set it) |
| M_2, models of y given x | `n_components` |
| pi_c(m_1, m_2) | pair weights of a site; they stay there |
| mu, Sigma; theta | `centers`, `covariances`; `components` |

Where we differ from the paper
- Models of y given x are linear regressions with one noise, so the M-step is exact: weighted sums
  are added over sites in place of stochastic gradients.
- Local fits of the regressions, aligned, are the start, as in FedGrEM's experiments, or given
  coefficients, or the federated start. Components of x start around the mean of all rows.
- A stopping rule instead of a number of rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.algorithms import fedem, mixture_desk, mixture_starts, mixtures
from fedkin.algorithms.mixture_family import Family
from fedkin.algorithms.mixtures import LOGLIK, ROWS
from fedkin.models import joint_mixture as joint
from fedkin.models import regression_mixture as regression
from fedkin.models.least_squares import residual_coefficients
from fedkin.protocol import Algorithm, Ask, Field, Program, Replies, Roster, Settings, Step

Floats = NDArray[np.float64]

DEFAULTS: dict[str, Any] = {
    **mixtures.DEFAULTS,
    "family": "regression",
    "align": "auto",
    "shared_noise": True,
    "n_input_components": 3,
}
# Eigenvalues of a covariance of x are at least this share of the rows' mean variance.
SMALLEST_EIGENVALUE_SHARE = 1e-6

# ------------------------------------------------------------------ what may leave a client

MOMENTS = Field(("M", "v"), "weights, rows and products of x, weighted by responsibility, added up")
SUMS = Field(("R", "q"), "products of features and outcome, weighted by responsibility, added up")
INPUTS = {
    "centers": Field(("M", "d"), "centres of x"),
    "covariances": Field(("M", "d", "d"), "covariances of x"),
    "components": Field(("R", "p"), "coefficients shared by all sites"),
    "noise": Field((), "noise shared by all sites"),
}
SPREAD = Field(("v",), "number of rows, sums and sums of products of x")


# ------------------------------------------------------------------ client functions


def _spread(clients, cache, settings, common, personal, memory, keys):
    """Sums that tell mean and covariance of all rows' x."""
    X, m = clients.X, len(clients)
    squares = (X[:, :, None] * X[:, None]).reshape(len(X), X.shape[1] ** 2)
    table = np.concatenate([np.ones((len(X), 1)), X, squares], axis=1)
    sums = [table[_rows(clients, k)].sum(axis=0) for k in range(m)]
    return {"moments": np.array(sums).reshape(m, -1)}, memory


def _expect(clients, cache, settings, common, personal, memory, keys):
    """The E-step with the site's own pair weights; sums leave, weights stay."""
    return _pairs(clients, settings, common, memory, ("rows", "loglik", "moments", "sums"))


def _settle(clients, cache, settings, common, personal, memory, keys):
    """The site's final weights; only the likelihood leaves."""
    return _pairs(clients, settings, common, memory, ("loglik",))


def _pairs(clients, settings, common, memory, fields):
    m, n_inputs, n_components = len(clients), len(common["centers"]), len(common["components"])
    weights = np.full((m, n_inputs, n_components), 1.0 / (n_inputs * n_components))
    if memory is not None and "pairs" in memory:
        weights = memory["pairs"]
    shared = joint.Shared(
        common["centers"], common["covariances"], common["components"], float(common["noise"])
    )
    found = []
    for k in range(m):
        some = _rows(clients, k)
        X, y = clients.X[some], clients.y[some]
        Z = np.concatenate([X, np.ones((len(X), 1))], axis=1) if settings["fit_intercept"] else X
        found.append(joint.expect(X, Z, y, weights[k], shared))
    counts = np.array([sums.pairs for sums in found]).reshape(weights.shape)
    total = counts.sum(axis=(1, 2), keepdims=True)
    pairs = np.where(total > 0, counts / np.where(total > 0, total, 1.0), weights)
    reply = {
        "rows": clients.sizes.astype(float),
        "loglik": np.array([sums.loglik for sums in found]),
        "moments": np.array([sums.moments for sums in found]),
        "sums": np.array([sums.packed for sums in found]),
    }
    kept = {**(memory or {}), "pairs": pairs, "weights": pairs.sum(axis=1)}
    return {name: reply[name] for name in fields}, kept


def _rows(clients, k):
    return slice(clients.offsets[k], clients.offsets[k + 1])


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: Settings) -> Program:
    """Start the regressions and the components of x; then sums in, shared parameters out."""
    if settings["family"] != "regression":
        raise ValueError(
            "FedGMM models an outcome y beside x: family='regression'. For Gaussian mixtures use "
            "FedEM, TGMM or FedGrEM"
        )
    desk = yield from mixture_desk.begin(fedem.PlainDesk, roster, settings)
    desk.combine(0)
    spread = yield Ask("spread_of_x", note="spread of x")
    shared, smallest = _first(desk, spread.total("moments"), settings, roster.seed)
    tables: dict[str, Floats] = {}
    history: list[float] = []
    converged, at_rest = False, 0
    for _ in range(settings["max_rounds"]):
        replies = yield Ask("expect", _message(shared), fraction=settings["fraction"], note="EM")
        desk.heard[replies.clients] = True
        desk.rows[replies.clients] = replies["rows"]
        _keep(tables, replies, len(roster))
        new = _maximise(tables, shared, smallest, settings)
        moved = np.abs(new.coef - shared.coef).max() / max(np.abs(new.coef).max(), 1e-300)
        history.append(float(moved))
        shared = new
        at_rest = at_rest + 1 if moved <= settings["tol"] else 0
        if at_rest >= mixture_desk.rounds_at_rest(settings):
            converged = True
            break
    replies = yield Ask("settle", _message(shared), note="sites settle their weights")
    desk.centers = shared.coef
    desk.shared = np.tile(shared.coef, (len(roster), 1, 1))
    desk.noise = np.array([shared.sigma])
    result = desk.result(replies, np.array(history), converged)
    return {**result, "input_centers": shared.centers, "input_covariances": shared.covariances}


def _first(
    desk: mixture_desk.Desk, moments: Floats, settings: Settings, seed: int
) -> tuple[joint.Shared, float]:
    """Centres of x drawn about the mean of all rows, each with the covariance of all rows."""
    assert desk.centers is not None
    n, rest = max(moments[0], 1.0), moments[1:]
    d = int(np.sqrt(len(rest) + 0.25))
    mean = rest[:d] / n
    covariance = rest[d:].reshape(d, d) / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    smallest = SMALLEST_EIGENVALUE_SHARE * max(float(values.mean()), np.finfo(float).tiny)
    root = vectors * np.sqrt(np.maximum(values, smallest))
    n_inputs = settings["n_input_components"]
    drawn = np.random.default_rng([seed, 0x1A9C]).normal(size=(n_inputs, d))
    noise = settings["sigma"] or (float(desk.noise[0]) if desk.noise.size else 1.0)
    covariances = np.tile(root @ root.T, (n_inputs, 1, 1))
    return joint.Shared(mean + drawn @ root.T, covariances, desk.centers, noise), smallest


def _keep(tables: dict[str, Floats], replies: Replies, m: int) -> None:
    """The last sums of every site: those who are not heard keep their place."""
    for name in ("sums", "moments"):
        whole = tables.setdefault(name, np.zeros((m, *replies[name].shape[1:])))
        whole[replies.clients] = replies[name]


def _maximise(
    tables: dict[str, Floats], shared: joint.Shared, smallest: float, settings: Settings
) -> joint.Shared:
    sums, moments = tables["sums"].sum(axis=0), tables["moments"].sum(axis=0)
    coef = Family(settings).pooled(sums, shared.coef)
    sigma = settings["sigma"]
    if sigma is None:
        left = np.maximum((residual_coefficients(coef) * sums).sum(), 0.0)
        squares = sums[:, -2].sum() / max(sums[:, -1].sum(), 1.0)
        floor = regression.SMALLEST_NOISE_SHARE * (squares or 1.0)
        sigma = float(np.sqrt(max(left / max(sums[:, -1].sum(), 1.0), floor)))
    return joint.Shared(*joint.maximise_x(moments, shared, smallest), coef, float(sigma))


def _message(shared: joint.Shared) -> dict[str, Floats]:
    return {
        "centers": shared.centers,
        "covariances": shared.covariances,
        "components": shared.coef,
        "noise": np.array(shared.sigma),
    }


FEDGMM = Algorithm(
    name="fedgmm",
    prepare=mixtures.prepare,
    program=program,
    defaults=DEFAULTS,
    client_settings=mixtures.CLIENT_SETTINGS,
    steps={
        **mixtures.START,
        **mixtures.IMPROVE,
        **mixture_starts.STEPS,
        "spread_of_x": Step(_spread, {"moments": SPREAD}),
        "expect": Step(
            _expect, {"rows": ROWS, "loglik": LOGLIK, "moments": MOMENTS, "sums": SUMS}, INPUTS
        ),
        "settle": Step(_settle, {"loglik": LOGLIK}, INPUTS),
    },
)
