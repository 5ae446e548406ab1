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

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from fedkin.algorithms.mixtures import sites
from fedkin.algorithms.mixtures.families import prepare
from fedkin.algorithms.mixtures.fedem import PlainMean
from fedkin.algorithms.mixtures.federated_start import FEDERATED_START
from fedkin.algorithms.mixtures.fedgrem import IMPROVE, TINY
from fedkin.algorithms.mixtures.result import JoinedResult
from fedkin.algorithms.mixtures.settings import POSITIVE_OR_NONE, JoinedSettings
from fedkin.arrays import Floats
from fedkin.models import joint_mixture as joint
from fedkin.models import regression_mixture as regression
from fedkin.models.latent_classes import mixture_weights
from fedkin.models.misfit import of_groups
from fedkin.protocol import (
    MISFIT,
    Algorithm,
    Ask,
    Field,
    Memory,
    Program,
    Roster,
    Step,
    TracedReply,
)
from fedkin.settings import Flag, Whole, one_of, setting

# Eigenvalues of a covariance of x are at least this share of the rows' mean variance.
SMALLEST_INPUT_EIGENVALUE_SHARE = 1e-6


class FedGmmSettings(JoinedSettings):
    """What can be set; `fedkin.FedGMM` says what each does."""

    family: str = setting("regression", one_of("gaussian", "regression"), at_site=True)
    n_input_components: int = setting(3, Whole())
    sigma: float | None = setting(None, POSITIVE_OR_NONE, at_site=True)
    fit_intercept: bool = setting(False, Flag(), at_site=True)
    max_rounds: int = setting(500, Whole())

    def check_together(self) -> None:
        """Complain about Gaussian mixtures."""
        super().check_together()
        if self.family != "regression":
            raise ValueError(
                "FedGMM models a target y beside x: family='regression'. For Gaussian mixtures use "
                "FedEM, TGMM or FedGrEM"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class FedGmmResult(JoinedResult):
    """Also M components of x; pair weights (m, M, R) where they can be seen."""

    for_all = (*JoinedResult.for_all, "input_centers", "input_covariances")

    input_centers: Floats
    input_covariances: Floats
    pair_weights: Floats | None = None

    def with_memories(self, memories: Memory, settings: Any) -> Self:
        """With the pair weights, too."""
        result = super().with_memories(memories, settings)
        if not memories or "pairs" not in memories:
            return result
        return type(self)(**{**result, "pair_weights": self.or_average(memories["pairs"])})

    @property
    def shared(self) -> joint.Shared:
        """What all sites share."""
        noise = float(self.noise[0])  # type: ignore[index]
        return joint.Shared(self.input_centers, self.input_covariances, self.centers, noise)  # type: ignore[arg-type]


# ------------------------------------------------------------------ what may leave a client

MOMENTS = Field(
    ("M", "v"),
    "weights, rows and products of x, weighted by responsibility, added up",
    reach=sites.FAR_PRODUCTS,
    reveals="products",
    empty=0.0,
)
SUMS = Field(
    ("R", "q"),
    "products of features and target, weighted by responsibility, added up",
    reach=sites.FAR_PRODUCTS,
    reveals="products",
    empty=0.0,
)
SPREAD = Field(("v",), "number of rows, sums and sums of products of x", reveals="products")
INPUTS = {
    "centers": Field(("M", "d"), "centres of x"),
    "covariances": Field(("M", "d", "d"), "covariances of x"),
    "components": Field(("R", "p"), "coefficients shared by all sites"),
    "noise": Field((), "noise shared by all sites"),
}


# ------------------------------------------------------------------ client functions


def _spread(clients, cache, settings, common, personal, memory, keys):
    """Sums that tell mean and covariance of all rows' x."""
    table = joint.moment_rows(clients.X)
    sums = [table[clients.offsets[k] : clients.offsets[k + 1]].sum(0) for k in range(len(clients))]
    return {"moments": np.array(sums).reshape(len(clients), -1)}, memory


def _expect(clients, cache, settings, common, personal, memory, keys):
    """The E-step with the site's own pair weights; sums leave, weights stay."""
    each, kept = _pairs(clients, settings, common, memory)
    reply = {
        "rows": clients.sizes.astype(float),
        "loglik": np.array([one.loglik for one in each]),
        "moments": np.array([one.moments for one in each]),
        "sums": np.array([one.packed for one in each]),
    }
    return TracedReply(reply, partial(_rows_of_groups, clients, settings, common, memory)), kept


def _rows_of_groups(clients, settings, common, memory):
    """How much every row counts in every sum."""
    weights, shared = _known(clients, common, memory)
    each = [
        joint.shares(*clients.client(k), weights[k], shared, settings.fit_intercept)
        for k in range(len(clients))
    ]
    of_x, of_y = (np.concatenate(parts) for parts in zip(*each))
    inputs = partial(joint.away, clients.X, shared)
    targets = partial(joint.away_from_regression, clients.X, clients.y, shared)
    misfit = np.maximum(
        of_groups(inputs, of_x, clients.sizes), of_groups(targets, of_y, clients.sizes)
    )
    return {"moments": of_x, "sums": of_y, MISFIT: misfit}


def _settle(clients, cache, settings, common, personal, memory, keys):
    """The site's final weights; only the likelihood leaves."""
    each, kept = _pairs(clients, settings, common, memory)
    return {"loglik": np.array([one.loglik for one in each])}, kept


def _pairs(clients, settings, common, memory):
    """Every site's E-step, and its memory with the new pair weights."""
    kept = memory or {}
    weights, shared = _known(clients, common, memory)
    each = [
        joint.expect(*clients.client(k), weights[k], shared, settings.fit_intercept)
        for k in range(len(clients))
    ]
    counts = np.array([one.pairs for one in each]).reshape(len(clients), -1)
    new = mixture_weights(counts, weights.reshape(counts.shape)).reshape(weights.shape)
    return each, {**kept, "pairs": new, "weights": new.sum(axis=1)}


def _known(clients, common, memory):
    """The sites' pair weights (m, M, R) before a step, and what all share."""
    pairs = (len(common["centers"]), len(common["components"]))
    equal = np.full((len(clients), *pairs), 1.0 / np.prod(pairs))
    return (memory or {}).get("pairs", equal), joint.Shared(*(common[name] for name in INPUTS))


# ------------------------------------------------------------------ server program


def program(roster: Roster, settings: FedGmmSettings) -> Program:
    """Start the regressions and the components of x; then sums in, shared parameters out."""
    server = PlainMean(settings, roster)
    yield from server.begin()
    server.combine()
    spread = yield Ask("spread_of_x", note="spread of x")
    shared, smallest = _first(server, spread.total("moments"))
    history: list[float] = []
    at_rest = 0
    for _ in range(settings.max_rounds):
        replies = yield Ask("expect", _message(shared), fraction=settings.fraction, note="EM")
        server.last.hear(replies)
        sums, moments = (np.nansum(server.last[name], axis=0) for name in ("sums", "moments"))
        new = _maximise(sums, moments, shared, smallest, settings.sigma)
        history.append(float(np.abs(new.coef - shared.coef).max() / max(abs(new.coef).max(), TINY)))
        shared = new
        at_rest = at_rest + 1 if history[-1] <= settings.tol else 0
        if at_rest >= settings.rounds_at_rest:
            break
    replies = yield Ask("settle", _message(shared), note="sites settle their weights")
    server.centers, server.noise = shared.coef, np.array([shared.sigma])
    server.shared = np.tile(shared.coef, (len(roster), 1, 1))
    ended = server.result(replies, history, at_rest >= settings.rounds_at_rest)
    inputs = {"input_centers": shared.centers, "input_covariances": shared.covariances}
    return FedGmmResult(**{**ended, **inputs})


def _first(server: PlainMean, moments: Floats) -> tuple[joint.Shared, float]:
    """Centres of x drawn about the mean of all rows, each with the covariance of all rows."""
    settings, centers = server.settings, server.centers
    n, rest = max(moments[0], 1.0), moments[1:]
    d = int(np.sqrt(len(rest) + 0.25))
    mean = rest[:d] / n
    covariance = rest[d:].reshape(d, d) / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    smallest = SMALLEST_INPUT_EIGENVALUE_SHARE * max(float(values.mean()), np.finfo(float).tiny)
    root = vectors * np.sqrt(np.maximum(values, smallest))
    n_inputs = settings.n_input_components
    drawn = np.random.default_rng([server.roster.seed, 0x1A9C]).normal(size=(n_inputs, d))
    noise = settings.sigma or (float(server.noise[0]) if server.noise.size else 1.0)
    covariances = np.tile(root @ root.T, (n_inputs, 1, 1))
    assert centers is not None
    return joint.Shared(mean + drawn @ root.T, covariances, centers, noise), smallest


def _maximise(
    sums: Floats, moments: Floats, shared: joint.Shared, smallest: float, sigma: float | None
) -> joint.Shared:
    coef = regression.maximise(sums, shared.coef)
    if sigma is None:
        square = sums[:, -2].sum() / max(sums[:, -1].sum(), 1.0)
        floor = regression.SMALLEST_NOISE_SHARE * (square or 1.0)
        sigma = float(regression.noise_of(sums, coef, floor))
    return joint.Shared(*joint.maximise_x(moments, shared, smallest), coef, sigma)


def _message(shared: joint.Shared) -> dict[str, Floats]:
    return dict(zip(INPUTS, map(np.asarray, shared)))


FEDGMM = Algorithm(
    name="fedgmm",
    settings=FedGmmSettings,
    prepare=prepare,
    program=program,
    result=FedGmmResult,
    steps={
        **sites.START,
        "improve": IMPROVE,
        **FEDERATED_START,
        "spread_of_x": Step(_spread, {"moments": SPREAD}),
        "expect": Step(
            _expect,
            {"rows": sites.ROWS, "loglik": sites.LOGLIK, "moments": MOMENTS, "sums": SUMS},
            INPUTS,
        ),
        "settle": Step(_settle, {"loglik": sites.LOGLIK}, INPUTS, most=1),
    },
)
